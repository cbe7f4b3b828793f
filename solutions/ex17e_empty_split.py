"""ex17e · Find the bug: NaN, but only for short sequences

A server lets a library attend to the splits and merges what comes back with `broken_kernel`. With
one sequence it is right. With sequences of different lengths the short ones come back as NaN.

example() returns partial results as the library makes them, of two sequences and three splits:
print them, and find out what is peculiar about those of sequence 1. Write `kernel`. Copy
broken_kernel and mend it: one line changes. Splits of ex17c, which leave (0, -inf) where there are
no keys, must still be merged correctly.

shapes    out_partial (num_splits, batch, num_heads, head_dim);  lse_partial (num_splits, batch,
          num_heads);  out (batch, num_heads, head_dim);  lse (batch, num_heads). All float32
launch    kernel[(num_heads, batch), 32](out_partial, lse_partial, out, lse)
result    the merge of all splits that have keys; out 0 and lse -inf for a row without any
"""

import math

import numpy as np
from numba import cuda, float32

### KIND: find the bug
### HINT 1: Which lse does the library leave where a split has no keys? And what is in out_partial
### HINT 1: there?
### HINT 2: m becomes +inf, and inf - inf is NaN. And even a weight of 0 does not help against an
### HINT 2: out_partial that nobody wrote: 0 * NaN is NaN.
### HINT 3: Leave such a split out altogether: a score is a finite number, or it is none. One
### HINT 3: condition, -math.inf < score < math.inf, does for both conventions.
### DEBRIEF: Two conventions for "no key" are in use: the library flash-attn returns +inf in its
### DEBRIEF: version 2, -inf in its version 3. vLLM merges results of both, and its kernel therefore
### DEBRIEF: reads +inf as -inf, with a comment that says so. It stays hidden until two sequences
### DEBRIEF: of different lengths meet in one batch. Where lse is documented, write down its base
### DEBRIEF: (lesson 21 has that bug) and its value for a row without keys.


def example():
    """(out_partial, lse_partial) of the library: 3 splits, 2 sequences, 1 head of 2 columns."""
    nan, inf = math.nan, math.inf
    out_partial = [[[[1, 2]], [[5, 5]]], [[[3, 4]], [[nan, nan]]], [[[0, 6]], [[nan, nan]]]]
    lse_partial = [[[0.5], [1.0]], [[2.0], [inf]], [[1.0], [inf]]]
    return np.array(out_partial, np.float32), np.array(lse_partial, np.float32)


@cuda.jit
def broken_kernel(out_partial, lse_partial, out, lse):
    """Merge the partial results of all splits, a warp per row; with a bug."""
    head, b = cuda.blockIdx.x, cuda.blockIdx.y
    for d in range(cuda.threadIdx.x, out.shape[2], 32):
        x, merged = float32(0.0), float32(-math.inf)
        for split in range(lse_partial.shape[0]):
            score = lse_partial[split, b, head]
            m = max(merged, score)
            if m > -math.inf:
                before, merged = merged, m + math.log(math.exp(merged - m) + math.exp(score - m))
                x *= math.exp(before - merged)
                x += math.exp(score - merged) * out_partial[split, b, head, d]
        out[b, head, d] = x
        if d == 0:
            lse[b, head] = merged


@cuda.jit
def kernel(out_partial, lse_partial, out, lse):
    """Merge the partial results of all splits that have keys, a warp per row."""
    ### BEGIN SOLUTION
    head, b = cuda.blockIdx.x, cuda.blockIdx.y
    for d in range(cuda.threadIdx.x, out.shape[2], 32):
        x, merged = float32(0.0), float32(-math.inf)
        for split in range(lse_partial.shape[0]):
            score = lse_partial[split, b, head]
            m = max(merged, score)
            if -math.inf < score < math.inf:
                before, merged = merged, m + math.log(math.exp(merged - m) + math.exp(score - m))
                x *= math.exp(before - merged)
                x += math.exp(score - merged) * out_partial[split, b, head, d]
        out[b, head, d] = x
        if d == 0:
            lse[b, head] = merged
    ### END SOLUTION
