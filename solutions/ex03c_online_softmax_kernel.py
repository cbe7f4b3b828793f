"""ex03c · Online softmax: two passes, a thread block per row, warp shuffles

Softmax of each row with one pass fewer than ex02d: the first pass finds maximum and sum together,
the second writes. The threads' pairs (m, l) are merged inside a warp by shuffles, then across the
NUM_WARPS warps through shared memory, with one barrier.

x, y      (num_rows, num_cols) float32 in HBM; any num_cols >= 1, also fewer than NUM_THREADS
launch    online_softmax_kernel[num_rows, NUM_THREADS](x, y): thread block `row` owns row `row`
columns   thread tid takes columns tid, tid + NUM_THREADS, ... (coalesced)
returns   nothing: writes every element of y, nothing else, and leaves x alone
-inf      a masked column has probability 0; a row of -inf only becomes a row of 0; every finite
          score counts, -3e38 as well
memory    each element of x is read at most twice, each element of y written once. Shared memory
          holds one pair (m, l) per warp, no more; no local arrays
given     write_row, the second pass
dtype     float32 throughout

`merge` is ex03a's: `fa-numba reset ex03c --from ex03a` puts yours here. The kernel takes 15 lines.
"""

import math

from numba import cuda, float32

NUM_WARPS = 4  # these two stay as they are: the grader launches NUM_THREADS threads
NUM_THREADS = 32 * NUM_WARPS
FULL_MASK = 0xFFFFFFFF

### HINT 1: Three scales, one operation: merge a thread's next score into its pair, a lane's pair
### into another lane's, a warp's pair into another warp's. What pair is a single score s?
### HINT 2: A score s is the pair (s, 1). After the loop over columns: five shuffles of m_i and of
### l_i, merged each time. Then lane 0 of each warp stores the pair, one barrier, and every
### thread reads all NUM_WARPS pairs and merges them for itself.
### HINT 3: for n in range(tid, x.shape[1], NUM_THREADS):
###     m_i, l_i = merge(m_i, l_i, x[row, n], float32(1.0))
### offset = 16
### while offset > 0:
###     m_b = cuda.shfl_xor_sync(FULL_MASK, m_i, offset); the same for l_b
###     m_i, l_i = merge(m_i, l_i, m_b, l_b)
###     offset //= 2
### if lane == 0: m_warp[warp] = m_i; l_warp[warp] = l_i
### cuda.syncthreads(), merge the NUM_WARPS pairs, and write_row(x, y, row, m_i, l_i).
### DEBRIEF: One barrier per row instead of 17, and 3 HBM accesses per element instead of 4. For a
### softmax on its own that is at best 4/3 = 1.33 times faster. The larger gain is another:
### a row no longer has to be complete before its sum begins, so attention can take the
### scores tile by tile and never store them. That is FlashAttention.


@cuda.jit(device=True)
def merge(m_a, l_a, m_b, l_b):
    """Return (m, l) of two parts of a row; (-inf, 0) is the empty part."""
    ### BEGIN SOLUTION
    m = max(m_a, m_b)
    if m == -math.inf:  # two empty parts make an empty one; -inf - -inf would be NaN
        return m, float32(0.0)
    return m, l_a * math.exp(m_a - m) + l_b * math.exp(m_b - m)
    ### END SOLUTION


@cuda.jit(device=True)
def write_row(x, y, row, m_i, l_i):
    """Write exp(x - m_i) / l_i, the thread's columns of it; 0 where every column is masked."""
    if m_i == -math.inf:  # -inf - -inf would be NaN
        m_i = float32(0.0)
    scale = float32(0.0)
    if l_i > 0:
        scale = float32(1.0) / l_i
    for n in range(cuda.threadIdx.x, x.shape[1], NUM_THREADS):
        y[row, n] = math.exp(x[row, n] - m_i) * scale


@cuda.jit
def online_softmax_kernel(x, y):
    """Softmax of each row of x into y; a thread block of NUM_WARPS warps owns one row."""
    m_warp = cuda.shared.array(NUM_WARPS, float32)
    l_warp = cuda.shared.array(NUM_WARPS, float32)
    row = cuda.blockIdx.x
    tid = cuda.threadIdx.x
    warp = tid // 32
    lane = tid % 32
    m_i = float32(-math.inf)
    l_i = float32(0.0)
    ### BEGIN SOLUTION
    for n in range(tid, x.shape[1], NUM_THREADS):
        m_i, l_i = merge(m_i, l_i, x[row, n], float32(1.0))

    offset = 16
    while offset > 0:  # across the warp: 5 exchanges, register to register
        m_b = cuda.shfl_xor_sync(FULL_MASK, m_i, offset)
        l_b = cuda.shfl_xor_sync(FULL_MASK, l_i, offset)
        m_i, l_i = merge(m_i, l_i, m_b, l_b)
        offset //= 2

    if lane == 0:
        m_warp[warp] = m_i
        l_warp[warp] = l_i
    cuda.syncthreads()  # every warp's pair is in place
    m_i, l_i = m_warp[0], l_warp[0]
    for w in range(1, NUM_WARPS):
        m_i, l_i = merge(m_i, l_i, m_warp[w], l_warp[w])
    write_row(x, y, row, m_i, l_i)
    ### END SOLUTION
