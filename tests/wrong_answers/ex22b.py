"""ex22b: AdamW."""

AVERAGES = "averages += (1 - BETA1) * (grads - averages)"
SQUARES = "squares += (1 - BETA2) * (grads * grads - squares)"
M = "m = averages / (1 - BETA1**t)"
S = "s = squares / (1 - BETA2**t)"
WEIGHTS = "weights -= rate * (m / (np.sqrt(s) + EPSILON) + WEIGHT_DECAY * weights)"

WRONG = [
    ("no correction", [(M, "m = averages"), (S, "s = squares")]),
    ("the corrections exchanged", [(M, M.replace("BETA1", "BETA2")), (S, S.replace("BETA2", "BETA1"))]),
    ("a step late", [(M, M.replace("**t", "**(t - 1)")), (S, S.replace("**t", "**(t - 1)"))]),
    ("a step ahead", [(M, M.replace("**t", "**(t + 1)")), (S, S.replace("**t", "**(t + 1)"))]),
    ("the correction of the first step always", [(M, M.replace("**t", "")), (S, S.replace("**t", ""))]),
    ("corrected in place", [(M, "averages /= 1 - BETA1**t\n    m = averages"), (S, "squares /= 1 - BETA2**t\n    s = squares")]),
    ("the same beta", SQUARES, SQUARES.replace("BETA2", "BETA1")),
    ("absolute values", SQUARES, SQUARES.replace("grads * grads", "abs(grads)")),
    ("new arrays", [(AVERAGES, "averages = averages + (1 - BETA1) * (grads - averages)"), (SQUARES, "squares = squares + (1 - BETA2) * (grads * grads - squares)")]),
    ("a new array of weights", WEIGHTS, "weights = weights - rate * (m / (np.sqrt(s) + EPSILON) + WEIGHT_DECAY * weights)\n    return weights"),
    ("the decay in the gradient", AVERAGES, "grads = grads + WEIGHT_DECAY * weights\n    " + AVERAGES),
    ("decay without rate", WEIGHTS, "weights -= rate * m / (np.sqrt(s) + EPSILON) + WEIGHT_DECAY * weights"),
    ("uphill", WEIGHTS, WEIGHTS.replace("-=", "+=")),
    ("no root", WEIGHTS, WEIGHTS.replace("np.sqrt(s)", "s")),
    ("Adagrad", SQUARES, "squares += grads * grads"),
    ("grads used up", SQUARES, "grads *= grads\n    squares += (1 - BETA2) * (grads - squares)"),
    ("no correction of squares after 100 steps", S, "s = squares / (1 - BETA2**t if t <= 100 else 1)"),
    ("256 weights at most", AVERAGES, "averages[:256] += (1 - BETA1) * (grads - averages)[:256]"),
]  # fmt: skip

RIGHT = [
    ("as the package: the correction beside the rate", [
        (M, "rate1 = rate / (1 - BETA1**t)"),
        (S, "root = np.sqrt(squares * (1 / (1 - BETA2**t)))"),
        (WEIGHTS, "weights *= 1 - rate * WEIGHT_DECAY\n    weights -= rate1 * averages / (root + EPSILON)"),
    ]),
    ("by the formula", [
        (AVERAGES, "averages[:] = BETA1 * averages + (1 - BETA1) * grads"),
        (SQUARES, "squares[:] = BETA2 * squares + (1 - BETA2) * grads**2"),
    ]),
]  # fmt: skip

EQUIVALENT = []
