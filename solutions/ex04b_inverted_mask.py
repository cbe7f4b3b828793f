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

### KIND: find the bug
### HINT 1: Take a causal mask, np.tril(np.ones((4, 4), bool)), and values that name their key: v =
### HINT 1: np.eye(4). The result is then P itself. Which keys does query 0 see? And query 3?
### HINT 2: np.where(mask, x, y) has x where the mask is True. And where all scores of a row are
### HINT 2: the same number, even the smallest there is, softmax makes equal weights of them.
### HINT 3: s = np.where(mask, s, big_neg); p = np.where(mask, np.exp(...), 0), so that a hidden key
### HINT 3: weighs nothing whatever the maximum is; and divide by np.maximum(sum, 1): the largest
### HINT 3: weight of a row that sees a key is e^0 = 1, and a row that sees none is 0 / 1.
### DEBRIEF: In JAX, and in PyTorch's scaled_dot_product_attention, True means "takes part", as it
### DEBRIEF: does here. In PyTorch's older MultiheadAttention True means "hidden". So say it in the
### DEBRIEF: documentation of each function, and test it with one row. With the inverted causal mask
### DEBRIEF: every token sees the future alone: a language model trained with it has an excellent
### DEBRIEF: loss and cannot write a sentence. Rows that see no key do exist: padded queries, and
### DEBRIEF: more queries than keys. The kernels of this package return 0 for them.


def broken_attention(q, k, v, mask):
    """softmax(q k^T / sqrt(d)) v, by a wrong mask."""
    s = q @ k.T / np.sqrt(np.float32(q.shape[1]))
    big_neg = np.finfo(s.dtype).min
    s = np.where(mask, big_neg, s)
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True) @ v


def attention(q, k, v, mask):
    """softmax(q k^T / sqrt(d)) v, where mask[m, n] is True if query m sees key n."""
    ### BEGIN SOLUTION
    s = q @ k.T / np.sqrt(np.float32(q.shape[1]))
    big_neg = np.finfo(s.dtype).min
    s = np.where(mask, s, big_neg)
    p = np.where(mask, np.exp(s - s.max(axis=1, keepdims=True)), 0)
    return p / np.maximum(p.sum(axis=1, keepdims=True), 1) @ v
    ### END SOLUTION
