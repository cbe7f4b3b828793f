"""ex21g · Merge over ranks: a maximum and a sum

One query per head, the same on every rank; the keys are on W ranks. Each rank has attended to its
own keys. All ranks get the merged state by two all_reduce, with a kernel of yours before the second
one and one after it:

    m = all_reduce(lse, "max")                                   the maximum over ranks, by row
    weigh[rows, threads](out, lse, m, packed)
    total = all_reduce(packed, "sum")                            the sum over ranks
    finish[rows, threads](total, m, out, lse)

out, lse        (rows, head_dim), (rows,) float32: a row per head; of this rank for weigh, of all
                ranks after finish. lse is the natural logarithm of the sum of e^score
m               (rows,) float32
packed, total   (rows, head_dim + 1) float32: what is in it is yours to choose, but the sum over
                ranks must be all that finish needs

- lse may be 1e4 or -1e4: e^89 is more than float32 holds.
- A rank without a key for a row has lse = -inf and out = 0 there. If no rank has a key, the result
  is the same: out = 0, lse = -inf, and nothing may be NaN.
- Any number of threads. Each number of out, packed and total is loaded or stored once, by
  neighbouring threads. In float32 throughout.

About 8 lines each.
"""

import math

from numba import cuda, float32

### KIND: write
### HINT 1: With m the largest lse of a row over all ranks, the weight of a rank is w = e^(lse - m),
### HINT 1: between 0 and 1. The result is a sum over ranks, divided by another sum over ranks.
### HINT 2: out = sum(w out) / sum(w), lse = m + log(sum(w)). So a row of packed has w out in its
### HINT 2: first head_dim columns, and w in the last one.
### HINT 3: Where m is -inf, -inf - -inf is NaN: w = math.exp(lse[row] - m[row]) if m[row] >
### HINT 3: -math.inf else float32(0). In finish l = total[row, head_dim]; where l is 0, out is 0
### HINT 3: and lse -inf.
### DEBRIEF: This is ex17d with ranks for splits, and no order: a maximum and a sum need none, so
### DEBRIEF: the library adds along a tree, in log2(W) rounds. The paper's Tree Attention is this
### DEBRIEF: function. For 32 heads of 128 each rank gives 17 KB, for a thousand keys or for a
### DEBRIEF: million.


@cuda.jit
def weigh(out, lse, m, packed):
    """What this rank gives to the sum over ranks, a thread block for each row."""
    ### BEGIN SOLUTION
    row, head_dim = cuda.blockIdx.x, out.shape[1]
    w = float32(0.0)
    if m[row] > -math.inf:
        w = math.exp(lse[row] - m[row])
    for d in range(cuda.threadIdx.x, head_dim, cuda.blockDim.x):
        packed[row, d] = w * out[row, d]
    if cuda.threadIdx.x == 0:
        packed[row, head_dim] = w
    ### END SOLUTION


@cuda.jit
def finish(total, m, out, lse):
    """The state over the keys of all ranks, a thread block for each row."""
    ### BEGIN SOLUTION
    row, head_dim = cuda.blockIdx.x, out.shape[1]
    l = total[row, head_dim]
    for d in range(cuda.threadIdx.x, head_dim, cuda.blockDim.x):
        out[row, d] = total[row, d] / l if l > 0 else float32(0.0)
    if cuda.threadIdx.x == 0:
        lse[row] = m[row] + math.log(l) if l > 0 else float32(-math.inf)
    ### END SOLUTION
