"""2^x, e^x, log x and tanh x of vectors: no table, no branch, every lane by the same instructions.

2^x = 2^n · 2^f, with n the nearest integer to x and |f| ≤ ½. Adding 1.5 · 2²³ to a float32 rounds
it to an integer, because its last bit is then worth 1; adding 127 too makes the lowest bits those
of the exponent of 2^n, which a shift brings to their place. 2^f − 1 is f times a polynomial of
degree 5, off by 3e-9 of 2^f at most. So 2^x is 13 instructions for LANES numbers,
right to 1.03 units in the last place (measured; `tests/test_cpu.py` allows 1.1).

Below 2^-126, where float32 begins to lose digits, the result is 0.
"""

import numpy as np

from fa_numba.constants import LOG2_E, NEG_INF, ONE, ZERO
from fa_numba.cpu.vectors import (
    broadcast,
    exponent,
    exponent_bits,
    inner,
    mantissa,
    maximum,
    minimum,
    multiply_add,
    where_less,
)

ROUNDER = np.float32(1.5 * 2**23 + 127)
SMALLEST = np.float32(-126)
# (2^f − 1) / f for |f| ≤ ½, the constant term first.
C0, C1, C2, C3, C4, C5 = (
    np.float32(c)
    for c in (0.69314718, 0.240226475, 0.0555036226, 0.00961852631, 0.00133901615, 0.000153211545)
)
TWO, HALF, SQRT_2 = np.float32(2), np.float32(0.5), np.float32(2**0.5)
LN_2 = np.float32(0.69314718)
LN_2_HIGH, LN_2_LOW = np.float32(0.693359375), np.float32(-0.00021219444)  # of 9 bits, and the rest
LEAST_LOG, MOST_LOG = np.float32(-87.3), np.float32(88.3)
NORMAL, MOST = np.float32(2.0**-126), np.float32(3.4028235e38)
NAN = np.float32(np.nan)


@inner(forceinline=True)
def _fraction(f):
    """2^f − 1, for |f| ≤ ½."""
    p = multiply_add(broadcast(C5), f, broadcast(C4))
    p = multiply_add(p, f, broadcast(C3))
    p = multiply_add(p, f, broadcast(C2))
    p = multiply_add(p, f, broadcast(C1))
    p = multiply_add(p, f, broadcast(C0))
    return p * f


@inner(forceinline=True)
def _split(x):
    """2^n and 2^f − 1, for x from −126 to 127."""
    shifted = x + broadcast(ROUNDER)
    return exponent_bits(shifted), _fraction(x - (shifted - broadcast(ROUNDER)))


@inner(forceinline=True)
def exp2(x):
    """2^x for x up to 127: 0 below −126, NaN of NaN."""
    power, fraction = _split(x)
    y = multiply_add(power, fraction, power)
    return where_less(x, broadcast(SMALLEST), broadcast(ZERO), y)


@inner(forceinline=True)
def tanh(x):
    """(e^2x − 1) / (e^2x + 1); nothing cancels near 0, because 2^f − 1 comes without its 1."""
    # Beyond 10 it is 1 in float32.
    t = maximum(broadcast(np.float32(-10)), minimum(broadcast(np.float32(10)), x))
    power, fraction = _split(t * broadcast(TWO * LOG2_E))
    above_one = multiply_add(power, fraction, power - broadcast(ONE))
    return above_one / (above_one + broadcast(TWO))


@inner(forceinline=True)
def exp(x):
    """e^x: ∞ above 88.3, 0 below −87.3, NaN of NaN. The rest of x by ln 2 has two parts."""
    t = maximum(broadcast(LEAST_LOG), minimum(broadcast(MOST_LOG), x))
    shifted = t * broadcast(LOG2_E) + broadcast(ROUNDER)
    n = shifted - broadcast(ROUNDER)
    rest = multiply_add(n, broadcast(-LN_2_HIGH), t)
    rest = multiply_add(n, broadcast(-LN_2_LOW), rest)
    power = exponent_bits(shifted)
    y = multiply_add(power, _fraction(rest * broadcast(LOG2_E)), power)
    y = where_less(broadcast(MOST_LOG), x, broadcast(-NEG_INF), y)
    return where_less(x, broadcast(LEAST_LOG), broadcast(ZERO), y)


@inner(forceinline=True)
def log(x):
    """log x: −∞ below 2^-126, NaN below 0.

    With x = 2^e m and z = (m − 1) / (m + 1), log m is 2 z (1 + z²/3 + z⁴/5 + …), where |z| < 0.18.
    """
    e, m = exponent(x), mantissa(x)
    e = where_less(broadcast(SQRT_2), m, e + broadcast(ONE), e)
    m = where_less(broadcast(SQRT_2), m, m * broadcast(HALF), m)
    z = (m - broadcast(ONE)) / (m + broadcast(ONE))
    square = z * z
    p = multiply_add(square, broadcast(np.float32(1 / 9)), broadcast(np.float32(1 / 7)))
    p = multiply_add(p, square, broadcast(np.float32(1 / 5)))
    p = multiply_add(p, square, broadcast(np.float32(1 / 3)))
    p = multiply_add(p, square, broadcast(ONE)) * (z + z)
    y = multiply_add(e, broadcast(LN_2), p)
    y = where_less(x, broadcast(NORMAL), broadcast(NEG_INF), y)
    y = where_less(broadcast(MOST), x, x, y)
    return where_less(broadcast(-NORMAL), x, y, broadcast(NAN))
