"""The ledger of the lesson on Flash-Decoding: what sources 001 and 004 say of it."""

import math

import numpy as np

import fa_numba
from fa_numba import analysis, reference, simt
from fa_numba.analysis.devices import DEVICES
from fa_numba.workbook.ledgers import ledger_row
from fa_numba.workbook.recorded import recorded_rows

NOT_RECORDED = "on a GPU: not recorded yet"
KEYS, KV_HEADS = 131_072, 8
PARTITION = 512  # keys, source 004 and vLLM's kernel


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
    num_sms = DEVICES["H100"].num_sms
    splits = analysis.choose_num_splits(KV_HEADS, KEYS // 64, num_sms)
    return [
        _one_query(num_sms),
        ledger_row(
            "FlashAttention processes K/V sequentially: inefficient for long contexts (001)",
            f"{KEYS:,} keys: {KEYS // 64:,} tiles of 64 one after the other, with {splits} splits "
            f"{math.ceil(KEYS // 64 / splits)}",
            "true",
        ),
        _algebra(),
        ledger_row(
            "split keys and values into small chunks (001)",
            f"{KEYS // splits:,} keys per split on an H100, {extra_traffic(splits):.2%} more bytes",
            "as small as it takes to fill the GPU, no smaller",
        ),
        _gains(recorded_rows("decode", folder=folder)),
        *_partitions(),
    ]


def extra_traffic(num_splits, keys=KEYS):
    """Bytes of partial results over those of K and V: 32 query heads, 8 K/V heads of 128."""
    problem = analysis.Problem(1, 1, keys, 32, KV_HEADS, 128)
    traffic = analysis.traffic.flash_decode(problem, [keys], num_splits=num_splits)
    partial = traffic.loads["out_partial"] + traffic.stores["out_partial"]
    partial += 2 * traffic.stores["lse_partial"]  # read by a warp at once
    return partial / (traffic.loads["k_cache"] + traffic.loads["v_cache"])


def _one_query(num_sms):
    rng = np.random.default_rng(0)
    q = rng.standard_normal((1, 1, 8, 32), dtype=np.float32)
    k, v = rng.standard_normal((2, 1, 64, 8, 32), dtype=np.float32)
    with simt.tracing() as traces:
        out, _ = fa_numba.flash_attn_v2(q, k, v)
    error = np.abs(out - reference.attention(q, k, v)[0]).max()
    return ledger_row(
        "FlashAttention cannot be applied to decoding: there is a single query (001)",
        f"one query, 8 heads: error {error:.0e}; {math.prod(traces[0].grid)} of {num_sms} SMs of "
        "an H100 have work",
        "it gives the right answer; what it cannot do is fill the GPU",
    )


def _algebra():
    rng = np.random.default_rng(0)
    x, y, z = ((rng.standard_normal(1000), 5 * rng.standard_normal(1000)) for _ in range(3))

    def merge(a, b):
        lse = np.logaddexp(a[1], b[1])
        return np.exp(a[1] - lse) * a[0] + np.exp(b[1] - lse) * b[0], lse

    grouping = np.abs(merge(merge(x, y), z)[0] - merge(x, merge(y, z))[0]).max()
    order = np.abs(merge(x, y)[0] - merge(y, x)[0]).max()
    return ledger_row(
        "attention is associative and commutative (001)",
        f"1000 states in float64: order changes {order:.0e}, grouping {grouping:.0e}",
        "true of ⊕ on (out, lse), up to rounding; out alone cannot be merged",
    )


def _gains(rows):
    ms = {
        (row["batch"], row["seqlen"], row["heads"], row["num_splits"]): row["ms"]
        for row in rows
        if row["kernel"] == "flash_decode"
    }
    gains = [
        f"{batch} × {seqlen:,} keys, {heads} heads: {ms[batch, seqlen, heads, 1] / chosen:.1f}×"
        for (batch, seqlen, heads, num_splits), chosen in ms.items()
        if num_splits == 0
    ]
    return ledger_row(
        "Flash-Decoding is up to 8 times faster than prior work (001)",
        f"recorded times, one split over the chosen number: {'; '.join(gains)}"
        if gains
        else NOT_RECORDED,
        "it depends on how many SMs were idle: few sequences and few K/V heads gain most",
    )


def _partitions():
    parts = KEYS // PARTITION
    limit = DEVICES["H100"].shared_bytes_per_block
    return [
        ledger_row(
            "vLLM's kernel keeps a running maximum and sum in a loop over partitions of 512 keys, "
            "like B_c (004)",
            f"{KEYS:,} keys are {parts} partitions, each with a thread block of its own, merged by "
            f"a second kernel: splits. {extra_traffic(parts):.2%} more bytes",
            "false: a partition is a split; vLLM's own description has no loop over them",
        ),
        ledger_row(
            "vLLM's kernel: online softmax in shared memory (004)",
            f"all scores of a partition are stored: {4 * PARTITION:,} bytes; of {KEYS:,} keys "
            f"without partitions {4 * KEYS:,}, where a thread block of an H100 has {limit:,}",
            "false: safe softmax, maximum first, then the sum; only partitions are merged",
        ),
    ]
