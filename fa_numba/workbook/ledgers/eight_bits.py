"""The ledger of the lesson on eight bits: speed and accuracy of attention in e4m3."""

from fa_numba.analysis.devices import DEVICES
from fa_numba.workbook.ledgers import ledger_row
from fa_numba.workbook.recorded import recorded_rows

NOT_RECORDED = "on a GPU: not recorded yet"
PLAIN = "e4m3, one scale per tensor"
WITH_QUANTISATION = "flash_attn_fp8, quantisation included"
KERNEL = "e4m3, flash_attn_fp8: a scale per tile, rotated"


def ledger(errors, folder=None):
    """The rows of the ledger.

    Parameters
    ----------
    errors : dict of str to float
        RMSE of the lesson's models: "float16", "one scale", "blocks", "rotated", "both".
    folder : path, optional
        Where the results of benchmarks are; by default benchmarks/results.

    Returns
    -------
    list of dict
        claim, our number, verdict.
    """
    rows = recorded_rows("fp8", folder=folder)
    h100 = DEVICES["H100"]
    gain, left = errors["one scale"] / errors["both"], errors["both"] / errors["float16"]
    return [
        ledger_row(
            "FP8 doubles throughput, FP4 quadruples it (003)",
            f"H100, peak: {h100.float8_tensor / h100.float16_tensor:.1f}× with 8 bits; "
            f"{_gains(folder)}",
            "right about peaks with FP8; softmax gains nothing, and Hopper has no FP4",
        ),
        ledger_row(
            "block quantisation and incoherent processing keep FP8 accurate (002)",
            f"RMSE by our model {errors['one scale']:.1e}; blocks {errors['blocks']:.1e}, rotated "
            f"{errors['rotated']:.1e}, both {errors['both']:.1e}; float16 {errors['float16']:.1e}; "
            f"{_errors(rows)}",
            f"{gain:.1f} times better, by the rotation; still {left:.0f} times the error of "
            "float16",
        ),
    ]


def speeds(folder=None):
    """TFLOP/s of each kernel at each length, recorded with head_dim 128 and no mask.

    Parameters
    ----------
    folder : path, optional
        Where the results of benchmarks are; by default benchmarks/results.

    Returns
    -------
    dict of (str, int) to float
        By kernel and seqlen.
    """
    return {
        (row["kernel"], row["seqlen"]): row["TFLOP/s"]
        for row in recorded_rows("fp8", folder=folder)
        if row.get("head_dim") == 128 and not row["causal"] and "TFLOP/s" in row
    }


def _gains(folder):
    found = speeds(folder)
    lengths = sorted({seqlen for _, seqlen in found})
    if not lengths:
        return NOT_RECORDED
    parts = []
    for name in ("flash_attn_fp8", WITH_QUANTISATION):
        over = [found[name, n] / found["flash_attn_persistent", n] for n in lengths]
        parts.append(f"{name}: {min(over):.2f} to {max(over):.2f}×")
    return "; ".join(parts) + " (H200, d = 128)"


def _errors(rows):
    errors = {row["error of"]: row["RMSE"] for row in rows if "RMSE" in row}
    if not {PLAIN, KERNEL} <= errors.keys():
        return NOT_RECORDED
    return f"on an H200 {errors[PLAIN]:.1e} and, by flash_attn_fp8, {errors[KERNEL]:.1e}"
