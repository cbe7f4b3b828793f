"""Compiled kernels on disk, so that a new process need not compile them again.

Numba's own disk cache keys on the pickled device functions of a kernel, whose bytes differ in every
process: such a kernel never hits, and leaves a file behind each time. The key here is the meaning
of those functions: the source of this package, the name of the kernel, and the constants that
the kernel and its functions close over. Only kernels of this package are kept, because only their
source is in the key.

The files are in $FA_NUMBA_CACHE, by default ~/.cache/fa_numba; set it to the empty string to keep
none. A file that has not been used for 60 days is removed.

A file here is code that runs as this user. So whoever can write to the folder can run code as this
user: let nobody else write there. A folder or a file of another user, root excepted, is refused
with a warning; kernels are then compiled in each process.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import sys
import tempfile
import time
import types
import warnings
from pathlib import Path

import numpy as np

PACKAGE = Path(__file__).parents[1]  # fa_numba
# Rooms that no fast kernel needs: a change there compiles nothing anew, and their own kernels,
# which lessons draw and measure, are not kept.
NOT_IN_KEY = ("course", "figures", "microscope", "torch", "workbook")
KEPT_DAYS = 60  # since a file was last used
DIGEST_BYTES = hashlib.sha256().digest_size


class UnknownValueError(Exception):
    """A kernel closes over an object whose meaning cannot be written as text."""


def folder() -> Path | None:
    """Return the folder of the files, or None if none are kept."""
    chosen = os.environ.get("FA_NUMBA_CACHE")
    if chosen == "":
        return None
    try:
        default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "fa_numba")
    except RuntimeError:  # this user has no home
        default = None
    found = default if chosen is None else Path(chosen)
    return found if found is not None and is_ours(found) else None


def is_ours(path) -> bool:
    """Return whether a folder or a file is this user's, or root's, or not there; else warn."""
    try:
        owners = {os.lstat(path).st_uid, os.stat(path).st_uid}  # of a link, and of its target
    except OSError:
        return True
    strangers = owners - {0, getattr(os, "geteuid", int)()}
    for owner in strangers:
        _warn(str(path), owner)
    return not strangers


@functools.cache  # once
def _warn(path, owner):
    warnings.warn(
        f"{path} belongs to user {owner}, who could change the compiled code in it: it is not "
        "used. FA_NUMBA_CACHE must name a folder to which nobody but you can write",
        RuntimeWarning,
        stacklevel=2,
    )


def load(kernel, signature: str, compute_capability: tuple) -> tuple | None:
    """Return what was saved for this kernel, these types and this GPU, or None.

    Returns
    -------
    (entry, cubin) : (str, bytes)
        The name of the kernel in its machine code, and that code.
    """
    path = _path(kernel, signature, compute_capability)
    try:
        content = path.read_bytes() if path and is_ours(path) else b""
    except OSError:
        return None
    digest, rest = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    if not rest or hashlib.sha256(rest).digest() != digest:  # cut short, or another file
        return None
    entry, _, cubin = rest.partition(b"\n")
    with contextlib.suppress(OSError):
        os.utime(path)  # used now
    return entry.decode(), cubin


def save(kernel, signature: str, compute_capability: tuple, entry: str, cubin: bytes) -> None:
    """Save machine code; do nothing if that is not possible."""
    path = _path(kernel, signature, compute_capability)
    if path is None:
        return
    rest = entry.encode() + b"\n" + cubin
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written under another name, then moved: another process sees all of it, or nothing.
        file = tempfile.NamedTemporaryFile(dir=path.parent, delete=False)
        try:
            with file:
                file.write(hashlib.sha256(rest).digest() + rest)
            os.replace(file.name, path)
        except BaseException:  # no room, for instance
            os.unlink(file.name)
            raise
        unused_since = time.time() - KEPT_DAYS * 24 * 3600
        for old in path.parent.glob("*.cubin"):  # mostly of older versions of this package
            if old.stat().st_mtime < unused_since:
                old.unlink()


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
