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


@cuda.jit
def safe_softmax_kernel(x, y):
    """Softmax of each row of x into y; a thread block of NUM_THREADS threads owns one row."""
    # YOUR CODE HERE
    raise NotImplementedError("ex02b: safe_softmax_kernel")


# Stub d339ecb2 of solutions/ex02b_safe_softmax_kernel.py: `fa-numba reset ex02b` brings it back.
