"""What does a mask cost, and what does it save? flash_attn_v2 by mask, flash_attn_v1 by tiles."""

import cupy
import numpy as np

import fa_numba
from benchmarks.timing import save, time_ms
from fa_numba import analysis

BATCH, SEQLEN, NUM_HEADS, HEAD_DIM = 1, 8192, 16, 64
MASKS = {
    "none": {},
    "causal": {"causal": True},
    "window of 1024": {"window_size": (1023, 0)},
    "window of 128": {"window_size": (127, 0)},
    "softcap": {"softcap": 30.0},
    "ALiBi": {"alibi": True},
    "causal, softcap, ALiBi": {"causal": True, "softcap": 30.0, "alibi": True},
}
SHARES = (1.0, 0.5, 0.25, 0.1)


def main():
    rng = cupy.random.default_rng(0)
    shape = (BATCH, SEQLEN, NUM_HEADS, HEAD_DIM)
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for _ in range(3))
    slopes = cupy.asarray(np.float32(0.5) ** np.arange(1, NUM_HEADS + 1, dtype=np.float32))
    rows = []
    for name, mask in MASKS.items():
        alibi = {"alibi_slopes": slopes} if mask.get("alibi") else {}
        options = {key: x for key, x in mask.items() if key != "alibi"}
        keys = np.full(SEQLEN, SEQLEN)
        if options.get("causal") or "window_size" in options:
            keys = np.arange(1, SEQLEN + 1)  # query m sees keys 0 to m
        if "window_size" in options:
            keys = np.minimum(keys, options["window_size"][0] + 1)
        pairs = int(keys.sum())
        ms = time_ms(fa_numba.flash_attn_v2, q, k, v, **options, **alibi, repeats=8)
        rows.append(row("flash_attn_v2", name, pairs, ms))
    block_m, block_n = analysis.kernel_block_sizes("flash_attn_v1", HEAD_DIM)
    tiles = SEQLEN // block_m, SEQLEN // block_n
    for share in SHARES:
        block_mask = np.random.default_rng(0).random(tiles) < share
        pairs = int(block_mask.sum()) * block_m * block_n
        ms = time_ms(
            fa_numba.flash_attn_v1, q, k, v, block_mask=cupy.asarray(block_mask), repeats=4
        )
        rows.append(row("flash_attn_v1", f"{share:.0%} of the tiles", pairs, ms))
    note = (
        f"float32, {SEQLEN} tokens, {NUM_HEADS} heads, head_dim {HEAD_DIM}; TFLOP/s counts "
        "4·head_dim for each pair of query and key that is seen"
    )
    save("masks", rows, note=note)


def row(kernel, mask, pairs, ms):
    flops = 4 * BATCH * NUM_HEADS * HEAD_DIM * pairs
    return {
        "kernel": kernel,
        "mask": mask,
        "pairs seen": f"{pairs / SEQLEN**2:.1%}",
        "ms": round(ms, 3),
        "TFLOP/s": round(flops / ms / 1e9, 2),
    }
