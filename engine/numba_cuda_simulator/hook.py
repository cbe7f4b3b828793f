"""Make Numba's own syntax, kernel[grid, block](*arrays), run on the engine.

Only the subscript of kernel objects is replaced, and what would touch a driver: to_device and
friends, and compilation at decoration time for kernels with a signature. This module and
`names` are the only ones that know Numba's internals.
"""

import functools
from collections import ChainMap

from numba import cuda

from .errors import LaunchError, explain
from .host import STAND_INS, refuse_ufunc
from .launch import launch
from .names import PLACEHOLDERS
from .signatures import parsed_signatures

try:
    from numba.np.ufunc.decorators import GUVectorize, Vectorize

    UFUNCS = Vectorize, GUVectorize
except ImportError:  # without Numba
    UFUNCS = ()

_originals = []  # (object, attribute, its value or MISSING), to undo
MISSING = object()


def is_simulator():
    """Tell whether Numba's own simulator is switched on (NUMBA_ENABLE_CUDASIM=1)."""
    return not hasattr(cuda, "driver")


def has_gpu():
    """Tell whether Numba can use a GPU here."""
    return not is_simulator() and cuda.is_available()


def kernel_class():
    """Return the class of the objects that @cuda.jit makes."""
    if is_simulator():
        from numba.cuda.simulator.kernel import FakeCUDAKernel

        return FakeCUDAKernel
    from numba.cuda.dispatcher import CUDADispatcher

    return CUDADispatcher


class Launcher:
    """kernel[grid, block, stream, shared_bytes], ready to be called."""

    def __init__(self, kernel, configuration):
        __tracebackhide__ = True
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
            raise explain(
                LaunchError(
                    "a kernel is launched as kernel[grid, block](...), with a stream and the bytes "
                    f"of dynamic shared memory after them if need be; got {configuration!r}"
                )
            )
        self.kernel = kernel
        self.grid, self.block = configuration[:2]
        self.shared_bytes = configuration[3] if len(configuration) == 4 else 0

    def __call__(self, *args, **keywords):
        __tracebackhide__ = True
        if keywords:
            name = next(iter(keywords))
            raise explain(LaunchError(f"a kernel's arguments have no keywords; got {name}=..."))
        error = launch(self.kernel, self.grid, self.block, args, self.shared_bytes)
        if error is not None:
            raise error


def getitem(kernel, configuration):
    __tracebackhide__ = True
    return Launcher(kernel, configuration)


def forall(kernel, ntasks, tpb=0, stream=0, sharedmem=0):
    """kernel.forall(n): one thread for each of n tasks."""
    __tracebackhide__ = True
    if ntasks < 0:
        raise explain(LaunchError(f"forall() takes a number of tasks from 0 on, got {ntasks}"))
    if ntasks == 0:
        return lambda *args: None
    threads = tpb or 128
    return Launcher(kernel, (-(-int(ntasks) // threads), threads, stream, sharedmem))


def without_signature(jit):
    """Wrap cuda.jit so that a signature is noted, and asks for no GPU at decoration time."""

    @functools.wraps(jit)
    def lazy_jit(func_or_sig=None, *args, **kwargs):
        if func_or_sig is None or hasattr(func_or_sig, "__code__"):
            return jit(func_or_sig, *args, **kwargs)
        device = kwargs.get("device", args[0] if args else False)
        signatures = parsed_signatures(func_or_sig, device)
        decorate = jit(None, *args, **kwargs)

        def with_signatures(function):
            kernel = decorate(function)
            kernel._simt_signatures = signatures
            return kernel

        return with_signatures

    return lazy_jit


def enable():
    """Run `kernel[grid, block](*numpy_arrays)` on the engine from now on."""
    if _originals:
        return
    kernel = kernel_class()
    replace(kernel, "__getitem__", getitem)
    replace(kernel, "forall", forall)
    replace(cuda, "jit", without_signature(cuda.jit))
    if is_simulator():
        # The simulator lacks these names, so that `from numba.cuda import threadIdx` fails.
        for name, placeholder in PLACEHOLDERS.items():
            if not hasattr(cuda, name):
                replace(cuda, name, placeholder)
        return
    for name, stand_in in STAND_INS.items():
        replace(cuda, name, stand_in)
    for decorator in UFUNCS:
        refused = {"cuda": refuse_ufunc(decorator.__name__.lower())}
        replace(decorator, "target_registry", ChainMap(refused, decorator.target_registry))


def disable():
    """Give Numba its own launches back."""
    while _originals:
        owner, attribute, value = _originals.pop()
        if value is MISSING:
            delattr(owner, attribute)
        else:
            setattr(owner, attribute, value)


def replace(owner, attribute, value):
    _originals.append((owner, attribute, vars(owner).get(attribute, MISSING)))
    setattr(owner, attribute, value)


def is_enabled():
    """Tell whether kernel[grid, block] runs on the engine."""
    return bool(_originals)
