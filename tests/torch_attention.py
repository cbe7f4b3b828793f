"""Attention by definition in PyTorch, with which the tests of fa_numba.torch compare."""

import torch


def tensors(*shapes, dtype=torch.float32, requires_grad=True, seed=0, device="cpu"):
    """Random tensors, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]
    return [x.requires_grad_(requires_grad) for x in made]


def results_and_gradients(function, inputs, dout):
    """[out, and the gradient of each input], of inputs that are set to have none."""
    for x in inputs:
        x.grad = None
    out = function(*inputs)
    out.backward(dout.to(out.dtype))
    return [out.detach(), *(x.grad for x in inputs)]


def plain(
    q,
    k,
    v,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    slopes=None,
    scale=None,
    kept=None,
    top_left=False,
):
    """Attention by definition, differentiable, in the dtype of its inputs.

    `kept` has the factor of each weight under dropout, of shape (batch, heads, seqlen_q, seqlen_k).
    `top_left` aligns the first query with the first key, as PyTorch does.
    """
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    s = torch.einsum("bmhd,bnhd->bhmn", q, k) * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    seqlen_q, seqlen_k = q.shape[1], k.shape[1]
    n = torch.arange(seqlen_k, device=q.device)
    p = torch.arange(seqlen_q, device=q.device)[:, None] + (0 if top_left else seqlen_k - seqlen_q)
    if slopes is not None:
        s = s - slopes.to(s.dtype)[:, None, None] * (n - p).abs()
    left, right = window_size
    right = 0 if causal else right
    hidden = ((n < p - left) & (left >= 0)) | ((n > p + right) & (right >= 0))
    s = s.masked_fill(hidden, -torch.inf)
    weights = torch.softmax(s, -1).nan_to_num(0) if seqlen_k else s
    if kept is not None:
        weights = weights * kept.to(weights.dtype)
    return torch.einsum("bhmn,bnhd->bmhd", weights, v)


def errors(function, reference, inputs, dout):
    """Compare a function and its gradients with a reference in float64.

    Returns
    -------
    dict of str to (float, float)
        For out and each gradient: the largest error of the function, and that of the reference in
        the dtype of the inputs.
    """
    got = results_and_gradients(function, inputs, dout)
    simple = results_and_gradients(reference, inputs, dout)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    want = results_and_gradients(reference, exact, dout)
    found = {}
    for name, *three in zip(
        ("out", "dq", "dk", "dv", "dsinks")[: len(got)], got, simple, want, strict=True
    ):
        x, y, z = three
        assert x.dtype == y.dtype and x.shape == z.shape
        found[name] = tuple(
            (a.double() - z).abs().nan_to_num(torch.inf).max().item() if z.numel() else 0.0
            for a in (x, y)
        )
    return found


def compare(function, reference, inputs, dout):
    """Hold the errors of a function and its gradients to twice those of a plain computation."""
    for name, (error, plain_error) in errors(function, reference, inputs, dout).items():
        allowed = 2 * plain_error + 1e-5
        assert error <= allowed, f"{name} is off by {error:.3g}, allowed are {allowed:.3g}"
