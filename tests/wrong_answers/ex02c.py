"""Wrong and right answers of ex02c: see tests/wrong_answers/__init__.py."""

# broken_kernel shares most lines: these occur in `kernel` alone.
PLACED = "    cuda.syncthreads()  # every thread's sum is in place\n"
READ = "    mean = partial[0] / num_cols\n    cuda.syncthreads()  # everyone has read the sum: partial is free again\n"
HEAD = '    """Layer norm of each row; a thread block owns one row."""\n'
LOOP = "    for n in range(tid, x.shape[1], NUM_THREADS):\n"
FIRST = "        total += x[row, n]\n    partial[tid] = total\n" + PLACED
SECOND = "        total += distance * distance\n    partial[tid] = total\n" + PLACED
DEVIATION = PLACED + (
    "    fold_sum(partial, tid)\n    deviation = math.sqrt(partial[0] / num_cols + EPS)\n"
)
LAST = DEVIATION + "\n" + LOOP + "        y[row, n] = (x[row, n] - mean) / deviation"
MEAN = READ.partition("\n")[0] + "\n"

WRONG = [
    ("the barrier in the loop", FIRST, "        total += x[row, n]\n        partial[tid] = total\n        cuda.syncthreads()\n"),
    ("the store in the loop", FIRST, "        total += x[row, n]\n        partial[tid] = total\n    cuda.syncthreads()\n"),
    ("the partial is free before it is read", READ, "    cuda.syncthreads()\n    mean = partial[0] / num_cols\n"),
    ("a warp barrier", READ, MEAN + "    cuda.syncwarp()\n"),
    ("a fence", READ, MEAN + "    cuda.threadfence_block()\n"),
    ("a barrier for one thread", READ, MEAN + "    if tid == 0:\n        cuda.syncthreads()\n"),
    ("two barriers more", READ, READ + "    cuda.syncthreads()\n    cuda.syncthreads()\n"),
    ("threads without a column leave", HEAD, HEAD + "    if cuda.threadIdx.x >= x.shape[1]:\n        return\n"),
    ("a barrier for whoever has columns", READ, MEAN + "    if tid < x.shape[1]:\n        cuda.syncthreads()\n"),
    ("another array", HEAD, HEAD + "    other = cuda.shared.array(NUM_THREADS, float32)\n    other[cuda.threadIdx.x] = float32(0)\n"),
    ("no square root", DEVIATION, DEVIATION.replace("math.sqrt(", "(")),
    ("num_cols - 1", DEVIATION, DEVIATION.replace("num_cols", "(num_cols - float32(1))")),
    ("the variance of the scores", SECOND, SECOND.replace("distance * distance", "x[row, n] * x[row, n]")),
    ("float64", DEVIATION, DEVIATION.replace("EPS", "1e-5")),
    ("x in place", LAST, LAST.replace("        y[row, n] =", "        x[row, n] = x[row, n] + float32(0)\n        y[row, n] =")),
    ("1024 columns at most", LOOP + FIRST, LOOP.replace("x.shape[1]", "min(x.shape[1], 1024)") + FIRST),
    ("8 columns to a thread at most", LOOP + FIRST, LOOP.replace("x.shape[1]", "min(x.shape[1], tid + 1024)") + FIRST),
    ("the first warp alone", LAST, LAST.replace("range(tid, x.shape[1]", "range(tid, min(x.shape[1], 32)")),
]  # fmt: skip

RIGHT = [
    ("the barrier before the store, not after the load", [(READ, MEAN), (SECOND, SECOND.replace("    partial[tid]", "    cuda.syncthreads()\n    partial[tid]"))]),
    ("the barriers in a helper", """
import math

from numba import cuda, float32

NUM_THREADS = 128
EPS = float32(1e-5)


@cuda.jit(device=True)
def fold_sum(partial, tid):
    stride = NUM_THREADS // 2
    while stride > 0:
        if tid < stride:
            partial[tid] += partial[tid + stride]
        cuda.syncthreads()
        stride //= 2


@cuda.jit
def broken_kernel(x, y):
    partial = cuda.shared.array(NUM_THREADS, float32)
    row = cuda.blockIdx.x
    tid = cuda.threadIdx.x
    num_cols = float32(x.shape[1])
    total = float32(0.0)
    for n in range(tid, x.shape[1], NUM_THREADS):
        total += x[row, n]
        partial[tid] = total
        cuda.syncthreads()
    fold_sum(partial, tid)
    mean = partial[0] / num_cols
    total = float32(0.0)
    for n in range(tid, x.shape[1], NUM_THREADS):
        distance = x[row, n] - mean
        total += distance * distance
    partial[tid] = total
    cuda.syncthreads()
    fold_sum(partial, tid)
    deviation = math.sqrt(partial[0] / num_cols + EPS)
    for n in range(tid, x.shape[1], NUM_THREADS):
        y[row, n] = (x[row, n] - mean) / deviation


@cuda.jit(device=True)
def sum_of_all(partial, t, mine):
    partial[t] = mine
    cuda.syncthreads()
    fold_sum(partial, t)
    total = partial[0]
    cuda.syncthreads()
    return total


@cuda.jit
def kernel(source, target):
    pad = cuda.shared.array(NUM_THREADS, float32)
    i, t = cuda.blockIdx.x, cuda.threadIdx.x
    mine = float32(0)
    for j in range(t, source.shape[1], cuda.blockDim.x):
        mine += source[i, j]
    mean = sum_of_all(pad, t, mine) / float32(source.shape[1])
    mine = float32(0)
    for j in range(t, source.shape[1], cuda.blockDim.x):
        mine += (source[i, j] - mean) ** 2
    pad[t] = mine
    cuda.syncthreads()
    fold_sum(pad, t)
    factor = float32(1) / math.sqrt(pad[0] / float32(source.shape[1]) + EPS)
    for j in range(t, source.shape[1], cuda.blockDim.x):
        target[i, j] = (source[i, j] - mean) * factor
"""),
]  # fmt: skip

EQUIVALENT = [
    ("distance = x[row, n] - mean -> distance = mean - x[row, n]", "its square is the same")
]
