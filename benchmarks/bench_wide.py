"""How fast is attention at a head_dim above 256, forward and backward?

Beside PyTorch's `scaled_dot_product_attention`: FlashAttention-2 and cuDNN refuse these sizes, so
it takes the memory-efficient kernel or the plain formula.
"""

import itertools
import math
from functools import partial
from unittest import mock

import numpy as np

from benchmarks.bench_tensor_core import REPEATS, TOKENS, WIDTH
from benchmarks.exact import (
    ROUNDING,
    definition,
    random_tensors,
    relative_error,
    with_gradients,
)
from benchmarks.peers import sdpa
from benchmarks.timing import save_each, time_ms
from fa_numba.tensor_core import flash_attn_wide as wide
from fa_numba.tensor_core.flash_attn_bwd_stored import flash_attn_bwd_stored
from fa_numba.tensor_core.flash_attn_wide import flash_attn_wide
from fa_numba.tensor_core.flash_attn_wide_varlen import flash_attn_wide_varlen

HEAD_DIMS, SEQLENS = (264, 320, 384, 512), (512, 2048, 8192)


def main():
    sizes = itertools.product(("float16", "bfloat16"), HEAD_DIMS)
    save_each(
        "wide",
        {f"{dtype}, d = {d}": partial(rows_of, dtype, d) for dtype, d in sizes},
        note=f"TFLOP/s, packed: the same sequences in one row; {TOKENS} tokens in all, num_heads * "
        f"head_dim = {WIDTH} or just below; not copied: flash_attn_wide with rows as they are; "
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

    shape = TOKENS // seqlen, seqlen, WIDTH // head_dim, head_dim
    dout, q, k, v = random_tensors(4, shape, dtype)
    flops = 4 * np.prod(shape, dtype=float) * seqlen * (0.5 if causal else 1)
    out, lse = flash_attn_wide(q, k, v, causal=causal)
    error = relative_error(out, definition(q, k, v, causal=causal))
    assert error <= 2 * ROUNDING[dtype], f"{dtype}, {shape}, {causal=}: {error}"
    ours = time_ms(lambda: flash_attn_wide(q, k, v, causal=causal), repeats=REPEATS)
    not_copied = {}
    if head_dim % wide.SECTOR_COLS:
        with mock.patch.object(wide, "TILES_OF_COPY", math.inf):
            call = partial(flash_attn_wide.__wrapped__, q, k, v, causal=causal)
            ms = time_ms(call, repeats=REPEATS)
        not_copied["not copied"] = round(flops / ms / 1e9, 1)
    starts = torch.arange(0, TOKENS + 1, seqlen, dtype=torch.int32, device="cuda")
    of_row = *(x.flatten(0, 1) for x in (q, k, v)), starts, starts
    same = flash_attn_wide_varlen(*of_row, causal=causal)[0].view_as(out)
    assert relative_error(same, out.double()) <= ROUNDING[dtype], f"packed, {dtype}, {shape}"
    packed = time_ms(lambda: flash_attn_wide_varlen(*of_row, causal=causal), repeats=REPEATS)

    def backward():
        return flash_attn_bwd_stored(dout, q, k, v, out, lse, causal=causal)

    _, *want = with_gradients(*(x[-1, :, -1].double() for x in (dout, q, k, v)), causal)
    of_head = [x[-1, :, -1] for x in backward()]
    bwd_error = max(map(relative_error, of_head, want))
    assert bwd_error <= 4 * ROUNDING[dtype], f"{dtype}, {shape}, {causal=}: {bwd_error}"
    ours_bwd = time_ms(backward, repeats=REPEATS)
    call, gradients = sdpa("", q, k, v, causal)
    theirs, theirs_bwd = (time_ms(x, repeats=3) for x in (call, gradients(dout)))
    return {
        "dtype": dtype,
        "head_dim": head_dim,
        "seqlen": seqlen,
        "causal": causal,
        "flash_attn_wide": round(flops / ours / 1e9, 1),
        **not_copied,
        "packed": round(flops / packed / 1e9, 1),
        "SDPA": round(flops / theirs / 1e9, 1),
        "error": float(f"{error:.2g}"),
        "flash_attn_bwd_stored": round(2.5 * flops / ours_bwd / 1e9, 1),
        "SDPA backward": round(2.5 * flops / theirs_bwd / 1e9, 1),
        "error backward": float(f"{bwd_error:.2g}"),
    }


if __name__ == "__main__":
    main()
