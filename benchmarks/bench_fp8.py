"""What do 8 bits buy, and what do they cost? FP8 attention beside float16: times, then errors.

Times: our two kernels, quantisation apart and in all, and cuDNN in float16. Errors: those of the
FlashAttention-3 paper's Table 3, on its numbers: N(0, 1) + N(0, 100) · Bernoulli(0.001).
"""

import itertools
from functools import partial

import numpy as np

from benchmarks.exact import definition, of_head
from benchmarks.peers import sdpa
from benchmarks.timing import save_each, time_ms
from fa_numba.constants import LOG2_E
from fa_numba.runtime import arrays
from fa_numba.tensor_core.flash_attn_fp8 import attend, flash_attn_fp8, quantize
from fa_numba.tensor_core.flash_attn_persistent import flash_attn_persistent

TOKENS, WIDTH = 16384, 2048  # batch * seqlen and num_heads * head_dim, held while seqlen grows
HEAD_DIMS, SEQLENS, CAUSAL = (128, 64), tuple(512 << i for i in range(6)), (False, True)
ERROR_SHAPE = 2, 4096, 8, 128
REPEATS = 12


def main():
    import torch

    torch.manual_seed(0)
    parts = {"errors": errors}
    for size in itertools.product(HEAD_DIMS, SEQLENS, CAUSAL):
        parts["d = {}, n = {}, causal={}".format(*size)] = partial(times, *size)
    save_each(
        "fp8",
        parts,
        note=f"{TOKENS} tokens in all, num_heads * head_dim = {WIDTH}; FLOPs "
        "4·batch·heads·seqlen²·head_dim, halved if causal; RMSE against float64, (batch, seqlen, "
        f"heads, head_dim) = {ERROR_SHAPE}, N(0, 1) + N(0, 100)·Bernoulli(0.001)",
    )


def times(head_dim, seqlen, causal):
    """Rows for one size."""
    import torch

    batch, num_heads = TOKENS // seqlen, WIDTH // head_dim
    shape = (batch, seqlen, num_heads, head_dim)
    moved = 3 * 3 * TOKENS * WIDTH  # 16 bits in, 8 out
    flops = 4 * batch * num_heads * seqlen**2 * head_dim * (0.5 if causal else 1)
    q, k, v = (torch.randn(shape, device="cuda").half() for _ in range(3))
    rows = []
    for name, function in functions(q, k, v, causal):
        ms = time_ms(function, repeats=REPEATS)
        row = {"kernel": name, "head_dim": head_dim, "seqlen": seqlen, "causal": causal}
        row["ms"] = round(ms, 4)
        if name in ("quantisation", "copy of as many bytes"):
            row["GB/s"] = round(moved / ms / 1e6)
        else:
            row["TFLOP/s"] = round(flops / ms / 1e9, 1)
        rows.append(row)
    return rows


def functions(q, k, v, causal):
    """Yield (name, call without arguments), each compared with float64 first."""
    import cupy

    want = of_head(*(x[-1, :, -1].double() for x in (q, k, v)), causal)
    for name, function, most in (
        ("flash_attn_persistent", flash_attn_persistent, 1e-3),
        ("flash_attn_fp8, quantisation included", flash_attn_fp8, 0.08),
    ):
        error = (
            rmse(function(q, k, v, causal=causal)[0][-1, :, -1], want) / want.square().mean().sqrt()
        )
        assert error <= most, f"{name}, {tuple(q.shape)}, {causal=}: {error}"
        yield name, lambda function=function: function(q, k, v, causal=causal)
    q8, k8, v8 = quantize(q, k, v)
    out, lse = arrays.empty(q, q.shape, q.dtype), arrays.empty(q, (q.shape[0], *q.shape[2:0:-1]))
    scale = np.float32(LOG2_E / q.shape[3] ** 0.5)
    yield "flash_attn_fp8", lambda: attend(q8, k8, v8, out, lse, causal, scale)
    yield "quantisation", lambda: quantize(q, k, v)
    source, copy = cupy.empty((2, 9 * TOKENS * WIDTH // 2), np.uint8)
    yield "copy of as many bytes", lambda: cupy.copyto(copy, source)
    yield "SDPA cuDNN", sdpa("CUDNN_ATTENTION", q, k, v, causal)[0]


def errors():
    """Rows of Table 3."""
    import torch

    q, k, v = (with_outliers(ERROR_SHAPE) for _ in range(3))
    exact = definition(q, k, v)
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    scores = heads_first[0] @ heads_first[1].transpose(2, 3) / q.shape[3] ** 0.5
    ways = {
        "float16, S and P in HBM": (torch.softmax(scores, -1) @ heads_first[2]).transpose(1, 2),
        "float16, flash_attn_persistent": flash_attn_persistent(q, k, v)[0],
        "e4m3, one scale per tensor": in_e4m3(q, k, v, hadamard=False, blocks=False),
        "e4m3, a scale per tile": in_e4m3(q, k, v, hadamard=False, blocks=True),
        "e4m3, one scale, Q and K rotated": in_e4m3(q, k, v, hadamard=True, blocks=False),
        "e4m3, flash_attn_fp8: a scale per tile, rotated": flash_attn_fp8(q, k, v)[0],
    }
    found = {way: rmse(out, exact) for way, out in ways.items()}
    plain = found["e4m3, one scale per tensor"]
    return [
        {
            "error of": way,
            "RMSE": float(f"{error:.3g}"),
            "one scale / this": round(plain / error, 2),
        }
        for way, error in found.items()
    ]


def with_outliers(shape):
    """As `analysis.fp8.with_outliers`, in float16 on the GPU."""
    import torch

    x, y = torch.randn(shape, device="cuda"), 10 * torch.randn(shape, device="cuda")
    return (x + y * (torch.rand(shape, device="cuda") < 0.001)).half()


def in_e4m3(q, k, v, *, hadamard, blocks):
    """The kernel on other quantisations."""
    made = quantize(q, k, v, hadamard)
    if not blocks:
        norm = q.shape[3] ** 0.5 if hadamard else 1
        q8, k8, _ = made
        least = [float(x8.scales.max()) * 448 * norm for x8 in (q8, k8)] + [float(v.abs().max())]
        made = quantize(q, k, v, hadamard, least)
    out, lse = arrays.empty(q, q.shape, q.dtype), arrays.empty(q, (q.shape[0], *q.shape[2:0:-1]))
    attend(*made, out, lse, False, np.float32(LOG2_E / q.shape[3] ** 0.5))
    return out


def rmse(x, y):
    """Root of the mean squared difference."""
    return float((x.double() - y).square().mean().sqrt())
