"""The ledger of the lesson on timing: when FlashAttention is worth it, overhead, profilers."""

import numpy as np

from fa_numba import flash_attn_v2, naive_attn, simt
from fa_numba.analysis.devices import DEVICES
from fa_numba.workbook.ledgers import ledger_row
from fa_numba.workbook.recorded import recorded_rows

NOT_RECORDED = "not recorded yet"
SHORT = 64  # tokens


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
    launches, moved = short_sequence()
    intensity, ridge = standard_intensity(64), ridge_of("H200")
    return [
        ledger_row(
            "very short sequences (< 128 tokens): overhead not worth it (004)",
            f"{SHORT} tokens, by the meter: standard attention {launches[0]} launches and "
            f"{moved[0]:,} bytes, flash_attn_v2 {launches[1]} and {moved[1]:,}",
            "the overhead of short sequences is launches, and the fused kernel has fewer of them",
        ),
        ledger_row(
            "already compute-bound workloads: may not help (004)",
            f"standard attention, d = 64, 16 bits: at most {intensity:.0f} FLOPs per byte for any "
            f"length; the H200's ridge is at {ridge:.0f}",
            "attention with an N × N matrix in HBM is not compute-bound there",
        ),
        ledger_row(
            "when you have abundant HBM bandwidth: may not help (004)",
            f"4.8 TB/s, float32, N = 8192, fused over standard: {_speedup(8192, folder)}",
            "not so on the GPU with the most bandwidth that we have measured",
        ),
        ledger_row(
            "good fit: long sequences, > 512 tokens (004)",
            f"the same at N = 512: {_speedup(512, folder)}",
            "it is nearly as much at 512",
        ),
        ledger_row(
            "overhead-bound: everything else, such as interpreter-bound (002)",
            f"flash_attn_v2 of 16 tokens, H200: {_launch_cost(folder)}",
            "true, and common: small calls are bound by their launch; a graph removes it",
        ),
        ledger_row(
            "profiling tools: Nsight Compute, PyTorch Profiler (004)",
            f"ncu against our meter: {_validated(folder)}",
            "ncu explains one kernel; gaps between kernels are seen by Nsight Systems, which is "
            "missing in the list",
        ),
    ]


def short_sequence(tokens=SHORT, head_dim=64):
    """(launches, bytes by the meter) of standard attention and of flash_attn_v2."""
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, tokens, 1, head_dim), np.float32)
    found = []
    for function in (naive_attn, flash_attn_v2):
        with simt.tracing() as traces:
            function(q, k, v)
        found.append((len(traces), sum(t.load_bytes + t.store_bytes for t in traces)))
    return tuple(zip(*found, strict=True))


def standard_intensity(head_dim, itemsize=2):
    """FLOPs per byte of standard attention for endless sequences.

    4 N² d for the products, and S and P written and read: 4 N² numbers.
    """
    return 4 * head_dim / (4 * itemsize)


def ridge_of(name):
    """FLOPs per byte at which a GPU's tensor cores become the limit."""
    return DEVICES[name].bfloat16_tensor / DEVICES[name].memory_bandwidth


def _speedup(seqlen, folder):
    wanted = {"head_dim": 64, "seqlen": seqlen, "causal": False}
    ms = {
        row["kernel"]: row["ms"]
        for row in recorded_rows("attention", folder=folder)
        if all(row[key] == value for key, value in wanted.items())
    }
    standard, fused = ms.get("SDPA math"), ms.get("SDPA memory-efficient")
    return f"{standard / fused:.1f} times as fast" if standard and fused else NOT_RECORDED


def _launch_cost(folder):
    rows = {row["call"]: row for row in recorded_rows("launch", folder=folder)}
    row = rows.get("flash_attn_v2, CuPy")
    if row is None:
        return NOT_RECORDED
    return (
        f"{row['in a row, µs']} µs for each call in a row, {row['its graph on the GPU, µs']} µs "
        "on the GPU in a CUDA graph"
    )


def _validated(folder):
    cells = [
        cell
        for row in recorded_rows("microscope", folder=folder)
        for name, cell in row.items()
        if name != "kernel"
    ]
    equal = sum(cell[2] == "yes" for cell in cells)
    return f"{equal} of {len(cells)} counters are equal" if cells else NOT_RECORDED
