"""ex21e · Find the bug: right on one rank

`published` below attends to the keys of several ranks and merges the results in the order of the
ranks. On one rank its out is right. On two it is off by some per cent; there is no NaN, and every
row is a mean of values, as it should be. Servers that people use have had this bug.

fast_attn and merge have no bug: each does what its docstring says. Write `mended`, which may call
both. About 3 lines.

mended(q, kvs) -> out, lse
    q     (rows, head_dim) float32
    kvs   a list, one array (2, c, head_dim) for each rank; c may differ
    out   (rows, head_dim) float32: attention of q to all keys, no mask
    lse   (rows,) float32: the natural logarithm of the sum of e^score over all keys
"""

import functools
import math

import numpy as np

### KIND: find the bug
### HINT 1: Call fast_attn on few keys and compare both results with the definition. Which of the
### HINT 1: two does not fit what `merge` expects?
### HINT 2: exp2 is faster than exp on a GPU, so kernels scale their scores by log2(e) and use
### HINT 2: powers of two. out does not depend on that. What does lse become?
### HINT 3: log2(x) = ln(x) / ln(2). Multiply each lse by ln(2), math.log(2), before it is merged.
### DEBRIEF: The weights of a merge are e^lse. With lse / ln(2) in the place of lse they are
### DEBRIEF: (e^lse)^1.44: the larger part weighs too much. The sum of weights is still 1, so
### DEBRIEF: nothing looks broken, and equal parts even merge correctly. So a test needs parts whose
### DEBRIEF: lse differ, and a comparison with all keys at once. Write the base where lse is
### DEBRIEF: documented: some kernels of FlashInfer return log2, most others the natural logarithm,
### DEBRIEF: and vLLM has had to repair this merge more than once.


def fast_attn(q, kv):
    """Attention of q to all keys of kv, in powers of two: out, and log2 of the sum of e^score."""
    s = q @ kv[0].T * np.float32(math.log2(math.e) / math.sqrt(q.shape[1]))
    m = s.max(axis=1, keepdims=True)
    p = np.exp2(s - m)
    l = p.sum(axis=1, keepdims=True)
    return p @ kv[1] / l, (m + np.log2(l))[:, 0]


def merge(a, b):
    """The state of the keys of two states (out, lse); lse is a natural logarithm."""
    (out_a, lse_a), (out_b, lse_b) = a, b
    lse = np.logaddexp(lse_a, lse_b)
    w_a, w_b = np.exp(lse_a - lse)[:, None], np.exp(lse_b - lse)[:, None]
    return w_a * out_a + w_b * out_b, lse


def published(q, kvs):
    """The program with the bug, to read and to run. Leave it as it is."""
    state = fast_attn(q, kvs[0])
    for kv in kvs[1:]:
        state = merge(state, fast_attn(q, kv))
    return state


def mended(q, kvs):
    """Attention of q to the keys of all ranks: out and natural-log lse."""
    ### BEGIN SOLUTION
    parts = [fast_attn(q, kv) for kv in kvs]
    states = [(out, lse * np.float32(math.log(2))) for out, lse in parts]
    return functools.reduce(merge, states)
    ### END SOLUTION
