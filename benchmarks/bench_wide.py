"""How fast is attention at a head_dim above 256, forward and backward?

Beside PyTorch's `scaled_dot_product_attention`: FlashAttention-2 and cuDNN refuse these sizes, so
it takes the memory-efficient kernel or the plain formula.

`python -m benchmarks.bench_wide --tilings` prints rates of `flash_attn_wide`'s tilings instead,
`--decoding` both decoders beside a copy, `--rings` those of `flash_decode_columns`' rings.
"""

import itertools
import sys
from functools import partial

import numpy as np

from benchmarks.bench_l2 import array, rates
from benchmarks.bench_ladder import definition as gradients_of
from benchmarks.bench_tensor_core import (
    REPEATS,
    ROUNDING,
    TOKENS,
    WIDTH,
    definition,
    relative_error,
)
from benchmarks.timing import save_each, time_ms
from fa_numba.tensor_core.flash_attn_bwd_stored import flash_attn_bwd_stored
from fa_numba.tensor_core.flash_attn_wide import PIECE_COLS, Tiling, flash_attn_wide
from fa_numba.tensor_core.flash_attn_wide_varlen import flash_attn_wide_varlen

HEAD_DIMS, SEQLENS = (320, 384, 512), (512, 2048, 8192)


def main():
    sizes = itertools.product(ROUNDING, HEAD_DIMS)
    save_each(
        "wide",
        {f"{dtype}, d = {d}": partial(rows_of, dtype, d) for dtype, d in sizes},
        note=f"TFLOP/s, packed: the same sequences in one row; {TOKENS} tokens in all, num_heads * "
        f"head_dim = {WIDTH} or just below; "
        "4·batch·heads·seqlen²·head_dim, backward 10, halved if causal; error: ‖x − float64‖ / "
        "‖float64‖ for out, and the largest one of dq, dk, dv of one head",
    )


def rows_of(dtype, head_dim):
    """The rows of a dtype and head_dim."""
    for seqlen, causal in itertools.product(SEQLENS, (False, True)):
        yield measure(dtype, head_dim, seqlen, causal)


def measure(dtype, head_dim, seqlen, causal):
    """A row for one size."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    torch.manual_seed(0)
    shape = TOKENS // seqlen, seqlen, WIDTH // head_dim, head_dim
    dout, q, k, v = (torch.randn(shape, device="cuda").to(getattr(torch, dtype)) for _ in range(4))
    flops = 4 * np.prod(shape, dtype=float) * seqlen * (0.5 if causal else 1)
    out, lse = flash_attn_wide(q, k, v, causal=causal)
    error = relative_error(out, definition(q, k, v, causal))
    assert error <= 2 * ROUNDING[dtype], f"{dtype}, {shape}, {causal=}: {error}"
    ours = time_ms(lambda: flash_attn_wide(q, k, v, causal=causal), repeats=REPEATS)
    starts = torch.arange(0, TOKENS + 1, seqlen, dtype=torch.int32, device="cuda")
    of_row = *(x.flatten(0, 1) for x in (q, k, v)), starts, starts
    same = flash_attn_wide_varlen(*of_row, causal=causal)[0].view_as(out)
    assert relative_error(same, out.double()) <= ROUNDING[dtype], f"packed, {dtype}, {shape}"
    packed = time_ms(lambda: flash_attn_wide_varlen(*of_row, causal=causal), repeats=REPEATS)

    def backward():
        return flash_attn_bwd_stored(dout, q, k, v, out, lse, causal=causal)

    _, *want = gradients_of(*(x[-1, :, -1].double() for x in (dout, q, k, v)), causal)
    of_head = [x[-1, :, -1] for x in backward()]
    bwd_error = max(map(relative_error, of_head, want))
    assert bwd_error <= 4 * ROUNDING[dtype], f"{dtype}, {shape}, {causal=}: {bwd_error}"
    ours_bwd = time_ms(backward, repeats=REPEATS)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    heads_first = [x.transpose(1, 2) for x in inputs]
    with torch.no_grad():
        theirs = time_ms(
            lambda: scaled_dot_product_attention(*heads_first, is_causal=causal), repeats=3
        )
    out = scaled_dot_product_attention(*heads_first, is_causal=causal)
    theirs_bwd = time_ms(
        lambda: torch.autograd.grad(out, inputs, dout.transpose(1, 2), retain_graph=True), repeats=3
    )
    return {
        "dtype": dtype,
        "head_dim": head_dim,
        "seqlen": seqlen,
        "causal": causal,
        "flash_attn_wide": round(flops / ours / 1e9, 1),
        "packed": round(flops / packed / 1e9, 1),
        "SDPA": round(flops / theirs / 1e9, 1),
        "error": float(f"{error:.2g}"),
        "flash_attn_bwd_stored": round(2.5 * flops / ours_bwd / 1e9, 1),
        "SDPA backward": round(2.5 * flops / theirs_bwd / 1e9, 1),
        "error backward": float(f"{bwd_error:.2g}"),
    }


def tilings(seqlen=8192, turns=3):
    """Print medians for each tiling and head_dim: `rates`, so with the clock."""
    choices = [Tiling(*x) for x in itertools.product((4, 3), (False, True))]
    for head_dim in HEAD_DIMS:
        heads = WIDTH // head_dim
        q, k, v = (array(seqlen, heads, head_dim) for _ in range(3))
        exact, flops = definition(q, k, v, False), 4 * heads * seqlen**2 * head_dim
        calls = {
            x: lambda x=x: flash_attn_wide(q, k, v, tiling=x)  # noqa: B023
            for x in choices
            if head_dim <= x.pieces * PIECE_COLS
        }
        for tiling, call in calls.items():
            error = relative_error(call()[0], exact)
            assert error <= 2 * ROUNDING["bfloat16"], f"{head_dim=}, {tiling}: {error}"
        samples = [{x: rates(call, flops, 0.25) for x, call in calls.items()} for _ in range(turns)]
        for x in calls:
            row = {key: np.median([some[x][key] for some in samples]) for key in samples[0][x]}
            print(head_dim, x, row)


def decoding(head_dims=(320, 512), groups=(1, 2, 4, 8, 16), page_sizes=(None, 16, 64), rings=()):
    """Print both decoders' milliseconds and share of a copy's rate: `LEAST_ROWS` follows from them.

    One query of each of 16 sequences of 8192 keys with 4 heads; compared with float64 before. With
    rings, tuples of keys of a tile and stages, flash_decode_columns alone is timed, with each.
    """
    import torch

    from benchmarks import bench_decode_fast as fast
    from fa_numba.on_cuda_cores.flash_decode_wide import flash_decode_wide
    from fa_numba.tensor_core import flash_decode_columns as columns

    forms = {"wide": flash_decode_wide, "columns": columns.flash_decode_columns}
    if rings:
        forms = {f"{ring[0]} keys, {ring[1]} stages": ring for ring in rings}
    for head_dim in head_dims:
        torch.manual_seed(0)
        shape = 16, 8192, 4, head_dim
        k, v = (torch.empty(shape, device="cuda", dtype=torch.float16).normal_() for _ in "kv")
        lengths = torch.full((16,), 8192, dtype=torch.int32, device="cuda")
        copied = 2 * k.nbytes / fast.time_copy(k)
        caches = {x: fast.paged(k, v, x) if x else ((k, v), None) for x in page_sizes}
        for group, (page_size, (given, table)) in itertools.product(groups, caches.items()):
            q = torch.randn(16, 1, 4 * group, head_dim, device="cuda").half()
            want, row = fast.definition(q, k, v), {}
            for name, form in forms.items():
                if rings:
                    columns.choose_tiling = lambda *_, ring=form: columns.Tiling(*ring)
                    form = columns.flash_decode_columns
                    form.replays.clear()
                call = partial(form, q, *given, lengths, block_table=table)
                error = relative_error(call()[0], want)
                assert error <= 4 * ROUNDING["float16"], f"{name}, {head_dim=}, {group=}: {error}"
                ms = fast.on_torch_stream(call)
                row[name] = f"{ms:.4f} ms, {2 * k.nbytes / ms / copied:.3f}"
            print(f"d = {head_dim}, {group} rows, pages of {page_size}: {row}", flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--tilings"]:
            tilings()
        case ["--decoding"]:
            decoding()
        case ["--rings"]:
            decoding(groups=(4, 16), page_sizes=(None, 16), rings=((32, 3), (16, 4), (16, 6)))
        case _:
            main()
