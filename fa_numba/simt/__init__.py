"""A CPU engine for Numba-CUDA kernels: all threads in lockstep, every access checked."""

from . import errors
from .hook import disable, enable, has_gpu, is_enabled
from .launch import run, trace, tracing
from .options import options
from .recording import record

__all__ = [
    "disable",
    "enable",
    "errors",
    "has_gpu",
    "is_enabled",
    "options",
    "record",
    "run",
    "trace",
    "tracing",
]
