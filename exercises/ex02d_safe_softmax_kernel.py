"""ex02d · Safe softmax, one thread block per row

The softmax of ex02a, with the columns of a row divided among the threads of a thread block. Each
thread reduces its own columns; then a tree reduces the results of the threads, once for the maximum
and once for the sum.

x, y      (num_rows, num_cols) float32 in HBM; any num_cols >= 1, also fewer than NUM_THREADS
launch    safe_softmax_kernel[num_rows, NUM_THREADS](x, y): thread block number `row` owns row `row`
columns   thread tid takes columns tid, tid + NUM_THREADS, tid + 2 NUM_THREADS, ... so that a warp
          reads neighbouring addresses (coalesced)
returns   nothing: writes every element of y, nothing else, and leaves x alone
-inf      a masked column has probability 0; a row of -inf only becomes a row of 0; every finite
          score counts, -3e38 as well
memory    one shared array of NUM_THREADS float32, for the maximum and then for the sum; no other,
          and no local arrays. Each element of x is read at most three times, each element of y
          written once
given     fold_max of ex02b and fold_sum. Both need a barrier before the call; behind it, partial[0]
          may be read
barriers  place the ones between the parts. All threads must reach each of them

About 19 lines.
"""

import math

from numba import cuda, float32

NUM_THREADS = 128  # a power of two, so that the tree halves evenly; leave it as it is


@cuda.jit(device=True)
def fold_max(partial, tid):
    """Leave the largest number of partial in partial[0], ready for every thread to read."""
    stride = NUM_THREADS // 2
    while stride > 0:
        if tid < stride:
            partial[tid] = max(partial[tid], partial[tid + stride])
        cuda.syncthreads()  # this level is complete before the next one reads it
        stride //= 2


@cuda.jit(device=True)
def fold_sum(partial, tid):
    """Leave the sum of partial's numbers in partial[0], ready for every thread to read."""
    stride = NUM_THREADS // 2
    while stride > 0:
        if tid < stride:
            partial[tid] += partial[tid + stride]
        cuda.syncthreads()  # this level is complete before the next one reads it
        stride //= 2


@cuda.jit
def safe_softmax_kernel(x, y):
    """Softmax of each row of x into y; a thread block of NUM_THREADS threads owns one row."""
    partial = cuda.shared.array(NUM_THREADS, float32)
    row = cuda.blockIdx.x
    tid = cuda.threadIdx.x
    m_i = float32(-math.inf)
    l_i = float32(0.0)
    # YOUR CODE HERE
    raise NotImplementedError("ex02d: safe_softmax_kernel")


# Stub 7450aad2 of solutions/ex02d_safe_softmax_kernel.py: `fa-numba reset ex02d` brings it back.
