"""Compiled kernels on disk, so that a new process need not compile them again.

Numba's own disk cache keys on the pickled device functions of a kernel, whose bytes differ in every
process: such a kernel never hits, and leaves a file behind each time. The key here is the meaning
of those functions: the bytecode of the kernel and of every function that it calls, their constants,
and what they close over. So an edit compiles anew the kernels that it changes, and no others. Only
kernels of this package are kept.

The files are in $FA_NUMBA_CACHE, by default ~/.cache/fa_numba; set it to the empty string to keep
none. `numba_cuda_simulator.kept_files` has the rules of such files: let nobody else write to the
folder. A folder or a file of another user is refused with a warning, and kernels are compiled in
each process.
"""

import dis
import functools
import hashlib
import importlib.metadata
import sys
import types
from pathlib import Path

import numpy as np

from numba_cuda_simulator.kept_files import KeptFiles

PACKAGE = Path(__file__).parents[1]  # fa_numba
# Rooms whose own kernels, which lessons draw and measure, are not kept.
NOT_KEPT = ("figures", "microscope", "torch", "workbook")
LIBRARIES = ("builtins", "math", "numba", "numpy", "operator")  # told by their versions
# Python that emits instructions: it is no bytecode of a kernel, so its text is in every key.
EMITTERS = ("ptx/*.py", "on_cuda_cores/packets.py", "runtime/bfloat16.py")
FILES = KeptFiles("FA_NUMBA_CACHE", "fa_numba", ".cubin")
folder, is_ours = FILES.folder, FILES.is_ours


class UnknownValueError(Exception):
    """A kernel uses an object whose meaning cannot be written as text."""


def load(kernel, signature: str, compute_capability: tuple) -> tuple | None:
    """Return what was saved for this kernel, these types and this GPU, or None.

    Returns
    -------
    (entry, cubin) : (str, bytes)
        The name of the kernel in its machine code, and that code.
    """
    path = _path(kernel, signature, compute_capability)
    found = path and FILES.read(path)
    if not found:
        return None
    entry, _, cubin = found.partition(b"\n")
    return entry.decode(), cubin


def save(kernel, signature: str, compute_capability: tuple, entry: str, cubin: bytes) -> None:
    """Save machine code; do nothing if that is not possible."""
    path = _path(kernel, signature, compute_capability)
    if path is not None:
        FILES.write(path, entry.encode() + b"\n" + cubin)


def _path(kernel, signature, compute_capability):
    function, where = kernel.py_func, folder()
    if where is None or not _is_kept(function.__code__.co_filename):
        return None
    try:
        key = meaning(kernel), signature, compute_capability, _versions(), _emitters_digest()
    except UnknownValueError:
        return None
    digest = hashlib.sha256(repr(key).encode()).hexdigest()
    return where / f"{function.__name__}-{digest[:32]}.cubin"


def meaning(value) -> str:
    """Return a text that is equal for equal values, in every process, and else different."""
    if hasattr(value, "_defn"):  # an intrinsic, which may have a py_func for the CPU engine
        emits = value._defn
        if not (_is_of_a_library(emits) or _is_kept(emits.__code__.co_filename)):
            raise UnknownValueError(value)
        return f"intrinsic({_name(emits)}, {meaning(_closed_over(emits))})"
    if hasattr(value, "py_func"):  # a kernel or a device function
        options = dict(value.targetoptions)
        if options.get("link"):  # its code is in other files
            raise UnknownValueError(value)
        return f"jit({meaning(value.py_func)}, {meaning(tuple(sorted(options.items())))})"
    if isinstance(value, types.FunctionType) and not _is_of_a_library(value):
        if not (hasattr(value, "source_text") or _is_kept(value.__code__.co_filename)):
            raise UnknownValueError(value)
        return _meaning_of_function(value)
    if isinstance(value, types.CodeType):
        names = value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars
        constants = meaning((*value.co_consts, *names))
        return f"code({value.co_code.hex()}, {value.co_argcount}, {constants})"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(meaning, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(meaning, value)))}}}"
    if value is None or value is ... or type(value) in (bool, int, float, str, slice):
        return repr(value)
    if isinstance(value, np.generic):
        return f"{value.dtype}({value!r})"
    if type(value).__module__.startswith("numba.") and hasattr(value, "mangling_args"):
        return f"type({value})"
    if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
        return f"{_name(value)}({value._fields}, {meaning(tuple(value._field_defaults.items()))})"
    if _is_of_a_library(value):
        return _name(value)
    raise UnknownValueError(value)


@functools.cache
def _meaning_of_function(function):
    code, read = function.__code__, [*_globals(function.__code__, function.__globals__)]
    if function.__doc__ is not None and code.co_consts[0] == function.__doc__:
        code = code.replace(co_consts=(None, *code.co_consts[1:]))
    text = meaning((code, function.__defaults__, _closed_over(function), *read))
    return f"{_name(function)}({hashlib.sha256(text.encode()).hexdigest()})"


def _globals(code, namespace):
    """Yield each global value that the code reads; of a module, the attribute that it reads."""
    instructions = [*dis.get_instructions(code)]
    for i, instruction in enumerate(instructions):
        if instruction.opname != "LOAD_GLOBAL" or instruction.argval not in namespace:
            continue  # of Python
        value = namespace[instruction.argval]
        while isinstance(value, types.ModuleType):
            i += 1
            if instructions[i].opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                raise UnknownValueError(value)
            value = getattr(value, instructions[i].argval)
        yield value
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals(constant, namespace)


def _closed_over(function):
    return tuple(cell.cell_contents for cell in function.__closure__ or ())


def _name(value):
    return f"{value.__module__}.{getattr(value, '__qualname__', value.__name__)}"


def _is_of_a_library(value):
    module = getattr(value, "__module__", None) or ""
    return module.partition(".")[0] in LIBRARIES and hasattr(value, "__name__")


def _is_kept(path) -> bool:
    """Whether machine code of a function in this file is kept."""
    path = Path(path)
    return path.is_relative_to(PACKAGE) and path.relative_to(PACKAGE).parts[0] not in NOT_KEPT


@functools.cache
def _emitters_digest():
    digest = hashlib.sha256()
    for path in sorted(path for pattern in EMITTERS for path in PACKAGE.glob(pattern)):
        digest.update(str(path.relative_to(PACKAGE)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@functools.cache
def _versions():
    names = ("numba", "numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink", "numpy")
    found = []
    for name in names:
        try:
            found.append(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            found.append(None)
    return sys.version_info[:2], *found  # a kernel's bytecode is the same in all patches of it
