"""How fast are the tensor-core kernels, step by step, beside FlashAttention-2 and cuDNN?

Before anything is timed, all of a kernel's output is compared with float64 at that size.
"""

import itertools
from functools import partial

import numpy as np

from benchmarks.peers import sdpa
from benchmarks.timing import save_each, time_ms
from fa_numba.tensor_core.flash_attn_mma import flash_attn_mma
from fa_numba.tensor_core.flash_attn_padded import flash_attn_padded
from fa_numba.tensor_core.flash_attn_persistent import flash_attn_persistent
from fa_numba.tensor_core.flash_attn_wgmma import flash_attn_wgmma
from fa_numba.tensor_core.flash_attn_ws import flash_attn_ws

TOKENS, WIDTH = 16384, 2048  # batch * seqlen and num_heads * head_dim, held while seqlen grows
SEQLENS, CAUSAL = (512, 1024, 2048, 4096, 8192, 16384), (False, True)
LADDER = (flash_attn_mma, flash_attn_wgmma, flash_attn_ws)  # on the way to the last
OTHER_HEAD_DIMS, SOME_SEQLENS = (96, 256), (512, 4096, 8192)
ODD_HEAD_DIMS = (59, 111)
SHORT = 1024  # up to here a call in a CUDA graph is timed, too
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
PEERS = {"SDPA FlashAttention-2": "FLASH_ATTENTION", "SDPA cuDNN": "CUDNN_ATTENTION"}
REPEATS, CALLS, REPLAYS = 8, 5, 5  # calls alone; calls in a graph, and how often it is replayed


def main():
    cases = [
        *((d, SEQLENS, (*LADDER, flash_attn_persistent)) for d in (64, 128)),
        *((d, SOME_SEQLENS, (flash_attn_persistent,)) for d in OTHER_HEAD_DIMS),
        *((d, SOME_SEQLENS, (flash_attn_padded,)) for d in ODD_HEAD_DIMS),
    ]
    save_each(
        "tensor_core",
        {f"d = {case[0]}": partial(measure, "float16", *case) for case in cases},
        note=f"{TOKENS} tokens in all, num_heads * head_dim = {WIDTH} or just below; FLOPs "
        "4·batch·heads·seqlen²·head_dim, halved if causal; graph: a call of "
        f"{CALLS} in a CUDA graph; error: ‖out − float64‖ / ‖float64‖",
    )


def measure(dtype, head_dim, seqlens, kernels):
    """Rows for one dtype and head_dim."""
    rows = []
    for seqlen, causal in itertools.product(seqlens, CAUSAL):
        shape = TOKENS // seqlen, seqlen, WIDTH // head_dim, head_dim
        flops = 4 * np.prod(shape, dtype=float) * seqlen * (0.5 if causal else 1)
        for name, function, error in functions(dtype, shape, causal, kernels):
            ms = time_ms(function, repeats=REPEATS)
            row = {
                "kernel": name,
                "dtype": dtype,
                "head_dim": head_dim,
                "seqlen": seqlen,
                "causal": causal,
                "ms": round(ms, 4),
                "TFLOP/s": round(flops / ms / 1e9, 1),
                "error": float(f"{error:.2g}"),
            }
            if seqlen <= SHORT:
                row["graph TFLOP/s"] = round(flops / time_graph(function) / 1e9, 1)
            rows.append(row)
    return rows


def time_graph(function):
    """Median milliseconds of a call in a CUDA graph of several."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [function() for _ in range(CALLS)]  # kept as long as the graph
    graph.replay()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPLAYS)]
    for start, end in events:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    del results
    return float(np.median([start.elapsed_time(end) for start, end in events])) / CALLS


def functions(dtype, shape, causal, kernels):
    """Yield (name, call without arguments, relative error) of ours, then of PyTorch's."""
    import torch

    torch.manual_seed(0)
    q, k, v = (torch.randn(shape, device="cuda").to(getattr(torch, dtype)) for _ in range(3))
    want = definition(q, k, v, causal)
    for attention in kernels:
        name = attention.__name__
        error = relative_error(attention(q, k, v, causal=causal)[0], want)
        assert error <= 2 * ROUNDING[dtype], f"{name}, {dtype}, {shape}, {causal=}: {error}"
        yield name, lambda attention=attention: attention(q, k, v, causal=causal), error
    for name, library in PEERS.items():
        call, _ = sdpa(library, q, k, v, causal)
        try:
            error = relative_error(call(), want)
        except RuntimeError as refusal:  # cuDNN takes no head_dim that is no multiple of 8
            print(f"{name} does not run for {shape}: {str(refusal)[:100]}")
            continue
        yield name, call, error


def definition(q, k, v, causal):
    """Attention in float64 on the GPU, a head at a time."""
    import torch

    out = torch.empty(q.shape, dtype=torch.float64, device="cuda")
    for b, head in np.ndindex(q.shape[0], q.shape[2]):
        out[b, :, head] = of_head(*(x[b, :, head].double() for x in (q, k, v)), causal)
    return out


def of_head(q, k, v, causal):
    """Attention of one head, in the dtype of q."""
    import torch

    s = q @ k.T / q.shape[1] ** 0.5
    if causal:
        s.masked_fill_(torch.ones_like(s, dtype=torch.bool).triu(1), -torch.inf)
    return torch.softmax(s, dim=-1) @ v


def relative_error(out, want):
    """NaN where anything is."""
    return float((out.double() - want).norm() / want.norm())
