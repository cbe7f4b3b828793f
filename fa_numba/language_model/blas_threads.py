"""The number of BLAS's threads, for products of small matrices.

The threads of OpenBLAS spin while they wait for each other after each product. The products of a
small model take less than a millisecond, and where another program has one of the cores, a thread
that waits for it takes many times as long. One thread is nearly as fast on a free machine.
"""

import contextlib
import functools


@functools.cache
def _controller():
    try:
        import threadpoolctl
    except ImportError:
        return None
    return threadpoolctl.ThreadpoolController()


def one_blas_thread():
    """A context in which BLAS has one thread, if threadpoolctl is installed."""
    controller = _controller()
    if controller is None:
        return contextlib.nullcontext()
    return controller.limit(limits=1, user_api="blas")
