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

### HINT 1: A state is a single key in disguise: its score is lse, its value is out. What you are
### HINT 1: to write is the softmax of two scores, and lesson 02 knows how to keep that from
### HINT 1: overflowing.
### HINT 2: Subtract the larger lse from both before exp. If the larger is -inf, both are: return
### HINT 2: zeros early, or -inf - -inf makes NaN. In the kernel 0 * NaN is NaN: a weight of 0 is
### HINT 2: not enough to keep an empty part out.
### HINT 3: lse_max = max(lse_a, lse_b); e_a = math.exp(lse_a - lse_max), e_b likewise; total =
### HINT 3: e_a + e_b; return e_a / total, e_b / total, lse_max + math.log(total).
### HINT 3: Kernel: for d in range(cuda.threadIdx.x, head_dim, cuda.blockDim.x): x = float32(0.0);
### HINT 3: if lse_a[row] > -math.inf: x += w_a * out_a[row, d]; the same for b; out[row, d] = x.
### DEBRIEF: This is ex03a's merge with a vector to carry. It is associative and commutative, and
### DEBRIEF: (0, -inf) is its zero; so keys may be cut anywhere and parts merged in any order: over
### DEBRIEF: thread blocks here, over a shared prefix and its continuations, over the GPUs of tree
### DEBRIEF: attention. Only lse has to travel beside out: one number per row.


@cuda.jit(device=True)
def merge_weights(lse_a, lse_b):
    """Return (w_a, w_b, lse): the weights of two parts in their merger, and its lse."""
    ### BEGIN SOLUTION
    lse_max = max(lse_a, lse_b)
    if lse_max == -math.inf:  # two empty parts: -inf - -inf would be NaN
        return float32(0.0), float32(0.0), lse_max
    e_a = math.exp(lse_a - lse_max)
    e_b = math.exp(lse_b - lse_max)
    total = e_a + e_b
    return e_a / total, e_b / total, lse_max + math.log(total)
    ### END SOLUTION


@cuda.jit
def kernel(out_a, lse_a, out_b, lse_b, out, lse):
    """Merge two states row by row: one thread block per row."""
    ### BEGIN SOLUTION
    row, tx = cuda.blockIdx.x, cuda.threadIdx.x
    s_a, s_b = lse_a[row], lse_b[row]
    w_a, w_b, merged = merge_weights(s_a, s_b)
    for d in range(tx, out.shape[1], cuda.blockDim.x):
        x = float32(0.0)
        if s_a > -math.inf:  # whatever an empty part holds is not looked at
            x += w_a * out_a[row, d]
        if s_b > -math.inf:
            x += w_b * out_b[row, d]
        out[row, d] = x
    if tx == 0:
        lse[row] = merged
    ### END SOLUTION
