"""Wrong and right answers of ex00a: see tests/wrong_answers/__init__.py."""

FLOAT32 = "from numba import cuda\n", "from numba import cuda, float32\n"
GUARD = "    if i < out.shape[0]:\n"
BODY = "        out[i] = factor * x[i]"
INDEX = "    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x\n"
COL = "    col = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x"
ROW = "    row = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y"
INSIDE = "    if row < out.shape[0] and col < out.shape[1]:\n"
SUM = "        out[row, col] = a[row, col] + b[row, col]"

WRONG = [
    ("no guard", GUARD, "    if True:\n"),
    ("guard off by one", GUARD, GUARD.replace("<", "<=")),
    ("last element left out", GUARD, GUARD.replace(":", " - 1:")),
    ("the thread's place in its block only", INDEX, "    i = cuda.threadIdx.x\n"),
    ("gridDim for blockDim", INDEX, INDEX.replace("blockDim", "gridDim")),
    ("strided over the grid", INDEX,
     "    i = cuda.threadIdx.x * cuda.gridDim.x + cuda.blockIdx.x\n"),
    ("a block of 64 threads taken for granted", INDEX, INDEX.replace("cuda.blockDim.x", "64")),
    ("the factor of the example", BODY, "        out[i] = x[i] + x[i] + x[i]"),
    ("factor added", BODY, "        out[i] = factor + x[i]"),
    ("in place", BODY, "        x[i] = factor * x[i]\n        out[i] = x[i]"),
    ("one thread does all", INDEX + GUARD + BODY,
     "    if cuda.grid(1) == 0:\n        for i in range(out.shape[0]):\n    " + BODY),
    ("every thread block does all", INDEX + GUARD + BODY,
     "    for i in range(cuda.threadIdx.x, out.shape[0], cuda.blockDim.x):\n" + BODY),
    ("a loop over the grid, one block working", INDEX + GUARD + BODY,
     "    if cuda.blockIdx.x == 0:\n        for i in range(cuda.threadIdx.x, out.shape[0], "
     "cuda.blockDim.x):\n    " + BODY),
    ("through shared memory", [FLOAT32, (BODY,
     "        tile = cuda.shared.array(128, float32)\n        tile[cuda.threadIdx.x] = x[i]\n"
     "        out[i] = factor * tile[cuda.threadIdx.x]")]),
    ("through a local array", [FLOAT32, (BODY,
     "        mine = cuda.local.array(1, float32)\n        mine[0] = x[i]\n"
     "        out[i] = factor * mine[0]")]),
    ("added to what was there", SUM, SUM.replace("= a", "= out[row, col] + a")),
    ("x down the columns", [(COL, ROW.replace("row", "col")), (ROW, COL.replace("col", "row"))]),
    ("row guard only", INSIDE, "    if row < out.shape[0]:\n"),
    ("column guard only", INSIDE, "    if col < out.shape[1]:\n"),
    ("a guard or the other", INSIDE, INSIDE.replace("and", "or")),
    ("a square matrix taken for granted", INSIDE, INSIDE.replace("[1]", "[0]")),
    ("a added to itself", SUM, "        out[row, col] = a[row, col] + a[row, col]"),
    ("b read twice", SUM, "        out[row, col] = a[row, col] + b[row, col]\n"
     "        if b[row, col] == 0:\n            out[row, col] = a[row, col]"),
    ("subtracted", SUM, SUM.replace("+", "-")),
    ("relu on the way", SUM, "        out[row, col] = max(a[row, col] + b[row, col], b[row, col])"),
    ("b changed in place", SUM,
     "        b[row, col] += a[row, col]\n        out[row, col] = b[row, col]"),
    ("a row per thread", [(COL, "    col = cuda.threadIdx.x"), (ROW, ROW)]),
]  # fmt: skip

RIGHT = [
    ("cuda.grid", [(INDEX, "    i = cuda.grid(1)\n"), (COL + "\n" + ROW,
                                                       "    col, row = cuda.grid(2)")]),
    ("early returns and other names", """
from numba import cuda


@cuda.jit
def scale_vector(source, target, weight):
    place = cuda.threadIdx.x + cuda.blockDim.x * cuda.blockIdx.x
    if place >= source.size:
        return
    target[place] = source[place] * weight


@cuda.jit
def add_matrices(left, right, total):
    y = cuda.threadIdx.y + cuda.blockDim.y * cuda.blockIdx.y
    x = cuda.threadIdx.x + cuda.blockDim.x * cuda.blockIdx.x
    rows, cols = total.shape
    if y >= rows or x >= cols:
        return
    total[y, x] = right[y, x] + left[y, x]
"""),
    ("a helper, one index", """
from numba import cuda


@cuda.jit(device=True)
def mine():
    return cuda.grid(1)


@cuda.jit
def scale_vector(x, out, factor):
    if mine() < len(out):
        out[mine()] = x[mine()] * factor


@cuda.jit
def add_matrices(a, b, out):
    x, y = cuda.grid(2)
    if x < out.shape[1]:
        if y < out.shape[0]:
            out[y][x] = a[y][x] + b[y][x]
"""),
    ("a loop that strides by the whole grid", INDEX + GUARD + BODY,
     "    for i in range(cuda.grid(1), out.shape[0], cuda.gridsize(1)):\n" + BODY),
]  # fmt: skip

EQUIVALENT = []
