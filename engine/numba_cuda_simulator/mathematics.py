"""math.* and the numeric builtins, with Numba's result types.

Functions of a float keep its type; integers are computed in float64. Unlike CPython's,
Numba's math.floor, ceil and trunc return floats.
"""

import functools
import math

import numpy as np

from .dtypes import FLOAT64, TypedInts, as_index, cast, is_floating
from .errors import UnsupportedError
from .lanes import type_name


def floating(x):
    """Return x as a float of the type that Numba's math functions compute in."""
    if isinstance(x, (bool, int, float)):
        return np.float64(x)
    if not isinstance(x, (np.ndarray, np.generic)):
        if hasattr(x, "fail"):
            x.fail()
        raise UnsupportedError(f"math functions take numbers, not {type_name(x)}")
    if is_floating(x.dtype):
        return x
    return (x.view(np.ndarray) if isinstance(x, TypedInts) else x).astype(FLOAT64)


def unary(ufunc):
    return lambda x: ufunc(floating(x))


def binary(ufunc):
    return lambda x, y: ufunc(floating(x), floating(y))


def elementwise(function, at_pole):
    """Turn a function of Python floats into one of lane values."""

    def safe(x):
        try:
            return function(x)
        except (ValueError, OverflowError):
            return at_pole(x)

    def apply(x):
        x = floating(x)
        return np.vectorize(safe, otypes=[FLOAT64])(x).astype(x.dtype)[()]

    return apply


def ldexp(x, exponent):
    x = floating(x)
    return np.ldexp(x, lane(exponent).astype(np.int32)).astype(x.dtype)


def of_numpy(names, prefix="{}", ufunc="{}"):
    """Return NumPy's ufuncs by other names, as acos for arccos."""
    return {prefix.format(n): getattr(np, ufunc.format(n)) for n in names.split()}


ARC = of_numpy("cos cosh sin sinh tan tanh", "a{}", "arc{}")
UNARY = ARC | of_numpy(
    """ceil cos cosh degrees exp exp2 expm1 fabs floor frexp isfinite isinf isnan log log10 log1p
    log2 modf radians sin sinh sqrt tan tanh trunc"""
)
BINARY = {"atan2": np.arctan2, **of_numpy("copysign fmod hypot nextafter"), "pow": np.power}
BINARY["remainder"] = lambda x, y: x - y * np.rint(x / y)
MATH = {
    **{name: unary(f) for name, f in UNARY.items()},
    **{name: binary(f) for name, f in BINARY.items()},
    "erf": elementwise(math.erf, lambda x: math.nan),
    "erfc": elementwise(math.erfc, lambda x: math.nan),
    "gamma": elementwise(math.gamma, lambda x: math.inf if x > 0 else math.nan),
    "lgamma": elementwise(math.lgamma, lambda x: math.inf),
    "ldexp": ldexp,
    **{name: np.float64(getattr(math, name)) for name in ("e", "inf", "nan", "pi", "tau")},
}

# The NumPy functions of scalars that Numba compiles for a GPU; exp and sqrt are not among them.
NUMPY_UNARY = """arccos arccosh arcsin arcsinh arctan arctanh cos cosh deg2rad degrees isnan log
    log10 log2 rad2deg radians sin sinh tan tanh""".split()
NUMPY_OPERATORS = """bitwise_and bitwise_not bitwise_or bitwise_xor conjugate divide equal fmax fmin
    greater greater_equal invert left_shift less less_equal logical_and logical_not logical_or
    logical_xor maximum minimum not_equal right_shift true_divide""".split()
NUMPY_UFUNCS = {
    **{name: unary(getattr(np, name)) for name in NUMPY_UNARY}, "arctan2": binary(np.arctan2),
    "hypot": binary(np.hypot), **{name: getattr(np, name) for name in NUMPY_OPERATORS},
}  # fmt: skip


def of_numbers_or_arrays(name, function):
    """Return np.sin(x), which is also np.sin(x, out) of whole arrays."""

    def apply(*values):
        array = next((x for x in values if hasattr(x, "dims")), None)
        return function(*values) if array is None else array.each(name, function, values)

    return apply


def ndindex(*shape):
    """np.ndindex(2, 3) or np.ndindex((2, 3)): the indices of all elements, in a loop."""
    dims = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
    dims = [as_index(n) if isinstance(n, np.ndarray) else n for n in dims]
    if any(isinstance(n, np.ndarray) for n in dims):
        raise UnsupportedError(
            "np.ndindex of a shape that differs between threads",
            hint="Loop over range(...), once for each axis.",
        )
    return (tuple(map(np.int64, index)) for index in np.ndindex(*map(int, dims)))


NUMPY_FUNCTIONS = {
    "ndindex": ndindex,
    **{name: of_numbers_or_arrays(name, f) for name, f in NUMPY_UFUNCS.items()},
    **{c: np.float64(getattr(np, c)) for c in ("e", "inf", "nan", "pi")},
}


# The functions of complex numbers that Numba compiles for a GPU.
CMATH_UNARY = ARC | of_numpy("cos cosh exp isfinite isinf isnan log10 sin sinh sqrt tan tanh")
CMATH_UNARY["phase"] = np.angle


def complex_log(x, base=None):
    x = complex_number(x)
    return np.log(x) if base is None else np.log(x) / np.log(complex_number(base))


def complex_number(x):
    """Return x as a complex number; real ones have an imaginary part of zero."""
    x = floating(x)
    return x if x.dtype.kind == "c" else x.astype(np.result_type(x, np.complex64))


def complex_unary(ufunc):
    return lambda x: ufunc(complex_number(x))


CMATH = {
    **{name: complex_unary(f) for name, f in CMATH_UNARY.items()},
    "log": complex_log,
    "polar": lambda x: (np.abs(complex_number(x)), np.angle(complex_number(x))),
    "rect": lambda r, phi: to_complex(
        floating(r) * np.cos(floating(phi)), floating(r) * np.sin(floating(phi))
    ),
    **{name: np.float64(getattr(math, name)) for name in ("e", "inf", "nan", "pi", "tau")},
    "infj": np.complex128(complex(0, math.inf)),
    "nanj": np.complex128(complex(0, math.nan)),
}


def half(function):
    """Return a function of float16 that rounds once."""
    return lambda *xs: function(*(x.astype(np.float64) for x in xs)).astype(np.float16)


HALF_UNARY = of_numpy("ceil cos exp exp2 floor log log10 log2 rint sin sqrt trunc", "h{}")
HALF = {  # cuda.fp16.*
    **{name: half(f) for name, f in HALF_UNARY.items()},
    **of_numpy("abs add", "h{}"),
    **of_numpy("max min", "h{}", "f{}"),
    "hexp10": half(lambda x: 10**x),
    "hfma": half(lambda a, b, c: a * b + c),
    "hrcp": half(lambda x: 1 / x),
    "hrsqrt": half(lambda x: 1 / np.sqrt(x)),
}
HALF |= {"hdiv": np.divide, "hmul": np.multiply, "hneg": np.negative, "hsub": np.subtract}
HALF |= {"heq": np.equal, "hge": np.greater_equal, "hgt": np.greater}
HALF |= {"hle": np.less_equal, "hlt": np.less, "hne": np.not_equal}


def spread_arguments(values):
    return values[0] if len(values) == 1 and isinstance(values[0], tuple) else values


def lane(value):
    """Return a Python scalar as a NumPy one; lane values as they are."""
    return value if isinstance(value, (np.ndarray, np.generic)) else np.asarray(value)[()]


def extreme(ufunc):
    """Return max() or min(): of a number and NaN, CUDA takes the number."""
    return lambda *values: functools.reduce(ufunc, map(lane, spread_arguments(values)))


def to_int(x):
    """int(x) keeps an integer's type."""
    x = lane(x)
    return x if x.dtype.kind in "iu" else cast(x, np.dtype(np.int64))


def to_bool(x):
    return cast(lane(x), np.dtype(bool))


def to_complex(real, imaginary=0):
    """complex(a, b) of two float32 is a complex64."""
    real, imaginary = floating(real), floating(imaginary)
    dtype = np.result_type(real, imaginary, np.complex64)
    result = np.empty(np.broadcast_shapes(real.shape, imaginary.shape), dtype)
    result.real, result.imag = real, imaginary
    return result[()]


def round_(x, digits=None):
    x = floating(x)
    if digits is None:
        return np.rint(x).astype(np.int64)
    return round_to(x.astype(np.float64), floating(digits)).astype(x.dtype)


def round_to(x, digits):
    """Return round(x, digits) of float64, by the steps that Numba compiles."""
    power = 10.0 ** np.where(digits > 22, digits - 22, np.abs(digits))
    rest = np.where(digits > 22, 1e22, 1.0)
    up = digits >= 0
    scaled = np.where(up, x * power * rest, x / power)
    whole = np.clip(np.rint(scaled), -(2.0**63), 2.0**63)  # an int64 in between
    rounded = np.where(up, whole / rest / power, whole * power)
    return np.where(np.isfinite(x) & np.isfinite(scaled), rounded, x)[()]


def length(x):
    return np.int64(len(x))


BUILTINS = {
    "abs": lambda x: np.abs(lane(x)), "bool": to_bool, "complex": to_complex, "int": to_int,
    "float": floating,  # of a float32 it is one in Numba
    "len": length, "max": extreme(np.fmax), "min": extreme(np.fmin), "round": round_,
}  # fmt: skip
