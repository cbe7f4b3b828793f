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


def attention(q, k, v):
    """Causal attention of each head; q, k, v and the result (num_heads, N, d)."""
    N, d = q.shape[1:]
    s = q @ k.transpose(0, 2, 1) / np.sqrt(d)
    s = np.where(np.tril(np.ones((N, N), bool)), s, -np.inf)  # query m sees the keys n <= m
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True) @ v


def split_heads(y, num_heads):
    """(N, D) -> (num_heads, N, d)."""
    # YOUR CODE HERE
    raise NotImplementedError("ex04a: split_heads")


def concat_heads(out):
    """(num_heads, N, d) -> (N, D)."""
    # YOUR CODE HERE
    raise NotImplementedError("ex04a: concat_heads")


def multi_head_attention(x, W_q, W_k, W_v, W_o, num_heads):
    """The attention layer of a transformer: x (N, D) -> (N, D)."""
    # YOUR CODE HERE
    raise NotImplementedError("ex04a: multi_head_attention")


# Stub ff417ad0 of solutions/ex04a_heads.py: `fa-numba reset ex04a` brings it back.
