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

### KIND: find the bug
### HINT 1: Merge the states of one rank by hand: out is right, whatever the weight. And lse?
### HINT 2: A state weighs e^lse with the natural logarithm. What does it weigh if lse is log2 of
### HINT 2: the same sum?
### HINT 3: log2(x) = ln(x) / ln(2). So a state weighs e^(ln(2) lse): multiply each lses[r, row] by
### HINT 3: float32(0.6931472) as soon as it is loaded, in all three places.
### DEBRIEF: The weights of a merge are e^lse. With lse / ln(2) in the place of lse they are
### DEBRIEF: (e^lse)^1.44: the larger part weighs too much. The sum of weights is still 1, so
### DEBRIEF: nothing looks broken, and equal parts even merge correctly. So a test needs parts whose
### DEBRIEF: lse differ, and a comparison with all keys at once. Write the base where lse is
### DEBRIEF: documented: some kernels of FlashInfer return log2, most others the natural logarithm,
### DEBRIEF: and vLLM has had to repair this merge more than once.


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
    ### BEGIN SOLUTION
    row = cuda.blockIdx.x
    ln_2 = float32(0.6931471805599453)
    m = float32(-math.inf)
    for r in range(outs.shape[0]):
        m = max(m, ln_2 * lses[r, row])
    total = float32(0.0)
    for r in range(outs.shape[0]):
        total += math.exp(ln_2 * lses[r, row] - m)
    for d in range(cuda.threadIdx.x, outs.shape[2], cuda.blockDim.x):
        acc = float32(0.0)
        for r in range(outs.shape[0]):
            acc += math.exp(ln_2 * lses[r, row] - m) * outs[r, row, d]
        out[row, d] = acc / total
    if cuda.threadIdx.x == 0:
        lse[row] = m + math.log(total)
    ### END SOLUTION
