"""ex08d · Find the bug: gradients with dropout

`published_bwd` is the backward pass of attention with dropout, as the formulas of this lesson have
it, or nearly. Without dropout all three gradients are right; with dropout dv is right, and two are
wrong, by more than a tenth at p = 0.1, with no NaN to show it. Compare with finite differences (the
grader names the elements), and write `mended_bwd`. One line changes.

mended_bwd(dout, q, k, v, z, softmax_scale) -> dq, dk, dv
    q, dout (seqlen_q, head_dim);  k, v (seqlen_k, head_dim), float64
    z       (seqlen_q, seqlen_k): 0 where an entry of P is dropped, 1 / (1 - p) elsewhere
    forward P = softmax(softmax_scale q k^T), out = (P ∘ Z) v
"""

import numpy as np


def published_bwd(dout, q, k, v, z, softmax_scale):
    """The program with the bug, to read and to run. Leave it as it is."""
    s = softmax_scale * q @ k.T
    p = np.exp(s - s.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    pz = p * z
    delta = np.sum(dout * (pz @ v), axis=1, keepdims=True)
    dv = pz.T @ dout
    dp = (dout @ v.T) * z
    ds = pz * (dp - delta)
    return softmax_scale * ds @ k, softmax_scale * ds.T @ q, dv


def mended_bwd(dout, q, k, v, z, softmax_scale):
    """dq, dk, dv of attention with dropout."""
    # YOUR CODE HERE
    raise NotImplementedError("ex08d: mended_bwd")


# Stub dc27817d of solutions/ex08d_dropout_gradients.py: `fa-numba reset ex08d` brings it back.
