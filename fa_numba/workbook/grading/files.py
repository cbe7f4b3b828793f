"""Reads the learner's file: the result is a text, or an error of one clear sentence."""

from __future__ import annotations

from pathlib import Path

LARGEST = 1 << 20  # bytes


class BadFile(Exception):
    """The file cannot be graded; the message names it and says why."""


def read_answer(path: Path) -> str:
    """The text of a learner's file.

    A link is none: it may lead to a solution, and archives keep links when they are unpacked.
    """
    if path.is_symlink():
        raise BadFile(f"{path.name} is a symbolic link, and must be a file: copy the file itself")
    if not path.exists():
        short = path.stem.split("_", 1)[0]
        raise BadFile(f"{path.name} is not there: `fa-numba reset {short}` brings it back")
    if path.is_dir():
        raise BadFile(f"{path.name} is a folder, and must be a file of Python text")
    if not path.is_file():
        raise BadFile(f"{path.name} is no ordinary file, and must be a file of Python text")
    if path.stat().st_nlink > 1:
        raise BadFile(
            f"{path.name} is a hard link: another file is one with it. It must be a file of its "
            "own: copy its text into a new file"
        )
    if path.stat().st_size > LARGEST:
        size = path.stat().st_size
        raise BadFile(
            f"{path.name} has {size:,} bytes; a file of more than {LARGEST:,} is no answer"
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadFile(f"{path.name} cannot be read: {error.strerror}") from None
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise BadFile(f"{path.name} is saved as UTF-16: save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise BadFile(f"{path.name}, line {line}, is not UTF-8: save the file as UTF-8") from None
    if "\0" in text:
        raise BadFile(f"{path.name} holds zero bytes: it is no Python text. Save it as UTF-8")
    return text
