"""The ledger of the lesson on attention and its cost: bytes, FLOPs, a mask, lazy softmax."""

import math

import numpy as np

from fa_numba import analysis
from fa_numba.analysis import intensity
from fa_numba.analysis.devices import DEVICES
from fa_numba.workbook.ledgers import ledger_row
from fa_numba.workbook.recorded import recorded_rows

NOT_RECORDED = "on a GPU: not recorded yet"
A100 = DEVICES["A100-40GB"]
QUERIES = 1024  # at a time: the default of lazy_softmax_attn


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
        _inverted_mask(),
        *_bytes_and_flops(),
        _memory(recorded_rows("memory", folder=folder)),
        *_lazy_softmax(),
        _intensity_of_prefill(),
    ]


def lazily_kept(N, d, query_chunk_size=QUERIES):
    """Numbers between the kernels of lazy_softmax_attn, with chunks of about sqrt(N) keys."""
    return min(query_chunk_size, N) * math.ceil(N / math.ceil(math.sqrt(N))) * (d + 2)


def published_weights(scores, mask):
    """P of the article's function: big_neg where mask is True, then softmax."""
    scores = np.where(mask, np.finfo(scores.dtype).min, scores)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def _inverted_mask(N=4):
    scores = np.random.default_rng(0).standard_normal((N, N)).astype(np.float32)
    sees = np.tril(np.ones((N, N), bool))
    p = published_weights(scores, sees)
    return ledger_row(
        "attn_logits = jnp.where(mask, big_neg, attn_logits) (002)",
        f"causal mask, N = {N}: query 0 gives {p[0, 0]:.0f} to key 0 and {p[0, 1:].sum():.0f} to "
        f"the future; the last query gives {p[-1, 0]:.2f} to each key",
        "hides where the mask is True, which in JAX and PyTorch means “takes part”; and a row that "
        "is hidden as a whole becomes uniform, not 0",
    )


def _standard(N, d, dtype_bytes=2):
    return analysis.traffic.standard_attention(N, d, dtype_bytes)


def _flash(N, d, dtype_bytes=2):
    return analysis.traffic.flash_attention(N, d, 128, 128, dtype_bytes)["total"]


def _bytes_and_flops():
    n, d = 1024, 64  # the tutorial's running example
    standard, flash = _standard(n, d)["total"], _flash(n, d)
    memory, fused = (1e6 * moved / A100.memory_bandwidth for moved in (standard, flash))
    compute = 4 * n * n * d / A100.float16_tensor * 1e6
    problem = _standard(4096, 128)  # its exercise
    listed = problem["total"] - problem["s_reads"]
    return [
        ledger_row(
            "22 times faster at N=1024, d=64; over 50 times at 16K (004)",
            f"bytes: {standard / flash:.2f} and "
            f"{_standard(16384, d)['total'] / _flash(16384, d):.2f} times less; the limit is "
            "2 B_r/d = 4",
            "wrong: it counts one matrix of four, once",
        ),
        ledger_row(
            "standard attention moves about 20 MB at N=1024, d=64 (004)",
            f"{2 * standard / 1e6:.1f} MB in float32, {standard / 1e6:.1f} MB in float16",
            "about right in float32, but set against float16 FLOPs",
        ),
        ledger_row(
            "2N²d = 134 MFLOP (004)",
            f"QKᵀ {2 * n * n * d / 1e6:.0f} MFLOP; with PV {4 * n * n * d / 1e6:.0f} MFLOP",
            "half: PV is missing",
        ),
        ledger_row(
            "13 µs for memory, 0.4 µs for arithmetic, so 97 % memory (004)",
            f"all in float16: memory {memory:.1f} µs, arithmetic {compute:.2f} µs; "
            f"FlashAttention's memory {fused:.1f} µs",
            f"bound by memory, yes; by a factor of {memory / compute:.1f}, not 32",
        ),
        ledger_row(
            "exercise 3a: the list of what standard attention moves (004)",
            f"it has no line for reading S: {listed / 1e6:.1f} MB instead of "
            f"{problem['total'] / 1e6:.1f} MB",
            "a line is missing",
        ),
    ]


def _memory(rows):
    extra = {(row["function"], row["seqlen"]): row["extra bytes"] for row in rows}
    keys = ("naive_attn", 4096), ("flash_attn_v2", 4096)
    if not all(key in extra for key in keys):
        number = NOT_RECORDED
    else:
        standard, flash = (extra[key] for key in keys)
        number = (
            f"H200, 8 heads of 128, N=4096, S and P in float32: {standard / 1e9:.2f} GB beside the "
            f"inputs and results, against {flash} bytes"
        )
    return ledger_row(
        "10–20× memory reduction (001)",
        number,
        "true at some length: the ratio grows with N, and beside the inputs it has no bound",
    )


def _lazy_softmax():
    s_row = 2 * np.random.default_rng(0).standard_normal(1000)
    m_i, printed, derived = -math.inf, 0.0, 0.0
    for s in s_row:
        m_new = max(m_i, s)
        printed = printed + math.exp(m_i - m_new)
        derived = derived * math.exp(m_i - m_new) + math.exp(s - m_new)
        m_i = m_new
    exact = np.exp(s_row - s_row.max()).sum()
    N, d = 65536, 128
    return [
        ledger_row(
            "lazy softmax: ℓ ← ℓ + e^(m_old − m_new) (002)",
            f"one row of 1000 scores: {printed:.1f}; with ℓ·e^(m_old − m_new) + e^(s − m_new): "
            f"{derived:.4f}; by definition {exact:.4f}",
            "misprint",
        ),
        ledger_row(
            "self-attention does not need O(N²) memory: O(√N) will do (Rabe and Staats)",
            f"N={N}, d={d}, one head, float32, {QUERIES} queries at a time: "
            f"{4 * lazily_kept(N, d) / 1e6:.0f} MB kept against {8 * N**2 / 1e9:.0f} GB",
            "true of the memory; the traffic of K and of V is N²d each",
        ),
    ]


def _intensity_of_prefill():
    # in the article's units: elements, constants dropped, embedding of 96 heads of 128
    L, width, heads = 2**24, 96 * 128, 96
    limit = (L**2 * width + L * width**2) / (L**2 * heads + L * width + width**2)
    in_bytes = intensity.prefill(L, heads, 128).intensity
    ridge = analysis.Roofline("A100-40GB", "float16").ridge
    return ledger_row(
        "prefill tends to d/h FLOP per byte, 128 for GPT-3, which is enough for a GPU (002)",
        f"in its units {limit:.1f}; in FLOP per float16 byte {in_bytes:.1f}, and the A100 wants "
        f"{ridge:.0f}",
        "limit right but for the units; long prompts are bound by memory",
    )
