"""The ledger of the lesson on tiles: what the sources say on on-chip memory and block sizes."""

import itertools
import math

import numpy as np
from numba import cuda

from fa_numba import analysis, simt
from fa_numba.analysis.devices import DEVICES
from fa_numba.workbook.ledgers import ledger_row

KIB = 1024
A100 = DEVICES["A100-40GB"]


def ledger():
    """The rows of the ledger.

    Returns
    -------
    list of dict
        claim, our number, verdict.
    """
    return [*_block_sizes(), *_m_over_4d(), *_an_sm()]


def four_tiles(B_r, B_c, d, dtype_bytes, score_bytes=None):
    """Bytes of the tiles of Q, K, V and S."""
    return dtype_bytes * (B_r * d + 2 * B_c * d) + B_r * B_c * (score_bytes or dtype_bytes)


def tallest(B_c, d, elements):
    """The largest B_r that fits beside B_c."""
    return next(r for r in itertools.count() if four_tiles(r + 1, B_c, d, 1) > elements)


def _block_sizes():
    need = four_tiles(128, 128, 64, 2)
    refused = [gpu.name for gpu in DEVICES.values() if gpu.shared_bytes_per_block < need]
    wide = analysis.calculate_block_sizes(48 * KIB, 64, dtype_bytes=2)
    tall = tallest(16, 64, 24 * KIB), 16
    reads = [math.ceil(4096 / B_r) for B_r, _ in (wide, tall)]
    return [
        ledger_row(
            "128 × 128 tiles, d = 64, fp16: 80 KB, fits comfortably in an A100's 164 KB (004)",
            f"{need // KIB} KiB; without asking, {A100.shared_bytes_default // KIB}. Of our "
            f"{len(DEVICES)} GPUs, {', '.join(refused)} cannot give that at all. With S in "
            f"float32: {four_tiles(128, 128, 64, 2, 4) // KIB} KiB. Not counted: O's 128 × 64 "
            f"float32 accumulators, {128 * 64 * 4 // KIB} KiB of registers",
            "the sum is right, and leaves things out; a kernel must ask for it",
        ),
        ledger_row(
            "SRAM budget of an A100: 164 * 1024 bytes (004)",
            f"{A100.shared_bytes_per_sm // KIB} KiB per SM, and for one thread block "
            f"{A100.shared_bytes_per_block // KIB} at most",
            "1 KiB too many for a tile: CUDA keeps it",
        ),
        ledger_row(
            "maximise B_r × B_c (004)",
            f"48 KiB, d = 64, fp16, N = 4096: {wide[0]} × {wide[1]} reads K and V {reads[0]} "
            f"times, {tall[0]} × {tall[1]} only {reads[1]} times",
            "a rule of thumb: traffic depends on B_r alone",
        ),
    ]


def _m_over_4d():
    elements, d = 48 * KIB // 4, 64
    B = elements // (4 * d)
    over = [4 * math.ceil(m / (4 * d)) * d > m for m in range(4 * d, 4096)]
    over_floor = [4 * (m // (4 * d)) * d > m for m in range(4 * d, 4096)]
    return [
        ledger_row(
            "B_c = M/4d, B_r = min(M/4d, d); 003 asks why its own sum, 4BD + 2B, exceeds M",
            f"M = {elements} floats, d = {d}: B = {B}; Q, K, V, O take {4 * B * d} = "
            f"{4 * B * d / elements:.0%} of M; S, P, ℓ, m want {2 * B * B + 2 * B} more",
            "003 is right to ask: the paper counts up to a constant factor",
        ),
        ledger_row(
            "B_c = ⌊M/4d⌋ and min(…, d′) (000)",
            f"M from {4 * d} to 4095, d = {d}: with ⌈M/4d⌉ the four tiles exceed M {sum(over)} "
            f"times, with ⌊M/4d⌋ {sum(over_floor)} times",
            "not what the paper prints (⌈M/4d⌉, d), but the floor is what fits",
        ),
    ]


@cuda.jit
def nothing(x):
    """A kernel to launch."""


def _accepted():
    """Sizes of a thread block that the engine launches."""
    sizes = []
    for threads in (1023, 1024, 1025):
        try:
            simt.run(nothing, 1, threads, np.zeros(1))
        except simt.errors.LaunchError:
            continue
        sizes.append(threads)
    return sizes


def _an_sm():
    return [
        ledger_row(
            "shared memory of each SM: up to 192 KB, 18 TB/s (002)",
            f"{A100.l1_bytes // KIB} KiB with L1, {A100.shared_bytes_per_sm // KIB} KiB without; "
            f"{A100.shared_bandwidth / 1e12:.1f} TB/s at the boost clock",
            "size: L1 included; speed: near",
        ),
        ledger_row(
            "a thread block is usually limited to 1024 threads (002)",
            f"engine: {_accepted()[-1]} run, 1025 are refused; device table: "
            f"{sorted({gpu.threads_per_block for gpu in DEVICES.values()})}",
            "right, on every GPU we list",
        ),
    ]
