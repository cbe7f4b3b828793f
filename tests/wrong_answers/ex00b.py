"""Wrong and right answers of ex00b: see tests/wrong_answers/__init__.py."""

GUARD = "    if i < out.shape[0]:"
KERNEL = 'difference."""\n    i = cuda.threadIdx.x\n    if i < out.shape[0]:\n'
REST = "        out[i] = x[i + 1] - x[i]"
WHOLE = KERNEL + REST

WRONG = [
    ("as it was given", GUARD, "    if i < x.shape[0]:"),
    ("no guard", GUARD, "    if True:"),
    ("two too few", GUARD, "    if i < x.shape[0] - 2:"),
    ("one too few", GUARD, "    if i < out.shape[0] - 1:"),
    ("the first left out", GUARD, "    if 0 < i < out.shape[0]:"),
    ("the number of threads", GUARD, "    if i < cuda.blockDim.x - 1:"),
    ("the test of the sum", GUARD, "    if x[i] != x[i + 1]:"),
    ("the index is clipped", WHOLE, 'difference."""\n    i = min(cuda.threadIdx.x, out.shape[0] - 1)\n' + REST.replace("        ", "    ")),
    ("a loop", WHOLE, 'difference."""\n    for i in range(cuda.threadIdx.x, out.shape[0]):\n' + REST),
    ("one thread", WHOLE, 'difference."""\n    if cuda.threadIdx.x == 0:\n        for i in range(out.shape[0]):\n    ' + REST),
    ("never", GUARD, "    if i < 0:"),
    ("a third load", WHOLE, KERNEL + REST + "\n        out[i] = x[i + 1] - x[i]"),
    ("the first warp alone", GUARD, "    if i < min(32, out.shape[0]):"),
]  # fmt: skip

RIGHT = [
    ("of x", GUARD, "    if i + 1 < x.shape[0]:"),
    ("an early return", WHOLE, 'difference."""\n    i = cuda.threadIdx.x\n    if i >= out.size:\n        return\n' + REST.replace("        ", "    ")),
    ("other words", WHOLE, 'difference."""\n    here = cuda.grid(1)\n    if not here >= len(x) - 1:\n' "        right = x[here + 1]\n        out[here] = right - x[here]"),
]  # fmt: skip

EQUIVALENT = []
