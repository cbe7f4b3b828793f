"""ex14c · Find the bug: whose scale?

`published` below is attention in e4m3, tile by tile, with a scale for each tile of K and of V. With
one tile it is right, and with tensors whose scales are all alike. On real tensors it is off by some
per cent, in every row, without a NaN anywhere. There are two bugs of the same kind.

Copy it to `mended`, and change what has to change. 3 lines differ.

q8              (seqlen_q, head_dim) e4m3 numbers as float64; q_scale: their one scale, a float
k8, v8          (seqlen_k, head_dim), a multiple of BLOCK_N keys
k_scales        (seqlen_k / BLOCK_N,): k8 times its tile's scale is K. v_scales: the same of V
out             (seqlen_q, head_dim): softmax(Q K^T / sqrt(head_dim)) V; P is rounded to e4m3 as
                before, and divided by the sum of the P that are not rounded

round_e4m3 and P_SCALE are given and have no bug.
"""

import numpy as np

P_SCALE = 256.0  # brings P, at most 1, to the top of e4m3's range


def round_e4m3(x):
    """The nearest e4m3 numbers; beyond the largest, the largest."""
    _, exponent = np.frexp(x)
    step = 2.0 ** (np.maximum(exponent - 1, -6) - 3)
    return np.clip(np.round(x / step) * step, -448.0, 448.0)


def published(q8, q_scale, k8, k_scales, v8, v_scales, BLOCK_N):
    """The program with the two bugs, to read and to run. Leave it as it is."""
    rows, head_dim = q8.shape
    m_i, l_i, acc = np.full((rows, 1), -np.inf), np.zeros((rows, 1)), np.zeros((rows, head_dim))
    for t in range(len(k8) // BLOCK_N):
        tile = slice(t * BLOCK_N, (t + 1) * BLOCK_N)
        s = q8 @ k8[tile].T * (q_scale * k_scales[0] / np.sqrt(head_dim))
        m_new = np.maximum(m_i, s.max(axis=1, keepdims=True))
        alpha, p = np.exp(m_i - m_new), np.exp(s - m_new)
        l_i = alpha * l_i + p.sum(axis=1, keepdims=True)
        acc = alpha * acc + round_e4m3(P_SCALE * p) @ v8[tile] / P_SCALE
        m_i = m_new
    return acc * v_scales[-1] / l_i


def mended(q8, q_scale, k8, k_scales, v8, v_scales, BLOCK_N):
    """Attention in e4m3 with a scale for each tile."""
    # YOUR CODE HERE
    raise NotImplementedError("ex14c: mended")


# Stub d6fd93d0 of solutions/ex14c_wrong_scale.py: `fa-numba reset ex14c` brings it back.
