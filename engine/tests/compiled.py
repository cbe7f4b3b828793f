"""Does Numba compile a kernel for a GPU? Its compiler, libNVVM, needs none."""

import functools
from unittest import mock

import numpy as np
from numba import cuda, typeof

TARGET = (8, 0)


def compile_ptx(kernel, arguments):
    """PTX of a kernel for these arguments; Numba's error where it does not compile."""
    function = getattr(kernel, "py_func", kernel)
    # Device functions ask the present device for its compute capability: there is none.
    device = mock.Mock(compute_capability=TARGET)
    with mock.patch("numba.cuda.dispatcher.get_current_device", return_value=device):
        return cuda.compile_ptx(function, tuple(map(typeof, arguments)), cc=TARGET)[0]


@functools.cache
def compiler_available():
    """Whether there is libNVVM."""

    def one(x):
        x[0] = 1

    try:
        return bool(compile_ptx(one, [np.zeros(1)]))
    except Exception:
        return False
