"""ex18f: numbers into bytes of e4m3, and their scales."""

SCALE = "return amax / float32(E4M3_MAX) if amax > 0 else float32(1)"
SIZE = "size = min(abs(x), float32(E4M3_MAX))"
SMALL = "if size < float32(2.0**-6):"
STEPS = "code = int32(libdevice.rintf(size * float32(512)))  # steps of 2^-9"
BITS = "code = int32((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - int32(120 << 3)"
SIGN = "return code | 0x80 if x < 0 else code"

WRONG = [
    ("no scale for zeros", SCALE, "return amax / float32(E4M3_MAX)"),
    ("a scale of 0 for zeros", SCALE, SCALE.replace("float32(1)", "float32(0)")),
    ("up to 480", SCALE, SCALE.replace("float32(E4M3_MAX)", "float32(480)")),
    ("up to 240", SCALE, SCALE.replace("float32(E4M3_MAX)", "float32(240)")),
    ("as int8", SCALE, SCALE.replace("float32(E4M3_MAX)", "float32(127)")),
    ("1 for all that fits", SCALE, SCALE.replace("amax > 0", "amax > 448")),
    ("a floor under amax", SCALE, "return max(amax, float32(1e-12)) / float32(E4M3_MAX) if amax > 0 else float32(1)"),
    ("a power of 2", SCALE, SCALE.replace("amax /", "libdevice.exp2f(libdevice.ceilf(libdevice.log2f(max(amax, float32(1e-30))))) /")),
    ("float64 in the scale", SCALE, SCALE.replace("float32(E4M3_MAX)", "E4M3_MAX")),
    ("not saturating", SIZE, "size = abs(x)"),
    ("beyond 448 is NaN", SIGN, "code = 0x7F if abs(x) > float32(448) else code\n    " + SIGN),
    ("saturates at 480", SIZE, SIZE.replace("E4M3_MAX", "480")),
    ("cut off", BITS, "code = int32(bits >> 20) - int32(120 << 3)"),
    ("ties away from 0", BITS, BITS.replace("0x7FFFF + (bits >> 20 & 1)", "0x80000")),
    ("rounded up", BITS, BITS.replace("0x7FFFF + (bits >> 20 & 1)", "0xFFFFF")),
    ("ties to odd", BITS, BITS.replace("(bits >> 20 & 1)", "1 - (bits >> 20 & 1)")),
    ("subnormal numbers are 0", STEPS, "code = int32(0)"),
    ("subnormal numbers cut off", STEPS, "code = int32(size * float32(512))"),
    ("subnormal ties away from 0", STEPS, "code = int32(size * float32(512) + float32(0.5))"),
    ("steps of 2^-10", STEPS, STEPS.replace("512", "1024")),
    ("a bias of 8", BITS, BITS.replace("120", "119")),
    ("e5m2", BITS, "code = int32((bits + 0xFFFFF + (bits >> 21 & 1)) >> 21) - int32(112 << 2)"),
    ("no sign", SIGN, "return code"),
    ("the sign of two's complement", SIGN, "return 256 - code if x < 0 else code"),
    ("negative numbers are 0", SIZE, SIZE.replace("abs(x)", "max(x, float32(0))")),
    ("the other way round", SCALE, "return float32(E4M3_MAX) / amax if amax > 0 else float32(1)"),
    ("the bias of float32", BITS, BITS.replace(" - int32(120 << 3)", "")),
    ("all have the sign", SIGN, "return code | 0x80"),
    ("small ones cut off", STEPS, "code = int32(size * float32(512))"),
]  # fmt: skip

RIGHT = [
    ("saturates beyond 464, to which rounding is down", SIZE, "size = abs(x)\n    if size > float32(464):\n        size = float32(E4M3_MAX)"),
    ("steps of 2^-9 below 2^-5, where they are the same", SMALL, SMALL.replace("-6", "-5")),
    ("steps by ldexp and frexp", [(SMALL, "if size == 0:\n        code = int32(0)\n    elif False:"), ("bits = libdevice.float_as_int(size)\n        " + BITS,
        "e = max(int32((libdevice.float_as_int(size) >> 23) - 127), int32(-6))\n        steps = libdevice.rintf(libdevice.ldexpf(size, int32(3 - e)))\n        code = int32(8 * (e + 6)) + int32(steps)")]),
    ("halves added by hand", BITS, "code = int32(bits >> 20) - int32(120 << 3)\n        rest = bits & 0xFFFFF\n        if rest > 0x80000 or (rest == 0x80000 and code & 1):\n            code += 1"),
    ("-0 keeps its sign", SIGN, "return code | (libdevice.float_as_int(x) >> 24 & 0x80)"),
    ("a max for the zeros", SCALE, "if not amax:\n        return float32(1)\n    return amax * float32(1 / 448)"),
]  # fmt: skip

EQUIVALENT = [
    ("if size < float32(2.0 ** (-6)): -> if size <= float32(2.0 ** (-6)):", "2^-6 is 8 steps of 2^-9, whose byte is 8, too"),
    ("return code | 128 if x < 0 else code -> return code | 128 if x <= 0 else code", "the byte of 0 may be that of -0"),
]  # fmt: skip
