"""ex11a: float32 throughout."""

ACC = "acc = float32(0.0)"
PENALTY = "penalty = slope[0] * float32(m - n)"
SCORE = "score = s[m, n] * float32(0.125) - penalty"
SUM = "acc += math.exp2(score * float32(LOG2_E))"
# broken_kernel has the lines without float32, and shares the others.
KERNEL = '    """Sums of the weights of each row, computed in float32."""\n    m = cuda.grid(1)\n    if m < s.shape[0]:\n        '

WRONG = [
    ("the literal is left", ACC, "acc = float32(0) + 0.0"),
    ("the difference of indices is left", PENALTY, "penalty = slope[0] * (m - n) * float32(1)"),
    ("the division by an integer is left", SCORE, "score = s[m, n] / 8 - float32(penalty)"),
    ("the global is left", SUM, "acc += float32(math.exp2(score * LOG2_E))"),
    ("rounded at the end", [(ACC, "acc = 0.0 * 1.0"), (SUM, "acc += float32(1) * math.exp2(score * float32(LOG2_E))")]),
    ("an integer for log2 e", SUM, "acc += math.exp2(score * float32(int(LOG2_E)))"),
    ("exp and log2 e", SUM, "acc += math.exp(score * float32(LOG2_E))"),
    ("times 8", SCORE, SCORE.replace("0.125", "8")),
    ("an integer division", SCORE, "score = s[m, n] * float32(1 // 8) - penalty"),
    ("a whole penalty", PENALTY, "penalty = float32(int(slope[0]) * (m - n))"),
    ("e^(2 score / 2), twice", SUM, "acc += math.exp2(score * float32(LOG2_E) * float32(0.5)) * math.exp2(score * float32(LOG2_E) * float32(0.5))"),
    ("slope as an integer array", PENALTY, "penalty = float32(0.25) * float32(m - n)"),
    ("0.126", SCORE, SCORE.replace("0.125", "0.126")),
    ("all keys", KERNEL + ACC + "\n        for n in range(m + 1):", KERNEL + ACC + "\n        for n in range(s.shape[0]):"),
    ("one thread block", KERNEL, KERNEL.replace("cuda.grid(1)", "cuda.threadIdx.x")),
    ("256 keys at most", KERNEL + ACC + "\n        for n in range(m + 1):", KERNEL + ACC + "\n        for n in range(min(m + 1, 256)):"),
    ("nine thread blocks at most", KERNEL, KERNEL.replace("cuda.grid(1)", "cuda.grid(1) % 576")),
]  # fmt: skip

RIGHT = [
    ("np.float32 of constants outside", [
        ("LOG2_E = 1.4426950408889634\n", "LOG2_E = 1.4426950408889634\nEIGHTH, LOG2 = np.float32(1 / 8), np.float32(LOG2_E)\n"),
        ("import math\n", "import math\n\nimport numpy as np\n"),
        (SCORE, "score = s[m, n] * EIGHTH - penalty"),
        (SUM, "acc += math.exp2(score * LOG2)"),
    ]),
    ("the distance counts down in float32", [(KERNEL + ACC, KERNEL + ACC + "\n        distance = float32(m)"), (PENALTY, "penalty = slope[0] * distance\n            distance -= float32(1)"),]),
    ("exp in place of exp2", SUM, "acc += math.exp(score)"),
]  # fmt: skip

EQUIVALENT = [("if m < s.shape[0]: -> if m < s.shape[1]:", "s has as many rows as columns")]
