"""How fast is the backward on tensor cores, beside FlashAttention-2 and cuDNN? And its options?

Before anything is timed, the gradients of one head are compared with float64 at that size.
"""

import itertools
from functools import partial

from benchmarks.bench_tensor_core import (
    ODD_HEAD_DIMS,
    PEERS,
    SEQLENS,
    SOME_SEQLENS,
    TOKENS,
    WIDTH,
)
from benchmarks.exact import ROUNDING, random_tensors, relative_error, with_gradients
from benchmarks.peers import sdpa
from benchmarks.timing import cells, save_each, time_ms
from fa_numba.tensor_core.flash_attn_bwd_mma import flash_attn_bwd_mma
from fa_numba.tensor_core.flash_attn_bwd_padded import flash_attn_bwd_padded
from fa_numba.tensor_core.flash_attn_bwd_persistent import flash_attn_bwd_persistent
from fa_numba.tensor_core.flash_attn_bwd_wide import flash_attn_bwd_wide
from fa_numba.tensor_core.flash_attn_padded import flash_attn_padded
from fa_numba.tensor_core.flash_attn_persistent import flash_attn_persistent

HEAD_DIMS, WIDE_HEAD_DIMS, CAUSAL = (64, 128), (192, 256), (False, True)
STEPS = (flash_attn_bwd_mma, flash_attn_bwd_persistent)
CASES = (
    *(("float16", *x, STEPS) for x in itertools.product(SEQLENS, HEAD_DIMS, CAUSAL)),
    *(
        ("float16", *x, (flash_attn_bwd_wide,))
        for x in itertools.product(SEQLENS, WIDE_HEAD_DIMS, CAUSAL)
    ),
    *(
        ("float16", *x, (flash_attn_bwd_padded,))
        for x in itertools.product(SOME_SEQLENS, ODD_HEAD_DIMS, CAUSAL)
    ),
)
WINDOW = 1024  # keys that a query sees
OPTIONS = {
    "deterministic": {"deterministic": True},
    f"a window of {WINDOW}": {"window_size": (WINDOW - 1, 0)},
    "softcap": {"softcap": 15.0},
    "ALiBi": {"alibi_slopes": True},
    "4 query heads for a head of K and V": {"group_size": 4},
}
OPTIONS_SEQLEN, OPTIONS_HEAD_DIM = 8192, 128  # float16, causal
REPEATS = 7


def main():
    parts = {"{}, n = {}, d = {}, causal={}".format(*x): partial(measure, *x) for x in CASES}
    save_each(
        "tensor_core_bwd",
        parts | {"options": options},
        note=f"{TOKENS} tokens in all, num_heads * head_dim = {WIDTH}; FLOPs "
        "10·head_dim for each pair of a query and a key that it sees, causal half of all; error: "
        "the largest of ‖x − float64‖ / ‖float64‖ for dq, dk, dv of one head",
    )


def measure(dtype, seqlen, head_dim, causal, ours):
    """The rows of one size."""
    batch, num_heads = TOKENS // seqlen, WIDTH // head_dim
    shape = batch, seqlen, num_heads, head_dim
    flops = 10 * batch * num_heads * seqlen**2 * head_dim * (0.5 if causal else 1)
    for name, function, error in functions(dtype, shape, causal, ours):
        row = {"kernel": name, "dtype": dtype, "head_dim": head_dim, "seqlen": seqlen}
        yield {**row, "causal": causal, **cells(time_ms(function, repeats=REPEATS), flops, error)}


def functions(dtype, shape, causal, ours):
    """Yield (name, call without arguments, relative error) of ours, then of PyTorch's."""
    dout, q, k, v = random_tensors(4, shape, dtype)
    _, *want = with_gradients(*(x[-1, :, -1].double() for x in (dout, q, k, v)), causal)

    def error_of(gradients):
        return max(relative_error(x[-1, :, -1], y) for x, y in zip(gradients, want, strict=True))

    out, lse = flash_attn_padded(q, k, v, causal=causal)  # copies odd rows alone
    for backward in ours:
        call = lambda f=backward: f(dout, q, k, v, out, lse, causal=causal)  # noqa: E731
        error = error_of(call())
        assert error <= 4 * ROUNDING[dtype], f"{backward.__name__}, {dtype}, {shape}: {error}"
        yield backward.__name__, call, error
    for name, library in PEERS.items():
        if name == "SDPA cuDNN" and shape[3] % 8:
            continue  # PyTorch pads other rows for FlashAttention-2, not for cuDNN
        call = sdpa(library, q, k, v, causal)[1](dout)
        yield name, call, error_of(call())


def options():
    """Rows of flash_attn_bwd_persistent with its options; the tests say that it is right."""
    import torch

    seqlen, head_dim = OPTIONS_SEQLEN, OPTIONS_HEAD_DIM
    batch, num_heads = TOKENS // seqlen, WIDTH // head_dim
    rows = []
    for name, given in OPTIONS.items():
        mask = dict(given)
        kv_heads = num_heads // mask.pop("group_size", 1)
        torch.manual_seed(0)
        dout, q, k, v = (
            torch.randn((batch, seqlen, heads, head_dim), device="cuda").half()
            for heads in (num_heads, num_heads, kv_heads, kv_heads)
        )
        if "alibi_slopes" in mask:
            mask["alibi_slopes"] = 0.5 ** torch.arange(1.0, num_heads + 1, device="cuda")
        forward = {key: x for key, x in mask.items() if key != "deterministic"}
        out, lse = flash_attn_persistent(q, k, v, causal=True, **forward)
        keys = WINDOW * (seqlen - WINDOW / 2) if "window_size" in mask else seqlen**2 / 2
        flops = 10 * batch * num_heads * keys * head_dim
        call = lambda a=(dout, q, k, v, out, lse), m=mask: (  # noqa: E731
            flash_attn_bwd_persistent(*a, causal=True, **m)
        )
        row = {"kernel": f"flash_attn_bwd_persistent, {name}", "dtype": "float16"}
        row |= {"head_dim": head_dim, "seqlen": seqlen, "causal": True}
        rows.append(row | cells(time_ms(call, repeats=REPEATS), flops))
    return rows
