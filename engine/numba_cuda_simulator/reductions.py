"""x.sum(), np.mean(x), x.argmax(), ...: what a thread computes from all elements of an array.

Each thread goes through the array by itself, in row-major order, as the loop that Numba compiles.
"""

import functools

import numpy as np

from .arrays import LaneArray
from .dtypes import INT64, UINT64, as_bool, typed
from .errors import KernelError, UnsupportedError
from .lanes import type_name
from .records import kernel_frame, present_site


def elements(array):
    """Yield the elements as the running threads load them."""
    memory, site = kernel_frame().f_globals["_simt_machine"].memory, present_site()
    for index in np.ndindex(array.dims):
        yield memory.load(array, tuple(map(np.int64, index)), site)


def some_elements(array):
    """Return the elements of an array that is not empty, as plain values."""
    if not array.size:
        raise KernelError(f"'{array.name}' is empty: it has no greatest or least element")
    return [np.asarray(x).view(np.ndarray)[()] for x in elements(array)]


def wide_dtype(dtype):
    """Return the type of a sum: integers are added up as 64 bits, floats as what they are."""
    if dtype.kind in "iub":
        return UINT64 if dtype.kind == "u" else INT64
    return dtype


def folded(ufunc, start, skip_nan=False):
    def fold(array):
        dtype = wide_dtype(array.dtype)
        result = dtype.type(start)
        for x in elements(array):
            x = np.asarray(x).view(np.ndarray).astype(dtype)[()]
            result = ufunc(result, np.where(x != x, result.dtype.type(start), x) if skip_nan else x)
        return typed(result) if dtype != INT64 else result

    return fold


total, product = folded(np.add, 0), folded(np.multiply, 1)


def mean(array):
    dtype = array.dtype if array.dtype.kind in "fc" else np.dtype(np.float64)
    result = dtype.type(0)
    for x in elements(array):
        result = result + np.asarray(x).view(np.ndarray).astype(dtype)[()]
    return result / np.float64(array.size)


def variance(array):
    middle, result = mean(array), np.float64(0)
    for x in elements(array):
        result = result + np.abs(np.asarray(x).view(np.ndarray) - middle) ** 2
    return result / np.float64(array.size)


def extreme(ufunc):
    def find(array):
        """Return the least or the greatest element."""
        return typed(functools.reduce(ufunc, some_elements(array))[()])

    return find


def nan_mean(array):
    return folded(np.add, 0, skip_nan=True)(array) / np.float64(counted(lambda x: x == x)(array))


def counted(test):
    """Return how many elements meet a test."""
    return lambda array: sum((test(x) for x in elements(array)), np.int64(0))


def of_truths(ufunc, start):
    """Return any() or all()."""
    return lambda array: functools.reduce(ufunc, map(as_bool, elements(array)), start)


def first_best(better):
    def search(array):
        """Return the index of the first best element, or of the first NaN."""
        best, *others = some_elements(array)
        place = np.int64(0)
        for i, x in enumerate(others, 1):
            wins = (better(x, best) | (x != x)) & (best == best)
            best, place = np.where(wins, x, best)[()], np.where(wins, np.int64(i), place)[()]
        return place

    return search


def item(array):
    if array.size != 1:
        raise KernelError(f"item() takes an array of one element, '{array.name}' has {array.size}")
    return next(elements(array))


METHODS = {
    "sum": total, "prod": product, "mean": mean, "min": extreme(np.minimum),
    "max": extreme(np.maximum), "var": variance, "std": lambda array: np.sqrt(variance(array)),
    "any": of_truths(np.logical_or, np.False_), "all": of_truths(np.logical_and, np.True_),
    "argmax": first_best(np.greater), "argmin": first_best(np.less), "item": item,
}  # fmt: skip


def of_array(name, function):
    """Return np.sum(x) and its like: the method as a function."""

    def call(array):
        if not isinstance(array, LaneArray):
            raise UnsupportedError(f"{name}() works on an array, got {type_name(array)}")
        return function(array)

    return call


def each(array, name, function, values):
    """np.sin(x, out): each thread goes through the arrays, element by element."""
    *inputs, out = values
    if not isinstance(out, LaneArray) or not inputs:
        raise UnsupportedError(
            f"np.{name}() of a whole array has no place for its results",
            hint=f"Give it one, np.{name}(..., out), or let each thread compute an element.",
        )
    memory, site = kernel_frame().f_globals["_simt_machine"].memory, present_site()
    for index in np.ndindex(out.dims):
        xs = [at(memory, x, index, site) if isinstance(x, LaneArray) else x for x in inputs]
        memory.store(out, tuple(map(np.int64, index)), function(*xs), site)
    return out


def at(memory, x, index, site):
    """Return the element that NumPy's broadcasting puts at an index."""
    index = index[len(index) - len(x.dims) :]
    index = (np.int64(0 if size == 1 else i) for i, size in zip(index, x.dims, strict=True))
    return memory.load(x, tuple(index), site)


def fill(array, value):
    """x.fill(value), of each thread."""
    memory = kernel_frame().f_globals["_simt_machine"].memory
    memory.fill(array, ..., value, present_site())


LaneArray.each, LaneArray.fill = each, fill
LaneArray.transpose = lambda array: array.T
for _name, _function in METHODS.items():
    setattr(LaneArray, _name, _function)
FUNCTIONS = {name: of_array(f"np.{name}", f) for name, f in METHODS.items() if name != "item"}
FUNCTIONS |= {
    "nanmin": of_array("np.nanmin", extreme(np.fmin)),
    "nanmax": of_array("np.nanmax", extreme(np.fmax)),
    "nansum": of_array("np.nansum", folded(np.add, 0, skip_nan=True)),
    "nanprod": of_array("np.nanprod", folded(np.multiply, 1, skip_nan=True)),
    "nanmean": of_array("np.nanmean", nan_mean),
    "count_nonzero": of_array("np.count_nonzero", counted(as_bool)),
    "size": of_array("np.size", lambda array: array.size),
    "shape": of_array("np.shape", lambda array: array.shape),
}


def sum_of(values):
    """sum(values), of a tuple or an array."""
    tuple_ = isinstance(values, tuple)
    return sum(values, np.int64(0)) if tuple_ else of_array("sum", total)(values)
