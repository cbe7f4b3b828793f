"""Matrix products: NumPy's, and on a GPU those of cuBLAS, called directly.

CuPy's products run in cuBLAS too. But CuPy refuses to call it while a stream is captured, which a
CUDA graph of a whole step needs, and its results have the dtype of its factors: sums of float16
products, which cuBLAS keeps in float32, would be rounded before they are scaled.

FA_NUMBA_CUBLAS=0 turns the direct calls off. Then, and where cuBLAS cannot be found under its usual
name, CuPy's products are used, and steps run without a graph.
"""

import ctypes
import functools
import os

import numpy as np

from fa_numba.runtime import arrays

# cublas_api.h, library_types.h
NOT_TRANSPOSED, TRANSPOSED = 0, 1
TYPES = {"float32": 0, "float16": 2}
IN_FLOAT32, IN_TF32 = 68, 77  # sums are float32 in both; factors are rounded to TF32 in the second
ANY_ALGORITHM = -1


class Factor:
    """A weight on a GPU: ``x @ factor`` is `product`."""

    __array_ufunc__ = None  # CuPy then leaves `@` to this class

    def __init__(self, array):
        self.array, self.dtype, self.shape = array, array.dtype, array.shape

    def __rmatmul__(self, x):
        return product(x, self.array)

    def __getitem__(self, index):
        return self.array[index]

    @property
    def T(self):
        return Factor(self.array.T)


def factors(weights) -> dict:
    """The weights as they are best multiplied: `Factor` on a GPU with cuBLAS, else unchanged."""
    first = next(iter(weights.values()))
    if arrays.library_of(first) != "cupy" or cublas(arrays.device_of(first)) is None:
        return weights
    return {name: Factor(weight) for name, weight in weights.items()}


def product(a, b, *, out=None, scale=1.0, add=False):
    """The matrix product scale · a · b.

    Parameters
    ----------
    a, b : arrays of shape (rows, n) and (n, columns), float32 or float16
        Fastest if the rows or the columns of each are contiguous. Without `out` both may have an
        axis before these: a product for each index.
    out : array of shape (rows, columns), optional
        Float32, contiguous; by default a new array of the dtype of a.
    scale : float, default=1.0
    add : bool, default=False
        Add to `out` instead of writing it.

    Returns
    -------
    array of shape (rows, columns), or (number, rows, columns)
    """
    library = None if isinstance(a, np.ndarray) else cublas(arrays.device_of(a))
    if library is None:
        return _plain_product(a, b, out, scale, add)
    if out is None:
        out = arrays.module_of(a).empty((*a.shape[:-1], b.shape[-1]), a.dtype)
    each = zip(a, b, out, strict=True) if a.ndim == 3 else [(a, b, out)]
    for factors_and_out in each:
        call_gemm(library, *factors_and_out, scale, add)
    return out


def _plain_product(a, b, out, scale, add):
    if out is None or add or scale != 1:
        y = a @ b
        if scale != 1:
            y = y.astype(np.float32) * np.float32(scale)
        if out is None:
            return y
        out[:] = out + y if add else y
        return out
    return arrays.module_of(a).dot(a, b, out=out)


def call_gemm(library, a, b, out, scale, add):
    """Call cublasGemmEx, whose matrices have contiguous columns: it computes outᵀ = bᵀ · aᵀ.

    Parameters
    ----------
    library : (library, handle)
        As from `cublas`.
    a, b, out, scale, add
        As for `product`.
    """
    (rows, n), columns = a.shape, b.shape[1]
    lib, handle = library
    alpha, beta = ctypes.c_float(scale), ctypes.c_float(1.0 if add else 0.0)
    tf32 = a.dtype == np.float32 and int(os.environ.get("CUPY_TF32", "0")) > 0
    a, b = map(_with_contiguous_axis, (a, b))
    (transposed_a, a_step), (transposed_b, b_step) = map(_layout, (a, b))
    stream = None if isinstance(a, np.ndarray) else _cupy().cuda.get_current_stream().ptr
    _check(lib.cublasSetStream_v2(handle, stream))
    _check(
        lib.cublasGemmEx(
            handle, transposed_b, transposed_a, columns, rows, n, ctypes.byref(alpha),
            _address(b), TYPES[b.dtype.name], b_step, _address(a), TYPES[a.dtype.name], a_step,
            ctypes.byref(beta), _address(out), TYPES[out.dtype.name], columns,
            IN_TF32 if tf32 else IN_FLOAT32, ANY_ALGORITHM,
        )
    )  # fmt: skip


def _with_contiguous_axis(x):
    return x if _layout(x) else arrays.module_of(x).ascontiguousarray(x)


def _layout(x):
    """Whether cuBLAS must transpose xᵀ, and the step between its columns, in elements.

    None if neither the rows nor the columns of x are contiguous.
    """
    down, across = (stride // x.itemsize for stride in x.strides)
    if across == 1 and down >= x.shape[1]:
        return NOT_TRANSPOSED, down
    if down == 1 and across >= x.shape[0]:
        return TRANSPOSED, across
    return None


def _address(x):
    return x.ctypes.data if isinstance(x, np.ndarray) else x.data.ptr


def _cupy():
    import cupy

    return cupy


@functools.cache
def cublas(device):
    """cuBLAS, and a handle on a device; None where it is not found.

    Parameters
    ----------
    device : int
        The current one.

    Returns
    -------
    (library, handle) or None
    """
    if os.environ.get("FA_NUMBA_CUBLAS", "1") == "0":
        return None
    cupy = _cupy()
    cupy.cuda.device.get_cublas_handle()  # CuPy has then loaded the library, wherever it is
    version = cupy.cuda.runtime.runtimeGetVersion() // 1000
    try:
        library = ctypes.CDLL(f"libcublas.so.{version}")
        gemm = library.cublasGemmEx
    except (OSError, AttributeError):
        return None
    matrix = ctypes.c_void_p, ctypes.c_int, ctypes.c_int  # address, type, step
    number = ctypes.c_void_p
    library.cublasSetStream_v2.argtypes = ctypes.c_void_p, ctypes.c_void_p
    gemm.argtypes = (
        ctypes.c_void_p, *[ctypes.c_int] * 5, number, *matrix, *matrix, number, *matrix,
        ctypes.c_int, ctypes.c_int,
    )  # fmt: skip
    handle = ctypes.c_void_p()
    _check(library.cublasCreate_v2(ctypes.byref(handle)))
    return library, handle


def _check(status):
    if status:
        raise RuntimeError(f"cuBLAS failed with status {status}")
