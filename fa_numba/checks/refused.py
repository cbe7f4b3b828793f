"""Errors by which a kernel refuses arrays, options or a GPU that another kernel may take.

A job tries its next candidate where a check raises one of these, and only then: any other error in
a check is a programming error, and reaches the caller.
"""


class RefusedError(Exception):
    """This kernel cannot take the arguments; another one may."""


class RefusedTypeError(RefusedError, TypeError):
    """It cannot take their dtype, or arrays of this library."""


class RefusedValueError(RefusedError, ValueError):
    """It cannot take their sizes, strides or options."""


class RefusedGpuError(RefusedError, RuntimeError):
    """It cannot run on their GPU."""
