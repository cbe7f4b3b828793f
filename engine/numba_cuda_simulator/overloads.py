"""Methods and attributes of a kernel about its compiled versions, where nothing is compiled.

    kernel.signatures, kernel.overloads[types].max_cooperative_grid_blocks(256),
    kernel.specialize(x, y), kernel.get_regs_per_thread(), kernel.inspect_asm(), ...

Numba's own methods ask the entries of `kernel.overloads`. Here these are NotCompiled: they know
the GPU's limits, and refuse to tell of machine code.
"""

import math
import weakref
from enum import Enum

import numpy as np
from numba import types
from numba.core.errors import NumbaError
from numba.core.sigutils import normalize_signature

from .devices import chip
from .errors import FieldError
from .host import host_value
from .options import current_options

ENTERED = weakref.WeakSet()  # the kernels whose overloads hold a NotCompiled


class NotCompiled:
    """The entry of a kernel's `overloads` for the types of one launch."""

    max_threads_per_block = 1024
    objectmode, entry_point = False, None

    def __init__(self, name, args):
        self.name, self.signature = name, types.void(*args)

    def max_cooperative_grid_blocks(self, blockdim, dynsmemsize=0):
        """Return how many blocks the GPU holds at once, however many registers they need."""
        device = chip(current_options().device)
        threads = math.prod(blockdim) if isinstance(blockdim, tuple) else blockdim
        blocks = device.threads // threads
        if dynsmemsize:
            blocks = min(blocks, device.shared_bytes_per_block // dynsmemsize)
        return device.num_sms * blocks

    def __getattr__(self, attribute):
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        raise FieldError(
            f"'{self.name}' has no {attribute}: it runs on the CPU, and is not compiled for a GPU",
            hint="cuda.compile_ptx(function, signature) compiles where there is no GPU.",
        )


def note_launch(kernel, arguments):
    """Enter the types of a launch into a kernel's overloads, as if it had been compiled."""
    seen = kernel.__dict__.setdefault("_simt_launched", set())
    kinds = tuple(map(kind, arguments))
    if kinds in seen:
        return
    seen.add(kinds)
    try:
        enter(kernel, types_of(kernel, arguments))
    except (ValueError, NumbaError):  # what Numba has no type for
        return


def kind(x):
    """Tell arguments of different types apart, sooner than Numba can."""
    return (x.dtype, x.ndim, x.flags.num) if isinstance(x, np.ndarray) else type(x)


def types_of(kernel, arguments):
    arguments = (x if isinstance(x, Enum) else getattr(x, "value", x) for x in arguments)
    return tuple(kernel.typeof_pyval(host_value(x)) for x in arguments)  # of cuda.Out(x): x


def enter(kernel, args):
    ENTERED.add(kernel)
    return kernel.overloads.setdefault(args, NotCompiled(kernel.py_func.__name__, args))


def forget():
    """Take all entries out again, when Numba's own launches are back."""
    for kernel in ENTERED:
        kernel.__dict__.pop("_simt_launched", None)
        kernel.overloads.clear()
        kernel._specialized = False
    ENTERED.clear()


def compile_for(kernel, sig):
    """kernel.compile(signature), which compiles nothing."""
    return enter(kernel, normalize_signature(sig)[0])


def specialize(kernel, *arguments):
    """kernel.specialize(x, y): a kernel for these types alone."""
    if kernel.specialized:
        raise RuntimeError("Dispatcher already specialized")
    args = types_of(kernel, arguments)
    found = kernel.specializations.get(args)
    if found is None:
        found = type(kernel)(kernel.py_func, targetoptions=kernel.targetoptions)
        enter(found, args)
        found.disable_compile()
        found._specialized = True
        kernel.specializations[args] = found
    return found
