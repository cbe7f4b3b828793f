"""How fast are the lesson kernels on a GPU, step by step, beside the libraries?"""

import itertools

import cupy
import numpy as np

import fa_numba
from benchmarks.peers import sdpa
from benchmarks.timing import save, time_ms

TOKENS, WIDTH = 8192, 1024  # batch * seqlen and num_heads * head_dim, held while seqlen grows
HEAD_DIMS, SEQLENS, CAUSAL = (64, 128), (512, 2048, 8192), (False, True)


def main():
    rows = []
    for head_dim, seqlen, causal in itertools.product(HEAD_DIMS, SEQLENS, CAUSAL):
        batch, num_heads = TOKENS // seqlen, WIDTH // head_dim
        flops = 4 * batch * num_heads * seqlen**2 * head_dim * (0.5 if causal else 1)
        for name, ms in measure(batch, seqlen, num_heads, head_dim, causal):
            work = 2.5 * flops if name == "flash_attn_bwd" else flops
            rows.append(
                {
                    "kernel": name,
                    "head_dim": head_dim,
                    "seqlen": seqlen,
                    "causal": causal,
                    "ms": round(ms, 3),
                    "TFLOP/s": round(work / ms / 1e9, 2),
                }
            )
    save(
        "attention",
        rows,
        note=f"float32, {TOKENS} tokens in all, num_heads * head_dim = {WIDTH}; "
        "FLOPs 4·batch·heads·seqlen²·head_dim, halved if causal, ×2.5 for the backward",
    )


def measure(batch, seqlen, num_heads, head_dim, causal):
    """Yield (name, milliseconds) of ours, then of PyTorch's, on the same arrays."""
    import torch

    rng = cupy.random.default_rng(0)
    shape = (batch, seqlen, num_heads, head_dim)
    q, k, v, dout = (rng.standard_normal(shape, dtype=np.float32) for _ in range(4))
    for name in ("naive_attn", "flash_attn_v1", "flash_attn_v2"):
        yield name, time_ms(getattr(fa_numba, name), q, k, v, causal=causal, repeats=8)
    out, lse = fa_numba.flash_attn_v2(q, k, v, causal=causal)
    yield (
        "flash_attn_bwd",
        time_ms(fa_numba.flash_attn_bwd, dout, q, k, v, out, lse, causal=causal, repeats=8),
    )

    torch.backends.cuda.matmul.allow_tf32 = False
    tensors = (torch.as_tensor(x, device="cuda") for x in (q, k, v))
    # In memory, too, PyTorch's arrays have heads before tokens.
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors)
    for name, library in (("math", "MATH"), ("memory-efficient", "EFFICIENT_ATTENTION")):
        call, _ = sdpa(library, q, k, v, causal)
        yield f"SDPA {name}", time_ms(call, repeats=8)
