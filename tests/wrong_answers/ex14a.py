"""ex14a: what a format can hold."""

# fmt: off
BIAS = "bias, step = 2 ** (exponent_bits - 1) - 1, 2.0**-mantissa_bits"
LARGEST = "largest = (2 - step) * 2.0**bias if has_infinity else (2 - 2 * step) * 2.0 ** (bias + 1)"
RETURN = "return largest, 2.0 ** (1 - bias), step * 2.0 ** (1 - bias), step / 2"

WRONG = [
    ("infinities in e4m3", LARGEST, "largest = (2 - step) * 2.0**bias"),
    ("no infinities at all", LARGEST, "largest = (2 - 2 * step) * 2.0 ** (bias + 1)"),
    ("a power of two", LARGEST, "largest = 2.0 ** (bias + 1)"),
    ("the other way round", LARGEST, LARGEST.replace("if has_infinity", "if not has_infinity")),
    ("step of one bit less", BIAS, BIAS.replace("2.0**-mantissa_bits", "2.0**(1 - mantissa_bits)")),
    ("e = 0 is normal", RETURN, RETURN.replace("2.0 ** (1 - bias), step", "2.0**-bias, step")),
    ("subnormal numbers of e = 0", RETURN, RETURN.replace("step * 2.0 ** (1 - bias)", "step * 2.0**-bias")),
    ("relative to the number itself", RETURN, RETURN.replace("step / 2", "1 / (2 / step + 1)")),
    ("a list", RETURN, "return [largest, 2.0 ** (1 - bias), step * 2.0 ** (1 - bias), step / 2]"),
    ("three numbers", RETURN, "return largest, 2.0 ** (1 - bias), step / 2"),
    ("e4m3 alone", RETURN, "return 448.0, 2.0**-6, 2.0**-9, 1 / 16"),
]

RIGHT = [
    ("by ldexp", [(BIAS, "import math\n    bias, step = (1 << exponent_bits - 1) - 1, math.ldexp(1.0, -mantissa_bits)"), (RETURN, "least = math.ldexp(1.0, 1 - bias)\n    return largest, least, least * step, step / 2")]),
    ("by counting e", LARGEST, "e = 2**exponent_bits - (2 if has_infinity else 1)\n    f = 2**mantissa_bits - (1 if has_infinity else 2)\n    largest = (1 + f * step) * 2.0 ** (e - bias)"),
]

EQUIVALENT = []
