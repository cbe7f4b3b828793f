"""Wrong and right answers of ex03c: see tests/wrong_answers/__init__.py."""

RANKS = "    return x_a > x_b or (x_a == x_b and col_a < col_b)\n"
ENTER = "    if ranks_before(x_j, col, x_best[last], col_best[last]):\n"
CLIMB = "        for i in range(last, 0, -1):\n"
SWAP_COLS = "                col_best[i - 1], col_best[i] = col_best[i], col_best[i - 1]\n"
START = "            x_best[i] = float32(-math.inf)\n"
M_START = "        m_i = float32(-math.inf)\n"
UNMASKED = "            if x_j > -math.inf:  #"
L = "                l_i = l_i * math.exp(m_i - m_new) + math.exp(x_j - m_new)\n"
READ = "            x_j = x[row, col]\n"
COLUMNS = "        for col in range(x.shape[1]):\n"
VALUE = "                value = math.exp(x_best[i] - m_i) / l_i\n"
STORE = "            values[row, i] = value\n"
EMPTY = "col_best[i] if col_best[i] != NO_COLUMN else int32(-1)\n"
LISTS = (
    "        x_best = cuda.local.array(K, float32)\n        col_best = cuda.local.array(K, int32)\n"
)
ACCESSES = "    return fused, 3 * num_rows * num_cols + fused"
FUSED = "    fused = num_rows * num_cols + 2 * num_rows * k"

WRONG = [
    ("the smaller score first", RANKS, RANKS.replace("x_a > x_b", "x_a < x_b")),
    ("ties by the larger column", RANKS, RANKS.replace("col_a < col_b", "col_a > col_b")),
    ("no rule for ties", RANKS, "    return x_a > x_b\n"),
    ("whoever comes last wins a tie", RANKS, "    return x_a >= x_b\n"),
    ("columns compared as float32", RANKS,
     RANKS.replace("col_a < col_b", "float32(col_a) < float32(col_b)")),
    ("scores of nearly the same size tie", RANKS,
     "    return x_a - x_b > 1e-6 or (abs(x_a - x_b) <= 1e-6 and col_a < col_b)\n"),
    ("any score enters", ENTER, "    if x_j > -math.inf:\n"),
    ("-inf never enters", ENTER, ENTER.replace("if ", "if x_j > -math.inf and ")),
    ("below -1e9 never enters", ENTER, ENTER.replace("if ", "if x_j > float32(-1e9) and ")),
    ("the last place is not looked at", "    last = x_best.shape[0] - 1\n",
     "    last = x_best.shape[0] - 2\n"),
    ("16 places at most", "    last = x_best.shape[0] - 1\n",
     "    last = min(x_best.shape[0], 16) - 1\n"),
    ("climbs one place", CLIMB, "        for i in range(last, last - 1, -1):\n"),
    ("never reaches the first place", CLIMB, "        for i in range(last, 1, -1):\n"),
    ("climbs down", CLIMB, "        for i in range(1, last + 1):\n"),
    ("the columns stay behind", SWAP_COLS, ""),
    *((f"an empty place holds {low}", START, f"            x_best[i] = float32({low})\n")
      for low in ("0.0", "-1e4", "-1e30")),
    *((f"the maximum starts at {low}", M_START, f"        m_i = float32({low})\n")
      for low in ("0.0", "-1e4", "-1e9", "-1e30")),
    ("below -1e9 counts as masked", UNMASKED, "            if x_j > float32(-1e9):  #"),
    ("no guard of a masked beginning", UNMASKED, "            if x_j < math.inf:  #"),
    ("l is not rescaled", L, L.replace("l_i * math.exp(m_i - m_new)", "l_i")),
    ("the sum of exp alone", L, "                l_i += math.exp(x_j)\n"),
    ("the list alone is summed", L, L.replace("math.exp(x_j - m_new)",
     "(math.exp(x_j - m_new) if ranks_before(x_j, col, x_best[K - 1], col_best[K - 1] + 1)"
     " else float32(0))")),
    ("1024 columns at most", COLUMNS, "        for col in range(min(x.shape[1], 1024)):\n"),
    ("the last column is left out", COLUMNS, "        for col in range(x.shape[1] - 1):\n"),
    ("not divided", VALUE, VALUE.replace(" / l_i", "")),
    ("divided by the length of the list", VALUE, VALUE.replace("l_i", "K")),
    ("an exponent cut off at -30", VALUE,
     VALUE.replace("x_best[i] - m_i", "max(x_best[i] - m_i, float32(-30.0))")),
    ("no guard of a masked row", "            if l_i > 0:\n", "            if l_i > -1:\n"),
    ("an empty place has column NO_COLUMN", EMPTY, "col_best[i]\n"),
    ("an empty place is not written", "            columns[row, i] =",
     "            if col_best[i] != NO_COLUMN:\n                columns[row, i] ="),
    ("no guard of the row", "        if row >= x.shape[0]:\n", "        if row < 0:\n"),
    ("the row by its place in the block", "        row = cuda.grid(1)\n",
     "        row = cuda.threadIdx.x\n"),
    ("x is read three times", L, L.replace("x_j - m_new", "x[row, col] - m_new")),
    ("the score again from x", VALUE, VALUE.replace("x_best[i] -", "x[row, col_best[i]] -")),
    ("the row in a local array", [
        (LISTS, LISTS + "        kept = cuda.local.array(2048, float32)\n"),
        (READ, "            kept[col] = x[row, col]\n            x_j = kept[col]\n")]),
    ("shared lists", LISTS, LISTS.replace("x_best = cuda.local.array(K, float32)",
     "lists = cuda.shared.array((32, K), float32)\n"
     "        x_best = lists[cuda.threadIdx.x]")),
    ("values read back", STORE, "            values[row, i] = math.exp(x_best[i] - m_i)\n"
     "            values[row, i] = value if values[row, i] > 0 else float32(0)\n"),
    ("x changed", READ, READ + "            x[row, col] = max(x_j, float32(-3.4e38))\n"),
    ("accesses: no columns", FUSED, FUSED.replace("2 * num_rows", "num_rows")),
    ("accesses: softmax reads once", ACCESSES, ACCESSES.replace("3 *", "2 *")),
    ("accesses: safe softmax", ACCESSES, ACCESSES.replace("3 *", "4 *")),
    ("accesses: floats", ACCESSES, "    return fused * 1.0, 3.0 * num_rows * num_cols + fused"),
    ("float64", "        l_i = float32(0.0)\n", "        l_i = 0.0\n"),
]  # fmt: skip

RIGHT = [
    ("a search for the place, then a shift; other names", """
import functools
import math

from numba import cuda, float32, int32

NO_COLUMN = 2**31 - 1


@cuda.jit(device=True)
def ranks_before(x_a, col_a, x_b, col_b):
    if x_a == x_b:
        return col_a < col_b
    return x_a > x_b


@cuda.jit(device=True)
def topk_update(scores, places, s, place):
    i = len(scores)
    while i > 0 and ranks_before(s, place, scores[i - 1], places[i - 1]):
        i -= 1
        if i + 1 < len(scores):
            scores[i + 1] = scores[i]
            places[i + 1] = places[i]
    if i < len(scores):
        scores[i] = s
        places[i] = place


@functools.cache
def make_topk(K):
    @cuda.jit
    def best(logits, shares, where):
        r = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
        if r < logits.shape[0]:
            s = cuda.local.array(K, float32)
            c = cuda.local.array(K, int32)
            for i in range(K):
                s[i], c[i] = float32(-math.inf), int32(NO_COLUMN)
            l = float32(0)
            m = float32(-math.inf)
            for j in range(logits.shape[1]):
                logit = logits[r, j]
                topk_update(s, c, logit, int32(j))
                if logit > m:
                    l = l * math.exp(m - logit) + float32(1)
                    m = logit
                elif logit > -math.inf:
                    l += math.exp(logit - m)
            for i in range(K):
                if c[i] == NO_COLUMN:
                    shares[r, i], where[r, i] = float32(0), int32(-1)
                else:
                    shares[r, i] = float32(0) if l == 0 else math.exp(s[i] - m) / l
                    where[r, i] = c[i]

    return best


def accesses(num_rows, num_cols, k):
    fused = num_rows * (num_cols + 2 * k)
    return fused, fused + num_rows * num_cols * 3
"""),
    ("a masked row is divided by 1", "            value = float32(0.0)\n            if l_i > 0:\n"
     + VALUE, "            value = math.exp(x_best[i] - (m_i if l_i > 0 else float32(0)))\n"
     "            value = value / (l_i if l_i > 0 else float32(1))\n"),
]  # fmt: skip

EQUIVALENT = []
