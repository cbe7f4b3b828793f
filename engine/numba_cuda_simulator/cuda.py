"""`cuda` of the engine itself: from numba_cuda_simulator import cuda.

Kernels written with it run on the engine wherever they are, with or without Numba, and no program
around them changes.

    @cuda.jit
    def double(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] *= 2

    double[grid, block](x)
"""

import functools

import numpy as np

from .errors import LaunchError, explain
from .hook import Launcher, blocks_for, configure
from .host import STAND_INS
from .names import PLACEHOLDERS
from .present import PRESENT, PRETENDED
from .signatures import parsed_signatures


class Kernel:
    """A function decorated with @cuda.jit: a kernel, or a device function."""

    def __init__(self, function, signatures=(), device=False):
        functools.update_wrapper(self, function)
        self.py_func = function
        self._simt_signatures = signatures
        self.targetoptions = {"device": device}

    def __getitem__(self, configuration):
        __tracebackhide__ = True
        return Launcher(self, configuration)

    configure, forall = configure, blocks_for

    def __call__(self, *arguments):
        __tracebackhide__ = True
        name = self.__name__
        raise explain(
            LaunchError(f"a kernel is launched as {name}[grid, block](...), not as {name}(...)")
        )


def jit(func_or_sig=None, device=False, **options):
    """@cuda.jit, @cuda.jit("void(float32[:])") or @cuda.jit(device=True).

    Options of Numba's compiler (fastmath, opt, lineinfo, ...) are taken and change nothing.
    """
    if hasattr(func_or_sig, "__code__"):
        return Kernel(func_or_sig, (), device)
    signatures = () if func_or_sig is None else parsed_signatures(func_or_sig, device)
    return lambda function: Kernel(function, signatures, device)


NUMBERS = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
globals().update({name: getattr(np, name) for name in (*NUMBERS, "complex64", "complex128")})
globals().update(PLACEHOLDERS | STAND_INS | PRESENT | PRETENDED)
boolean = np.bool_
