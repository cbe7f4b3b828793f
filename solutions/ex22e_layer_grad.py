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

### KIND: write
### HINT 1: Two rules are enough, from the last line of the forward pass to its first. A product y =
### HINT 1: x @ w has dx = dy @ w.T and dw = x.T @ dy. A sum y = a + b hands dy to both.
### HINT 2: out @ w_out takes out as rows: out.reshape(x.shape). Its gradient becomes (batch,
### HINT 2: seqlen, heads, head_dim) again before attn_grad gets it. The input of w_qkv is
### HINT 2: normalize(x), not x.
### HINT 3: dout = (dmiddle @ w_out.T).reshape(out.shape); dqkv = join(*attn_grad(...)); and in the
### HINT 3: end dx = normalize_grad(dqkv @ w_qkv.T, x, dmiddle): x also reaches middle directly.
### DEBRIEF: attn_grad gets q, k, v, out and lse, and no matrix of probabilities: these five arrays
### DEBRIEF: are all that attention keeps for its backward pass. normalize(x) is computed a second
### DEBRIEF: time and not kept: the same trade, recomputation for memory, one level up. The branch
### DEBRIEF: from x to middle is the residual: by it the gradient reaches the layers before
### DEBRIEF: unchanged, however many they are.


def layer_grad(dmiddle, saved, w_qkv, w_out, attn_grad, join):
    """The gradients of x and of both weights, from that of the result."""
    x, q, k, v, out, lse = saved
    ### BEGIN SOLUTION
    dw_out = out.reshape(x.shape).T @ dmiddle
    dout = (dmiddle @ w_out.T).reshape(out.shape)
    dq, dk, dv = attn_grad(dout, q, k, v, out, lse, causal=True)
    dqkv = join(dq, dk, dv)
    dw_qkv = normalize(x).T @ dqkv
    dx = normalize_grad(dqkv @ w_qkv.T, x, dmiddle)
    return dx, dw_qkv, dw_out
    ### END SOLUTION
