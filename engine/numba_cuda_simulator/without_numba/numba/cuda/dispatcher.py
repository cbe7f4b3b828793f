"""What @cuda.jit makes."""

import functools

from numba_cuda_simulator.without_numba.missing import needs_numba


class CUDADispatcher:
    """A kernel or a device function, for the engine to run."""

    def __init__(self, py_func, options):
        functools.update_wrapper(self, py_func)
        self.py_func, self.targetoptions = py_func, options

    def __call__(self, *args, **kwargs):
        if self.targetoptions.get("device"):
            return self.py_func(*args, **kwargs)
        raise ValueError("Kernel launch configuration was not specified: kernel[grid, block](...)")

    def __getitem__(self, configuration):
        raise needs_numba("a launch on a GPU")

    def forall(self, ntasks, tpb=0, stream=0, sharedmem=0):
        """Refuse as a launch does."""
        raise needs_numba("a launch on a GPU")
