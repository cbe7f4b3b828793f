"""The kernel's own restrictions of an answering process, by Landlock: Linux 5.13 and newer.

Landlock needs no rights of its own, cannot be lifted again, and holds for C code too. It knows
folders to allow and none to forbid, so everything beside the forbidden files is allowed: their
neighbours, the neighbours of the folders around them, and so on up to `/`. Symbolic links need no
rule, since Landlock looks at the file that a path leads to.

It stands beneath the audit hook of `guard`, which refuses the same with a better sentence.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import struct
import sys
from collections.abc import Iterable, Iterator

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls, the same on every processor
GET_VERSION, PATH_BENEATH, NO_NEW_PRIVILEGES = 1, 1, 38
WRITE_FILE, READ_FILE, TRUNCATE = 1 << 1, 1 << 2, 1 << 14
# From removing folders to making links; since version 2 moving to another folder.
CHANGES = sum(1 << bit for bit in range(4, 14))
NEWER = {2: 1 << 13, 3: TRUNCATE}  # {version: the right that it brought}
TCP, SIGNALS_AND_SOCKETS = 0b11, 0b11  # since versions 4 and 6


@functools.cache
def _libc():
    return ctypes.CDLL(None, use_errno=True)


def _call(number, *arguments):
    result = _libc().syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def version() -> int:
    """Version of Landlock in this kernel; 0 where there is none, or FA_NUMBA_LANDLOCK is 0."""
    if sys.platform != "linux" or os.environ.get("FA_NUMBA_LANDLOCK") == "0":
        return 0
    try:
        return _call(CREATE_RULESET, None, ctypes.c_size_t(0), GET_VERSION)
    except OSError:
        return 0


def _inode(path):
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def beside(forbidden: Iterable[str]) -> Iterator[str]:
    """Files and folders that together hold everything but these paths, which have no links."""
    forbidden = set(forbidden)
    files = {_inode(path) for path in forbidden}
    around = {os.path.dirname(path) for path in forbidden}
    while more := {os.path.dirname(path) for path in around} - around:
        around |= more

    def visit(folder):
        try:
            entries = [(e.path, e.is_symlink()) for e in os.scandir(folder)]
        except OSError:  # not to be listed: what leads to the forbidden files is known all the same
            entries = [(path, False) for path in around if os.path.dirname(path) == folder]
        for path, is_link in entries:
            if path in around and path not in forbidden:
                yield from visit(path)
            elif not is_link and _inode(path) not in files:  # a rule holds for all names of a file
                yield path

    yield from visit(os.sep) if forbidden else (os.sep,)


def build(forbidden: Iterable[str], readable: Iterable[str], folder: str | None) -> bool:
    """Restrict this thread, and all that it starts; False where the kernel has no Landlock.

    `forbidden` files and folders, paths without links, are not read, except for the `readable`
    files in them. `folder` is the only one where files may be written; there is no TCP either.
    Where it is None, only reading, signals and access to other processes are restricted: CUDA's
    driver opens devices and files.
    """
    if not (abi := version()):
        return False
    writes = 0
    if folder is not None:
        writes = WRITE_FILE | TRUNCATE | CHANGES
        for since, right in NEWER.items():
            writes &= ~right if abi < since else ~0
    tcp = TCP if folder is not None and abi >= 4 else 0
    scopes = SIGNALS_AND_SOCKETS if abi >= 6 else 0
    rules = struct.pack("QQQ", READ_FILE | writes, tcp, scopes)
    rules = rules[: 8 if abi < 4 else 16 if abi < 6 else 24]
    ruleset = _call(CREATE_RULESET, rules, ctypes.c_size_t(len(rules)), 0)

    def allow(path, rights):
        with contextlib.suppress(OSError):  # it has just gone, or is not for us
            fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                rule = struct.pack("=Qi", rights, fd)
                _call(ADD_RULE, ruleset, PATH_BENEATH, rule, 0)
            finally:
                os.close(fd)

    for path in (*beside(forbidden), *readable):
        allow(path, READ_FILE)
    if folder is not None:
        allow(folder, READ_FILE | writes)
        allow(os.path.realpath(os.devnull), READ_FILE | writes & (WRITE_FILE | TRUNCATE))
    _libc().prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _call(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    return True
