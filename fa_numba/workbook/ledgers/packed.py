"""The ledger of the lesson on packed batches: lengths and masks."""

import numpy as np

from fa_numba import flash_attn_v2, simt
from fa_numba.kernels.flash_attn_varlen import flash_attn_varlen
from fa_numba.workbook.ledgers import ledger_row
from fa_numba.workbook.recorded import recorded_rows

LENGTHS = 90, 14, 37, 5, 61
NOT_RECORDED = "not recorded yet"


def ledger(folder=None):
    """The rows of the ledger.

    Parameters
    ----------
    folder : path, optional
        Of the results, in place of benchmarks/results.

    Returns
    -------
    list of dict
        claim, our number, verdict.
    """
    padded, packed = flops_of(LENGTHS)
    return [
        ledger_row(
            "sequence handling: FlashAttention fixed-length batches, vLLM variable-length (004)",
            f"FLOPs by the meter for {len(LENGTHS)} sequences: padded {padded:,}, packed "
            f"{packed:,}, {packed / padded:.2f} of it",
            "FlashAttention has packed batches since its first release; the difference to "
            "PagedAttention is where keys lie, not how long sequences are",
        ),
        ledger_row(
            "uses online softmax for variable-length sequences (004)",
            "flash_attn_varlen and flash_attn_v2 have the same softmax, line by line",
            "online softmax is for tiles; lengths need a start, an end and a mask",
        ),
        ledger_row(
            "use case: FlashAttention training (batch processing), vLLM inference (004)",
            f"packed over padded, the same lengths, H200: {_recorded_rate(folder)} of the rate",
            "batches for training are packed, too; where all lengths are equal that wins nothing",
        ),
    ]


def flops_of(lengths, head_dim=16, tile=16):
    """FLOPs of the forward pass by the meter: (padded, packed)."""
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    q, k, v = np.random.default_rng(0).standard_normal((3, starts[-1], 1, head_dim), np.float32)
    rectangle = np.zeros((3, len(lengths), max(lengths), 1, head_dim), np.float32)
    for b, n in enumerate(lengths):
        for x, y in zip((q, k, v), rectangle, strict=True):
            y[b, :n] = x[starts[b] : starts[b + 1]]
    tiles = {"block_m": tile, "block_n": tile}
    with simt.tracing() as padded:
        flash_attn_v2(*rectangle, **tiles)
    with simt.tracing() as packed:
        flash_attn_varlen(q, k, v, starts, starts, **tiles)
    return padded[0].flops.total, packed[0].flops.total


def _recorded_rate(folder):
    rates = [
        row["of plain"]
        for row in recorded_rows("tensor_core_masks", folder=folder)
        if row["mask"] == "packed, equal lengths"
    ]
    return " and ".join(f"{rate:.2f}" for rate in rates) or NOT_RECORDED
