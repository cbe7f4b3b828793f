"""Wrong and right answers of ex02a: see tests/wrong_answers/__init__.py."""

START = "    m_i = float32(-math.inf)\n"
MAXIMUM = "        m_i = max(m_i, x[row, n])\n"
UNMASKED = "    if m_i > -math.inf:  # else"
SUM = "            l_i += math.exp(x[row, n] - m_i)\n"
WRITE = "            p = math.exp(x[row, n] - m_i) / l_i\n"
FIRST_LOOP = "    for n in range(x.shape[1]):\n        m_i"
SECOND_LOOP = "        for n in range(x.shape[1]):\n            l_i"
LAST_LOOP = "    for n in range(x.shape[1]):\n        p"
RETURN = "    return m_i, l_i\n"

WRONG = [
    *((f"the maximum starts at {low}", START, f"    m_i = float32({low})\n") for low in ("0.0", "-1e4", "-1e9", "-1e30")),
    ("a row below -1e30 counts as masked", UNMASKED, "    if m_i > float32(-1e30):  # else"),
    ("no guard of a masked row", UNMASKED, "    if m_i < math.inf:  # else"),
    ("a masked row counts its columns", UNMASKED, "    if m_i == -math.inf:\n        l_i = float32(x.shape[1])\n" + UNMASKED),
    ("a small number for l = 0", RETURN, "    return m_i, l_i + float32(1e-6)\n"),
    ("no maximum", MAXIMUM, "        m_i = float32(0.0)\n"),
    ("the maximum leaves out the first column", FIRST_LOOP, "    for n in range(1, x.shape[1]):\n        m_i"),
    ("the last column is not written", LAST_LOOP, "    for n in range(x.shape[1] - 1):\n        p"),
    ("the sum of the scores", SUM, "            l_i += x[row, n] - m_i\n"),
    ("swapped", RETURN, "    return l_i, m_i\n"),
    ("l = 1", RETURN, "    return m_i, float32(1.0)\n"),
    ("1 / l", RETURN, "    return m_i, float32(1.0) / l_i if l_i > 0 else l_i\n"),
    ("the mean of exp", RETURN, "    return m_i, l_i / float32(x.shape[1])\n"),
    ("an exponent cut off at -20", SUM, SUM.replace("x[row, n] - m_i", "max(x[row, n] - m_i, float32(-20.0))")),
    ("base 2", SUM, SUM.replace("math.exp", "math.exp2")),
    ("row 0", SUM, SUM.replace("x[row", "x[0")),
    ("x as a scratch pad", [(SUM, "            x[row, n] = math.exp(x[row, n] - m_i)\n            l_i += x[row, n]\n"), (WRITE, "            p = x[row, n] / l_i\n")]),
    ("-inf in x replaced", MAXIMUM, "        if x[row, n] == -math.inf:\n            x[row, n] = float32(-3.4e38)\n" + MAXIMUM),
    ("the row in a local array of 4096", [
        (START, START + "    kept = cuda.local.array(4096, float32)\n"),
        (MAXIMUM, "        kept[n] = x[row, n]\n        m_i = max(m_i, kept[n])\n"),
        (SUM, SUM.replace("x[row, n]", "kept[n]"))]),
    ("the maximum in shared memory", [(START, START + "    tile = cuda.shared.array(1024, float32)\n"), (UNMASKED, "    tile[cuda.threadIdx.x] = m_i\n    m_i = tile[cuda.threadIdx.x]\n" + UNMASKED)]),
    ("starts at x[row, 0]", START, "    m_i = x[row, 0]\n"),
    ("a fourth pass", RETURN, "    for n in range(x.shape[1]):\n        m_i = max(m_i, x[row, n] + float32(0))\n" + RETURN),
    ("float64", "    l_i = float32(0.0)\n", "    l_i = 0.0\n"),
    ("no guard of the row", "    if row >= x.shape[0]:\n", "    if row < 0:\n"),
    ("the thread's place in its block only", "    row = cuda.grid(1)\n", "    row = cuda.threadIdx.x\n"),
    ("256 rows at most", "    if row >= x.shape[0]:\n", "    if row >= min(x.shape[0], 256):\n"),
    ("4096 columns at most", SECOND_LOOP, SECOND_LOOP.replace("x.shape[1]", "min(x.shape[1], 4096)")),
    ("a maximum of 0 counts as masked", UNMASKED, "    if m_i > -math.inf and m_i != 0:  # else"),
]  # fmt: skip

RIGHT = [
    ("the sum by a guarded term", [(UNMASKED, "    if True:  # else"), (SUM, "            s = x[row, n]\n            l_i += math.exp(s - m_i) if s > -math.inf else float32(0)\n"),]),
    ("online, in one pass", """
import math

from numba import cuda, float32


@cuda.jit(device=True)
def row_statistics(scores, i):
    top, total = float32(-math.inf), float32(0)
    for j in range(scores.shape[1]):
        s = scores[i, j]
        if s > top:
            total = total * math.exp(top - s) + float32(1)
            top = s
        elif s > -math.inf:
            total += math.exp(s - top)
    return top, total


@cuda.jit
def safe_softmax_rows(x, y):
    row = cuda.grid(1)
    if row >= x.shape[0]:
        return
    m_i, l_i = row_statistics(x, row)
    for n in range(x.shape[1]):
        p = float32(0.0)
        if l_i > 0:
            p = math.exp(x[row, n] - m_i) / l_i
        y[row, n] = p
"""),
    ("from the last column to the first, a helper", """
import math

from numba import cuda, float32


@cuda.jit(device=True)
def weight(score, m):
    return math.exp(score - m) if score != -math.inf else float32(0.0)


@cuda.jit(device=True)
def row_statistics(x, row):
    m = float32(-math.inf)
    n = x.shape[1] - 1
    while n >= 0:
        m = max(x[row, n], m)
        n -= 1
    l = float32(0.0)
    for n in range(x.shape[1] - 1, -1, -1):
        l = l + weight(x[row, n], m)
    return m, l


@cuda.jit
def safe_softmax_rows(x, y):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < x.shape[0]:
        m, l = row_statistics(x, i)
        for n in range(x.shape[1]):
            y[i, n] = weight(x[i, n], m) / l if l != 0 else float32(0)
"""),
]  # fmt: skip

EQUIVALENT = []
