"""ex04a · Heads: split, attend, concatenate

Multi-head attention in NumPy. The D columns of the queries are num_heads groups of neighbouring
columns, d = D / num_heads for each head; keys and values likewise. Each head attends with its own
d columns. Then the results of all heads are put side by side again, and multiplied by W_o.

split_heads(y, num_heads)    y (N, D) -> (num_heads, N, d): [h, m, c] is y[m, h * d + c]
concat_heads(out)            out (num_heads, N, d) -> (N, D): the way back
multi_head_attention(...)    causal, and the result of the layer, (N, D)

x           (N, D), a row for each token; N and D any, num_heads a divisor of D
W_q, W_k, W_v, W_o    (D, D): x @ W_q has the queries of all heads side by side
attention   is given, for all heads at once. Use it.

One line, one line, and two.
"""

import numpy as np

### KIND: fill a line
### HINT 1: A row of y has the columns of head 0, then those of head 1, ... So y.reshape(N,
### HINT 1: num_heads, d) only gives names to what is there: [m, h, c] is y[m, h * d + c].
### HINT 2: The axes are then (token, head, column), and (head, token, column) is wanted.
### HINT 2: y.transpose(1, 0, 2) exchanges the first two. A reshape to (num_heads, N, d) has the
### HINT 2: same shape and mixes tokens with heads.
### HINT 3: y.reshape(len(y), num_heads, -1).transpose(1, 0, 2), and back:
### HINT 3: out.transpose(1, 0, 2).reshape(out.shape[1], -1). The layer:
### HINT 3: q, k, v = (split_heads(x @ W, num_heads) for W in (W_q, W_k, W_v)), then
### HINT 3: concat_heads(attention(q, k, v)) @ W_o.
### DEBRIEF: The reshape moves nothing, only the transpose does. The kernels of this package take
### DEBRIEF: (batch, seqlen, num_heads, head_dim) and need neither: a thread block of head h reads
### DEBRIEF: q[b, m, h, :], which are neighbours. The concatenation with W_o is a sum over heads:
### DEBRIEF: head h adds its out times rows h * d to (h + 1) * d of W_o. So heads can be computed
### DEBRIEF: on different GPUs, and their results are added (lesson 21).


def attention(q, k, v):
    """Causal attention of each head; q, k, v and the result (num_heads, N, d)."""
    N, d = q.shape[1:]
    s = q @ k.transpose(0, 2, 1) / np.sqrt(d)
    s = np.where(np.tril(np.ones((N, N), bool)), s, -np.inf)  # query m sees the keys n <= m
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True) @ v


def split_heads(y, num_heads):
    """(N, D) -> (num_heads, N, d)."""
    ### BEGIN SOLUTION
    return y.reshape(len(y), num_heads, -1).transpose(1, 0, 2)
    ### END SOLUTION


def concat_heads(out):
    """(num_heads, N, d) -> (N, D)."""
    ### BEGIN SOLUTION
    return out.transpose(1, 0, 2).reshape(out.shape[1], -1)
    ### END SOLUTION


def multi_head_attention(x, W_q, W_k, W_v, W_o, num_heads):
    """The attention layer of a transformer: x (N, D) -> (N, D)."""
    ### BEGIN SOLUTION
    q, k, v = (split_heads(x @ W, num_heads) for W in (W_q, W_k, W_v))
    return concat_heads(attention(q, k, v)) @ W_o
    ### END SOLUTION
