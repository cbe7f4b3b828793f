"""ex14a · Predict: what a format can hold

A floating-point format has a sign, `exponent_bits` and `mantissa_bits`. With the exponent's bits
read as an integer e and the mantissa's as f, and bias = 2^(exponent_bits - 1) - 1, a number is

    e > 0    (1 + f / 2^mantissa_bits) 2^(e - bias)       a normal number
    e = 0    f / 2^mantissa_bits · 2^(1 - bias)           zero, and the subnormal numbers

With `has_infinity` the largest e is kept for infinities and NaN (float16, bfloat16, e5m2). Without,
only the number with all bits set is NaN, and all others are numbers (e4m3).

limits(exponent_bits, mantissa_bits, has_infinity)   four floats:
    largest           the largest number
    smallest_normal   the smallest positive normal number
    smallest          the smallest positive number
    error             the largest error when a number between 1 and 2 is rounded to the nearest

e4m3 is limits(4, 3, False), e5m2 limits(5, 2, True). Predict them on paper before you run the
checks. A line each, and one for the bias.
"""


def limits(exponent_bits, mantissa_bits, has_infinity):
    """(largest, smallest_normal, smallest, error) of a format."""
    # YOUR CODE HERE
    raise NotImplementedError("ex14a: limits")


# Stub 23bc40bc of solutions/ex14a_number_format.py: `fa-numba reset ex14a` brings it back.
