"""Wrong and right answers of ex02d: see tests/wrong_answers/__init__.py."""

START = "    m_i = float32(-math.inf)\n"
MAXIMUM = "        m_i = max(m_i, x[row, n])\n"
MASKED = "    if m_i == -math.inf:  # every"
SUM = "        l_i += math.exp(x[row, n] - m_i)\n"
WRITE = "        y[row, n] = math.exp(x[row, n] - m_i) * scale"
COLUMNS = "    for n in range(tid, x.shape[1], NUM_THREADS):\n"
MAX_LOOP, SUM_LOOP = COLUMNS + "        m_i", COLUMNS + "        l_i"
WRITE_LOOP = COLUMNS + "        y"
OWN = "    own = -(-x.shape[1] // NUM_THREADS)\n"
CHUNK = OWN + "    for n in range(tid * own, min(tid * own + own, x.shape[1])):\n"
PARTIAL = "    partial = cuda.shared.array(NUM_THREADS, float32)\n"

WRONG = [
    *((f"the maximum starts at {low}", START, f"    m_i = float32({low})\n") for low in ("0.0", "-1e4", "-1e9", "-1e30")),
    ("a row below -1e9 counts as masked", MASKED, "    if m_i < float32(-1e9):  # every"),
    ("no guard of 0 / 0", "    if partial[0] > 0:\n", "    if True:\n"),
    ("the first column is left out of the maximum", MAX_LOOP, COLUMNS.replace("tid,", "max(tid, 1),") + "        m_i"),
    ("32 strides at most", SUM_LOOP, COLUMNS.replace("x.shape[1],", "min(x.shape[1], 4096),") + "        l_i"),
    ("neighbouring columns to one thread, in the sum", SUM_LOOP, CHUNK + "        l_i"),
    ("neighbouring columns to one thread, in the store", WRITE_LOOP, CHUNK + "        y"),
    ("one thread finds the maximum", MAX_LOOP, "    for n in range(0 if tid == 0 else x.shape[1], x.shape[1]):\n        m_i"),
    ("a minimum in the tree", "max(partial[tid], partial[tid + stride])\n        cuda", "min(partial[tid], partial[tid + stride])\n        cuda"),
    ("the sum takes the tree of the maximum", "    fold_sum(partial, tid)\n", "    fold_max(partial, tid)\n"),
    ("the maximum takes the tree of the sum", "    fold_max(partial, tid)\n", "    fold_sum(partial, tid)\n"),
    ("no tree of the sum", "    fold_sum(partial, tid)\n", ""),
    ("the tree under an if", "    fold_sum(partial, tid)\n", "    if tid < NUM_THREADS // 2:\n        fold_sum(partial, tid)\n"),
    ("a barrier in the loop over columns", [
        ("    cuda.syncthreads()  # every thread's sum is in place\n", ""),
        ("    partial[tid] = l_i\n", "        partial[tid] = l_i\n        cuda.syncthreads()\n")]),
    ("a warp needs no barrier", "            partial[tid] += partial[tid + stride]\n"
     "        cuda.syncthreads()",
     "            partial[tid] += partial[tid + stride]\n        if stride > 16:\n"
     "            cuda.syncthreads()"),
    ("the barrier under the if", "            partial[tid] += partial[tid + stride]\n        cuda.syncthreads()", "            partial[tid] += partial[tid + stride]\n            cuda.syncthreads()"),
    ("the thread's own maximum", "    m_i = partial[0]\n", "    partial[0]\n"),
    ("the thread's own sum", [("    if partial[0] > 0:\n", "    if l_i > 0:\n"), ("        scale = float32(1.0) / partial[0]\n", "        scale = float32(1.0) / l_i\n")]),
    ("no maximum in the result", WRITE, WRITE.replace(" - m_i", "")),
    ("no maximum in the sum", SUM, SUM.replace(" - m_i", "")),
    ("times the sum", "scale = float32(1.0) / partial[0]", "scale = partial[0]"),
    ("powers of 2", [(SUM, SUM.replace("exp", "exp2")), (WRITE, WRITE.replace("exp", "exp2"))]),
    ("an exponent cut off at -30", WRITE, WRITE.replace("x[row, n] - m_i", "max(x[row, n] - m_i, float32(-30.0))")),
    ("a second array", [(PARTIAL, PARTIAL + "    sums = cuda.shared.array(NUM_THREADS, float32)\n"), ("    partial[tid] = l_i\n", "    sums[tid] = l_i\n    partial[tid] = sums[tid]\n")]),
    ("the row in shared memory", [
        (PARTIAL, PARTIAL + "    kept = cuda.shared.array(6000, float32)\n"),
        (MAXIMUM, "        kept[n] = x[row, n]\n        m_i = max(m_i, kept[n])\n"),
        (SUM, SUM.replace("x[row, n]", "kept[n]")),
        (WRITE, WRITE.replace("x[row, n]", "kept[n]"))]),
    ("own columns in a local array", [
        (PARTIAL, PARTIAL + "    kept = cuda.local.array(64, float32)\n"),
        (MAXIMUM, "        kept[n // NUM_THREADS] = x[row, n]\n" + MAXIMUM),
        (WRITE, WRITE.replace("x[row, n]", "kept[n // NUM_THREADS]"))]),
    ("y as a scratch pad", [(SUM, "        y[row, n] = math.exp(x[row, n] - m_i)\n        l_i += y[row, n]\n"), (WRITE, "        y[row, n] *= scale")]),
    ("x as a scratch pad", [(SUM, "        x[row, n] = math.exp(x[row, n] - m_i)\n        l_i += x[row, n]\n"), (WRITE, "        y[row, n] = x[row, n] * scale")]),
    ("thread block 0 does all rows", [
        ("    row = cuda.blockIdx.x\n    tid = cuda.threadIdx.x\n",
         "    tid = cuda.threadIdx.x\n    if cuda.blockIdx.x > 0:\n        return\n"
         "    for row in range(x.shape[0]):\n        one_row(x, y, row, tid, partial)\n"
         "        cuda.syncthreads()\n\n\n@cuda.jit(device=True)\n"
         "def one_row(x, y, row, tid, partial):\n")]),
    ("a column per thread, once", WRITE_LOOP, "    for n in range(tid, min(x.shape[1], NUM_THREADS)):\n        y"),
    ("float64", "    l_i = float32(0.0)\n", "    l_i = 0.0\n"),
    ("a maximum of 0 counts as masked", "    if partial[0] > 0:\n", "    if partial[0] > 0 and m_i != 0:\n"),
    ("the first warp alone", WRITE_LOOP, COLUMNS.replace("tid,", "tid if tid < 32 else x.shape[1],") + "        y"),
]  # fmt: skip

RIGHT = [
    ("other names, a tree that doubles, atomic-free", """
import math

from numba import cuda, float32

NUM_THREADS = 128


@cuda.jit
def safe_softmax_kernel(scores, shares):
    i, t = cuda.blockIdx.x, cuda.threadIdx.x
    pad = cuda.shared.array(NUM_THREADS, float32)
    top = float32(-math.inf)
    for j in range(t, scores.shape[1], NUM_THREADS):
        top = max(top, scores[i, j])
    pad[t] = top
    step = 1
    while step < NUM_THREADS:
        cuda.syncthreads()
        if t % (2 * step) == 0:
            pad[t] = max(pad[t], pad[t + step])
        step *= 2
    cuda.syncthreads()
    top = pad[0]
    cuda.syncthreads()
    total = float32(0)
    for j in range(t, scores.shape[1], NUM_THREADS):
        s = scores[i, j]
        total += math.exp(s - top) if s > -math.inf else float32(0)
    pad[t] = total
    step = 1
    while step < NUM_THREADS:
        cuda.syncthreads()
        if t % (2 * step) == 0:
            pad[t] += pad[t + step]
        step *= 2
    cuda.syncthreads()
    for j in range(t, scores.shape[1], NUM_THREADS):
        s, w = scores[i, j], float32(0)
        if s > -math.inf:
            w = math.exp(s - top) / pad[0]
        shares[i, j] = w
"""),
    ("one helper for both trees, few folds", """
import math

from numba import cuda, float32

NUM_THREADS = 128


@cuda.jit(device=True)
def fold(partial, tid, mine, adds):
    cuda.syncthreads()
    partial[tid] = mine
    cuda.syncthreads()
    if tid == 0:
        for i in range(1, NUM_THREADS):
            mine = mine + partial[i] if adds else max(mine, partial[i])
        partial[0] = mine
    cuda.syncthreads()
    return partial[0]


@cuda.jit
def safe_softmax_kernel(x, y):
    partial = cuda.shared.array(NUM_THREADS, float32)
    row, tid = cuda.blockIdx.x, cuda.threadIdx.x
    m = float32(-math.inf)
    for n in range(tid, x.shape[1], cuda.blockDim.x):
        m = max(x[row, n], m)
    m = fold(partial, tid, m, False)
    m = float32(0) if m == -math.inf else m
    l = float32(0)
    for n in range(tid, x.shape[1], cuda.blockDim.x):
        l = l + math.exp(x[row, n] - m)
    l = fold(partial, tid, l, True)
    for n in range(tid, x.shape[1], cuda.blockDim.x):
        y[row, n] = math.exp(x[row, n] - m) / l if l > 0 else float32(0)
"""),
]  # fmt: skip

EQUIVALENT = []
