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

### KIND: predict
### HINT 1: The largest error is half of the distance between neighbours. How many numbers of the
### HINT 1: format lie from 1 up to 2?
### HINT 2: With infinities the largest number has e one below the largest, and all bits of f.
### HINT 2: Without it has the largest e, and f one below all bits.
### HINT 3: step = 2.0**-mantissa_bits. With infinities (2 - step) 2^bias, without
### HINT 3: (2 - 2 step) 2^(bias + 1). The smallest: 2^(1 - bias), step 2^(1 - bias); step / 2.
### DEBRIEF: e4m3: 448, 2^-6, 2^-9, 1/16. e5m2: 57344, 2^-14, 2^-16, 1/8. An exponent bit squares
### DEBRIEF: the range, a mantissa bit halves the error. Attention has scales for the range, so the
### DEBRIEF: forward pass takes the format with more mantissa; gradients, whose sizes nobody knows
### DEBRIEF: beforehand, are the usual case for e5m2.


def limits(exponent_bits, mantissa_bits, has_infinity):
    """(largest, smallest_normal, smallest, error) of a format."""
    ### BEGIN SOLUTION
    bias, step = 2 ** (exponent_bits - 1) - 1, 2.0**-mantissa_bits
    largest = (2 - step) * 2.0**bias if has_infinity else (2 - 2 * step) * 2.0 ** (bias + 1)
    return largest, 2.0 ** (1 - bias), step * 2.0 ** (1 - bias), step / 2
    ### END SOLUTION
