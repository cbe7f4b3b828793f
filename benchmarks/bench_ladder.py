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
SLOW_TOKENS, SLOW_HEADS = 8192, 4  # of a lesson's step: enough to fill the GPU


def main():
    rows = []
    for head_dim, seqlen, causal in itertools.product(HEAD_DIMS, SEQLENS, CAUSAL):
        for name, heads, ms in measure(seqlen, head_dim, causal):
            flops = 4 * heads * seqlen**2 * head_dim
            row = {"step": name, "head_dim": head_dim, "seqlen": seqlen, "causal": causal}
            row |= {"ms": round(ms, 3), "TFLOP/s": round(flops / (1 + causal) / ms / 1e9, 2)}
            rows.append(row)
    save(
        "ladder",
        rows,
        note=f"float32, {TOKENS} tokens in all, num_heads · head_dim = {WIDTH}, but {SLOW_TOKENS} "
        f"tokens and {SLOW_HEADS} heads in the steps before flash_attn_simt; FLOPs "
        "4 · batch · heads · seqlen² · head_dim, halved if causal",
    )


def measure(seqlen, head_dim, causal):
    """Yield (name, batch · heads, milliseconds) of each step, then of PyTorch's."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    torch.backends.cuda.matmul.allow_tf32 = False
    rng = cupy.random.default_rng(0)
    shape = (TOKENS // seqlen, seqlen, WIDTH // head_dim, head_dim)
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for _ in range(3))
    some = slice(0, SLOW_TOKENS // seqlen), slice(None), slice(0, SLOW_HEADS)
    few = [cupy.ascontiguousarray(x[some]) for x in (q, k, v)]
    for name in STEPS:
        ms = time_ms(getattr(fa_numba, name), *few, causal=causal, repeats=4)
        yield name, few[0].shape[0] * SLOW_HEADS, ms
    heads = shape[0] * shape[2]
    for name in FAST_STEPS:
        yield name, heads, time_ms(getattr(fa_numba, name), q, k, v, causal=causal, repeats=8)
    tensors = [torch.as_tensor(x, device="cuda").transpose(1, 2).contiguous() for x in (q, k, v)]
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        ms = time_ms(scaled_dot_product_attention, *tensors, is_causal=causal, repeats=8)
        yield "SDPA memory-efficient", heads, ms


if __name__ == "__main__":
    main()
