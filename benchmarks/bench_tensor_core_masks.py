"""What do masks and packed batches cost on tensor cores, for each pair of query and key seen?

Before anything is timed, all of a kernel's output is compared with float64 at that size.
"""

import itertools
from functools import partial

import numpy as np

from benchmarks.exact import ROUNDING, definition, random_tensors, relative_error
from benchmarks.timing import cells, save_each, time_ms
from fa_numba.tensor_core.flash_attn_persistent import flash_attn_persistent
from fa_numba.tensor_core.flash_attn_persistent_varlen import flash_attn_persistent_varlen

TOKENS, WIDTH = 16384, 2048  # batch * seqlen and num_heads * head_dim, held while seqlen grows
HEAD_DIMS, SEQLENS = (64, 128), (8192, 16384)
FULL, CAUSAL = {}, {"causal": True}  # what the others are compared with
MASKS = {
    "full": (FULL, FULL),
    "causal": (CAUSAL, CAUSAL),
    "window of 512": ({"window_size": (511, 0)}, CAUSAL),
    "window of 4096": ({"window_size": (4095, 0)}, CAUSAL),
    "softcap": ({"softcap": 30.0}, FULL),
    "causal, softcap": ({"causal": True, "softcap": 30.0}, CAUSAL),
    "ALiBi": ({"alibi": True}, FULL),
    "causal, ALiBi": ({"causal": True, "alibi": True}, CAUSAL),
    "full, a quarter of the K/V heads": ({"group_size": 4}, FULL),
    "full, one K/V head": ({"group_size": 0}, FULL),
    "causal, a quarter of the K/V heads": ({"causal": True, "group_size": 4}, CAUSAL),
}
MEAN_LENGTH = 2048  # of the packed sequences
REPEATS = 10


def main():
    parts = {
        f"d = {head_dim}, n = {seqlen}": partial(measure, head_dim, seqlen)
        for head_dim, seqlen in itertools.product(HEAD_DIMS, SEQLENS)
    }
    for head_dim, causal in itertools.product(HEAD_DIMS, (False, True)):
        parts[f"packed, d = {head_dim}, {causal=}"] = partial(measure_packed, head_dim, causal)
    save_each(
        "tensor_core_masks",
        parts,
        note=f"float16, {TOKENS} tokens in all, num_heads * head_dim = {WIDTH}; TFLOP/s counts "
        "4·head_dim for each pair that is seen; error: ‖out − float64‖ / ‖float64‖",
    )


def measure(head_dim, seqlen, check=True):
    """Rows for one head_dim and seqlen."""
    import torch

    batch, num_heads = TOKENS // seqlen, WIDTH // head_dim
    q, k, v = random_tensors(3, (batch, seqlen, num_heads, head_dim))
    slopes = torch.tensor(0.5 ** np.linspace(0.5, 8, num_heads), device="cuda").float()
    rows, rates = [], {}
    for name, (mask, yardstick) in MASKS.items():
        options = dict(mask)
        num_kv_heads = num_heads // (options.pop("group_size", 1) or num_heads)
        if options.pop("alibi", False):
            options["alibi_slopes"] = slopes
        kv = [x[:, :, :num_kv_heads].contiguous() for x in (k, v)]
        call = lambda kv=kv, options=options: flash_attn_persistent(q, *kv, **options)  # noqa: E731
        row = {"mask": name, "head_dim": head_dim, "seqlen": seqlen}
        if check:
            error = relative_error(call()[0], definition(q, *kv, **options))
            assert error <= 2 * ROUNDING["float16"], f"{row}: {error}"
            row["error"] = float(f"{error:.2g}")
        ms = time_ms(call, repeats=REPEATS)
        pairs = int(seen(seqlen, **options).sum())
        flops = 4 * batch * num_heads * head_dim * pairs
        rates[str(mask)] = rate = flops / ms
        rows.append(row | cells(ms, flops) | {"of plain": round(rate / rates[str(yardstick)], 3)})
    return rows


def lengths_of_sequences():
    """Lengths by name: all the same, and as random as cuts of a line are."""
    batch = TOKENS // MEAN_LENGTH
    cuts = np.sort(np.random.default_rng(0).integers(1, TOKENS, batch - 1))
    return {
        "packed, equal lengths": np.full(batch, MEAN_LENGTH),
        "packed, random lengths": np.diff(cuts, prepend=0, append=TOKENS),
    }


def measure_packed(head_dim, causal, check=True):
    """Rows for packed batches, beside a padded one of the same number of sequences and tokens."""
    import torch

    q, k, v = random_tensors(3, (TOKENS, WIDTH // head_dim, head_dim))
    rows, plain = [], None
    for name, lengths in {"padded": None, **lengths_of_sequences()}.items():
        row = {"mask": name + ", causal" * causal, "head_dim": head_dim, "seqlen": MEAN_LENGTH}
        if lengths is None:
            lengths = np.full(TOKENS // MEAN_LENGTH, MEAN_LENGTH)
            batch = [x.view(-1, MEAN_LENGTH, *x.shape[1:]) for x in (q, k, v)]
            call = lambda batch=batch: flash_attn_persistent(*batch, causal=causal)  # noqa: E731
        else:
            starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            on_gpu = [torch.as_tensor(starts, device="cuda")] * 2
            call = lambda on_gpu=on_gpu: flash_attn_persistent_varlen(  # noqa: E731
                q, k, v, *on_gpu, causal=causal
            )
            if check:
                parts = (slice(*starts[b : b + 2]) for b in range(len(lengths)))
                want = [
                    definition(*(x[None, part] for x in (q, k, v)), causal=causal)[0]
                    for part in parts
                ]
                error = relative_error(call()[0], torch.cat(want))
                assert error <= 2 * ROUNDING["float16"], f"{row}: {error}"
                row["error"] = float(f"{error:.2g}")
        ms = time_ms(call, repeats=REPEATS)
        flops = 4 * WIDTH * sum(int(seen(n, causal=causal).sum()) for n in lengths)
        plain = plain or flops / ms
        rows.append(row | cells(ms, flops) | {"of plain": round(flops / ms / plain, 3)})
    return rows


def seen(seqlen, *, causal=False, window_size=(-1, -1), **_):
    """How many keys each query sees."""
    m = np.arange(seqlen)
    left, right = window_size[0], 0 if causal else window_size[1]
    first = np.maximum(0, m - left) if left >= 0 else 0
    end = np.minimum(seqlen, m + right + 1) if right >= 0 else seqlen
    return np.broadcast_to(end - first, seqlen)
