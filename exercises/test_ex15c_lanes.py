"""Grader of ex15c: sums of rows whose requests move as few sectors as they can."""

import math

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_no_races, expect_stores_by
from fa_numba.workbook.graders.tiles import expect_float32, matrices


def launch(exercise, x, total=None, kernel="kernel"):
    total = np.full(len(x), np.nan, np.float32) if total is None else total
    grid = math.ceil(len(x) / 4)
    return total, simt.trace(getattr(exercise, kernel), grid, (32, 4), x, total)


def check(total, x):
    want = x.astype(np.float64).sum(axis=1)
    wrong = np.flatnonzero(~(np.abs(total - want) <= 1e-6 * np.abs(x).sum(axis=1) + 1e-6))
    if len(wrong):
        row, cols = wrong[0], x.shape[1]
        parts = {
            "Only the columns of lane 0 are in the sum.": x[:, ::32].sum(axis=1),
            "The columns after the last multiple of 32 are missing.": x[:, : cols // 32 * 32].sum(
                axis=1
            ),
            "Only the first 32 columns are in the sum.": x[:, :32].sum(axis=1),
            "Each column is in the sum 32 times: every lane adds up the whole row.": 32 * want,
        }
        close = {c: np.allclose(total, s, rtol=1e-3, atol=1e-3) for c, s in parts.items()}
        raise Wrong(
            f"{x.shape}: {len(wrong)} of {len(x)} sums are wrong, first total[{row}]: want "
            f"{want[row]:.6g}, got {total[row]:.6g}",
            causes=[cause for cause, same in close.items() if same],
            where=f"total[{row}]",
        )


@pytest.mark.parametrize(
    "shape", [(4, 32), (8, 512), (1, 1), (5, 31), (301, 33), (3, 4100)], ids=str
)
def test_sums(exercise, shape):
    """the sum of each row, whatever the shape"""
    (x,) = matrices(shape)
    check(launch(exercise, x)[0], x)


def test_each_column(exercise):
    """each column counts once"""
    for col in (0, 1, 31, 32, 63, 64, 69):
        x = np.zeros((4, 70), np.float32)
        x[:, col] = 1 + np.arange(4)
        check(launch(exercise, x)[0], x)


@pytest.mark.parametrize("cols", [32, 64, 512])
def test_sectors(exercise, cols):
    """as few sectors as possible: 4 for each request of 32 floats"""
    (x,) = matrices((8, cols))
    _, trace = launch(exercise, x)
    sectors, requests = trace.arrays["x"].load_sectors, trace.arrays["x"].load_requests
    least = x.nbytes // 32
    if sectors > least or requests > x.size // 32:
        line = max((a for a in trace.lines if a.array == "x"), key=lambda a: a.cost)
        raise Wrong(
            f"{x.shape}: line {line.line} loads x in {requests} requests of "
            f"{sectors / requests:.3g} sectors, {sectors} in all; {least} are enough",
            causes=["In one iteration the lanes of a warp load columns that are not neighbours."],
            where=f"line {line.line}",
        )


def test_tail_sectors(exercise):
    """a part of 32 columns at the end costs no more than its sectors"""
    (x,) = matrices((8, 104))
    _, trace = launch(exercise, x)
    assert trace.arrays["x"].load_sectors <= 8 * 104 // 8, (
        f"rows of 104 floats are 13 sectors each, moved are "
        f"{trace.arrays['x'].load_sectors / 8:.3g}"
    )


def test_hbm_traffic(exercise):
    """x is loaded once, total is stored once, by a lane of each row; nothing on the chip"""
    (x,) = matrices((10, 96))
    _, trace = launch(exercise, x)
    loads, stores = trace.arrays["x"].loads, trace.arrays["total"].stores
    assert loads == x.size, f"x has {x.size} elements, loaded are {loads}"
    assert stores == len(x), f"total has {len(x)} elements, stored are {stores}"
    assert not trace.arrays["x"].stores and not trace.arrays["total"].loads
    why = "each thread block has four rows"
    expect_stores_by({"total": trace.arrays["total"]}, threads=10, blocks=3, why=why)
    expect_chip_memory(trace, allowed="a part of a sum is one register")
    expect_no_races(trace)


def test_broken_kernel_stays(exercise):
    """broken_kernel is as it was given"""
    (x,) = matrices((4, 512))
    total, trace = launch(exercise, x, kernel="broken_kernel")
    check(total, x)
    assert trace.arrays["x"].load_sectors == 8 * x.nbytes // 32, (
        "broken_kernel is to stay: mend `kernel`"
    )


def test_float32(exercise):
    """computes in float32"""
    (x,) = matrices((4, 64))
    expect_float32(launch(exercise, x)[1])


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    (x,) = matrices((4, 64))
    gpu_ready(exercise.kernel, (x, np.zeros(4, np.float32)))
