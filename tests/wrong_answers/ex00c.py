"""Wrong and right answers of ex00c: see tests/wrong_answers/__init__.py."""

ROW = "    row = cuda.threadIdx.y\n"
COL = "    col = cuda.threadIdx.x\n"
INSIDE = "    if row < out.shape[0] and col < out.shape[1]:\n"
BODY = "        out[row, col] = a[row, col] - b[row, col]"

WRONG = [
    ("x down the columns", [(ROW, ROW.replace(".y", ".x")), (COL, COL.replace(".x", ".y"))]),
    ("x for both", ROW, ROW.replace(".y", ".x")),
    ("y for both", COL, COL.replace(".x", ".y")),
    ("no guard", INSIDE, "    if True:\n"),
    ("a square matrix taken for granted", INSIDE, INSIDE.replace("[1]", "[0]")),
    ("last row left out", INSIDE, INSIDE.replace("[0]", "[0] - 1")),
    ("in place", BODY, "        a[row, col] -= b[row, col]\n        out[row, col] = a[row, col]"),
    ("a row per thread", INSIDE + BODY, "    if row < out.shape[0] and col == 0:\n        for col in range(out.shape[1]):\n    " + BODY),
    ("out is read", BODY, "        out[row, col] = a[row, col]\n        out[row, col] -= b[row, col]"),
    ("b read twice", BODY, BODY + "\n        if b[row, col] == 0:\n            out[row, col] = a[row, col]"),
    ("64 rows at most", INSIDE, INSIDE.replace("out.shape[0]", "min(64, out.shape[0])")),
    ("256 columns at most", INSIDE, INSIDE.replace("out.shape[1]", "min(256, out.shape[1])")),
]  # fmt: skip

RIGHT = [
    ("cuda.grid", ROW + COL, "    col, row = cuda.grid(2)\n"),
    ("early returns and other names", """
from numba import cuda


@cuda.jit
def subtract_matrices(left, right, rest):
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    rows, cols = rest.shape
    if y >= rows:
        return
    if x >= cols:
        return
    rest[y, x] = left[y, x] - right[y, x]
"""),
    ("two ifs", INSIDE + BODY, "    if row < a.shape[0]:\n        if col < b.shape[1]:\n    " + BODY),
]  # fmt: skip

EQUIVALENT = []
