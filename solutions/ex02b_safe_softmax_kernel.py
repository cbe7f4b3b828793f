"""ex02b · Safe softmax, one thread block per row

The three passes of ex02a, shared out among the NUM_THREADS threads of a thread block. Each thread
folds its own columns; then a tree in shared memory folds the threads: NUM_THREADS values become
half as many, and half again, until one is left.

x, y      (num_rows, num_cols) float32 in HBM; any num_cols >= 1, also fewer than NUM_THREADS
launch    safe_softmax_kernel[num_rows, NUM_THREADS](x, y): thread block number `row` owns row `row`
columns   thread tid takes columns tid, tid + NUM_THREADS, tid + 2 NUM_THREADS, ... so that a warp
          reads neighbouring addresses (coalesced)
returns   nothing: writes every element of y, nothing else, and leaves x alone
-inf      a masked column has probability 0; a row of -inf only becomes a row of 0; any finite
          score counts, -3e38 as well
memory    one shared array of NUM_THREADS float32, for the maximum and then for the sum; no other,
          and no local arrays. Each element of x is read at most three times, each element of y
          written once
barriers  a thread may read what another thread wrote only after a cuda.syncthreads() between the
          two, and overwrite what others read only after one more. All threads of the block must
          reach each barrier: never put one under `if tid < ...`
dtype     float32 throughout

About 30 lines.
"""

import math

from numba import cuda, float32

NUM_THREADS = 128  # a power of two, so that the tree halves evenly; leave it as it is

### HINT 1: Write the maximum first and look at `partial[0]` alone. A thread that owns no column
### (num_cols < NUM_THREADS) still takes part in the tree: with which value?
### HINT 2: One level of the tree: threads below `stride` take the value `stride` places to their
### right. Then a barrier, outside the `if`, and stride is halved. A barrier belongs before
### the first level too, and one more before `partial` is used again for the sum: until
### then a slow thread may not have read the maximum yet.
### HINT 3: partial[tid] = m_i
### cuda.syncthreads()
### stride = NUM_THREADS // 2
### while stride > 0:
###     if tid < stride: partial[tid] = max(partial[tid], partial[tid + stride])
###     cuda.syncthreads()
###     stride //= 2
### m_i = partial[0]; then a barrier, then the same shape with + for l_i.
### DEBRIEF: log2(128) = 7 levels instead of 127 steps, and 17 barriers a row. Two things remain to
### be bettered, and lesson 03 betters both: x is read three times (the sum waits for the
### maximum), and most barriers only serve to hand a value to a thread of the same warp.


@cuda.jit
def safe_softmax_kernel(x, y):
    """Softmax of each row of x into y; a thread block of NUM_THREADS threads owns one row."""
    ### BEGIN SOLUTION
    partial = cuda.shared.array(NUM_THREADS, float32)
    row = cuda.blockIdx.x
    tid = cuda.threadIdx.x

    m_i = float32(-math.inf)
    for n in range(tid, x.shape[1], NUM_THREADS):
        m_i = max(m_i, x[row, n])
    partial[tid] = m_i
    cuda.syncthreads()  # every thread's maximum is in place
    stride = NUM_THREADS // 2
    while stride > 0:
        if tid < stride:
            partial[tid] = max(partial[tid], partial[tid + stride])
        cuda.syncthreads()  # this level is complete before the next one reads it
        stride //= 2
    m_i = partial[0]
    cuda.syncthreads()  # everyone has read the maximum: partial is free again
    if m_i == -math.inf:  # every column masked: -inf - -inf would be NaN
        m_i = float32(0.0)

    l_i = float32(0.0)
    for n in range(tid, x.shape[1], NUM_THREADS):
        l_i += math.exp(x[row, n] - m_i)
    partial[tid] = l_i
    cuda.syncthreads()  # every thread's sum is in place
    stride = NUM_THREADS // 2
    while stride > 0:
        if tid < stride:
            partial[tid] += partial[tid + stride]
        cuda.syncthreads()  # this level is complete before the next one reads it
        stride //= 2
    scale = float32(0.0)
    if partial[0] > 0:
        scale = float32(1.0) / partial[0]

    for n in range(tid, x.shape[1], NUM_THREADS):
        y[row, n] = math.exp(x[row, n] - m_i) * scale
    ### END SOLUTION
