"""Numba's rules of types, where they differ from NumPy's.

A lane value is a NumPy scalar or array. int64, float16, float32 and float64 follow the
same rules in NumPy and Numba. Every other integer type does not: uint8 + uint8 is uint64
in Numba and uint8 in NumPy; int8 + float32 is float32 in both but int32 + float32 is
float64. Such values are carried by `TypedInts`, which applies Numba's rule and returns a
plain value as soon as the result is an int64 or a float.
"""

import functools

import numpy as np

INT64, UINT64, INTP = map(np.dtype, (np.int64, np.uint64, np.intp))
FLOAT16, FLOAT32, FLOAT64 = map(np.dtype, (np.float16, np.float32, np.float64))
BOOL = np.dtype(bool)

# Integers that Numba converts to float32 beside a float32; wider ones make it float64.
FITS_FLOAT32 = {np.dtype(t) for t in (bool, np.int8, np.uint8, np.int16)}
FITS_FLOAT16 = {np.dtype(t) for t in (bool, np.int8, np.uint8)}  # the same beside a float16

BITWISE = {np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.invert}
SHIFTS = {np.left_shift, np.right_shift}
ARITHMETIC = {np.add, np.subtract, np.multiply, np.true_divide, np.floor_divide}
ARITHMETIC |= {np.remainder, np.power, np.negative, np.positive}
COMPARISONS = {np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal}
AT_OWN_WIDTH = {np.invert, np.negative}  # Numba widens their result, not their operand


class TypedInts(np.ndarray):
    """Lane integers that are not int64 (int32, uint8, bool loaded from memory, ...)."""

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        plain = [x.view(np.ndarray) if type(x) is TypedInts else x for x in inputs]
        if ufunc in BITWISE or ufunc in SHIFTS or ufunc in ARITHMETIC:
            if ufunc in AT_OWN_WIDTH and plain[0].dtype != BOOL:
                result = ufunc(plain[0])
                return typed(result.astype(result_dtype(ufunc, [result.dtype])))
            try:
                dtypes = [x.dtype for x in plain]
            except AttributeError:  # True or False, as it stands in the kernel
                plain = [np.asarray(x) for x in plain]
                dtypes = [x.dtype for x in plain]
            dtype = result_dtype(ufunc, dtypes)
            plain = [x if x.dtype == dtype else x.astype(dtype) for x in plain]
        elif ufunc in COMPARISONS:
            plain = as_one_type(*plain)
        result = getattr(ufunc, method)(*plain, **kwargs)
        return typed(result) if isinstance(result, (np.ndarray, np.generic)) else result


def as_one_type(a, b):
    """Return two numbers to compare or to divide: a signed integer and a uint64 as float64.

    No integer type holds both. Numba's +, -, *, //, % and ** take them as int64 all the same.
    """
    kinds = {getattr(x, "dtype", BOOL) for x in (a, b)}
    if UINT64 in kinds and any(d.kind == "i" for d in kinds):
        return a.astype(FLOAT64), b.astype(FLOAT64)
    return a, b


@functools.cache
def is_floating(dtype):
    """Tell whether a type is of real or complex numbers; NumPy counts bfloat16 as neither."""
    return dtype.kind in "fc" or dtype.name == "bfloat16"


def result_dtype(ufunc, dtypes):
    """Return the type in which Numba computes an operation on these operands."""
    floats = [d for d in dtypes if is_floating(d)]
    if floats:
        ints = [d for d in dtypes if not is_floating(d)]
        if FLOAT16 in floats and all(d in FITS_FLOAT16 for d in ints):
            return np.result_type(*floats)
        ints = [FLOAT32 if d in FITS_FLOAT32 else FLOAT64 for d in ints]
        return np.result_type(*floats, *ints)
    if ufunc is np.true_divide:
        return FLOAT64
    if ufunc in BITWISE and all(d == BOOL for d in dtypes):
        return BOOL
    if ufunc in SHIFTS:
        dtypes = dtypes[:1]
    return UINT64 if all(d.kind == "u" for d in dtypes) else INT64


def typed(value):
    """Return a value from memory or a cast as a lane value of Numba's type."""
    dtype = value.dtype
    if dtype == INT64 or dtype.kind not in "iub":
        if isinstance(value, TypedInts):
            value = value.view(np.ndarray)
        return value[0, 0, 0, 0] if value.ndim == 4 and value.size == 1 else value
    if not isinstance(value, np.ndarray) or value.ndim == 0:
        value = np.asarray(value).reshape(1, 1, 1, 1)
    return value.view(TypedInts)


def as_index(value):
    """Return integers as plain int64: a scalar where all threads agree."""
    plain = value.view(np.ndarray)
    if plain.size == 1:
        return np.int64(plain.item())
    return plain.astype(np.int64)


def as_intp(index):
    """Return integers as `take` and `bincount` want them: in a browser of 32 bits."""
    plain = type(index) is np.ndarray and index.dtype is INTP
    return index if plain else np.asarray(index, np.intp)


def as_bool(value):
    """Return a truth value or plain boolean array."""
    if value.dtype != BOOL:
        return value != 0
    return value.view(np.ndarray) if type(value) is TypedInts else value


def stretch(value, shape):
    """Return np.broadcast_to(value, shape), at once where there is nothing to do."""
    if type(value) is np.ndarray and value.shape == shape:
        return value
    return np.broadcast_to(value, shape)  # a plain array, also of TypedInts


def common_shape(a, b):
    return a if a == b else np.broadcast_shapes(a, b)


def select(mask, new, old):
    """Return `new` where `mask`, else `old`, in the type that holds both."""
    result = np.where(mask, new, old)
    if result.dtype.kind in "iu" and result.dtype != INT64:
        return result.view(TypedInts)
    if result.dtype == BOOL and (type(new) is TypedInts or type(old) is TypedInts):
        return result.view(TypedInts)
    return result


def cast(value, dtype):
    """Convert as `np.float32(x)` or `numba.int32(x)` does inside a kernel."""
    if not isinstance(value, (np.ndarray, np.generic)):
        value = np.asarray(value)[()]
    if type(value) is TypedInts:
        value = value.view(np.ndarray)
    result = value.astype(dtype)
    return result if dtype == BOOL else typed(result)


def numpy_dtype(type_):
    """Return the NumPy dtype of a NumPy, Numba or engine type."""
    dtype = getattr(type_, "dtype", None)
    if isinstance(dtype, np.dtype):
        return dtype
    if isinstance(type_, str) or type(type_).__module__.startswith("numba"):
        name = str(type_).removeprefix("__nv_")  # so Numba calls bfloat16
        return np.dtype(bool if name in ("bool", "boolean") else name)
    return np.dtype(type_)
