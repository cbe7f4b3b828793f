"""How fast is the backward on tensor cores, beside FlashAttention-2 and cuDNN?

Before anything is timed, the gradients of one head are compared with float64 at that size.
"""

import itertools

from benchmarks.bench_tensor_core import ROUNDING, TOKENS, WIDTH, relative_error
from benchmarks.timing import save, time_ms
from fa_numba.tensor_core.flash_attn_bwd_mma import flash_attn_bwd_mma
from fa_numba.tensor_core.flash_attn_bwd_wgmma import flash_attn_bwd_wgmma
from fa_numba.tensor_core.flash_attn_ws import flash_attn_ws

DTYPES, HEAD_DIMS = ("float16", "bfloat16"), (64, 128)
SEQLENS, CAUSAL = (512, 2048, 8192), (False, True)
OURS = (flash_attn_bwd_mma, flash_attn_bwd_wgmma)
REPEATS = 12


def main():
    rows = []
    for dtype, head_dim, seqlen, causal in itertools.product(DTYPES, HEAD_DIMS, SEQLENS, CAUSAL):
        batch, num_heads = TOKENS // seqlen, WIDTH // head_dim
        flops = 10 * batch * num_heads * seqlen**2 * head_dim * (0.5 if causal else 1)
        for name, function, error in functions(dtype, batch, seqlen, num_heads, head_dim, causal):
            ms = time_ms(function, repeats=REPEATS)
            rows.append(
                {
                    "kernel": name,
                    "dtype": dtype,
                    "head_dim": head_dim,
                    "seqlen": seqlen,
                    "causal": causal,
                    "ms": round(ms, 4),
                    "TFLOP/s": round(flops / ms / 1e9, 1),
                    "error": float(f"{error:.2g}"),
                }
            )
    save(
        "tensor_core_bwd",
        rows,
        note=f"{TOKENS} tokens in all, num_heads * head_dim = {WIDTH}; FLOPs "
        "10·batch·heads·seqlen²·head_dim, halved if causal; error: the largest of "
        "‖x − float64‖ / ‖float64‖ for dq, dk, dv of one head",
    )


def functions(dtype, batch, seqlen, num_heads, head_dim, causal):
    """Yield (name, call without arguments, relative error) of ours, then of PyTorch's."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    torch.manual_seed(0)
    shape = (batch, seqlen, num_heads, head_dim)
    dout, q, k, v = (torch.randn(shape, device="cuda").to(getattr(torch, dtype)) for _ in range(4))
    want = definition(*(x[-1, :, -1] for x in (dout, q, k, v)), causal)

    def error_of(gradients):
        return max(relative_error(x[-1, :, -1], y) for x, y in zip(gradients, want, strict=True))

    out, lse = flash_attn_ws(q, k, v, causal=causal)
    for backward in OURS:
        call = lambda f=backward: f(dout, q, k, v, out, lse, causal=causal)  # noqa: E731
        error = error_of(call())
        assert error <= 4 * ROUNDING[dtype], f"{backward.__name__}, {dtype}, {shape}: {error}"
        yield backward.__name__, call, error
    inputs = [x.requires_grad_() for x in (q, k, v)]
    heads_first = [x.transpose(1, 2) for x in inputs]
    peers = {
        "SDPA FlashAttention-2": SDPBackend.FLASH_ATTENTION,
        "SDPA cuDNN": SDPBackend.CUDNN_ATTENTION,
    }
    for name, backend in peers.items():
        with sdpa_kernel(backend):
            out = scaled_dot_product_attention(*heads_first, is_causal=causal)
        call = lambda out=out: torch.autograd.grad(  # noqa: E731
            out, inputs, dout.transpose(1, 2), retain_graph=True
        )
        yield name, call, error_of(call())


def definition(dout, q, k, v, causal):
    """Gradients of one head in float64 on the GPU."""
    import torch

    dout, q, k, v = (x.double() for x in (dout, q, k, v))
    scale = q.shape[1] ** -0.5
    s = q @ k.T * scale
    if causal:
        s.masked_fill_(torch.ones_like(s, dtype=torch.bool).triu(1), -torch.inf)
    p = torch.softmax(s, dim=-1)
    delta = (dout * (p @ v)).sum(-1, keepdim=True)
    ds = p * (dout @ v.T - delta) * scale
    return ds @ k, ds.T @ q, p.T @ dout


if __name__ == "__main__":
    main()
