"""Attention in float64 on the GPU, with which results are compared before anything is timed."""

import numpy as np

ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-22}


def random_tensors(number, shape, dtype="float16"):
    """Tensors of normal numbers, the same in each call."""
    import torch

    torch.manual_seed(0)
    return [torch.randn(shape, device="cuda").to(getattr(torch, dtype)) for _ in range(number)]


def relative_error(out, want):
    """NaN where anything is."""
    return float((out.double() - want).norm() / want.norm())


def definition(q, k, v, *, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None):
    """out of all heads, one at a time."""
    import torch

    seqlen_q, num_heads, seqlen_k = *q.shape[1:3], k.shape[1]
    left, right = window_size[0], 0 if causal else window_size[1]
    out = torch.empty((*q.shape[:3], v.shape[3]), dtype=torch.float64, device=q.device)
    unseen = None
    if left >= 0 or right >= 0 or alibi_slopes is not None:
        n = torch.arange(seqlen_k, device=q.device, dtype=torch.int32)
        ahead = n - n[seqlen_k - seqlen_q :, None]  # of a query's position
        unseen = torch.zeros_like(ahead, dtype=torch.bool)
        if left >= 0:
            unseen |= -ahead > left
        if right >= 0:
            unseen |= ahead > right
    for b, head in np.ndindex(len(q), num_heads):
        kv_head = head * k.shape[2] // num_heads
        s = q[b, :, head].double() @ k[b, :, kv_head].double().T / q.shape[3] ** 0.5
        if softcap:
            s = softcap * torch.tanh(s / softcap)
        if alibi_slopes is not None:
            s -= float(alibi_slopes[head]) * ahead.abs()
        if unseen is not None:
            s.masked_fill_(unseen, -torch.inf)
        out[b, :, head] = torch.softmax(s, dim=-1) @ v[b, :, kv_head].double()
    return out


def of_head(q, k, v, causal):
    """out of one head, in the dtype of q."""
    import torch

    s = q @ k.T / q.shape[1] ** 0.5
    if causal:
        s.masked_fill_(torch.ones_like(s, dtype=torch.bool).triu(1), -torch.inf)
    return torch.softmax(s, dim=-1) @ v


def with_gradients(dout, q, k, v, causal, kept=1):
    """out, dq, dk and dv of one head, in the dtype of q, by products that keep S and P.

    `kept` is the factor of each entry of P under dropout, 0 where it is dropped.
    """
    import torch

    scale = q.shape[1] ** -0.5
    s = q @ k.T * scale
    if causal:
        s.masked_fill_(torch.ones_like(s, dtype=torch.bool).triu(1), -torch.inf)
    p = torch.softmax(s, dim=-1)
    out = (p * kept) @ v
    ds = p * (dout @ v.T * kept - (dout * out).sum(-1, keepdim=True)) * scale
    return out, ds @ k, ds.T @ q, (p * kept).T @ dout
