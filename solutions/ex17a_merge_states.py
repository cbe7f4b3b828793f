"""ex17a · Two partial results into one

Attention over some of the keys leaves, for each row, a state: out, the weighted mean of their
values, and lse = log(sum of e^score), the natural logarithm. The weight that stands behind out is
e^lse. Write the merge of two states over different keys; the kernel that calls it is given.

    w_a = e^lse_a / (e^lse_a + e^lse_b),  w_b = e^lse_b / (e^lse_a + e^lse_b)
    out = w_a out_a + w_b out_b,          lse = log(e^lse_a + e^lse_b)

merge_weights(lse_a, lse_b) -> (w_a, w_b, lse)
    device function on float32 scalars. lse may be as large as 1e4 or as small as -1e4, and e^89 is
    more than float32 holds. A part without keys has lse = -inf, and its weight is 0; where both
    parts are empty both weights are 0 and lse is -inf. Neither lse is +inf or NaN.
    e^(lse_a - lse) is exact enough for a weight.
mix(w_a, x_a, w_b, x_b) -> x
    device function on float32 scalars: w_a x_a + w_b x_b. A number whose weight is 0 may be
    anything, NaN too, and must not be let in.

About 6 lines and 2 lines.
"""

import math

from numba import cuda, float32

### KIND: fill a line
### HINT 1: A state is like a single key: its score is lse, its value is out. What you are
### HINT 1: to write is the softmax of two scores, and lesson 02 knows how to keep that from
### HINT 1: overflowing.
### HINT 2: Subtract the larger lse from both before exp. If the larger is -inf, both are: return
### HINT 2: zeros early, or -inf - -inf makes NaN. In mix 0 * NaN is NaN: a weight of 0 is not
### HINT 2: enough to keep a number out, so test the weight.
### HINT 3: lse_max = max(lse_a, lse_b); e_a = math.exp(lse_a - lse_max), e_b likewise; return e_a /
### HINT 3: (e_a + e_b), e_b / (e_a + e_b), lse_max + math.log(e_a + e_b). In mix: a = w_a * x_a if
### HINT 3: w_a > 0 else float32(0.0), and the same for b.
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
    e_a, e_b = math.exp(lse_a - lse_max), math.exp(lse_b - lse_max)
    return e_a / (e_a + e_b), e_b / (e_a + e_b), lse_max + math.log(e_a + e_b)
    ### END SOLUTION


@cuda.jit(device=True)
def mix(w_a, x_a, w_b, x_b):
    """w_a x_a + w_b x_b, without what weighs nothing."""
    ### BEGIN SOLUTION
    a = w_a * x_a if w_a > 0 else float32(0.0)  # whatever an empty part holds is not let in
    return a + w_b * x_b if w_b > 0 else a
    ### END SOLUTION


@cuda.jit
def kernel(out_a, lse_a, out_b, lse_b, out, lse):
    """Merge two states row by row: one thread block per row, of any number of threads."""
    row = cuda.blockIdx.x
    w_a, w_b, merged = merge_weights(lse_a[row], lse_b[row])
    for d in range(cuda.threadIdx.x, out.shape[1], cuda.blockDim.x):
        out[row, d] = mix(w_a, out_a[row, d], w_b, out_b[row, d])
    if cuda.threadIdx.x == 0:
        lse[row] = merged
