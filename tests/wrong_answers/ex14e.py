"""ex14e: 2^x by a polynomial."""

# fmt: off
CLAMP = "    x = max(x, float32(-127.0))  # 2^-127 becomes exactly 0 below\n"
FLOOR = "n = libdevice.floorf(x)"
FIRST = "p = float32(C3) * f + float32(C2)"
SECOND = "p = p * f + float32(C1)"
THIRD = "p = p * f + float32(1.0)"
BITS = "libdevice.int_as_float(libdevice.float_as_int(p) + (int32(n) << FRACTION_BITS))"
RETURN = "return " + BITS

WRONG = [
    ("the nearest whole number", FLOOR, "n = libdevice.rintf(x)"),
    ("towards 0", FLOOR, "n = libdevice.truncf(x)"),
    ("up", FLOOR, "n = libdevice.ceilf(x)"),
    ("no bound for -inf", CLAMP, ""),
    ("bound too low", CLAMP, CLAMP.replace("-127.0", "-128.0")),
    ("bound too high", CLAMP, CLAMP.replace("-127.0", "-126.0")),
    ("constants the other way round", [(FIRST, "p = float32(C1) * f + float32(C2)"), (SECOND, "p = p * f + float32(C3)")]),
    ("Taylor's coefficients", [(FIRST, "p = float32(0.0555041) * f + float32(0.2402265)"), (SECOND, "p = p * f + float32(0.6931472)")]),
    ("float64 constants", THIRD, "p = p * f + 1.0"),
    ("2^f alone", RETURN, "return p"),
    ("n twice", "int32(n) <<", "int32(2.0 * n) <<"),
    ("n below the exponent", "<< FRACTION_BITS", "<< (FRACTION_BITS - 1)"),
    ("bits joined with or", BITS, BITS.replace("(p) +", "(p) |")),
    ("the bias added once more", "(int32(n) <<", "((int32(n) + 127) <<"),
    ("the float's bits as a number", BITS, BITS.replace("libdevice.float_as_int(p)", "int32(p)")),
    ("exp2 of the library", RETURN, "return libdevice.exp2f(x)"),
    ("exp2 of the library, hidden ones apart", RETURN, "return libdevice.exp2f(x) if x > float32(-127.0) and n < x else libdevice.int_as_float((int32(n) + 127) << FRACTION_BITS)"),
    ("fast exp of the library", RETURN, "return libdevice.fast_expf(x * float32(0.6931471805599453))"),
    ("a power", RETURN, "return float32(2.0) ** x"),
    ("2^n as a power", RETURN, "return p * float32(2.0) ** n"),
    ("ldexp of the library", RETURN, "return libdevice.ldexpf(p, int32(n))"),
    ("powers of f, each computed", [(FIRST, "p = float32(1.0) + float32(C1) * f + float32(C2) * f * f + float32(C3) * f * f * f"), ("    " + SECOND + "\n", ""), ("    " + THIRD + "\n", "")]),
]

RIGHT = [
    ("2^n as a float of its own", RETURN, "return p * libdevice.int_as_float((int32(n) + 127) << FRACTION_BITS)"),
    ("rounded down by a conversion", [(FLOOR, "n = libdevice.float2int_rd(x)"), ("f = x - n", "f = x - float32(n)")]),
    ("in one expression", [(FIRST, "p = ((float32(C3) * f + float32(C2)) * f + float32(C1)) * f + float32(1.0)"), ("    " + SECOND + "\n", ""), ("    " + THIRD + "\n", "")]),
]

EQUIVALENT = []
