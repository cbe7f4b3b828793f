"""ex22e · Where the gradient of attention enters the layer

The attention half of a layer, forward (rotary embedding is inside of `heads`):

    q, k, v = heads(normalize(x) @ w_qkv)
    out, lse = attn(q, k, v, causal=True)
    middle = x + out @ w_out

Write it backwards. Your kernels of ex08b and ex08c come in as `attn_grad`; `normalize_grad` and
`join`, which is the backward pass of `heads`, are given.

layer_grad(dmiddle, saved, w_qkv, w_out, attn_grad, join) -> dx, dw_qkv, dw_out
    dmiddle, x   (rows, width) float32; middle and x have a row for each token of each sequence
    saved        (x, q, k, v, out, lse) of the forward pass
    q, out       (batch, seqlen, heads, head_dim), with batch * seqlen = rows and
                 heads * head_dim = width;  k, v have fewer heads
    w_qkv        (width, columns);  w_out (width, width)
    attn_grad(dout, q, k, v, out, lse, causal=True) -> dq, dk, dv
    join(dq, dk, dv) -> (rows, columns): rotation undone, q, k and v side by side
    normalize(x) -> (rows, width)
    normalize_grad(dy, x, added) -> added + the gradient of x, where y = normalize(x)

No argument is changed. About 8 lines.
"""

from fa_numba.language_model.rows import normalize, normalize_grad


def layer_grad(dmiddle, saved, w_qkv, w_out, attn_grad, join):
    """The gradients of x and of both weights, from that of the result."""
    x, q, k, v, out, lse = saved
    # YOUR CODE HERE
    raise NotImplementedError("ex22e: layer_grad")


# Stub 090de113 of solutions/ex22e_layer_grad.py: `fa-numba reset ex22e` brings it back.
