"""Machine code of the second gear: loaded, called, and kept on disk for the next process.

A file's name is a digest of all that the code depends on: the kernel as it was written anew, its
types, this engine, the versions of what compiled it, and the processor. The file holds a checksum,
a line of JSON and object code. It is written under another name and then moved, so that another
process sees all of it or nothing.

The files are in $SIMT_CACHE, by default ~/.cache/numba_cuda_simulator; set it to the empty string
to keep none. Whoever can write there can run code as this user. So a folder or a file of another
user, root excepted, is refused with a warning; kernels are then compiled in each process. A file
that has not been used for 60 days is removed.
"""

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm
import numba
import numpy as np
from numba.core.codegen import JITCPUCodegen

from .native import loop_of

SUFFIX = ".code"
KEPT_DAYS = 60  # since a file was last used
DIGEST_BYTES = hashlib.sha256().digest_size


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


def folder():
    """Return the folder of the files, or None if none are kept."""
    chosen = os.environ.get("SIMT_CACHE")
    if chosen is None:
        try:
            chosen = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        except RuntimeError:  # this user has no home
            return None
        chosen = Path(chosen, "numba_cuda_simulator")
    return Path(chosen) if chosen and is_ours(chosen) else None


def is_ours(path):
    """Tell whether a folder or a file is this user's, or root's, or not there; else warn."""
    try:
        owners = {os.lstat(path).st_uid, os.stat(path).st_uid}  # of a link, and of its target
    except OSError:
        return True
    strangers = owners - {0, getattr(os, "geteuid", int)()}
    for owner in strangers:
        warn(str(path), owner)
    return not strangers


@functools.cache  # once
def warn(path, owner):
    warnings.warn(
        f"{path} belongs to user {owner}, who could change the compiled code in it: it is not "
        "used. SIMT_CACHE must name a folder to which nobody but you can write",
        RuntimeWarning,
        stacklevel=2,
    )


def load(key):
    """Return what was saved under a key, or None."""
    where = folder()
    path = where and where / (key + SUFFIX)
    try:
        data = path.read_bytes() if path and is_ours(path) else b""
    except OSError:
        return None
    checksum, rest = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
    if not rest or hashlib.sha256(rest).digest() != checksum:  # cut short, or another file
        return None
    head, _, content = rest.partition(b"\n")
    with contextlib.suppress(OSError):
        os.utime(path)  # used now
    return MachineCode(**json.loads(head), content=content)


def save(key, code):
    """Save machine code; do nothing if that is not possible."""
    where = folder()
    if where is None:
        return
    head = {name: value for name, value in asdict(code).items() if name != "content"}
    rest = json.dumps(head).encode() + b"\n" + code.content
    with contextlib.suppress(OSError):
        where.mkdir(parents=True, exist_ok=True)
        file = tempfile.NamedTemporaryFile(dir=where, delete=False)
        try:
            with file:
                file.write(hashlib.sha256(rest).digest() + rest)
            os.replace(file.name, where / (key + SUFFIX))
        except BaseException:  # no room, for instance
            os.unlink(file.name)
            raise
        unused_since = time.time() - KEPT_DAYS * 24 * 3600
        for old in where.glob("*" + SUFFIX):
            if old.stat().st_mtime < unused_since:
                old.unlink()
