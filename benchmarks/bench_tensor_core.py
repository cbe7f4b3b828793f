"""How fast are the tensor-core kernels, step by step, beside FlashAttention-2 and cuDNN?

Before anything is timed, all of a kernel's output is compared with float64 at that size.
"""

import itertools
from functools import partial

import numpy as np

from benchmarks.exact import ROUNDING, definition, random_tensors, relative_error
from benchmarks.peers import sdpa
from benchmarks.timing import cells, save_each, time_graph, time_ms
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
PEERS = {"SDPA FlashAttention-2": "FLASH_ATTENTION", "SDPA cuDNN": "CUDNN_ATTENTION"}
REPEATS, CALLS = 8, 5  # calls alone; calls in a graph


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
            row = {"kernel": name, "dtype": dtype, "head_dim": head_dim, "seqlen": seqlen}
            row |= {"causal": causal, **cells(ms, flops, error)}
            if seqlen <= SHORT:
                row["graph TFLOP/s"] = round(flops / time_graph(function, CALLS) / 1e9, 1)
            rows.append(row)
    return rows


def functions(dtype, shape, causal, kernels):
    """Yield (name, call without arguments, relative error) of ours, then of PyTorch's."""
    q, k, v = random_tensors(3, shape, dtype)
    want = definition(q, k, v, causal=causal)
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
