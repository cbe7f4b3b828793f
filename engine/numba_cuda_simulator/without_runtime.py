"""Imports numba-cuda where CUDA's runtime library, libcudart, is not installed.

numba-cuda 0.30 asks for the library's version when it is imported, and that raises where there is
no library: on a machine without CUDA, with numba-cuda alone. It needs the version only to choose
the form of debugging information. It is in maintenance mode, so that this module answers for it.
"""


def import_numba_cuda():
    """``import numba.cuda``; a missing library has version 0 meanwhile."""
    try:
        from cuda.bindings import runtime
    except ImportError:  # Numba's own numba.cuda, or no Numba: neither asks
        return
    ask = runtime.getLocalRuntimeVersion
    try:
        ask()
    except RuntimeError:  # DynamicLibNotFoundError
        runtime.getLocalRuntimeVersion = lambda: (runtime.cudaError_t.cudaSuccess, 0)
    try:
        import numba.cuda  # noqa: F401
    finally:
        runtime.getLocalRuntimeVersion = ask
