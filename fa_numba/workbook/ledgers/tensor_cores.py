"""The ledger of the lesson on tensor cores: what the sources say about their speed."""

from fa_numba.analysis.devices import DEVICES
from fa_numba.workbook.ledgers import ledger_row
from fa_numba.workbook.recorded import recorded_rows

NOT_RECORDED = "not recorded yet: `python -m benchmarks tensor_core`"


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
    ratios = {
        name: DEVICES[name].float16_tensor / DEVICES[name].float32
        for name in ("T4", "A100-80GB", "L4", "H100")
    }
    a100 = DEVICES["A100-80GB"]
    reuse = a100.float16_tensor / a100.shared_bandwidth
    return [
        ledger_row(
            "matmul up to 16× faster than other operations: 312 against 19.5 TFLOP/s on an A100 "
            "(002)",
            "; ".join(f"{name} {ratio:.1f}×" for name, ratio in ratios.items()),
            "right for the A100; float16 against float32, peak against peak",
        ),
        ledger_row(
            "matrices in SRAM can be multiplied at 18 TB/s on an A100 (002)",
            f"{a100.num_sms} SMs × 128 bytes × {a100.clock / 1e9:g} GHz = "
            f"{a100.shared_bandwidth / 1e12:.1f} TB/s; tensor cores do {reuse:.0f} FLOP per byte",
            "about right, and not enough by itself: registers must be used again",
        ),
        ledger_row(
            "before FlashAttention-3 attention reached up to 35 % of an H100 (002)",
            *_share_of_the_peak(folder),
        ),
    ]


def _share_of_the_peak(folder):
    """Our number and the verdict on FlashAttention-2."""
    peak = DEVICES["H200"].float16_tensor / 1e12
    shares = {}
    for row in recorded_rows("tensor_core", folder=folder):
        if row["dtype"] == "float16" and row["head_dim"] in (64, 128) and not row["causal"]:
            shares[row["kernel"]] = max(shares.get(row["kernel"], 0), row["TFLOP/s"] / peak)
    theirs = shares.get("SDPA FlashAttention-2")
    if theirs is None:
        return NOT_RECORDED, "needs a GPU"
    ours = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    return (
        f"best shares of {peak:.0f} TFLOP/s on an H200: {ours}",
        f"true: PyTorch's FlashAttention-2 reaches {theirs:.0%}, at its best length",
    )
