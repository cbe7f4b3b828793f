"""The error where a compiler is wanted and not there."""

INSTALL = "pip install numba"


class CompilerMissingError(RuntimeError):
    """A compiler is not installed or too old; the message says which, and how to install it."""


class NameMissingError(CompilerMissingError, ImportError):
    """A name of Numba that only its compiler gives a meaning."""


def needs_numba(what):
    """Return the error for what runs only if Numba compiles it."""
    return NameMissingError(f"{what} needs Numba, which is not installed: {INSTALL}")
