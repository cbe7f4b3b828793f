"""Wrong and right answers of ex02a: see tests/wrong_answers/__init__.py."""

START = "    m_i = float32(-math.inf)\n"
MAXIMUM = "        m_i = max(m_i, x[row, n])\n"
MASKED = "    if m_i == -math.inf:  # every"
SUM = "        l_i += math.exp(x[row, n] - m_i)\n    scale"
WRITE = "        y[row, n] = math.exp(x[row, n] - m_i) * scale"
FIRST_LOOP = "    for n in range(x.shape[1]):\n        m_i"
SECOND_LOOP = "    for n in range(x.shape[1]):\n        l_i"
LAST_LOOP = "    for n in range(x.shape[1]):\n        y"

WRONG = [
    *((f"the maximum starts at {low}", START, f"    m_i = float32({low})\n")
      for low in ("0.0", "-1e4", "-1e9", "-1e30")),
    ("a row below -1e30 counts as masked", MASKED, "    if m_i <= float32(-1e30):  # every"),
    ("no guard of a masked row", MASKED, "    if m_i == math.inf:  # every"),
    ("no guard of 0 / 0", "    if l_i > 0:\n", "    if True:\n"),
    ("a small number for l = 0", "    if l_i > 0:\n        scale = float32(1.0) / l_i\n",
     "    scale = float32(1.0) / (l_i + float32(1e-6))\n"),
    ("no maximum", MAXIMUM, "        m_i = float32(0.0)\n"),
    ("the maximum leaves out the first column", FIRST_LOOP,
     "    for n in range(1, x.shape[1]):\n        m_i"),
    ("the maximum leaves out the last column", FIRST_LOOP,
     "    for n in range(x.shape[1] - 1):\n        m_i"),
    ("the sum leaves out the last column", SECOND_LOOP,
     "    for n in range(x.shape[1] - 1):\n        l_i"),
    ("the last column is not written", LAST_LOOP,
     "    for n in range(x.shape[1] - 1):\n        y"),
    ("the minimum", MAXIMUM, MAXIMUM.replace("max", "min")),
    ("the sum without the maximum", SUM, SUM.replace(" - m_i", "")),
    ("not divided", WRITE, WRITE.replace(" * scale", "")),
    ("multiplied by l", WRITE, WRITE.replace("* scale", "* l_i")),
    ("an exponent cut off at -20", WRITE,
     WRITE.replace("x[row, n] - m_i", "max(x[row, n] - m_i, float32(-20.0))")),
    ("base 2", WRITE, WRITE.replace("math.exp", "math.exp2")),
    ("no guard of the row", "    if row >= x.shape[0]:\n", "    if row < 0:\n"),
    ("guard off by one", "    if row >= x.shape[0]:\n", "    if row > x.shape[0]:\n"),
    ("guard against the columns", "    if row >= x.shape[0]:\n", "    if row >= x.shape[1]:\n"),
    ("the thread's place in its block only", "    row = cuda.grid(1)\n",
     "    row = cuda.threadIdx.x\n"),
    ("thread 0 does all rows", [
        ("    row = cuda.grid(1)\n    if row >= x.shape[0]:\n        return\n",
         "    if cuda.grid(1) > 0:\n        return\n    for row in range(x.shape[0]):\n"
         "        one_row(x, y, row)\n\n\n@cuda.jit(device=True)\ndef one_row(x, y, row):\n"),
    ]),
    ("y as a scratch pad", [
        (SUM, "        y[row, n] = math.exp(x[row, n] - m_i)\n        l_i += y[row, n]\n    scale"),
        (WRITE, "        y[row, n] *= scale")]),
    ("x as a scratch pad", [
        (SUM, "        x[row, n] = math.exp(x[row, n] - m_i)\n        l_i += x[row, n]\n    scale"),
        (WRITE, "        y[row, n] = x[row, n] * scale")]),
    ("-inf in x replaced", MAXIMUM,
     "        if x[row, n] == -math.inf:\n            x[row, n] = float32(-3.4e38)\n" + MAXIMUM),
    ("the row in a local array of 4096", [
        (START, START + "    kept = cuda.local.array(4096, float32)\n"),
        (MAXIMUM, "        kept[n] = x[row, n]\n        m_i = max(m_i, kept[n])\n"),
        (SUM, SUM.replace("x[row, n]", "kept[n]")),
        (WRITE, WRITE.replace("x[row, n]", "kept[n]"))]),
    ("the maximum in shared memory", [
        (START, START + "    tile = cuda.shared.array(1024, float32)\n"),
        (SECOND_LOOP, "    tile[cuda.threadIdx.x] = m_i\n    m_i = tile[cuda.threadIdx.x]\n"
                      + SECOND_LOOP)]),
    ("a fourth pass", "    for n in range(x.shape[1]):\n        m_i = max(m_i, x[row, n])\n",
     "    for n in range(x.shape[1]):\n        m_i = max(m_i, x[row, n])\n"
     "    for n in range(x.shape[1]):\n        m_i = max(m_i, x[row, n])\n"),
    ("float64", "    l_i = float32(0.0)\n", "    l_i = 0.0\n"),
]  # fmt: skip

RIGHT = [
    ("the lowest float32 as start", START, "    m_i = float32(-3.4028235e38)\n"),
    ("online, other names, two passes", """
import math

from numba import cuda, float32


@cuda.jit
def safe_softmax_rows(scores, shares):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < scores.shape[0]:
        largest = float32(-math.inf)
        total = float32(0)
        for j in range(scores.shape[1]):
            s = scores[i, j]
            if s > largest:
                total = total * math.exp(largest - s) + float32(1)
                largest = s
            elif s > -math.inf:
                total += math.exp(s - largest)
        for j in range(scores.shape[1]):
            shares[i, j] = (
                math.exp(scores[i, j] - largest) / total if total > 0 else float32(0)
            )
"""),
    ("from the last column to the first, a helper, a ternary", """
import math

from numba import cuda, float32


@cuda.jit(device=True)
def weight(score, m):
    return math.exp(score - m) if score != -math.inf else float32(0.0)


@cuda.jit
def safe_softmax_rows(x, y):
    row = cuda.grid(1)
    last = x.shape[1] - 1
    if row >= x.shape[0]:
        return
    m = float32(-math.inf)
    n = last
    while n >= 0:
        m = max(x[row, n], m)
        n -= 1
    l = float32(0.0)
    for n in range(last, -1, -1):
        l = l + weight(x[row, n], m)
    for n in range(last, -1, -1):
        p = weight(x[row, n], m)
        y[row, n] = p / l if l != 0 else p
"""),
]  # fmt: skip

EQUIVALENT = []
