"""ex17d · Combine the splits

The second kernel of Flash-Decoding: for each row, one query of one head, merge the partial results
of all splits, one after the other. Your merge of two does the work: `fa-numba reset ex17d --from
ex17a`. What is left is a loop over splits.

shapes    out_partial (num_splits, batch, num_heads, HEAD_DIM);  lse_partial (num_splits, batch,
          num_heads);  out (batch, num_heads, HEAD_DIM);  lse (batch, num_heads). All float32.
          A split without keys has out_partial 0 and lse_partial -inf.
launch    kernel[(num_heads, batch), 32](out_partial, lse_partial, out, lse): a warp owns a row,
          thread tx the columns tx, tx + 32, ... of it
result    lse = log(sum over splits of e^lse_partial);
          out = sum over splits of e^(lse_partial - lse) out_partial.
          A row whose splits are all without keys is 0, its lse -inf. lse_partial may be as large
          as 1e4 or as small as -1e4
HBM       loads   out_partial once; lse_partial as often as you like
          stores  out and lse once; neither is loaded
access    neighbouring threads load neighbouring columns
memory    no shared memory and no barrier: a thread needs nothing of another one. It keeps its
          columns, and nothing for each split

About 9 lines beside the merge. num_splits is any number >= 1, known only when the kernel runs.
"""

import functools
import math

from numba import cuda, float32

### KIND: fill a loop
### FROM: ex17a
### HINT 1: Begin with the state of no keys, (0, -inf). Merge each split into it.
### HINT 2: The state of a column is x and its lse. Each thread walks all splits for a column of its
### HINT 2: own, then for the next column.
### HINT 3: for d in range(cuda.threadIdx.x, HEAD_DIM, 32): x, merged = float32(0.0),
### HINT 3: float32(-math.inf); then for each split w_a, w_b, merged = merge_weights(merged,
### HINT 3: lse_partial[split, b, head]) and x = mix(w_a, x, w_b, out_partial[split, b, head, d]).
### DEBRIEF: The detour through HBM is HEAD_DIM + 1 numbers, written and read, per split and head:
### DEBRIEF: against the keys and values of a split that is GROUP_SIZE / (keys per split), next to
### DEBRIEF: nothing for splits of thousands of keys. The price that counts is another: a second
### DEBRIEF: launch, which starts when the last thread block of the first is done. The package's
### DEBRIEF: combine keeps m_i and l_i in place of one lse and divides once at the end, as
### DEBRIEF: FlashAttention-2 does: two exponentials for each split, and no logarithm in the loop.


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


@functools.cache
def make_kernel(HEAD_DIM):
    """The kernel for one head_dim, a compile-time constant."""

    @cuda.jit
    def kernel(out_partial, lse_partial, out, lse):
        """Merge the partial results of all splits: a warp per row.

        grid     (num_heads, batch); threads (32,)
        HBM      out_partial, out, lse once
        """
        ### BEGIN SOLUTION
        head, b = cuda.blockIdx.x, cuda.blockIdx.y
        for d in range(cuda.threadIdx.x, HEAD_DIM, 32):
            x, merged = float32(0.0), float32(-math.inf)
            for split in range(lse_partial.shape[0]):
                w_a, w_b, merged = merge_weights(merged, lse_partial[split, b, head])
                x = mix(w_a, x, w_b, out_partial[split, b, head, d])
            out[b, head, d] = x
            if d == 0:
                lse[b, head] = merged
        ### END SOLUTION

    return kernel
