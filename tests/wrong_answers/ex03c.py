"""Wrong and right answers of ex03c: see tests/wrong_answers/__init__.py."""

START = "    m_i = float32(-math.inf)\n"
MERGE_GUARD = "    if m == -math.inf:  # two"
MERGE = "    return m, l_a * math.exp(m_a - m) + l_b * math.exp(m_b - m)\n"
MASKED = "    if m_i == -math.inf:  # -inf"
FOLD = "        m_i, l_i = merge(m_i, l_i, m_b, l_b)\n"
COLUMNS = "    for n in range(tid, x.shape[1], NUM_THREADS):\n"
READ = COLUMNS + "        m_i"
WRITE_LOOP = COLUMNS.replace("tid,", "cuda.threadIdx.x,") + "        y"
STEP = "        m_i, l_i = merge(m_i, l_i, x[row, n], float32(1.0))\n"
WRITE = "        y[row, n] = math.exp(x[row, n] - m_i) * scale"
CHUNK = (
    "    own = -(-x.shape[1] // NUM_THREADS)\n"
    "    for n in range(tid * own, min(tid * own + own, x.shape[1])):\n"
)
STORE = "    if lane == 0:\n        m_warp[warp] = m_i\n        l_warp[warp] = l_i\n"
WARPS = "    for w in range(1, NUM_WARPS):\n"
SHARED = (
    "    m_warp = cuda.shared.array(NUM_WARPS, float32)\n"
    "    l_warp = cuda.shared.array(NUM_WARPS, float32)\n"
)

WRONG = [
    ("a syncwarp that half of the warp never reaches", "    if lane == 0:\n        m_warp[warp] = m_i", "    if lane < 16:\n        cuda.syncwarp()\n    if lane == 0:\n        m_warp[warp] = m_i"),
    *((f"the maximum starts at {low}", START, f"    m_i = float32({low})\n") for low in ("0.0", "-1e4", "-1e9", "-1e30")),
    *((f"merge: below {low} is empty", MERGE_GUARD, f"    if m < float32({low}):  # two") for low in ("-1e4", "-1e9", "-1e30")),
    ("a row below -1e9 counts as masked", MASKED, "    if m_i < float32(-1e9):  # -inf"),
    ("merge: nothing is rescaled", MERGE, "    return m, l_a + l_b\n"),
    ("merge: the factors are swapped", MERGE, "    return m, l_b * math.exp(m_a - m) + l_a * math.exp(m_b - m)\n"),
    ("merge: far parts are dropped", MERGE, "    if m_a - m_b > float32(15):\n        return m_a, l_a\n" + MERGE),
    ("no guard of a masked row", MASKED, "    if m_i == math.inf:  # -inf"),
    ("no guard of 0 / 0", "    if l_i > 0:\n", "    if True:\n"),
    ("offsets from 8", "    offset = 16\n", "    offset = 8\n"),
    ("l is not shuffled", "        l_b = cuda.shfl_xor_sync(FULL_MASK, l_i, offset)\n", "        l_b = l_i\n"),
    ("the mask of half a warp", "FULL_MASK = 0xFFFFFFFF\n", "FULL_MASK = 0xFFFF\n"),
    ("shuffled under an if", "        m_b = cuda.shfl_xor_sync(FULL_MASK, m_i, offset)\n"
     "        l_b = cuda.shfl_xor_sync(FULL_MASK, l_i, offset)\n" + FOLD,
     "        if lane < 2 * offset:\n"
     "            m_b = cuda.shfl_xor_sync(FULL_MASK, m_i, offset)\n"
     "            l_b = cuda.shfl_xor_sync(FULL_MASK, l_i, offset)\n    " + FOLD),
    ("shuffled down, read by all lanes", [("        m_b = cuda.shfl_xor_sync(", "        m_b = cuda.shfl_up_sync("), ("        l_b = cuda.shfl_xor_sync(", "        l_b = cuda.shfl_up_sync(")]),
    ("lane 1 stores", "    if lane == 0:\n        m_warp", "    if lane == 1 and warp == 0:\n        m_warp"),
    ("warp 0 counts twice", WARPS, WARPS.replace("1, ", "")),
    ("each warp for itself", "    m_i, l_i = m_warp[0], l_warp[0]\n" + WARPS, "    for w in range(0):\n"),
    ("a warp barrier", "    cuda.syncthreads()  # every", "    cuda.syncwarp()  # every"),
    ("neighbouring columns to one thread, reading", READ, CHUNK + "        m_i"),
    ("neighbouring columns to one thread, writing", WRITE_LOOP, CHUNK.replace("tid", "cuda.threadIdx.x") + "        y"),
    ("4096 columns at most", READ, COLUMNS.replace("x.shape[1],", "min(x.shape[1], 4096),") + "        m_i"),
    ("each score counts exp(s)", STEP, STEP.replace("float32(1.0)", "math.exp(x[row, n])")),
    ("not divided", WRITE, WRITE.replace(" * scale", "")),
    ("an exponent cut off at -30", WRITE, WRITE.replace("x[row, n] - m_i", "max(x[row, n] - m_i, float32(-30.0))")),
    ("three passes", READ, "    for n in range(tid, x.shape[1], NUM_THREADS):\n        m_i = max(m_i, x[row, n])\n    l_i = float32(0.0)\n" + READ),
    ("a pair per thread in shared memory", [
        (SHARED, SHARED + "    pairs = cuda.shared.array((NUM_THREADS, 2), float32)\n"),
        (STORE, "    pairs[tid, 0], pairs[tid, 1] = m_i, l_i\n    cuda.syncthreads()\n" + STORE)]),
    ("spare shared memory", SHARED, SHARED.replace("(NUM_WARPS", "(32")),
    ("own columns in a local array", [
        (SHARED, SHARED + "    kept = cuda.local.array(64, float32)\n"),
        (STEP, "        kept[n // NUM_THREADS] = x[row, n]\n" + STEP),
        (WRITE, WRITE.replace("x[row, n]", "kept[n // NUM_THREADS]"))]),
    ("y as a scratch pad", [(STEP, STEP + "        y[row, n] = x[row, n]\n"), (WRITE, WRITE.replace("x[row, n]", "y[row, n]"))]),
    ("-inf in x replaced", STEP, "        if x[row, n] == -math.inf:\n            x[row, n] = float32(-3.4e38)\n" + STEP),
    ("float64", "    l_i = float32(0.0)\n", "    l_i = 0.0\n"),
    ("a maximum of 0 counts as masked", "    if l_i > 0:\n", "    if l_i > 0 and m_i != 0:\n"),
    ("thread 0 merges the warps, and a second barrier",
     "    m_i, l_i = m_warp[0], l_warp[0]\n" + WARPS, """    if tid == 0:
        for w in range(1, NUM_WARPS):
            m_i, l_i = merge(m_i, l_i, m_warp[w], l_warp[w])
        m_warp[0], l_warp[0] = m_i, l_i
    cuda.syncthreads()
    m_i, l_i = m_warp[0], l_warp[0]
    for w in range(0):
"""),
    ("two barriers", STORE, STORE + "    cuda.syncthreads()\n"),
    ("a barrier for each warp", WARPS, WARPS + "        cuda.syncthreads()\n"),
]  # fmt: skip

RIGHT = [
    ("one array of pairs, other names", """
import math

from numba import cuda, float32

NUM_WARPS = 4
NUM_THREADS = 32 * NUM_WARPS
FULL_MASK = 0xFFFFFFFF


@cuda.jit(device=True)
def merge(m_a, l_a, m_b, l_b):
    if m_b > m_a:
        return m_b, l_b + l_a * math.exp(m_a - m_b)
    if m_b == -math.inf:
        return m_a, l_a
    return m_a, l_a + l_b * math.exp(m_b - m_a)


@cuda.jit
def online_softmax_kernel(scores, shares):
    pairs = cuda.shared.array((NUM_WARPS, 2), float32)
    t = cuda.threadIdx.x
    m, l = float32(-math.inf), float32(0)
    for j in range(t, scores.shape[1], NUM_THREADS):
        m, l = merge(m, l, scores[cuda.blockIdx.x, j], float32(1))
    for bit in range(5):
        m_b = cuda.shfl_xor_sync(FULL_MASK, m, 1 << bit)
        l_b = cuda.shfl_xor_sync(FULL_MASK, l, 1 << bit)
        m, l = merge(m, l, m_b, l_b)
    if t % 32 == 0:
        pairs[t // 32, 0] = m
        pairs[t // 32, 1] = l
    cuda.syncthreads()
    m, l = pairs[NUM_WARPS - 1, 0], pairs[NUM_WARPS - 1, 1]
    for w in range(NUM_WARPS - 1):
        m, l = merge(m, l, pairs[w, 0], pairs[w, 1])
    for j in range(t, scores.shape[1], NUM_THREADS):
        s = scores[cuda.blockIdx.x, j]
        shares[cuda.blockIdx.x, j] = math.exp(s - m) / l if s != -math.inf else float32(0)
"""),
    ("shuffled down", """
import math

from numba import cuda, float32

NUM_WARPS = 4
NUM_THREADS = 32 * NUM_WARPS


@cuda.jit(device=True)
def merge(m_a, l_a, m_b, l_b):
    m = max(m_a, m_b)
    base = float32(0) if m == -math.inf else m
    return m, l_a * math.exp(m_a - base) + l_b * math.exp(m_b - base)


@cuda.jit
def online_softmax_kernel(x, y):
    m_warp = cuda.shared.array(NUM_WARPS, float32)
    l_warp = cuda.shared.array(NUM_WARPS, float32)
    row, tid = cuda.blockIdx.x, cuda.threadIdx.x
    m, l = float32(-math.inf), float32(0)
    for n in range(tid, x.shape[1], cuda.blockDim.x):
        s = x[row, n]
        if s > m:
            l = l * math.exp(m - s) + float32(1)
            m = s
        elif s > -math.inf:
            l += math.exp(s - m)
    for delta in (16, 8, 4, 2, 1):
        m_b = cuda.shfl_down_sync(0xFFFFFFFF, m, delta)
        l_b = cuda.shfl_down_sync(0xFFFFFFFF, l, delta)
        m, l = merge(m, l, m_b, l_b)
    if tid % 32 == 0:
        m_warp[tid // 32], l_warp[tid // 32] = m, l
    cuda.syncthreads()
    m, l = float32(-math.inf), float32(0)
    for w in range(NUM_WARPS):
        m, l = merge(m, l, m_warp[w], l_warp[w])
    m = float32(0) if m == -math.inf else m
    for n in range(tid, x.shape[1], cuda.blockDim.x):
        y[row, n] = math.exp(x[row, n] - m) / l if l > 0 else float32(0)
"""),
]  # fmt: skip

EQUIVALENT = [
    ("offset = 16 -> offset = 17", "distances 17, 8, 4, 2, 1 combine to every distance up to 31 as well: each lane meets all"),
    ("if lane == 0: -> if lane == 1:", "every lane of a warp holds the same pair: any may store it"),
]  # fmt: skip
