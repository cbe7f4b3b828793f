"""How fast are the tensor-core kernels, step by step, beside FlashAttention-2 and cuDNN?

Before anything is timed, all of a kernel's output is compared with float64 at that size.
"""

import itertools

import numpy as np

from benchmarks.timing import save, time_ms
from fa_numba.tensor_core.flash_attn_mma import flash_attn_mma
from fa_numba.tensor_core.flash_attn_persistent import flash_attn_persistent
from fa_numba.tensor_core.flash_attn_wgmma import flash_attn_wgmma
from fa_numba.tensor_core.flash_attn_ws import flash_attn_ws

TOKENS, WIDTH = 16384, 2048  # batch * seqlen and num_heads * head_dim, held while seqlen grows
DTYPES, HEAD_DIMS = ("float16", "bfloat16"), (64, 128)
SEQLENS, CAUSAL = (512, 1024, 2048, 4096, 8192, 16384), (False, True)
OURS = (flash_attn_mma, flash_attn_wgmma, flash_attn_ws, flash_attn_persistent)
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
REPEATS = 12


def main():
    rows = []
    for dtype, head_dim in itertools.product(DTYPES, HEAD_DIMS):
        rows += measure(dtype, head_dim)
    write(rows)


def write(rows):
    save(
        "tensor_core",
        rows,
        note=f"{TOKENS} tokens in all, num_heads * head_dim = {WIDTH}; FLOPs "
        "4·batch·heads·seqlen²·head_dim, halved if causal; error: ‖out − float64‖ / ‖float64‖",
    )


def measure(dtype, head_dim):
    """Rows for one dtype and head_dim."""
    rows = []
    for seqlen, causal in itertools.product(SEQLENS, CAUSAL):
        batch, num_heads = TOKENS // seqlen, WIDTH // head_dim
        flops = 4 * batch * num_heads * seqlen**2 * head_dim * (0.5 if causal else 1)
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
    return rows


def functions(dtype, batch, seqlen, num_heads, head_dim, causal):
    """Yield (name, call without arguments, relative error) of ours, then of PyTorch's."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    torch.manual_seed(0)
    shape = (batch, seqlen, num_heads, head_dim)
    q, k, v = (torch.randn(shape, device="cuda").to(getattr(torch, dtype)) for _ in range(3))
    want = definition(q, k, v, causal)
    for attention in OURS:
        name = attention.__name__
        error = relative_error(attention(q, k, v, causal=causal)[0], want)
        assert error <= 2 * ROUNDING[dtype], f"{name}, {dtype}, {shape}, {causal=}: {error}"
        yield name, lambda attention=attention: attention(q, k, v, causal=causal), error
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    peers = {
        "SDPA FlashAttention-2": SDPBackend.FLASH_ATTENTION,
        "SDPA cuDNN": SDPBackend.CUDNN_ATTENTION,
    }
    for name, backend in peers.items():
        with sdpa_kernel(backend):
            out = scaled_dot_product_attention(*heads_first, is_causal=causal)
            error = relative_error(out.transpose(1, 2), want)
            call = lambda: scaled_dot_product_attention(*heads_first, is_causal=causal)  # noqa: E731
            yield name, call, error


def definition(q, k, v, causal):
    """Attention in float64 on the GPU, a head at a time."""
    import torch

    out = torch.empty(q.shape, dtype=torch.float64, device="cuda")
    unseen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device="cuda").triu(1)
    for b, head in np.ndindex(q.shape[0], q.shape[2]):
        q_head, k_head, v_head = (x[b, :, head].double() for x in (q, k, v))
        s = q_head @ k_head.T / q.shape[3] ** 0.5
        if causal:
            s.masked_fill_(unseen, -torch.inf)
        out[b, :, head] = torch.softmax(s, dim=-1) @ v_head
    return out


def relative_error(out, want):
    """NaN where anything is."""
    return float((out.double() - want).norm() / want.norm())


if __name__ == "__main__":
    main()
