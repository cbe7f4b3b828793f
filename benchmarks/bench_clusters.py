"""Does a cluster of two thread blocks, which loads K and V once for both, make attention faster?

`flash_attn_wgmma` alone and in pairs, in turns. Before anything is timed, all of the output is
compared with float64. `L2, GB` are the bytes of Q, K and V that the copies ask for.
"""

import itertools

import numpy as np

from benchmarks.bench_l2 import array, rates
from benchmarks.exact import ROUNDING, definition, relative_error
from benchmarks.timing import save
from fa_numba.tensor_core.flash_attn_wgmma import BLOCK_M, flash_attn_wgmma

HEAD_DIMS, SEQLENS = (64, 128), (4096, 16384)
WIDTH = 2048  # num_heads * head_dim
TURNS, SECONDS = 3, 0.15  # for each of both; back to back


def main():
    save(
        "clusters",
        [row for case in itertools.product(HEAD_DIMS, SEQLENS) for row in measure(*case)],
        note=f"bfloat16, no mask, batch 1, num_heads * head_dim = {WIDTH}; TFLOP/s: "
        "4·heads·seqlen²·head_dim; of peak: the part of the tensor cores' multiply-adds per clock",
    )


def measure(head_dim, seqlen):
    """A row for thread blocks alone and one for pairs."""
    heads = WIDTH // head_dim
    q, k, v = (array(seqlen, heads, head_dim) for _ in range(3))
    flops, samples = 4 * heads * seqlen**2 * head_dim, {1: [], 2: []}
    exact = definition(q, k, v)
    for cluster in samples:
        error = relative_error(flash_attn_wgmma(q, k, v, cluster=cluster)[0], exact)
        assert error <= 2 * ROUNDING["bfloat16"], f"{head_dim=}, {seqlen=}, {cluster=}: {error}"
    for _, cluster in itertools.product(range(TURNS), samples):
        call = lambda: flash_attn_wgmma(q, k, v, cluster=cluster)  # noqa: B023, E731
        samples[cluster].append(rates(call, flops, SECONDS))
    for cluster, some in samples.items():
        row = {"head_dim": head_dim, "seqlen": seqlen, "blocks in a cluster": cluster}
        row |= {key: float(np.median([x[key] for x in some])) for key in some[0]}
        once = 2 * heads * seqlen * head_dim  # bytes of Q, of K or of V
        yield row | {"L2, GB": round(once * (1 + 2 * seqlen / BLOCK_M / cluster) / 1e9, 2)}
