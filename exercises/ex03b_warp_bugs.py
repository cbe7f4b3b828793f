"""ex03b · Find the bugs: a warp that forgets

`broken_kernel` finds the statistics of each row by one warp,

    m[row] = max_n x[row, n],    l[row] = sum_n exp(x[row, n] - m[row]).

Each lane reads its own columns, then five shuffles merge the 32 lanes. Two bugs are in it, both in
the rescaling of l. One forgets it. The other is a misprint of lecture slides (Jia, CMU 15-779): a
factor upside down. The maxima are right, and l is right for a row of equal scores.

Write `kernel`, the same without the bugs. Copy broken_kernel as it is, grade it, and read the
report. About four lines change.

x, m, l   (num_rows, num_cols), (num_rows,), (num_rows,) float32 in HBM; any num_cols >= 1
launch    kernel[num_rows, 32](x, m, l): the warp of thread block `row` owns row `row`
-inf      marks a masked column, which adds 0; a row of -inf only has m = -inf and l = 0
memory    registers only, no barrier; each element of x is read once
"""

import math

from numba import cuda, float32

FULL_MASK = 0xFFFFFFFF


@cuda.jit
def broken_kernel(x, m, l):
    """Statistics of each row, with the bugs. Leave it as it is."""
    row = cuda.blockIdx.x
    lane = cuda.threadIdx.x

    m_i = float32(-math.inf)
    l_i = float32(0.0)
    for n in range(lane, x.shape[1], 32):
        s = x[row, n]
        if s > -math.inf:  # a masked score adds nothing
            m_i = max(m_i, s)
            l_i += math.exp(s - m_i)

    offset = 16
    while offset > 0:
        m_b = cuda.shfl_xor_sync(FULL_MASK, m_i, offset)
        l_b = cuda.shfl_xor_sync(FULL_MASK, l_i, offset)
        m_new = max(m_i, m_b)
        if min(m_i, m_b) > -math.inf:
            l_i = l_i * math.exp(m_new - m_i) + l_b * math.exp(m_new - m_b)
        else:
            l_i += l_b  # one of the two is empty: its l is 0
        m_i = m_new
        offset //= 2

    if lane == 0:
        m[row] = m_i
        l[row] = l_i


@cuda.jit
def kernel(x, m, l):
    """Statistics of each row; a warp owns one row."""
    # YOUR CODE HERE
    raise NotImplementedError("ex03b: kernel")


# Stub 863cae08 of solutions/ex03b_warp_bugs.py: `fa-numba reset ex03b` brings it back.
