"""The ledger of the lesson on FlashAttention-1: traffic, time, memory, results and limits."""

import math

import numpy as np

from fa_numba import flash_attn_v1, naive_attn, simt
from fa_numba.workbook.ledgers import ledger_row
from fa_numba.workbook.recorded import recorded_rows

NOT_RECORDED = "not recorded yet"


def ledger(published_errors, folder=None):
    """The rows of the ledger.

    Parameters
    ----------
    published_errors : list of float
        Errors of the published kernel, as the lesson has measured them.
    folder : path, optional
        Where the results of benchmarks are; by default benchmarks/results.

    Returns
    -------
    list of dict
        claim, our number, verdict.
    """
    times = recorded_rows("attention", folder=folder)
    return [
        _linear_traffic(),
        _time_of_accesses(),
        _time_grows(times),
        _reason(),
        _extra_memory(recorded_rows("memory", folder=folder)),
        _walkthrough(),
        _published(published_errors),
        _loop_order(),
        _results(),
    ]


def v1_elements(N, d, B_c):
    """Elements that FlashAttention-1 moves for one head, with B_c keys per tile."""
    T_c = math.ceil(N / B_c)
    return 2 * N * d + T_c * (3 * N * d + 4 * N)


def standard_elements(N, d):
    """Elements of the standard pipeline: S and P there and back; Q, K, V and O once."""
    return 4 * N * N + 4 * N * d


def _linear_traffic():
    N, d, B = 4096, 128, 128  # the source's own exercise: fp16, B_r = B_c = 128

    def moved(N):  # its pseudocode: Q and O once, K and V once per tile of queries
        return 2 * N * d + 2 * N * d * math.ceil(N / B)

    return ledger_row(
        "HBM access is O(N·d), linear in sequence length (004)",
        f"N={N}, d={d}, fp16: {2 * moved(N) / 1e6:.0f} MB against "
        f"{2 * standard_elements(N, d) / 1e6:.0f} MB standard; 2N needs "
        f"{moved(2 * N) / moved(N):.1f} times as much",
        "wrong: Θ(N²d²/M). Memory use is linear, traffic is not",
    )


def _time_of_accesses():
    moved = {M: v1_elements(4096, 64, M * 1024 // (4 * 4 * 64)) for M in (48, 96)}
    return ledger_row(
        "the time complexity becomes O(N²d²/M) (000)",
        f"M from 48 to 96 KiB: HBM elements × {moved[96] / moved[48]:.2f}, FLOPs × 1",
        "those are HBM accesses; arithmetic is 4N²d, without M",
    )


def _time_grows(times):
    ms = {
        row["seqlen"]: row["ms"]
        for row in times
        if (row["kernel"], row["head_dim"], row["causal"]) == ("flash_attn_v2", 64, False)
    }
    number = NOT_RECORDED
    if ms:
        short, long = min(ms), max(ms)
        number = (
            f"flash_attn_v2, N from {short} to {long} with as many tokens in all: time × "
            f"{ms[long] / ms[short]:.1f}, so × {ms[long] / ms[short] * long / short:.0f} for each "
            "sequence"
        )
    ratio = v1_elements(8192, 64, 64) / v1_elements(4096, 64, 64)
    return ledger_row(
        "the time of FlashAttention grows as N (004)",
        f"2N: FLOPs × 4, HBM × {ratio:.2f}; on a GPU: {number}",
        "wrong: as N²",
    )


def _reason():
    q = np.zeros((1, 64, 1, 64), np.float32)
    with simt.tracing() as traces:
        naive_attn(q, q, q)
    flops = {}
    for trace in traces:
        for kind, number in trace.flops.by_kind.items():
            flops[kind] = flops.get(kind, 0) + (2 * number if kind == "fma" else number)
    products = flops["fma"] / sum(flops.values())
    return ledger_row(
        "attention is memory-bound since it mostly consists of element-wise operations (000)",
        f"products are {products:.0%} of the FLOPs of naive_attn, d = 64",
        "the wrong reason: it is memory-bound where S and P go through HBM",
    )


def _extra_memory(memory):
    q = np.zeros((1, 128, 1, 8), np.float32)
    _, l, m = flash_attn_v1(q, q, q)
    at = {row["function"]: row for row in memory if row["seqlen"] == 4096}
    number = NOT_RECORDED
    if "naive_attn" in at and "flash_attn_v2" in at:
        number = " and ".join(
            f"{at[name]['extra bytes'] / 1e6:,.0f} MB of {name}"
            for name in ("naive_attn", "flash_attn_v2")
        )
    return ledger_row(
        "O(N) additional memory beyond inputs and output (002)",
        f"l and m for N=128: {l.size + m.size} floats, S and P: {2 * 128**2}; allocated beside "
        f"the output at N=4096: {number}",
        "2N is right; the ratio is no constant: it grows with N",
    )


def walkthrough(s, v, tile):
    """O = O/l after the first tile, then unnormalised terms are added, as the source does it."""
    o, l, m = None, None, None
    for start in range(0, len(s), tile):
        part_s, part_v = s[start : start + tile], v[start : start + tile]
        if o is None:
            m = part_s.max()
            l = np.exp(part_s - m).sum()
            o = np.exp(part_s - m) @ part_v / l  # divided already
            continue
        m_new = max(m, part_s.max())
        alpha, p = np.exp(m - m_new), np.exp(part_s - m_new)
        l = alpha * l + p.sum()
        o = alpha * o + p @ part_v  # unnormalised terms on top
        m = m_new
    return o / l


def _walkthrough():
    rng = np.random.default_rng(0)
    s, v = rng.standard_normal(256), rng.standard_normal((256, 64))
    p = np.exp(s - s.max())
    exact = p @ v / p.sum()
    wrong = np.abs(walkthrough(s, v, 128) - exact).max()
    return ledger_row(
        "worked example: O_1 = P V / l_1 after block 1, then add block 2 (004)",
        f"error {wrong:.2f}, largest output {np.abs(exact).max():.2f}",
        "wrong: divide at the end, or multiply back by l_1 first",
    )


def _published(errors):
    broken = [error for error in errors if error > 1e-3]
    clean = [error for error in errors if error <= 1e-3]
    return ledger_row(
        "a complete FlashAttention-1 kernel in Triton (003)",
        f"error up to {max(broken, default=0):.2f} in {len(broken)} of {len(errors)} cases, "
        f"{max(clean, default=0):.0e} at head_dim 1 and full tiles",
        "two bugs: no 1/√d, and missing keys weigh exp(0 − m): ex06c",
    )


def _loop_order():
    q = np.zeros((1, 64, 1, 8), np.float32)
    with simt.tracing() as traces:
        flash_attn_v1(q, q, q, block_m=16, block_n=16)
    stores = traces[0].arrays["out"].stores // q.size
    return ledger_row(
        "FlashAttention: for each block of Q, loop over the blocks of K and V (004)",
        f"Algorithm 1 walks K and V outside: with 4 tiles of keys out is stored {stores} times",
        "that is FlashAttention-2's order of loops",
    )


def _results():
    return ledger_row(
        "BERT trains 15 % faster; GPT-2 3×, 1.7× against Megatron-LM; 4× the context (000)",
        "end-to-end times of the paper, on A100s; we have none of them",
        "attention is only a part of a training step: lesson 22's ledger counts its share",
    )
