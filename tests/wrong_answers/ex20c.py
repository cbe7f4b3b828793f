"""ex20c: elu + 1, relu and Taylor features."""

# fmt: off
ELU = "return x[f] + float32(1.0) if x[f] > float32(0.0) else math.exp(x[f])"
RELU = "return max(x[f], float32(0.0))"
FIRST = "return x[f - 1] / math.sqrt(math.sqrt(float32(d)))"
REST = "    if f <= d:\n        " + FIRST  # the broken map shares the lines above it
ONE = "    if f == 0:\n        return float32(1.0)\n" + REST
SECOND = "return x[i] * x[j] / math.sqrt(float32(2 * d))"
IJ = "i, j = (f - 1 - d) // d, (f - 1 - d) % d\n    " + SECOND

WRONG = [
    ("elu without 1", ELU, "return x[f] if x[f] > float32(0.0) else math.exp(x[f]) - float32(1.0)"),
    ("e^x above 0 too", ELU, "return math.exp(x[f])"),
    ("x + 1 below 0 too", ELU, "return max(x[f] + float32(1.0), float32(0.0))"),
    ("a smallest feature", ELU, "return x[f] + float32(1.0) if x[f] > float32(0.0) else max(math.exp(x[f]), float32(1e-10))"),
    ("2^x", ELU, ELU.replace("math.exp(x[f])", "math.exp(x[f] * float32(0.6931472))")),
    ("e^x subtracted and added", ELU, "return x[f] + float32(1.0) if x[f] > float32(0.0) else (math.exp(x[f]) - float32(1.0)) + float32(1.0)"),
    ("no feature 1", ONE, "    if f == 0:\n        return float32(0.0)\n" + REST),
    ("the whole scale on each side", FIRST, "return x[f - 1] / math.sqrt(float32(d))"),
    ("the whole 1/2 on each side", SECOND, "return x[i] * x[j] / (float32(2.0) * math.sqrt(float32(d)))"),
    ("squares alone", SECOND, "return x[i] * x[i] / math.sqrt(float32(2 * d))"),
    ("pairs i < j twice", IJ, IJ.replace("    return", "    if i > j:\n        return float32(0.0)\n    return")),
    ("64 components at most", IJ, "d = min(d, 64)\n    " + IJ),
    ("an array of all features", SECOND, "phi = cuda.local.array(8192, float32)\n    phi[0] = x[i] * x[j] / math.sqrt(float32(2 * d))\n    return phi[0]"),
    ("clipped at 100", SECOND, "return min(max(x[i], float32(-2.0)), float32(2.0)) * x[j] / math.sqrt(float32(2 * d))"),
    ("64 features of elu at most", ELU, "return x[f] + float32(1.0) if x[f] > float32(0.0) or f >= 64 else math.exp(x[f])"),
    ("4096 features at most", SECOND, "return x[i] * x[j] / math.sqrt(float32(2 * d)) if f < 4096 else float32(0.0)"),
    ("only the first warp's features", SECOND, "return x[i] * x[j] / math.sqrt(float32(2 * d)) if f < 32 else float32(0.0)"),
]

RIGHT = [
    ("elu of parts, relu by if", [(ELU, "return math.exp(min(x[f], float32(0.0))) + max(x[f], float32(0.0))"), (RELU, "if x[f] > float32(0.0):\n        return x[f]\n    return float32(0.0)")]),
    ("pairs first, i <= j times the root of 2", [(ONE, "    pairs = d * d\n    if f == pairs:\n        return float32(1.0)\n    if f > pairs:\n        return x[f - pairs - 1] / math.sqrt(math.sqrt(float32(d)))"),
        (IJ, "i, j = f // d, f % d\n    if i < j:\n        return x[i] * x[j] / math.sqrt(float32(d))\n    if i > j:\n        return float32(0.0)\n    " + SECOND)]),
]

OTHER = "the pairs (i, j) come in another order, which is free"
EQUIVALENT = [
    ("return x[f] + float32(1.0) if x[f] > float32(0.0) else math.exp(x[f]) -> return x[f] + float32(1.0) if x[f] >= float32(0.0) else math.exp(x[f])", "at 0 both are 1"),
    *(("i, j = ((f - 1 - d) // d, (f - 1 - d) % d) -> i, j = ((f - 1 - d) // d, " + other + ")", OTHER) for other in (
        "(f - 1 + d) % d", "(d - (f - 1)) % d", "(f - 1) % d", "(f + 1 - d) % d", "(1 - f - d) % d", "(f - d) % d", "(f - 2 - d) % d")),
]
