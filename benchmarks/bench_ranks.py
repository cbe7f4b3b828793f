"""Does the error of a ring grow with its ranks, and how much does each rank send and compute?

The ranks are in one process. They compute causal attention and its gradients, and the errors are
against float64. bytes_*: sent by rank 0. fewest_pairs, most_pairs: of all ranks. efficiency: the
pairs of the average rank divided by the sum, over the steps, of the largest pairs of a rank. It is
the limit that the layout sets. This benchmark needs no GPU.
"""

import numpy as np

from benchmarks.timing import save
from fa_numba import reference
from fa_numba.distributed import (
    LAYOUTS,
    numpy_attn,
    numpy_attn_grad,
    ring_attn,
    ring_attn_grad,
    run_ranks,
    shard,
    unshard,
)

SEQLEN, HEADS, KV_HEADS, HEAD_DIM = 512, 2, 1, 32
RANKS = (1, 2, 4, 8)


def main():
    rng = np.random.default_rng(0)
    q, dout = (rng.standard_normal((1, SEQLEN, HEADS, HEAD_DIM), np.float32) for _ in range(2))
    k, v = (rng.standard_normal((1, SEQLEN, KV_HEADS, HEAD_DIM), np.float32) for _ in range(2))
    out, _ = reference.attention(q, k, v, causal=True)
    want = out, *reference.attention_bwd(dout, q, k, v, causal=True)
    rows = [measure(layout, n, dout, q, k, v, want) for layout in LAYOUTS for n in RANKS]
    save(
        "ranks",
        rows,
        note=f"causal, float32, seqlen {SEQLEN}, {HEADS} heads, {KV_HEADS} K/V head of {HEAD_DIM}; "
        "errors: root mean square, against float64; bytes: sent by rank 0",
    )


def measure(layout, world_size, dout, q, k, v, want):
    """One row: errors, bytes and pairs of a ring."""
    dout, q, k, v = (shard(x, layout, world_size) for x in (dout, q, k, v))
    options = {"layout": layout, "causal": True}
    forward = run_ranks(ring_attn, world_size, q, k, v, attn=numpy_attn, **options)
    out, lse = zip(*forward.results, strict=True)
    inputs = dout, q, k, v, out, lse
    options["attn_grad"] = numpy_attn_grad
    backward = run_ranks(ring_attn_grad, world_size, *inputs, **options)
    parts = out, *zip(*backward.results, strict=True)
    errors = [
        float(np.sqrt(np.mean((unshard(x, layout) - y) ** 2)))
        for x, y in zip(parts, want, strict=True)
    ]
    pairs = forward.pairs.sum(axis=1)
    return {
        "layout": layout,
        "ranks": world_size,
        **{f"error_{name}": x for name, x in zip(("out", "dq", "dk", "dv"), errors, strict=True)},
        "bytes_forward": int(forward.bytes_sent[0].sum()),
        "bytes_backward": int(backward.bytes_sent[0].sum()),
        "fewest_pairs": int(pairs.min()),
        "most_pairs": int(pairs.max()),
        "efficiency": float(pairs.mean() / forward.pairs.max(axis=0).sum()),
    }
