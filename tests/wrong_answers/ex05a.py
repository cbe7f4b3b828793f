"""Wrong and right answers of ex05a: see tests/wrong_answers/__init__.py."""

READ = (
    "        row_max = partial[0]\n        cuda.syncthreads()  # every thread has read the maximum: "
    "safe to write the next row's\n"
)
FIRST = "        cuda.syncthreads()  # every thread's maximum is there: safe to compare\n"
STEP = (
    "            cuda.syncthreads()  # this step's maxima are there: safe to take the next step\n"
)
FOLD = "                partial[tid] = max(partial[tid], partial[tid + half])\n" + STEP
HALF = "        half = THREADS // 2\n        while half > 0:\n            if tid < half:\n" + FOLD
LAST = (
    READ + "        for col in range(tid, x.shape[1], THREADS):\n"
    "            y[row, col] = x[row, col] - row_max\n"
)
HEAD = (
    '    """y = x - row maximum."""\n    partial = cuda.shared.array(THREADS, float32)\n'
    "    tid = cuda.threadIdx.x\n"
)
ROWS = HEAD + "    for row in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):\n"
BEST = ROWS + "        best = float32(-math.inf)\n"
COLUMNS = BEST + "        for col in range(tid, x.shape[1], THREADS):\n"
MAXIMUM = COLUMNS + "            best = max(best, x[row, col])\n"
READ_LINE, BARRIER = READ.split("\n")[:2]
TOP = MAXIMUM + "        partial[tid] = best\n" + FIRST + HALF  # down to the last step


def changed(old, new):
    """Its lines stand in broken_kernel, too: the whole of the kernel's beginning is changed."""
    assert TOP.count(old) == 1, old
    return TOP, TOP.replace(old, new)


WRONG = [
    ("as it was", READ, READ_LINE + "\n"),
    ("the barrier before the maximum is read", READ, BARRIER + "\n" + READ_LINE + "\n"),
    ("the barrier for one thread", READ,
     READ_LINE + "\n        if tid == 0:\n            cuda.syncthreads()\n"),
    ("a warp barrier", READ, READ.replace("syncthreads", "syncwarp")),
    ("a fence", READ, READ.replace("syncthreads", "threadfence_block")),
    ("a barrier per column", LAST,
     LAST.replace(BARRIER + "\n", "").rstrip() + "\n            cuda.syncthreads()\n"),
    ("two barriers more", READ, READ + BARRIER + "\n"),
    ("no barrier before the steps", *changed(FIRST, "")),
    ("no barrier between the steps", *changed(STEP, "")),
    ("the barrier moved into the if", *changed(FOLD, FOLD.replace("            cuda.sync", "                cuda.sync"))),
    ("one row per thread block", ROWS, HEAD + "    for row in range(cuda.blockIdx.x, "
     "min(cuda.blockIdx.x + 1, x.shape[0])):\n"),
    ("all rows by every thread block", ROWS, HEAD + "    for row in range(x.shape[0]):\n"),
    ("all rows by thread block 0", ROWS,
     HEAD + "    for row in range(cuda.blockIdx.x * x.shape[0], x.shape[0]):\n"),
    ("64 rows at most", ROWS, HEAD + "    for row in range(cuda.blockIdx.x, min(x.shape[0], 64), "
     "cuda.gridDim.x):\n"),
    *((f"the maximum starts at {low}", BEST, ROWS + f"        best = float32({low})\n")
      for low in ("0.0", "-1e4", "-1e9", "-1e30")),
    ("4096 columns at most", COLUMNS,
     BEST + "        for col in range(tid, min(x.shape[1], 4096), THREADS):\n"),
    ("the last column is left out", COLUMNS,
     BEST + "        for col in range(tid, x.shape[1] - 1, THREADS):\n"),
    ("each thread its own maximum", READ, READ.replace("partial[0]", "best")),
    ("the minimum", MAXIMUM, MAXIMUM.replace("max(best", "min(best")),
    ("the steps stop at two", *changed(HALF, HALF.replace("half > 0", "half > 1"))),
    ("added", LAST, LAST.replace("] - row_max", "] + row_max")),
    ("thread 0 alone", MAXIMUM[len(HEAD) :] + "        partial[tid] = best\n" + FIRST + HALF + "            half //= 2\n" + LAST,
     "    for row in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):\n"
     "        partial[tid] = float32(0)\n        if tid == 0:\n"
     "            best = float32(-math.inf)\n            for col in range(x.shape[1]):\n"
     "                best = max(best, x[row, col])\n            for col in range(x.shape[1]):\n"
     "                y[row, col] = x[row, col] - best\n"),
    ("the maximum of each thread from HBM", READ + "        for", "        cuda.syncthreads()\n"
     "        row_max = float32(-math.inf)\n        for col in range(x.shape[1]):\n"
     "            row_max = max(row_max, x[row, col])\n        for"),
    ("a row of partial for each row", HEAD,
     HEAD.replace("cuda.shared.array(THREADS", "cuda.shared.array(2 * THREADS")),
    ("y as a scratch pad", MAXIMUM, MAXIMUM + "            y[row, col] = x[row, col]\n"),
    ("x in place", LAST, LAST.replace("            y[row, col] = x[row, col] - row_max\n",
     "            x[row, col] -= row_max\n            y[row, col] = x[row, col]\n")),
    ("float64", BEST, ROWS + "        best = float(-math.inf)\n"),
]  # fmt: skip

RIGHT = [
    ("the barrier at the start of a row", [
        (READ, READ_LINE + "\n"), (BEST, ROWS + "        cuda.syncthreads()\n"
                                                "        best = float32(-math.inf)\n")]),
    ("warp shuffles, two barriers a row, other names", """
import math

from numba import cuda, float32

THREADS = 64


@cuda.jit
def broken_kernel(x, y):
    partial = cuda.shared.array(THREADS, float32)
    tid = cuda.threadIdx.x
    for row in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
        best = float32(-math.inf)
        for col in range(tid, x.shape[1], THREADS):
            best = max(best, x[row, col])
        partial[tid] = best
        cuda.syncthreads()
        half = THREADS // 2
        while half > 0:
            if tid < half:
                partial[tid] = max(partial[tid], partial[tid + half])
            cuda.syncthreads()
            half //= 2
        row_max = partial[0]
        for col in range(tid, x.shape[1], THREADS):
            y[row, col] = x[row, col] - row_max


@cuda.jit
def kernel(source, target):
    tops = cuda.shared.array(2, float32)
    t = cuda.threadIdx.x
    i = cuda.blockIdx.x
    while i < source.shape[0]:
        top = float32(-math.inf)
        for j in range(t, source.shape[1], cuda.blockDim.x):
            if source[i, j] > top:
                top = source[i, j]
        for delta in (16, 8, 4, 2, 1):
            top = max(top, cuda.shfl_xor_sync(0xFFFFFFFF, top, delta))
        if t % 32 == 0:
            tops[t // 32] = top
        cuda.syncthreads()
        top = max(tops[0], tops[1])
        cuda.syncthreads()
        for j in range(t, source.shape[1], cuda.blockDim.x):
            target[i, j] = source[i, j] - top
        i += cuda.gridDim.x
""".replace("""            if source[i, j] > top:
                top = source[i, j]
""", """            top = max(top, source[i, j])
""")),
    ("the last step by every thread", [
        changed(HALF, HALF.replace("half > 0", "half > 1")),
        (READ, READ.replace("partial[0]", "max(partial[0], partial[1])"))]),
]  # fmt: skip

EQUIVALENT = []
