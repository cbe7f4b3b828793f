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

### KIND: find the bug
### HINT 1: Take short rows that you can check by hand: 64 columns, so that each lane has two. All
### HINT 1: are 0 except one 1: put it into column 0, then 32, then 40, and compute l.
### HINT 2: Compare both places with l_new = alpha l_old + exp(s - m_new), where alpha is
### HINT 2: exp(m_old - m_new). In the first place m_i is overwritten too early: what is left of
### HINT 2: the old maximum?
### HINT 3: Loop: m_new = max(m_i, s); l_i = l_i * math.exp(m_i - m_new) + math.exp(s - m_new); then
### HINT 3: m_i = m_new. Shuffles: math.exp(m_i - m_new) and math.exp(m_b - m_new).
### DEBRIEF: A factor of a rescaling is at most 1: what was summed under a smaller maximum shrinks.
### DEBRIEF: An assertion alpha <= 1 would have found the second bug at once. Neither bug shows in
### DEBRIEF: rows of equal scores, and the first one not in descending rows: choose test data that
### DEBRIEF: rise. Lesson 07 runs the misprint in FlashAttention-2.


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
    ### BEGIN SOLUTION
    row = cuda.blockIdx.x
    lane = cuda.threadIdx.x

    m_i = float32(-math.inf)
    l_i = float32(0.0)
    for n in range(lane, x.shape[1], 32):
        s = x[row, n]
        if s > -math.inf:  # a masked score adds nothing
            m_new = max(m_i, s)
            l_i = l_i * math.exp(m_i - m_new) + math.exp(s - m_new)
            m_i = m_new

    offset = 16
    while offset > 0:
        m_b = cuda.shfl_xor_sync(FULL_MASK, m_i, offset)
        l_b = cuda.shfl_xor_sync(FULL_MASK, l_i, offset)
        m_new = max(m_i, m_b)
        if min(m_i, m_b) > -math.inf:
            l_i = l_i * math.exp(m_i - m_new) + l_b * math.exp(m_b - m_new)
        else:
            l_i += l_b  # one of the two is empty: its l is 0
        m_i = m_new
        offset //= 2

    if lane == 0:
        m[row] = m_i
        l[row] = l_i
    ### END SOLUTION
