"""The error where a compiler is wanted and not there."""

import sys

INSTALL = "pip install numba"


class CompilerMissingError(RuntimeError):
    """A compiler is not installed or too old; the message says which, and how to install it."""


class NameMissingError(CompilerMissingError, ImportError):
    """A name of Numba that only its compiler gives a meaning."""


def needs_numba(what):
    """Return the error for what runs only if Numba compiles it."""
    if sys.platform == "emscripten":
        return NameMissingError(f"{what} needs Numba, which no browser has")
    return NameMissingError(f"{what} needs Numba, which is not installed: {INSTALL}")
