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

### KIND: find the bug
### HINT 1: dv is right, so p and pz are. dq and dk both come from ds, ds from p, dp and delta.
### HINT 1: Which of the four is not what the lesson says, if z is not all 1?
### HINT 2: The softmax does not know of dropout: it was normalised before anything was dropped. Its
### HINT 2: rule is dS = P ∘ (dP - delta), with the whole P. Where does Z enter?
### HINT 3: Z enters dP alone, as dp = (dout @ v.T) * z. A dropped pair has dp = 0, but its ds is
### HINT 3: -p * delta, not 0: raising its score lowers the weights of all others.
### DEBRIEF: pz * (dp - delta) says that a dropped pair has no gradient at all. But its score is in
### DEBRIEF: the sum of the softmax still. The rows of ds must sum to 0, as the weights sum to 1:
### DEBRIEF: the cheapest test that finds this bug, with no finite difference. Kernels that store a
### DEBRIEF: dropped entry as -p, as ours do, make the mistake easy: abs(p) belongs here, max(p, 0)
### DEBRIEF: there.


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
    ### BEGIN SOLUTION
    s = softmax_scale * q @ k.T
    p = np.exp(s - s.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    pz = p * z
    delta = np.sum(dout * (pz @ v), axis=1, keepdims=True)
    dv = pz.T @ dout
    dp = (dout @ v.T) * z
    ds = p * (dp - delta)
    return softmax_scale * ds @ k, softmax_scale * ds.T @ q, dv
    ### END SOLUTION
