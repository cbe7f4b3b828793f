"""The ledger of the lesson on the backward pass: FLOPs, bytes and memory of the sources."""

import math

import numpy as np

from fa_numba import flash_attn_bwd, flash_attn_v2, simt
from fa_numba.workbook.ledgers import ledger_row

GPT2_MEDIUM = {"N": 1024, "d": 64, "heads": 16, "batch": 64}  # the shape behind the famous table
CLAIMED = {
    "standard": {"GFLOP": 66.6, "GB": 40.3, "ms": 41.7, "products": 2 + 4},
    "FlashAttention": {"GFLOP": 75.2, "GB": 4.4, "ms": 7.3, "products": 2 + 5},
}


def ledger():
    """The rows of the ledger.

    Returns
    -------
    list of dict
        claim, our number, verdict.
    """
    return [*_famous_table(), *_recomputation(), *_of_a_run()]


def claimed_table():
    """The table of 001 on GPT-2 medium, forward and backward, beside what its shapes give.

    Returns
    -------
    list of dict
        A row for each quantity, a column for standard attention and for FlashAttention.
    """
    square, tall = _matrices()
    columns = {}
    for name, c in CLAIMED.items():
        gflop = counted_gflop(c["products"])
        columns[name] = {
            "GFLOP, claimed": c["GFLOP"],
            "GFLOP, counted: products × 2N²d × heads × batch": gflop,
            "counted / claimed": gflop / c["GFLOP"],
            "GB, claimed": c["GB"],
            "in N × N matrices": c["GB"] / square,
            "in N × d matrices": c["GB"] / tall,
            "ms, claimed": c["ms"],
            "TB/s": c["GB"] / c["ms"],
            "TFLOP/s by the claimed FLOPs": c["GFLOP"] / c["ms"],
            "TFLOP/s by the counted FLOPs": gflop / c["ms"],
        }
    return [
        {"": quantity} | {name: column[quantity] for name, column in columns.items()}
        for quantity in columns["standard"]
    ]


def counted_gflop(products):
    """GFLOP of so many products of 2 N² d FLOPs, in all heads of GPT-2 medium."""
    s = GPT2_MEDIUM
    return products * 2 * s["N"] ** 2 * s["d"] * s["heads"] * s["batch"] / 1e9


def _matrices():
    """GB of one N × N and of one N × d matrix per head, in fp16."""
    s = GPT2_MEDIUM
    rows = s["batch"] * s["heads"] * s["N"] * 2 / 1e9
    return rows * s["N"], rows * s["d"]


def stored_elements(N, d):
    """Elements that a backward pass with a stored P moves, each matrix once for each use.

    dV = P^T dO | dP = dO V^T | dS from P, dP | dQ = dS K | dK = dS^T Q
    """
    return (N * N + 2 * N * d) + (2 * N * d + N * N) + 3 * N * N + 2 * (N * N + 2 * N * d)


def recomputed_elements(N, d, tile):
    """Elements that our three kernels load and store, with square tiles."""
    T = math.ceil(N / tile)
    return 9 * N * d + 3 * N + T * (4 * N * d + 2 * N)


def comparison(d=64, lengths=(1024, 4096, 16384), tiles=(16, 64, 128)):
    """Rows by length: what is kept between the passes and what is moved, stored and recomputed.

    Parameters
    ----------
    d : int
    lengths, tiles : sequence of int

    Returns
    -------
    list of dict
        In MB of float32, for one head.
    """
    return [
        {
            "N": N,
            "kept: P, MB": 4 * N * N / 1e6,
            "kept: out and lse, MB": 4 * (N * d + N) / 1e6,
            "moved with P stored, MB": 4 * stored_elements(N, d) / 1e6,
            **{
                f"recomputed, {tile}-row tiles, MB": 4 * recomputed_elements(N, d, tile) / 1e6
                for tile in tiles
            },
        }
        for N in lengths
    ]


def _famous_table():
    square, tall = _matrices()
    counted = {name: counted_gflop(c["products"]) for name, c in CLAIMED.items()}
    ratios = [counted[name] / c["GFLOP"] for name, c in CLAIMED.items()]
    return [
        ledger_row(
            "66.6 → 75.2 GFLOP (001)",
            f"{counted['standard']:.0f} → {counted['FlashAttention']:.0f} GFLOP",
            f"{ratios[0]:.1f} and {ratios[1]:.1f} times too small; the ratio holds",
        ),
        ledger_row(
            "40.3 → 4.4 GB, 41.7 → 7.3 ms (001)",
            f"{40.3 / 41.7:.2f} and {4.4 / 7.3:.2f} TB/s, "
            f"{40.3 / square:.1f} N×N and {4.4 / tall:.1f} N×d matrices",
            "consistent with each other and with an A100",
        ),
    ]


def _recomputation():
    small, large = (
        recomputed_elements(4096, 64, tile) / stored_elements(4096, 64) for tile in (16, 128)
    )
    return [
        ledger_row(
            "recomputation speeds up the backward pass, thanks to fewer HBM accesses (000)",
            f"N=4096, d=64: {large:.2f} of the traffic with 128-row tiles, "
            f"{small:.2f} with 16-row tiles",
            "true where tiles are large; never true of FLOPs",
        ),
    ]


def _of_a_run():
    x = np.random.default_rng(0).standard_normal((4, 1, 48, 1, 16), dtype=np.float32)
    out, lse = flash_attn_v2(*x[:3])
    with simt.tracing() as traces:
        runs = [flash_attn_bwd(x[3], *x[:3], out, lse) for _ in range(2)]
    same = all(np.array_equal(a, b) for a, b in zip(*runs, strict=True))
    written = {name: a.stores for t in traces for name, a in t.arrays.items() if a.stores}
    kept = {name: n for name, n in written.items() if name not in ("dq", "dk", "dv")}
    return [
        ledger_row(
            "the backward needs O and the statistics (m, ℓ) (002)",
            f"N=48: {lse.size} floats per head besides O",
            "right for FlashAttention-1; one number per row, lse, is enough",
        ),
        ledger_row(
            "parallel by columns, the gradient of the query must be aggregated; by rows, those of "
            "key and value (002)",
            f"two kernels, one order each: no atomics, two runs equal to the bit: {same}",
            "true; computing S and dP twice, 3.5 in place of 2.5 times the FLOPs, avoids both",
        ),
        ledger_row(
            "recompute S and P in the backward pass, no intermediate storage (004)",
            "N=48, metered: besides dq, dk, dv the three kernels write "
            + ", ".join(f"{n} elements of {name}" for name, n in kept.items()),
            "right, but for delta: N floats",
        ),
    ]
