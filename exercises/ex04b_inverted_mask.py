"""ex04b · The mask is wrong twice

`broken_attention` follows a published function, line by line. Its mask is a boolean array, and it
goes wrong in two ways: queries see what they must not see, and a query that sees nothing at all
gets the mean of all values.

Write `attention`, the same without the two mistakes. Copy broken_attention and mend it; three lines
change.

q           (N_q, d), one head;  k, v  (N_k, d); float32
mask        (N_q, N_k): mask[m, n] is True where query m SEES key n
result      (N_q, d). A row whose query sees no key is 0, exactly.
scores      any finite numbers
"""

import numpy as np


def broken_attention(q, k, v, mask):
    """softmax(q k^T / sqrt(d)) v, by a wrong mask."""
    s = q @ k.T / np.sqrt(np.float32(q.shape[1]))
    big_neg = np.finfo(s.dtype).min
    s = np.where(mask, big_neg, s)
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True) @ v


def attention(q, k, v, mask):
    """softmax(q k^T / sqrt(d)) v, where mask[m, n] is True if query m sees key n."""
    # YOUR CODE HERE
    raise NotImplementedError("ex04b: attention")


# Stub f7859009 of solutions/ex04b_inverted_mask.py: `fa-numba reset ex04b` brings it back.
