"""Wrong and right answers of ex05a: see tests/wrong_answers/__init__.py."""

HEAD = (
    '    """y = x - row maximum."""\n'
    "    buffers = cuda.shared.array((2, THREADS), float32)  # for even and odd iterations\n"
    "    tid = cuda.threadIdx.x\n"
)
ROWS = HEAD + "    for row in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):\n"
BUFFER = "        partial = buffers[row // cuda.gridDim.x % 2]  # not the one of the row before\n"
BEST = BUFFER + "        best = float32(-math.inf)\n"
COLUMNS = BEST + "        for col in range(tid, x.shape[1], THREADS):\n"
MAXIMUM = COLUMNS + "            best = max(best, x[row, col])\n"
PUT = "        partial[tid] = best\n"
FIRST = "        cuda.syncthreads()  # every thread's maximum is there: safe to compare\n"
HALF = "        half = THREADS // 2\n        while half > 0:\n            if tid < half:\n"
FOLD = "                partial[tid] = max(partial[tid], partial[tid + half])\n"
STEP = (
    "            cuda.syncthreads()  # this step's maxima are there: safe to take the next step\n"
)
READ = "            half //= 2\n        row_max = partial[0]\n"
LAST = (
    "        for col in range(tid, x.shape[1], THREADS):\n"
    "            y[row, col] = x[row, col] - row_max\n"
)
KERNEL = MAXIMUM + PUT + FIRST + HALF + FOLD + STEP + READ + LAST  # from the buffer on
BARRIER = "        cuda.syncthreads()\n"
ONE = "        partial = buffers[0]\n"


def changed(*pairs):
    """Its lines stand in broken_kernel, too: the kernel is changed from its buffer to its end."""
    kernel = KERNEL
    for old, new in pairs:
        assert kernel.count(old) == 1, old
        kernel = kernel.replace(old, new)
    return KERNEL, kernel


WRONG = [
    ("as it was", BUFFER, ONE),
    ("one buffer and a barrier", *changed((BUFFER, ONE), (READ, READ + BARRIER))),
    ("one buffer and a barrier at the start of a row", BUFFER, BARRIER + ONE),
    ("one buffer, the barrier before the maximum is read", *changed((BUFFER, ONE), (READ, READ.replace("        row_max", BARRIER + "        row_max")))),
    ("one buffer, the barrier for one thread", *changed((BUFFER, ONE), (READ, READ + "        if tid == 0:\n    " + BARRIER))),
    ("one buffer, a warp barrier", *changed((BUFFER, ONE), (READ, READ + "        cuda.syncwarp()\n"))),
    ("one buffer, a fence", *changed((BUFFER, ONE), (READ, READ + "        cuda.threadfence_block()\n"))),
    ("one buffer, a barrier per column", *changed((BUFFER, ONE), (LAST, LAST + "            cuda.syncthreads()\n"))),
    ("the buffer changes with the thread block", BUFFER, "        partial = buffers[cuda.blockIdx.x % 2]\n"),
    ("three buffers", [(HEAD, HEAD.replace("(2, ", "(3, ")), (BUFFER, BUFFER.replace("% 2", "% 3"))]),
    ("a barrier more", *changed((READ, READ + BARRIER))),
    ("the maximum from the other buffer", *changed((READ, READ.replace("partial[0]", "buffers[1 - row // cuda.gridDim.x % 2, 0]")))),
    ("the barrier moved into the if", *changed((STEP, "    " + STEP))),
    ("one row per thread block", ROWS, HEAD + "    for row in range(cuda.blockIdx.x, min(cuda.blockIdx.x + 1, x.shape[0])):\n"),
    ("all rows by every thread block", ROWS + BUFFER, HEAD + "    for row in range(x.shape[0]):\n        partial = buffers[row % 2]\n"),
    ("all rows by thread block 0", ROWS, HEAD + "    for row in range(cuda.blockIdx.x * x.shape[0], x.shape[0]):\n"),
    ("64 rows at most", ROWS, HEAD + "    for row in range(cuda.blockIdx.x, min(x.shape[0], 64), cuda.gridDim.x):\n"),
    *((f"the maximum starts at {low}", BEST, BUFFER + f"        best = float32({low})\n") for low in ("0.0", "-1e4", "-1e9", "-1e30")),
    ("4096 columns at most", COLUMNS, BEST + "        for col in range(tid, min(x.shape[1], 4096), THREADS):\n"),
    ("each thread its own maximum", *changed((READ, READ.replace("partial[0]", "best")))),
    ("thread 0 alone", KERNEL,
     "        buffers[0, tid] = float32(0)\n        if tid == 0:\n"
     "            best = float32(-math.inf)\n            for col in range(x.shape[1]):\n"
     "                best = max(best, x[row, col])\n            for col in range(x.shape[1]):\n"
     "                y[row, col] = x[row, col] - best\n"),
    ("the maximum of each thread from HBM", *changed(
        ("        row_max = partial[0]\n",
         "        row_max = float32(-math.inf)\n        for col in range(x.shape[1]):\n"
         "            row_max = max(row_max, x[row, col])\n"))),
    ("y as a scratch pad", MAXIMUM, MAXIMUM + "            y[row, col] = x[row, col]\n"),
    ("x in place", *changed((LAST, LAST.replace("            y[row, col] = x[row, col] - row_max\n", "            x[row, col] -= row_max\n            y[row, col] = x[row, col]\n")))),
    ("float64", BEST, BUFFER + "        best = float(-math.inf)\n"),
    ("0 counts as no maximum", *changed((READ, READ + "        if row_max == 0:\n            row_max = best\n"))),
    ("256 rows at most", ROWS, HEAD + "    for row in range(cuda.blockIdx.x, min(x.shape[0], 256), cuda.gridDim.x):\n"),
]  # fmt: skip

RIGHT = [
    ("two indices, and a number that is 0 and 1 by turns", [
        (HEAD, HEAD + "    buffer = 1\n"), (KERNEL, KERNEL.replace(BUFFER,
         "        buffer = 1 - buffer\n").replace("partial[", "buffers[buffer, "))]),
    ("one buffer: the last step by every thread, then its barrier", *changed(
        (BUFFER, ONE), (HALF, HALF.replace("half > 0", "half > 1")),
        (READ, READ.replace("partial[0]", "max(partial[0], partial[1])") + BARRIER))),
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
            top = max(top, source[i, j])
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
"""),
]  # fmt: skip

EQUIVALENT = []
