"""The names of CUDA's own mathematics; the engine has the functions."""


class Function:
    """A function of libdevice, known by its name."""

    def __init__(self, name):
        self.__name__, self.__module__ = name, __name__


def __getattr__(name):
    from numba_cuda_simulator.libdevice import LIBDEVICE  # it needs names of this package itself

    if name in LIBDEVICE:
        return Function(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
