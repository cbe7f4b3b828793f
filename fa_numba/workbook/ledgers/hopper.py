"""The ledger of the lesson on Hopper: asynchronous instructions, and tiles that cost differently.

Counts of instructions are those that the compiler made for the lessons, notebooks/compiled.json.
"""

import json

from fa_numba.analysis.overlap import overlap, tensor_share
from fa_numba.analysis.waves import makespan
from fa_numba.workbook.catalog import find_root
from fa_numba.workbook.ledgers import ledger_row
from fa_numba.workbook.recorded import recorded_rows

SMS, BLOCK_M = 132, 128  # of an H200; rows of a tile of queries
NOT_RECORDED = "on a GPU: not recorded yet"


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
    mma, wgmma = (instructions(f"flash_attn_{name}") for name in ("mma", "wgmma"))
    step_by_step, ahead = (tensor_share(overlap(64, 1.0, ahead=a)) for a in (False, True))
    unordered, ordered = (busy_share(16, 4096, order) for order in ("as numbered", "longest first"))
    return [
        ledger_row(
            "FlashAttention-1 and 2 are synchronous; new instructions break that (003)",
            f"copies that run by themselves: {mma('LDGSTS')} in flash_attn_mma; products that do: "
            f"{mma('HGMMA')}, and {wgmma('HGMMA')} in flash_attn_wgmma",
            "right about the products; copies have been asynchronous since Ampere",
        ),
        ledger_row(
            "TMA generates addresses and fetches memory asynchronously (002)",
            f"flash_attn_wgmma: {wgmma('UTMALDG')} copies, {wgmma('LDG')} loads by threads",
            "right: one thread starts a tile, none touches an element",
        ),
        ledger_row(
            "softmax of one block while WGMMA computes the next (003)",
            f"one warpgroup, H100, d = 128, by the model: tensor cores busy {step_by_step:.0%} → "
            f"{ahead:.0%}",
            "right; in flash_attn_ws this tile's P V runs beside the next one's softmax",
        ),
        ledger_row(
            "no need to handle workload imbalance: the GPU's scheduler starts the next block as "
            "one ends (001)",
            f"causal, 16 heads, 4096 tokens, {SMS} SMs, by a model of that scheduler: SMs busy "
            f"{unordered:.0%} of the time in the order of the queries, {ordered:.0%} longest first"
            f"; {_short_and_long(folder)}",
            "false under a causal mask: the scheduler balances only if the longest tiles come "
            "first, and a persistent kernel must balance for itself",
        ),
    ]


def tiles_of_keys(seqlen):
    """Tiles of keys that each tile of queries sees under a causal mask."""
    return [m_tile + 1 for m_tile in range(-(-seqlen // BLOCK_M))]


def busy_share(num_heads, seqlen, order, num_sms=SMS):
    """The share of the time in which SMs work, one thread block each, under a causal mask.

    Parameters
    ----------
    num_heads, seqlen : int
    order : str
        "as numbered": head by head, the first queries first. "last first": head by head, the last
        queries first. "longest first": the last queries of all heads first.
    num_sms : int

    Returns
    -------
    float
    """
    tiles = tiles_of_keys(seqlen)
    grids = {
        "as numbered": tiles * num_heads,
        "last first": tiles[::-1] * num_heads,
        "longest first": sorted(tiles * num_heads, reverse=True),
    }
    grid = grids[order]
    return sum(grid) / num_sms / makespan(grid, num_sms)


def instructions(name):
    """A function that counts a kernel's instructions by the beginning of their names."""
    path = find_root() / "notebooks" / "compiled.json"
    counts = json.loads(path.read_text(encoding="utf-8"))["made"][name]["counts"]
    return lambda start: sum(n for label, n in counts.items() if label.startswith(start))


def _short_and_long(folder):
    """flash_attn_persistent over flash_attn_ws, causal, at the shortest and the longest length."""
    speeds = {
        (row["kernel"], row["seqlen"]): row["TFLOP/s"]
        for row in recorded_rows("tensor_core", folder=folder)
        if row["dtype"] == "float16" and row["head_dim"] == 128 and row["causal"]
    }
    lengths = sorted(n for kernel, n in speeds if kernel == "flash_attn_ws")
    if not lengths:
        return NOT_RECORDED
    ratios = (
        f"{speeds['flash_attn_persistent', n] / speeds['flash_attn_ws', n]:.2f}× at {n:,} tokens"
        for n in (lengths[0], lengths[-1])
    )
    return f"flash_attn_persistent over flash_attn_ws, causal, on an H200: {', '.join(ratios)}"
