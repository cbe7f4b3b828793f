"""ex17a: the merger of two partial results."""

# fmt: off
GUARD = "    if lse_max == -math.inf:  # two empty parts: -inf - -inf would be NaN\n        return float32(0.0), float32(0.0), lse_max\n"
RETURN = "return e_a / total, e_b / total, lse_max + math.log(total)"
E_A = "e_a = math.exp(lse_a - lse_max)"
MAX = "lse_max = max(lse_a, lse_b)"
LOOP = "for d in range(tx, out.shape[1], cuda.blockDim.x):"
IF_A = "if s_a > -math.inf:  # whatever an empty part holds is not looked at"
IF_B = "if s_b > -math.inf:"
PLUS_B = "x += w_b * out_b[row, d]"

WRONG = [
    ("no maximum", MAX, "lse_max = float32(0.0)"),
    ("the smaller for the larger", MAX, "lse_max = min(lse_a, lse_b)"),
    ("the first for the larger", MAX, "lse_max = lse_a"),
    ("no guard for two empty parts", GUARD, ""),
    ("two empty parts weigh one half", GUARD, GUARD.replace("float32(0.0), float32(0.0)", "float32(0.5), float32(0.5)")),
    ("lse of two empty parts is 0", GUARD, GUARD.replace("lse_max\n", "float32(0.0)\n", 2).replace("if float32(0.0)", "if lse_max")),
    ("-1e9 stands for -inf", MAX, "lse_a = max(lse_a, float32(-1e9))\n    lse_b = max(lse_b, float32(-1e9))\n    lse_max = max(lse_a, lse_b)"),
    ("-1e4 counts as empty", GUARD, GUARD.replace("== -math.inf", "<= float32(-9.9e3)")),
    ("exponents clipped at -88", E_A, "e_a = math.exp(max(lse_a - lse_max, float32(-20.0)))"),
    ("not divided", RETURN, "return e_a, e_b, lse_max + math.log(total)"),
    ("lse without the maximum", RETURN, RETURN.replace("lse_max + ", "")),
    ("log2", RETURN, RETURN.replace("math.log", "math.log2")),
    ("lse of the mean", RETURN, RETURN.replace("log(total)", "log(total / 2)")),
    ("the larger lse alone", RETURN, RETURN.replace(" + math.log(total)", "")),
    ("weights changed over", RETURN, RETURN.replace("e_a / total, e_b / total", "e_b / total, e_a / total")),
    ("weights of half each", RETURN, "return float32(0.5), float32(0.5), lse_max + math.log(total)"),
    ("an empty part is let in", [(IF_A, "if True:"), (IF_B, "if True:")]),
    ("an empty right part is let in", IF_B, "if True:"),
    ("a weight of 0 is no test for emptiness", [(IF_A, "if w_a > 0:"), ("x = float32(0.0)", "x = out_b[row, d] * float32(0.0)")]),
    ("parts below -1e3 are skipped", IF_A, "if s_a > float32(-1e3):"),
    ("no stride", LOOP, "for d in range(tx, min(out.shape[1], cuda.blockDim.x), cuda.blockDim.x):"),
    ("a stride of 32", LOOP, LOOP.replace("cuda.blockDim.x", "32")),
    ("4096 columns at most", LOOP, LOOP.replace("out.shape[1]", "min(out.shape[1], 4096)")),
    ("512 rows at most", "row, tx = cuda.blockIdx.x, cuda", "row, tx = cuda.blockIdx.x % 512, cuda"),
    ("every thread all columns", LOOP, "for d in range(out.shape[1]):"),
    ("every thread stores lse", "if tx == 0:", "if tx >= 0:"),
    ("lse is missing", "        lse[row] = merged", "        pass"),
    ("out_a for out_b", PLUS_B, PLUS_B.replace("out_b", "out_a")),
    ("added to what is there", "out[row, d] = x", "out[row, d] += x"),
    ("out_a is changed", "        out[row, d] = x", "        out_a[row, d] = x\n        out[row, d] = x"),
    ("weights through shared memory", "    w_a, w_b, merged = merge_weights(s_a, s_b)\n", "    w = cuda.shared.array(3, float32)\n    if tx == 0:\n        w[0], w[1], w[2] = merge_weights(s_a, s_b)\n    cuda.syncthreads()\n    w_a, w_b, merged = w[0], w[1], w[2]\n"),
    ("float64", "x = float32(0.0)", "x = 0.0"),
]

RIGHT = [
    ("weights from the merged lse", RETURN, "lse = lse_max + math.log(total)\n    return math.exp(lse_a - lse), math.exp(lse_b - lse), lse"),
    ("a sigmoid, with a case for each order", [(GUARD, GUARD), (E_A + "\n    e_b = math.exp(lse_b - lse_max)\n    total = e_a + e_b\n    " + RETURN,
        "small = math.exp(min(lse_a, lse_b) - lse_max)\n    big = float32(1.0) / (float32(1.0) + small)\n    lse = lse_max + math.log(float32(1.0) + small)\n"
        "    if lse_a >= lse_b:\n        return big, small * big, lse\n    return small * big, big, lse")]),
    ("other names, empty parts first", [("def kernel(out_a, lse_a, out_b, lse_b, out, lse):", "def kernel(x_a, l_a, x_b, l_b, o, l):"),
        ("s_a, s_b = lse_a[row], lse_b[row]", "s_a, s_b = l_a[row], l_b[row]"), (LOOP, LOOP.replace("out.", "o.")), ("x += w_a * out_a[row, d]", "x += w_a * x_a[row, d]"),
        (PLUS_B, "x += w_b * x_b[row, d]"), ("        out[row, d] = x", "        o[row, d] = x"), ("        lse[row] = merged", "        l[row] = merged")]),
]

EQUIVALENT = [("x += w_a * out_a[row, d] -> x = w_a * out_a[row, d]", "x is 0 there")]
