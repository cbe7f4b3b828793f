"""The ledger of the lesson on masks: rows without a key, windows, sparse tiles, dropout."""

import numpy as np

from fa_numba import flash_attn_v1, reference, simt
from fa_numba.workbook.ledgers import ledger_row
from fa_numba.workbook.recorded import recorded_rows

NOT_RECORDED = "not recorded yet"


def ledger(folder=None):
    """The rows of the ledger.

    Parameters
    ----------
    folder : path, optional
        Where the results of benchmarks are; by default benchmarks/results.

    Returns
    -------
    list of dict
        claim, our number, verdict.
    """
    times = recorded_rows("masks", folder=folder)
    return [_no_key(), _window(times), _sparse(times), _dropout(folder)]


def _no_key():
    s = np.full((1, 5), np.finfo(np.float32).min)
    weights = reference.softmax(s.astype(np.float64))[0]
    q = np.ones((1, 6, 1, 4), np.float32)
    out, _, _ = flash_attn_v1(q, q[:, :5], q[:, :5], causal=True)  # query 0 sees no key
    return ledger_row(
        "big_neg = finfo.min hides a key (002)",
        f"a row without any key has the weights {weights[0]:.1f} of each of 5 hidden keys; with "
        f"-inf, and a test of its own, out is {out[0, 0, 0, 0]:.0f}",
        "true while a row sees one key",
    )


def tiles_of_a_window(N, W, tile):
    """Tiles of keys that a causal window of W tokens leaves, of N queries and keys."""
    return sum((m + tile - 1) // tile - max(0, m - W + 1) // tile + 1 for m in range(0, N, tile))


def _window(times):
    N, tile = 8192, 16
    tiles = tiles_of_a_window(N, 1024, tile), tiles_of_a_window(N, N, tile)
    ms = {row["mask"]: row["ms"] for row in times if row["kernel"] == "flash_attn_v2"}
    number = NOT_RECORDED
    if "window of 1024" in ms and "causal" in ms:
        number = f"{ms['window of 1024'] / ms['causal']:.2f}"
    return ledger_row(
        "a window makes memory and work constant per token (002)",
        f"8192 tokens, window of 1024, tiles of 16: {tiles[0] / tiles[1]:.2f} of the tiles of the "
        f"causal mask; of its time: {number}",
        "true, where whole tiles are skipped: a mask of single entries saves nothing",
    )


def _sparse(times):
    ms = {row["mask"]: row["ms"] for row in times if row["kernel"] == "flash_attn_v1"}
    number = NOT_RECORDED
    if "10% of the tiles" in ms and "100% of the tiles" in ms:
        number = f"{ms['10% of the tiles'] / ms['100% of the tiles']:.3f}"
    return ledger_row(
        "block-sparse FlashAttention is faster by the share of live blocks (000)",
        f"a tenth of the tiles, at random: {number} of the whole time",
        "nearly; the experiment above tests why",
    )


def _dropout(folder):
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 1, 32, 1, 8), np.float32)
    moved = []
    for p in (0.0, 0.2):
        with simt.tracing() as traces:
            flash_attn_v1(q, k, v, dropout_p=p, seed=1)
        moved.append(sum(x.load_bytes + x.store_bytes for x in traces[0].arrays.values()))
    rates = {}
    for row in recorded_rows("dropout", folder=folder):
        rates.setdefault(row["pass"], []).append(row["over no dropout"])
    number = ", ".join(f"{which} {min(x):.2f} to {max(x):.2f}" for which, x in rates.items())
    number = number or NOT_RECORDED
    return ledger_row(
        "save the state of the random generator for the backward pass (000)",
        f"8 bytes of seed; more bytes moved by the meter: {moved[1] - moved[0]}; of the rate "
        f"without dropout, tensor cores: {number}",
        "true; with a counter-based generator any tile can be drawn alone, in any order",
    )
