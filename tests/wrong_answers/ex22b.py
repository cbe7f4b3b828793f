"""ex22b: AdamW."""

RETURN = "return 1 - BETA1**t, 1 - BETA2**t"
M = "m += float32(1 - BETA1) * (g - m)"
S = "s += float32(1 - BETA2) * (g * g - s)"
QUOTIENT = "quotient = m / c1 / (math.sqrt(s / c2) + float32(EPSILON))"
W = "weights[i] = w - rate * (quotient + float32(WEIGHT_DECAY) * w)"
I = "i = cuda.grid(1)"

WRONG = [
    ("t from 0", RETURN, "return 1 - BETA1 ** (t + 1), 1 - BETA2 ** (t + 1)"),
    ("the step before", RETURN, "return 1 - BETA1 ** (t - 1), 1 - BETA2 ** (t - 1)"),
    ("the share of the 0", RETURN, "return BETA1**t, BETA2**t"),
    ("one beta for both", RETURN, "return 1 - BETA1**t, 1 - BETA1**t"),
    ("of the first step only", RETURN, "return (1 - BETA1, 1 - BETA2) if t == 1 else (1, 1)"),
    ("100 steps at most", RETURN, "return (1 - BETA1**t, 1 - BETA2**t) if t < 100 else (1, 1)"),
    ("no correction", QUOTIENT, "quotient = m / (math.sqrt(s) + float32(EPSILON))"),
    ("c2 outside of the root", QUOTIENT, "quotient = m / c1 / (math.sqrt(s) / c2 + float32(EPSILON))"),
    ("no root", QUOTIENT, QUOTIENT.replace("math.sqrt(s / c2)", "s / c2")),
    ("EPSILON in the root", QUOTIENT, "quotient = m / c1 / math.sqrt(s / c2 + float32(EPSILON))"),
    ("the corrected average is stored", M, M + "\n        m = m / c1"),
    ("the square of the average", S, S.replace("g * g", "m * m")),
    ("decay in the gradient", [(M, "g += float32(WEIGHT_DECAY) * w\n        " + M), (W, "weights[i] = w - rate * quotient")]),
    ("decay without the rate", W, "weights[i] = w - rate * quotient - float32(WEIGHT_DECAY) * w"),
    ("decay after the step", W, "w -= rate * quotient\n        weights[i] = w - rate * float32(WEIGHT_DECAY) * w"),
    ("averages are not stored", "averages[i] = m\n", "m += float32(0.0)\n"),
    ("loaded twice", "g, w = grads[i], weights[i]", "g, w = grads[i] + float32(0.0) * grads[i], weights[i]"),
    ("no guard", "if i < weights.shape[0]:", "if i >= 0:"),
    ("64 weights at most", I, "i = cuda.threadIdx.x"),
    ("512 weights at most", "if i < weights.shape[0]:", "if i < min(512, weights.shape[0]):"),
    ("four weights for a thread, in a row", I, "i = cuda.threadIdx.x * cuda.gridDim.x + cuda.blockIdx.x"),
    ("float64", M, M.replace("float32(1 - BETA1)", "(1 - BETA1)")),
    ("grads set to 0", W, W + "\n        grads[i] = float32(0.0)"),
]  # fmt: skip

RIGHT = [
    ("beta times the old", [(M, "m = float32(BETA1) * m + float32(0.1) * g"), (S, "s = float32(BETA2) * s + float32(0.01) * g * g")]),
    ("a return without a weight", [
        ("    if i < weights.shape[0]:\n", "    if i >= weights.shape[0]:\n        return\n    if True:\n"),
        (W, "weights[i] = w * (float32(1.0) - rate * float32(WEIGHT_DECAY)) - rate * quotient"),
    ]),
]  # fmt: skip

EQUIVALENT = []
