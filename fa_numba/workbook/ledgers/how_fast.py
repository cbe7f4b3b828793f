"""The ledger of the lesson on speed: what the sources say about GPUs, bounds and links."""

from fa_numba.analysis import intensity
from fa_numba.analysis.devices import DEVICES
from fa_numba.analysis.hierarchy import CLOCKS, hierarchy, nvlink_bandwidth, pcie_bandwidth
from fa_numba.analysis.roofline import Roofline
from fa_numba.workbook.ledgers import ledger_row

KIB = 1024


def ledger():
    """The rows of the ledger.

    Returns
    -------
    list of dict
        claim, our number, verdict.
    """
    return [*_about_memory(), *_about_ladders(), *_about_bounds()]


def _about_memory():
    t4, a100, a100_80 = DEVICES["T4"], DEVICES["A100-40GB"], DEVICES["A100-80GB"]
    b200 = DEVICES["B200"]
    on_chip = a100.num_sms * a100.l1_bytes
    return [
        ledger_row(
            "A100: HBM 1.5 to 2.0 TB/s, on-chip SRAM about 19 TB/s (000)",
            f"{a100.memory_bandwidth / 1e12:.2f} TB/s (40 GB), "
            f"{a100_80.memory_bandwidth / 1e12:.2f} (80 GB); {a100.num_sms} SMs × 128 bytes × "
            f"{a100.clock / 1e9} GHz = {a100.shared_bandwidth / 1e12:.1f} TB/s",
            "true",
        ),
        ledger_row(
            "A100: 192 KB of SRAM per SM (000)",
            f"{a100.l1_bytes // KIB} KiB of L1 and shared memory together; shared memory at most "
            f"{a100.shared_bytes_per_sm // KIB} per SM, {a100.shared_bytes_per_block // KIB} per "
            "thread block, 48 without asking",
            "true of the chip, not of your kernel",
        ),
        ledger_row(
            "SRAM of a modern GPU: about 20 MB (004)",
            f"{on_chip / 1e6:.1f} MB over {a100.num_sms} SMs, in pieces that do not see each other",
            "true as a sum; no tile can use it",
        ),
        ledger_row(
            "T4: 40 SMs with 64 KB of L1, 4 MB of L2, 16 GB of HBM with 300 GB/s (002)",
            f"{t4.num_sms} SMs with {t4.l1_bytes // KIB} KiB of L1 and shared memory, of which at "
            f"most {t4.shared_bytes_per_sm // KIB} are shared; L2 {t4.l2_bytes // KIB**2} MiB; "
            f"{t4.memory}, {t4.memory_bandwidth / 1e9:.0f} GB/s",
            "no HBM on a T4; 64 KB is its shared memory",
        ),
        ledger_row(
            "A100: 80 GB of HBM with 1.55 TB/s (002)",
            f"1.55 TB/s is the 40 GB card; that of 80 GB has {a100_80.memory_bandwidth / 1e12:.2f}",
            "two cards mixed",
        ),
        ledger_row(
            "B100: 1.8 PFLOP/s, 192 GB of HBM with 8 TB/s (002)",
            f"not in our table; a B200 has {b200.float16_tensor / 1e15} PFLOP/s dense in 16 bits, "
            f"{b200.memory_bytes / 1e9:.0f} GB, {b200.memory_bandwidth / 1e12} TB/s",
            "of that order; we have no B100 to check",
        ),
    ]


def _about_ladders():
    levels = hierarchy("A100-40GB")
    _, shared, l2, hbm, nvlink, bus = levels
    ratios = [shared.bandwidth / level.bandwidth for level in (l2, hbm, nvlink, bus)]
    fewest = CLOCKS["shared memory"]
    return [
        ledger_row(
            "x ns from SRAM, 2–3x from L2, 10x from HBM, 50–60x by NVLink, 300x by PCIe (002)",
            f"A100, bandwidth of shared memory over theirs: {ratios[0]:.1f}, {ratios[1]:.0f}, "
            f"{ratios[2]:.0f}, {ratios[3]:.0f} in one direction. Latency: L2 "
            f"{CLOCKS['L2 cache'] / fewest:.0f} times, HBM {CLOCKS['HBM'] / fewest:.0f} times that "
            "of shared memory",
            "ratios of bandwidths, and no nanoseconds; PCIe with both directions added",
        ),
        ledger_row(
            "600 GB/s with NVLink, 64 GB/s with PCIe (002)",
            f"one direction: {nvlink_bandwidth('A100-40GB') / 1e9:.0f} GB/s, and 16 lanes of PCIe "
            f"4.0 have {pcie_bandwidth(4) / 1e9:.1f}",
            "sums of both directions; a copy goes in one of them",
        ),
    ]


def _about_bounds():
    single, half = Roofline("A100-40GB", "float32"), Roofline("A100-40GB", "float16")
    widths = (1024, 4096, 12288)
    batches = {d: intensity.compute_bound_batch(half.ridge, d) for d in widths}
    small = {
        (batch, seqlen): intensity.prefill(seqlen, 96, 128, batch=batch).intensity
        for batch, seqlen in ((1, 16), (8, 16), (64, 16))
    }
    return [
        ledger_row(
            "ReLU in float16: 1/4 FLOP per byte, so four memory accesses per operation (002)",
            f"{1 / (2 + 2)} FLOP per byte: 4 bytes, which are 2 accesses",
            "intensity true, accesses wrong",
        ),
        ledger_row(
            "A linear layer on an A100 is bound by memory below a batch of about 200 (002)",
            f"2 × batch FLOPs for each weight read: float16 tensor cores batch {half.ridge:.0f}; "
            f"float32 batch {2 * single.ridge:.0f}, twice its ridge of {single.ridge:.1f}. With x "
            "and the result: "
            + ", ".join(f"{batch} for a width of {d}" for d, batch in batches.items()),
            "true for wide layers on tensor cores",
        ),
        ledger_row(
            "Short sequences in a batch: the intensity tends to B L (002, footnote 4)",
            "float16, 96 heads of 128, queries, keys and values included: "
            + ", ".join(f"{i:.0f} for B L = {b * n}" for (b, n), i in small.items()),
            "true while B L is far below d; with 2 bytes for each number it is FLOP per byte",
        ),
    ]
