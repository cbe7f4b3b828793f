"""ex21g: states merged over ranks."""

# fmt: off
GUARD = "if m[row] > -math.inf:\n        w = math.exp(lse[row] - m[row])"
W = "w = math.exp(lse[row] - m[row])"
WEIGH = "packed[row, d] = w * out[row, d]"
LAST = "    if cuda.threadIdx.x == 0:\n        packed[row, head_dim] = w"
L = "l = total[row, head_dim]"
OUT = "out[row, d] = total[row, d] / l if l > 0 else float32(0.0)"
LSE = "lse[row] = m[row] + math.log(l) if l > 0 else float32(-math.inf)"
COLS = "    for d in range(cuda.threadIdx.x, head_dim, cuda.blockDim.x):\n        "

WRONG = [
    ("the maximum of row 0", W, W.replace("m[row]", "m[0]")),
    ("no guard", GUARD, W),
    ("a guard for small lse", GUARD, GUARD.replace("> -math.inf", "> -1000")),
    ("clipped", W, "w = math.exp(max(lse[row] - m[row], float32(-20.0)))"),
    ("base 2", W, "w = float32(2.0) ** (lse[row] - m[row])"),
    ("all weigh the same", W, "w = float32(1.0)"),
    ("a rank without keys weighs 1", GUARD, GUARD + "\n    if lse[row] == -math.inf:\n        w = float32(1.0)"),
    ("the weight is not packed", LAST, "    if cuda.threadIdx.x == 0:\n        packed[row, head_dim] = float32(1.0)"),
    ("the weight in the first column", LAST, "    if cuda.threadIdx.x == 0:\n        packed[row, 0] = w"),
    ("every thread packs the weight", LAST, "    packed[row, head_dim] = w"),
    ("a weight of 0 for the best", W, "w = math.exp(lse[row] - m[row]) if lse[row] < m[row] else float32(0.0)"),
    ("0 / 0", OUT, "out[row, d] = total[row, d] / l"),
    ("not divided", OUT, "out[row, d] = total[row, d]"),
    ("lse of no key is 0", LSE, LSE.replace("float32(-math.inf)", "float32(0.0)")),
    ("the maximum alone", LSE, "lse[row] = m[row]"),
    ("log2", LSE, LSE.replace("log(", "log2(")),
    ("the sum of row 0", L, "l = total[0, head_dim]"),
    ("the sum of the first column", L, "l = total[row, 0]"),
    ("64 columns at most", COLS + OUT, COLS.replace("head_dim,", "min(64, head_dim),") + OUT),
    ("512 columns at most", COLS + WEIGH, COLS.replace("head_dim,", "min(512, head_dim),") + WEIGH),
    ("256 rows at most", LSE, "if row < 256:\n            " + LSE),
    ("float64", W, "w = math.exp((lse[row] - m[row]) * 1.5 / 1.5)"),
    ("lse is changed", WEIGH, "packed[row, d] = w * out[row, d]\n        out[row, d] = packed[row, d]"),
    ("columns in pieces", COLS + OUT, "    part = (head_dim + cuda.blockDim.x - 1) // cuda.blockDim.x\n    for i in range(part):\n        d = (cuda.threadIdx.x * 7) % cuda.blockDim.x + i * cuda.blockDim.x\n        if d < head_dim:\n            " + OUT),
    ("the maximum is not subtracted", "math.exp(lse[row] - m[row])", "math.exp(lse[row])"),
    ("the sum in place of its log", "m[row] + math.log(l)", "m[row] + l"),
    ("the weight upside down", W, "w = math.exp(m[row] - lse[row])"),
    ("lse for the weight", LAST, LAST.replace("= w", "= lse[row]")),
    ("times the sum", OUT, "out[row, d] = total[row, d] * l"),
    ("the log subtracted", LSE, LSE.replace("m[row] + math", "m[row] - math")),
    ("the sum of the last column of out", L, "l = total[row, head_dim - 1]"),
]

RIGHT = [
    ("a test of l for all", [(COLS + OUT, "    if l == 0:\n        l = float32(1.0)" + "\n" + COLS + "out[row, d] = total[row, d] / l"), (LSE, "lse[row] = m[row] + math.log(l)")]),
    ("the weight first in a row", [(WEIGH, "packed[row, d + 1] = w * out[row, d]"), (LAST, "    if cuda.threadIdx.x == 0:\n        packed[row, 0] = w"), (L, "l = total[row, 0]"), (OUT, "out[row, d] = total[row, d + 1] / l if l > 0 else float32(0.0)")]),
]

EQUIVALENT = [
    ("if cuda.threadIdx.x == 0: -> if cuda.threadIdx.x == 1:", "any one thread may store it"),
    (f"{LSE} -> {LSE.replace('l > 0', 'l >= 0')}", "log(0) is -inf"),
]
