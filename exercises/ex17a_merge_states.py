"""ex17a · Two partial results into one

Attention over some of the keys leaves, for each row, a state: out, the weighted mean of their
values, and lse = log(sum of e^score), the natural logarithm. The weight that stands behind out is
e^lse. Two states over different keys merge to that over the keys of both:

    (out_a, lse_a) + (out_b, lse_b) = (w_a out_a + w_b out_b, log(e^lse_a + e^lse_b))
    w_a = e^lse_a / (e^lse_a + e^lse_b),  w_b = e^lse_b / (e^lse_a + e^lse_b)

A part without keys has lse = -inf. It weighs nothing, and its out may hold anything, NaN too: do
not let it in. Two empty parts merge to out = 0, lse = -inf.

merge_weights(lse_a, lse_b) -> (w_a, w_b, lse)
    device function on float32 scalars: kernels call it, each thread for itself. Both weights are 0
    where both parts are empty. lse may be as large as 1e4 or as small as -1e4, and e^89 is more
    than float32 holds. Neither is +inf or NaN. A weight may be as far off as float32 can tell two
    lse apart: e^(lse_a - lse) is good enough.
kernel[num_rows, threads](out_a, lse_a, out_b, lse_b, out, lse)
    out_a, out_b, out   (num_rows, head_dim) float32, any head_dim
    lse_a, lse_b, lse   (num_rows,) float32
    A thread block merges one row, with any number of threads (1-D).
    HBM  out_a and out_b at most once, out and lse stored once and not loaded. No shared memory, no
    barrier.

About 7 lines and 9 lines.
"""

import math

from numba import cuda, float32


@cuda.jit(device=True)
def merge_weights(lse_a, lse_b):
    """Return (w_a, w_b, lse): the weights of two parts in their merger, and its lse."""
    # YOUR CODE HERE
    raise NotImplementedError("ex17a: merge_weights")


@cuda.jit
def kernel(out_a, lse_a, out_b, lse_b, out, lse):
    """Merge two states row by row: one thread block per row."""
    # YOUR CODE HERE
    raise NotImplementedError("ex17a: kernel")


# Stub 5d9838cd of solutions/ex17a_merge_states.py: `fa-numba reset ex17a` brings it back.
