"""cuda.libdevice.*: CUDA's own mathematics by its own names, sqrtf(x) and fast_expf(x).

A function whose name ends in f takes and gives float32, the same without it float64. Rounding
modes (_rn, _rz, _ru, _rd) of sums and products round to nearest here, which one unit in the last
place tells apart; those of conversions are exact.
"""

import math
from functools import partial

import numpy as np

from .dtypes import typed
from .mathematics import ARC, elementwise, of_numpy

F32, F64, I32, I64, U32, U64 = map(
    np.dtype, ("float32", "float64", "int32", "int64", "uint32", "uint64")
)


def plain(x):
    return np.asarray(x).view(np.ndarray)


def of_type(function, *dtypes, result=None):
    """Return a function that takes its arguments in these types, and gives its result in one."""

    def call(*arguments):
        if len(arguments) != len(dtypes):
            raise TypeError(f"() takes {len(dtypes)} arguments, got {len(arguments)}")
        values = [plain(x).astype(d) for x, d in zip(arguments, dtypes, strict=True)]
        got = function(*values)
        if isinstance(got, tuple):
            return tuple(typed(plain(g).astype(d)[()]) for g, d in zip(got, result, strict=True))
        return typed(plain(got).astype(result or dtypes[0])[()])

    return call


def by_element(function):
    """Return a function of one float for arrays; NaN where it has no value."""
    return elementwise(function, at_pole=lambda x: math.nan)


def round_away(x):
    """round(): halves go away from zero."""
    return np.where(np.abs(x) < 2**52, np.trunc(x + np.copysign(0.5, x)), x)


ERF = by_element(math.erf)
REAL = {
    "nearbyint": np.rint, "round": round_away, "rcbrt": lambda x: 1 / np.cbrt(x),
    "rsqrt": lambda x: 1 / np.sqrt(x), "exp10": lambda x: np.power(x.dtype.type(10), x),
    "logb": lambda x: np.floor(np.log2(np.abs(x))),
    "cospi": lambda x: np.cos(np.pi * x.astype(F64)),
    "sinpi": lambda x: np.sin(np.pi * x.astype(F64)),
    "normcdf": lambda x: 0.5 * (1 - ERF(-x / np.sqrt(2))), "tgamma": by_element(math.gamma),
    "lgamma": by_element(math.lgamma), "erf": ERF, "erfc": by_element(math.erfc), **ARC,
}  # fmt: skip
REAL |= of_numpy(
    """cbrt ceil cos cosh exp exp2 expm1 fabs floor log log10 log1p log2 rint sin sinh sqrt tan tanh
    trunc"""
)
PAIRS = {
    **of_numpy("copysign fmax fmin fmod hypot nextafter"), "atan2": np.arctan2,
    "fdim": lambda x, y: np.where(x > y, x - y, np.where(x != x, x, np.where(y != y, y, 0))),
    "pow": np.power, "remainder": lambda x, y: x - np.rint(x / y) * y,
}  # fmt: skip


def table():
    """Return the functions by name."""
    found = {}
    for suffix, dtype in (("", F64), ("f", F32)):
        for name, function in REAL.items():
            found[name + suffix] = of_type(function, dtype)
        for name, function in PAIRS.items():
            found[name + suffix] = of_type(function, dtype, dtype)
        two = dtype, dtype
        found["fma" + suffix] = of_type(fused, dtype, dtype, dtype)
        found["sincos" + suffix] = of_type(lambda x: (np.sin(x), np.cos(x)), dtype, result=two)
        found["modf" + suffix] = of_type(lambda x: np.modf(x), dtype, result=two)
        found["frexp" + suffix] = of_type(lambda x: np.frexp(x), dtype, result=(dtype, I32))
        found["ldexp" + suffix] = of_type(np.ldexp, dtype, I32)
        found["scalbn" + suffix] = found["ldexp" + suffix]
        found["powi" + suffix] = of_type(np.power, dtype, I32)
        found["ilogb" + suffix] = of_type(lambda x: np.frexp(x)[1] - 1, dtype, result=I32)
        for name in "llrint", "llround":
            whole = np.rint if name == "llrint" else round_away
            found[name + suffix] = of_type(whole, dtype, result=I64)
        letter = suffix or "d"
        for name in "isinf", "isnan", "isfinite", "signbit":
            own = {"isfinitef": "finitef"}.get(name + letter, name + letter)
            found[own] = of_type(getattr(np, name), dtype, result=I32)
        operations = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
        for way in "rn", "rz", "ru", "rd":
            for name, ufunc in operations.items():
                found[f"{letter}{name}_{way}"] = of_type(ufunc, dtype, dtype)
            found[f"{letter}rcp_{way}"] = of_type(np.reciprocal, dtype)
            found[f"{letter}sqrt_{way}"] = of_type(np.sqrt, dtype)
            found[f"fma{suffix}_{way}"] = found["fma" + suffix]
    found["frsqrt_rn"] = found["rsqrtf"]
    for name in "cosf exp10f expf log10f log2f logf powf sinf tanf sincosf".split():
        found[f"fast_{name}"] = found[name]
    found["fast_fdividef"] = of_type(np.divide, F32, F32)
    found["saturatef"] = of_type(lambda x: np.fmin(np.fmax(x, 0), 1), F32)
    found |= integers() | conversions()
    return found


def fused(a, b, c):
    """a * b + c rounded once, float32 through float64."""
    return a.astype(F64) * b + c


def integers():
    def average(up):
        return lambda a, b: (a.astype(I64) + b.astype(I64) + up) >> 1

    def high(bits):
        return lambda a, b: np.array(
            [int(x) * int(y) >> bits for x, y in np.nditer([a, b])], dtype=a.dtype
        ).reshape(np.broadcast_shapes(a.shape, b.shape))

    def sad(a, b, c):
        return np.abs(a.astype(I64) - b.astype(I64)) + c.astype(I64)

    def low24(a, b):
        return (a.astype(I64) << 40 >> 40) * (b.astype(I64) << 40 >> 40)

    found = {"abs": of_type(np.abs, I32), "llabs": of_type(np.abs, I64)}
    for kind, dtype in {"": I32, "u": U32, "ll": I64, "ull": U64}.items():
        found[f"{kind}min"] = of_type(np.minimum, dtype, dtype)
        found[f"{kind}max"] = of_type(np.maximum, dtype, dtype)
    for kind, d32, d64 in ("", I32, I64), ("u", U32, U64):
        found[f"{kind}mulhi"] = of_type(high(32), d32, d32)
        found[f"{kind}mul64hi"] = of_type(high(64), d64, d64)
        found[f"{kind}hadd"] = of_type(average(0), d32, d32)
        found[f"{kind}rhadd"] = of_type(average(1), d32, d32)
        found[f"{kind}sad"] = of_type(sad, d32, d32, U32, result=U32)
    found["mul24"] = of_type(low24, I32, I32)
    found["popc"] = of_type(lambda x: np.bitwise_count(x.view(U32)), I32)
    found["popcll"] = of_type(lambda x: np.bitwise_count(x.view(U64)), I64, result=I32)
    return found


def conversions():
    """float2int_rz(x), int2double_rn(i), float_as_int(x), ..."""
    floats, wholes = {"float": F32, "double": F64}, {"int": I32, "uint": U32, "ll": I64, "ull": U64}
    ways = {"rn": np.rint, "rz": np.trunc, "ru": np.ceil, "rd": np.floor}
    found = {}
    for f, real in floats.items():
        for i, whole in wholes.items():
            for way, rounded in ways.items():
                found[f"{f}2{i}_{way}"] = of_type(partial(to_whole, rounded, whole), real,
                                                  result=whole)  # fmt: skip
            found[f"{i}2{f}_rn"] = of_type(lambda x: x, whole, result=real)
    found["double2float_rn"] = of_type(lambda x: x, F64, result=F32)
    bits = {"float_as_int": (F32, I32), "int_as_float": (I32, F32)}
    bits |= {"double_as_longlong": (F64, I64), "longlong_as_double": (I64, F64)}
    for name, (source, target) in bits.items():
        found[name] = of_type(lambda x, target=target: x.view(target), source, result=target)
    return found


def to_whole(rounded, dtype, x):
    """Round, and stay within the type as CUDA does; NaN becomes 0."""
    limits = np.iinfo(dtype)
    whole = np.nan_to_num(rounded(x.astype(F64)), nan=0)
    big, small = whole >= float(limits.max), whole <= float(limits.min)
    inside = np.where(big | small, 0, whole).astype(dtype)
    return np.where(big, limits.max, np.where(small, limits.min, inside)).astype(dtype)


LIBDEVICE = table()
