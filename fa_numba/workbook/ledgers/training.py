"""The ledger of the lesson on training: what the sources say about recomputation and training."""

import numpy as np

from fa_numba import flash_attn_bwd, flash_attn_v2, simt
from fa_numba.workbook.ledgers import ledger_row

GPT2 = {"width": 768, "layers": 12, "seqlen": 1024, "vocabulary": 50257}  # the smallest GPT-2
SEQLEN = 128


def ledger():
    """The rows of the ledger.

    Returns
    -------
    list of dict
        claim, our number, verdict.
    """
    flat, tall, wide = of_a_head(16, 16), of_a_head(64, 16), of_a_head(64, 32)
    share = attention_share(**GPT2)
    long = attention_share(**{**GPT2, "seqlen": 16384})
    return [
        ledger_row(
            "training requires to store intermediate outputs, such as S and P of size L × L (002)",
            f"L = {SEQLEN}, one head of 16: {flat['kept']:,} bytes between the passes, out and "
            f"lse; P alone would be {flat['P']:,}",
            "true of standard attention; attention as such does not require it",
        ),
        ledger_row(
            "backward: recompute S, P from Q, K (still faster due to reduced I/O) (004)",
            f"bytes by the meter over bytes with P stored, L = {SEQLEN}: "
            f"{flat['moved'] / flat['stored']:.2f} for heads of 16 and 16-row tiles, "
            f"{tall['moved'] / tall['stored']:.2f} for heads of 64, "
            f"{wide['moved'] / wide['stored']:.2f} with 32-row tiles",
            "less is moved where tiles have about as many rows as heads have columns, or more",
        ),
        ledger_row(
            "gradient checkpointing speeds up the backward pass even though FLOPs increase (000)",
            f"all FLOPs by the meter, backward over forward: {wide['flops']:.1f}; products alone: "
            "3.5, and 2 with P stored",
            "the increase is true; the speed depends on the row above",
        ),
        ledger_row(
            "GPT-2 trains 3 times as fast end to end (000)",
            f"standard attention, hidden pairs included, is {share:.0%} of the FLOPs of the "
            "smallest GPT-2 at its 1024 tokens, vocabulary included; by FLOPs alone even free "
            f"attention would give {1 / (1 - share):.2f} times",
            "possible only because standard attention waits for memory: count its bytes, not its "
            "FLOPs",
        ),
        ledger_row(
            "fast training comes with longer sequences (000)",
            f"the same share at 16,384 tokens: {long:.0%}",
            "true: only then attention decides the time of a step",
        ),
    ]


def attention_share(width, layers, seqlen, vocabulary):
    """Standard attention's share of the FLOPs of a training step.

    For each token, each number of a weight takes 2 FLOPs forward and 4 backward. S and PV are two
    products forward, with four backward, over all pairs: the hidden ones are computed too.
    """
    weights = layers * 12 * width**2 + vocabulary * width
    attention = layers * 12 * seqlen * width
    return attention / (attention + 6 * weights)


def of_a_head(head_dim, tile, seqlen=SEQLEN):
    """Bytes and FLOPs of one head without a mask, forward and backward, by the meter.

    Returns
    -------
    dict
        kept, P: bytes kept between the passes, and those of P. moved, stored: bytes that the
        backward pass moves, and those that it would with P stored, each matrix once per use.
        flops: of the backward pass over those of the forward pass.
    """
    rng = np.random.default_rng(0)
    q, k, v, dout = rng.standard_normal((4, 1, seqlen, 1, head_dim), np.float32)
    options = {"block_m": tile, "block_n": tile}
    with simt.tracing() as forward:
        out, lse = flash_attn_v2(q, k, v, **options)
    with simt.tracing() as backward:
        flash_attn_bwd(dout, q, k, v, out, lse, **options)
    meters = [meter for trace in backward for meter in trace.arrays.values()]
    return {
        "kept": out.nbytes + lse.nbytes,
        "P": 4 * seqlen**2,
        "moved": sum(meter.load_bytes + meter.store_bytes for meter in meters),
        "stored": 4 * (7 * seqlen**2 + 8 * seqlen * head_dim),
        "flops": _flops(backward) / _flops(forward),
    }


def _flops(traces):
    return sum(trace.flops.total for trace in traces)
