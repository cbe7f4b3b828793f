"""The ledger of the lesson on FlashAttention-2: what the sources say about loops and work."""

import inspect

import numpy as np
from numba import cuda

from fa_numba import flash_attn_v1, flash_attn_v2, simt
from fa_numba.kernels import flash_attn_v1 as module_of_v1
from fa_numba.workbook.ledgers import ledger_row
from fa_numba.workbook.recorded import recorded_rows

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
    return [
        _line_10(),
        *_about_thread_blocks(),
        _divisions(),
        _statistics(),
        _speed(recorded_rows("attention", folder=folder)),
    ]


def line_10(s, v, tile, power):
    """Attention of one row of scores, with acc <- alpha^power acc + P V, power 1 or -1."""
    m, l, acc = -np.inf, 0.0, np.zeros(v.shape[1])
    for start in range(0, len(s), tile):
        m_new = max(m, s[start : start + tile].max())
        p, alpha = np.exp(s[start : start + tile] - m_new), np.exp(m - m_new)
        l = alpha * l + p.sum()
        acc = (alpha**power if start else 0) * acc + p @ v[start : start + tile]
        m = m_new
    return acc / l


def _line_10():
    s, v = np.linspace(0, 5, 32), np.random.default_rng(0).standard_normal((32, 8))
    exact = np.exp(s - s.max()) @ v / np.exp(s - s.max()).sum()
    errors = {power: np.abs(line_10(s, v, 8, power) - exact).max() for power in (1, -1)}
    return ledger_row(
        "line 10: O ← diag(e^(m_old − m_new))⁻¹ O + P̃V (001)",
        f"ascending scores: error {errors[-1]:.3g} with the inverse, {errors[1]:.0e} without",
        "misprint: the factor multiplies (and line 8 has K_i for K_j)",
    )


def _about_thread_blocks():
    x = np.random.default_rng(0).standard_normal((3, 1, 100, 2, 8), dtype=np.float32)
    with simt.tracing() as traces:
        flash_attn_v2(*x, block_m=16)
    (trace,) = traces
    atomics = inspect.getsource(module_of_v1).count("cuda.atomic")
    return [
        ledger_row(
            "each CUDA block computes one row of output (004)",
            f"100 queries, 2 heads, B_r = 16: grid {tuple(trace.grid)}",
            "one tile of B_r rows",
        ),
        ledger_row(
            "reduced synchronisation: fewer atomic operations (004)",
            f"atomics in our flash_attn_v1: {atomics}",
            "the forward pass of FlashAttention-1 has none to save",
        ),
        ledger_row(
            "column tiles in parallel would race; rows do not (003)",
            f"races found: {races_by_columns()} where each thread block owns a column, "
            f"{len(trace.races)} in flash_attn_v2",
            "true",
        ),
    ]


def races_by_columns():
    """Races of thread blocks that own columns and add to the same rows."""

    @cuda.jit
    def columns_in_parallel(s, out):
        m = cuda.threadIdx.x
        out[m] += s[m, cuda.blockIdx.x]

    s, out = np.ones((4, 5), np.float32), np.zeros(4, np.float32)
    return len(simt.trace(columns_in_parallel, 5, 4, s, out).races)


def _divisions():
    N, d, B_c = 4096, 64, 64
    saved = N * d * (N // B_c)
    return ledger_row(
        "dividing once saves FLOPs (003)",
        f"N={N}, d={d}, B_c={B_c}: {saved:,} divisions → {N * d:,}; "
        f"{saved / (4 * N * N * d):.2%} of the 4N²d FLOPs",
        "true, and small until products run on tensor cores",
    )


def _statistics():
    x = np.zeros((3, 1, 64, 1, 8), np.float32)
    _, lse = flash_attn_v2(*x)
    _, l, m = flash_attn_v1(*x)
    return ledger_row(
        "store L alone in place of m and ℓ (001, line 13)",
        f"N=64: {l.size + m.size} floats → {lse.size}",
        "true: half",
    )


def _speed(rows):
    ms = {
        (row["kernel"], row["seqlen"]): row["ms"]
        for row in rows
        if row.get("head_dim") == 64 and not row["causal"] and "ms" in row
    }
    gains = {
        n: ms["flash_attn_v1", n] / ms["flash_attn_v2", n]
        for kernel, n in ms
        if kernel == "flash_attn_v1" and ("flash_attn_v2", n) in ms
    }
    number = "; ".join(f"N={n}: {gain:.1f}×" for n, gain in gains.items())
    return ledger_row(
        "FlashAttention-2 is 1.4–2.2× faster than 1, more for longer N (004)",
        f"ours, d=64, H200: {number}" if gains else NOT_RECORDED,
        "longer is better: true; ours gains more, as our version 1 leaves most SMs idle",
    )
