"""The ledger of the lesson on online softmax: accesses, the operation ⊕, and top-k."""

import math

import numpy as np

import fa_numba
from fa_numba.workbook.ledgers import ledger_row
from fa_numba.workbook.ledgers.safe_softmax import accesses
from fa_numba.workbook.recorded import recorded_rows

NOT_RECORDED = "not recorded yet"
TPU = 254, 199  # microseconds of safe and online softmax that source 002 prints


def ledger(folder=None):
    """The rows of the ledger.

    Parameters
    ----------
    folder : path, optional
        Of the recorded results.

    Returns
    -------
    list of dict
        claim, our number, verdict.
    """
    safe, online = (sum(accesses(f)) for f in (fa_numba.safe_softmax, fa_numba.online_softmax))
    row = np.array([3.0, 1.0, 2.0])
    whole = row.max(), np.exp(row - row.max()).sum()
    halves = merge((3.0, 1.0), merge((1.0, 1.0), (2.0, 1.0)))
    columns, k = 128_000, 5  # a vocabulary
    fewer = ((safe + 1) * columns + 2 * k) / (columns + 2 * k)
    won, topk = gains(folder), topk_gains(folder)
    on_a_gpu = f"{min(won.values()):.2f} to {max(won.values()):.2f}" if won else NOT_RECORDED
    if won:
        on_a_gpu += f", most at {max(won, key=won.get):,} columns"
    return [
        ledger_row(
            "online softmax is faster than safe softmax: 199 µs against 254 µs (002)",
            f"{safe:g} → {online:g} accesses per element, metered: at most {safe / online:.2f} "
            f"times. The article's times, one row of a million on a TPU: {TPU[0] / TPU[1]:.2f}. "
            f"Recorded on a GPU: {on_a_gpu}",
            "true; 4/3 is the limit of a kernel that waits for HBM",
        ),
        ledger_row(
            "⊕ is associative and commutative (002)",
            f"200 random trees are right to {worst_of_trees():.0e} (float64)",
            "true up to rounding: another tree, other last digits",
        ),
        ledger_row(
            "softmax of [x1 x2] follows from those of the halves (001)",
            f"(3) ⊕ ((1) ⊕ (2)) = ({halves[0]:g}, {halves[1]:.6f}); the whole row: "
            f"({whole[0]:g}, {whole[1]:.6f})",
            "true",
        ),
        ledger_row(
            "standard softmax takes two passes: the maximum, then the softmax (004)",
            f"max, sum, quotient: {safe - 1:g} loads of each element, metered",
            f"three passes; online takes {online - 1:g}",
        ),
        ledger_row(
            "FlashAttention's online algorithm takes one pass (004)",
            f"a softmax takes {online - 1:g}, metered, since the quotients need the final ℓ",
            "true of attention, whose output row can be divided at the end: lesson 04",
        ),
        ledger_row(
            "softmax fused with top-k is up to 5 times faster (Milakov and Gimelshein)",
            f"accesses of a row of {columns:,} columns with k = {k}, by formula: {fewer:.2f} "
            "times fewer than safe softmax and then top-k. Recorded, against PyTorch's two: "
            + (f"{min(topk):.1f} to {max(topk):.1f} times faster" if topk else NOT_RECORDED),
            "true of the accesses; PyTorch's top-k waits for more than HBM",
        ),
    ]


def merge(a, b):
    """(m, l) of two parts of a row."""
    m = max(a[0], b[0])
    return m, a[1] * math.exp(a[0] - m) + b[1] * math.exp(b[0] - m)


def worst_of_trees(trees=200):
    """The largest relative error of l over random trees of merges, in float64."""
    rng = np.random.default_rng(0)
    row = 10 * rng.standard_normal(64)
    truth, worst = np.exp(row - row.max()).sum(), 0.0
    for _ in range(trees):
        parts = [(s, 1.0) for s in rng.permutation(row)]
        while len(parts) > 1:
            i = int(rng.integers(len(parts) - 1))
            parts[i : i + 2] = [merge(parts[i], parts[i + 1])]
        worst = max(worst, abs(parts[0][1] - truth) / truth)
    return worst


def gains(folder=None):
    """The recorded time of safe over that of online softmax, by the number of columns."""
    ms = {}
    for row in recorded_rows("softmax", folder=folder):
        if row["dtype"] == "float32":
            ms.setdefault(row["columns"], {})[row["kernel"]] = row["ms"]
    return {
        columns: of["safe_softmax"] / of["online_softmax"] for columns, of in sorted(ms.items())
    }


def topk_gains(folder=None):
    """The recorded times of PyTorch's softmax and top-k over those of `softmax_topk_warps`."""
    ms = {}
    for row in recorded_rows("topk", folder=folder):
        if row["dtype"] == "float32":
            ms.setdefault((row["rows"], row["columns"]), {})[row["kernel"]] = row["ms"]
    return [of["torch.softmax, then topk"] / of["softmax_topk_warps"] for of in ms.values()]
