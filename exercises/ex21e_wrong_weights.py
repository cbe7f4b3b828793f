"""ex21e · Find the bug: right on one rank

Several ranks have attended to their keys by a kernel that works in powers of two: exp2 is faster
than exp on a GPU. `broken_kernel` merges their results. On one rank its out is right. On two it is
off by some per cent; there is no NaN, and every row is a mean of values, as it should be. Servers
that people use have had this bug.

Write `kernel`: copy broken_kernel and mend it. Three lines change.

launch   kernel[rows, threads](outs, lses, out, lse), any number of threads: a thread block for each
         row
arrays   outs (world_size, rows, head_dim) float32: attention to the keys of each rank
         lses (world_size, rows) float32: log2 of the sum of e^score over the keys of each rank
         out (rows, head_dim) float32: attention to all keys
         lse (rows,) float32: the natural logarithm of the sum of e^score over all keys
HBM      outs is loaded once, out and lse are stored once; a row of lses is read by every thread

In float32 throughout. Every rank has a key.
"""

import math

from numba import cuda, float32


@cuda.jit
def broken_kernel(outs, lses, out, lse):
    """The merge with the bug, to read and to run. Leave it as it is."""
    row = cuda.blockIdx.x
    m = float32(-math.inf)
    for r in range(outs.shape[0]):
        m = max(m, lses[r, row])
    total = float32(0.0)
    for r in range(outs.shape[0]):
        total += math.exp(lses[r, row] - m)
    for d in range(cuda.threadIdx.x, outs.shape[2], cuda.blockDim.x):
        acc = float32(0.0)
        for r in range(outs.shape[0]):
            acc += math.exp(lses[r, row] - m) * outs[r, row, d]
        out[row, d] = acc / total
    if cuda.threadIdx.x == 0:
        lse[row] = m + math.log(total)


@cuda.jit
def kernel(outs, lses, out, lse):
    """The state over the keys of all ranks, of states whose lse is a log2."""
    # YOUR CODE HERE
    raise NotImplementedError("ex21e: kernel")


# Stub 91ceb804 of solutions/ex21e_wrong_weights.py: `fa-numba reset ex21e` brings it back.
