"""Compiled kernels on disk, so that a new process need not compile them again.

Numba's own disk cache keys on the pickled device functions of a kernel, whose bytes differ in every
process: such a kernel never hits, and leaves a file behind each time. The key here is the meaning
of those functions: the source of this package, the name of the kernel, and the constants that
the kernel and its functions close over. Only kernels of this package are kept, because only their
source is in the key.

The files are in $FA_NUMBA_CACHE, by default ~/.cache/fa_numba; set it to the empty string to keep
none. `numba_cuda_simulator.kept_files` has the rules of such files: let nobody else write to the
folder. A folder or a file of another user is refused with a warning, and kernels are compiled in
each process.
"""

import functools
import hashlib
import importlib.metadata
import sys
import types
from pathlib import Path

import numpy as np

from numba_cuda_simulator.kept_files import KeptFiles

PACKAGE = Path(__file__).parents[1]  # fa_numba
# Rooms that no fast kernel needs: a change there compiles nothing anew, and their own kernels,
# which lessons draw and measure, are not kept.
NOT_IN_KEY = ("course", "figures", "microscope", "torch", "workbook")
FILES = KeptFiles("FA_NUMBA_CACHE", "fa_numba", ".cubin")
folder, is_ours = FILES.folder, FILES.is_ours


class UnknownValueError(Exception):
    """A kernel closes over an object whose meaning cannot be written as text."""


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
    if where is None or not _in_key(function.__code__.co_filename):
        return None
    try:
        key = meaning(kernel), signature, compute_capability, _versions(), source_digest()
    except UnknownValueError:
        return None
    digest = hashlib.sha256(repr(key).encode()).hexdigest()
    return where / f"{function.__name__}-{digest[:32]}.cubin"


def meaning(value) -> str:
    """Return a text that is equal for equal values, in every process, and else different.

    For a function it holds the name and the values closed over; its code is in `source_digest`.
    """
    if hasattr(value, "_defn"):  # an intrinsic, which may have a py_func for the CPU engine
        return f"intrinsic({meaning(value._defn)})"
    if hasattr(value, "py_func"):  # a kernel or a device function
        options = dict(value.targetoptions)
        if options.get("link"):  # its code is in other files
            raise UnknownValueError(value)
        return f"jit({meaning(value.py_func)}, {meaning(tuple(sorted(options.items())))})"
    if hasattr(value, "source_text"):  # of fa_numba.expressions
        return f"text({value.source_text!r})"
    if isinstance(value, types.FunctionType):
        if not _in_key(value.__code__.co_filename):
            raise UnknownValueError(value)
        cells = tuple(cell.cell_contents for cell in value.__closure__ or ())
        return f"{value.__module__}.{value.__qualname__}{meaning(cells)}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(meaning, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(meaning, value)))}}}"
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
    if isinstance(value, np.generic):
        return f"{value.dtype}({value!r})"
    if type(value).__module__.startswith("numba.") and hasattr(value, "mangling_args"):
        return f"type({value})"
    raise UnknownValueError(value)


def _in_key(path) -> bool:
    """Whether a file is one of this package that counts in the key."""
    path = Path(path)
    return path.is_relative_to(PACKAGE) and path.relative_to(PACKAGE).parts[0] not in NOT_IN_KEY


@functools.cache
def source_digest():
    """Digest of all source files of this package on which a kernel may depend."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        if not _in_key(path):
            continue
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
