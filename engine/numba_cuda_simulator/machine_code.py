"""Machine code of the second gear: loaded, called, and kept on disk for the next process.

A file's name is a digest of all that the code depends on: the kernel as it was written anew, its
types, this engine, the versions of what compiled it, and the processor. The file holds a line of
JSON and object code; `kept_files` has the rules of such files. They are in $SIMT_CACHE, by default
~/.cache/numba_cuda_simulator; set it to the empty string to keep none.
"""

import ctypes
import functools
import hashlib
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm
import numba
import numpy as np
from numba.core.codegen import JITCPUCodegen

from .kept_files import KeptFiles
from .native import loop_of

SUFFIX = ".code"
FILES = KeptFiles("SIMT_CACHE", "numba_cuda_simulator", SUFFIX)


@dataclass(frozen=True)
class MachineCode:
    """A compiled kernel.

    Attributes
    ----------
    entry : str
        Name of its function; empty if the kernel cannot be compiled.
    dtypes : dict
        Names of the NumPy types of variables that live in arrays.
    loops : list of str
        Names of what holds the addresses of NumPy's loops: see `native.call_loop`.
    content : bytes
        The object code.
    """

    entry: str
    dtypes: dict
    loops: list
    content: bytes


class Loaded:
    """Machine code in memory, ready to be called."""

    def __init__(self, code):
        self.codegen = JITCPUCodegen("numba_cuda_simulator")  # of its own: names may be the same
        engine = self.codegen._engine._ee
        engine.add_object_file(llvm.ObjectFileRef.from_data(code.content))
        engine.finalize_object()
        for name in code.loops:
            _, ufunc, dtype = name.split(".")
            place = (ctypes.c_void_p * 2).from_address(engine.get_global_value_address(name))
            place[:] = loop_of(getattr(np, ufunc), np.dtype(dtype))
        self.address = engine.get_function_address(code.entry)

    def __call__(self, arguments):
        """Call it without the interpreter's lock; return whether Numba's code raised an error."""
        values = [ctypes.pointer((ctypes.c_void_p * 4)()), ctypes.pointer(ctypes.c_void_p())]
        for x in arguments:
            values += flattened(x)
        return ctypes.CFUNCTYPE(ctypes.c_int32, *map(type, values))(self.address)(*values) != 0


def flattened(value):
    """Return an argument as Numba's functions take it: an array is one of many."""
    if isinstance(value, np.ndarray):
        words = value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides
        return [ctypes.c_void_p(), ctypes.c_void_p(), *map(ctypes.c_int64, words)]
    if isinstance(value, np.generic):
        return [np.ctypeslib.as_ctypes_type(value.dtype)(value.item())]
    return [ctypes.c_int64(value)]


def digest(*meaning):
    """Return a name for what has this meaning, on this processor, with these versions."""
    numbers = numba.__version__, llvmlite.__version__, np.__version__, sys.version_info[:2]
    text = repr((meaning, numbers, source_digest(), JITCPUCodegen("key").magic_tuple()))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@functools.cache
def source_digest():
    """Digest of the engine, whose rules are in the machine code."""
    result = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        result.update(path.read_bytes() + b"\0")
    return result.hexdigest()


# ------------------------------------------------------------------ files


def load(key):
    """Return the machine code that was saved under a key, or None."""
    where = FILES.folder()
    found = where and FILES.read(where / (key + SUFFIX))
    if not found:
        return None
    head, _, content = found.partition(b"\n")
    return MachineCode(**json.loads(head), content=content)


def save(key, code):
    """Save machine code; do nothing if that is not possible."""
    where = FILES.folder()
    if where is None:
        return
    head = {name: value for name, value in asdict(code).items() if name != "content"}
    FILES.write(where / (key + SUFFIX), json.dumps(head).encode() + b"\n" + code.content)
