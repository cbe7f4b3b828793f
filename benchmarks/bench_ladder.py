"""How fast is each step of the ladder in float32, and where are the libraries?"""

import itertools

import cupy
import numpy as np

import fa_numba
from benchmarks.timing import save, time_ms

TOKENS, WIDTH = 16384, 2048  # batch · seqlen and num_heads · head_dim, held while seqlen grows
HEAD_DIMS, SEQLENS, CAUSAL = (64, 128), (512, 2048, 8192), (False, True)
STEPS = ("naive_attn", "flash_attn_v1", "flash_attn_v2", "flash_attn_v2_unsigned")
FAST_STEPS = ("flash_attn_simt",)
SLOW_TOKENS = 4096  # of a lesson's step: what it does in a second of the GPU is enough


def main():
    rows = []
    for head_dim, seqlen, causal in itertools.product(HEAD_DIMS, SEQLENS, CAUSAL):
        for name, batch, ms in measure(seqlen, head_dim, causal):
            flops = 4 * batch * (WIDTH // head_dim) * seqlen**2 * head_dim
            row = {"step": name, "head_dim": head_dim, "seqlen": seqlen, "causal": causal}
            row |= {"ms": round(ms, 3), "TFLOP/s": round(flops / (1 + causal) / ms / 1e9, 2)}
            rows.append(row)
    save(
        "ladder",
        rows,
        note=f"float32, num_heads · head_dim = {WIDTH}, {TOKENS} tokens in all, or one sequence of "
        f"the steps before flash_attn_simt where {SLOW_TOKENS} tokens are less; FLOPs "
        "4 · batch · heads · seqlen² · head_dim, halved if causal",
    )


def measure(seqlen, head_dim, causal):
    """Yield (name, batch, milliseconds) of each step, then of PyTorch's, on arrays alike."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    torch.backends.cuda.matmul.allow_tf32 = False
    rng = cupy.random.default_rng(0)
    batch = TOKENS // seqlen
    shape = (batch, seqlen, WIDTH // head_dim, head_dim)
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for _ in range(3))
    few = max(1, SLOW_TOKENS // seqlen)
    for name in STEPS:
        step = getattr(fa_numba, name)
        yield name, few, time_ms(step, q[:few], k[:few], v[:few], causal=causal, repeats=3)
    for name in FAST_STEPS:
        yield name, batch, time_ms(getattr(fa_numba, name), q, k, v, causal=causal, repeats=8)
    tensors = [torch.as_tensor(x, device="cuda").transpose(1, 2).contiguous() for x in (q, k, v)]
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        ms = time_ms(scaled_dot_product_attention, *tensors, is_causal=causal, repeats=8)
        yield "SDPA memory-efficient", batch, ms


if __name__ == "__main__":
    main()
