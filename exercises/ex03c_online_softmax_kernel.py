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


@cuda.jit(device=True)
def merge(m_a, l_a, m_b, l_b):
    """Return (m, l) of two parts of a row; (-inf, 0) is the empty part."""
    # YOUR CODE HERE
    raise NotImplementedError("ex03c: merge")


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
    # YOUR CODE HERE
    raise NotImplementedError("ex03c: online_softmax_kernel")


# Stub 47b87d07 of solutions/ex03c_online_softmax_kernel.py: `fa-numba reset ex03c` brings it back.
