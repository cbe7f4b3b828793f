"""Grader of ex05c: row sums, at a price of sectors and wavefronts."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import (
    expect_chip_memory,
    expect_no_races,
    expect_stores_by,
    expect_traffic,
)
from fa_numba.workbook.graders.tiles import expect_float32, matrices

SHARED = 32 * 33 * 4
BUDGET = 1200  # for a matrix of 64 x 64


def launch(exercise, x, y=None, kernel="kernel"):
    y = np.full(len(x), np.nan, np.float32) if y is None else y
    return y, simt.trace(getattr(exercise, kernel), len(x) // 32, 32, x, y)


def check(exercise, x, what):
    y, trace = launch(exercise, x)
    expect_no_races(trace)
    want = x.astype(np.float64).sum(axis=1)
    plain = np.zeros(len(x), np.float32)
    for column in x.T:
        plain += column
    tolerance = 2 * np.abs(plain - want).max() + 1e-6 * (1 + np.abs(want))
    wrong = np.flatnonzero(~(np.abs(y - want) <= tolerance))
    if not len(wrong):
        return
    m = int(wrong[0])
    known = (
        ("These are sums of columns, not of rows.",
         np.resize(x.astype(np.float64).sum(axis=0), len(x))),
        ("Only the first 32 columns are added.", x[:, :32].astype(np.float64).sum(axis=1)),
        ("Only the last 32 columns are added: the sum begins anew with each tile.",
         x[:, -32:].astype(np.float64).sum(axis=1)),
        ("The first 32 columns are added in each turn: go on by 32 columns.",
         x[:, :32].astype(np.float64).sum(axis=1) * (x.shape[1] // 32)),
        ("The rows of every thread block are those of the first.", np.resize(want[:32], len(x))),
    )  # fmt: skip
    raise Wrong(
        f"{what}: {len(wrong)} of {len(x)} sums are wrong, first y[{m}]: want {want[m]:.6g}, got "
        f"{y[m]:.6g}",
        causes=[words for words, sums in known if (np.abs(y - sums) <= tolerance).all()],
        where=f"y[{m}]",
    )


@pytest.mark.parametrize("M, N", [(32, 32), (64, 64), (32, 128), (352, 32), (32, 320)])
def test_equals_float64(exercise, M, N):
    """y has the sum of each row"""
    check(exercise, matrices((M, N))[0], f"{M} x {N}")


def test_each_element(exercise):
    """each element counts once, in its own row"""
    x = np.zeros((64, 96), np.float32)
    for m, n in ((0, 0), (1, 31), (31, 32), (32, 95), (63, 64)):
        x[:] = 0
        x[m, n] = 7
        check(exercise, x, f"only x[{m}, {n}] is not 0")


def price(trace):
    tiles = trace.shared.values()
    waves = sum(tile.load_wavefronts + tile.store_wavefronts for tile in tiles)
    return trace.arrays["x"].load_sectors, waves


def test_price(exercise):
    """the price is within the budget of 1200"""
    _, trace = launch(exercise, *matrices((64, 64)))
    sectors, waves = price(trace)
    if sectors + waves > BUDGET:
        if sectors > 512:
            cause = (
                f"{sectors} sectors of x are fetched, where 512 hold all of it: the threads of a "
                "warp read down a column of x."
            )
        else:
            cause = (
                f"{waves} wavefronts: the threads of a warp meet in a bank, down a column of the "
                "tile."
            )
        raise Wrong(
            f"the price is {sectors} sectors + {waves} wavefronts = {sectors + waves}, the budget "
            f"is {BUDGET} and par is 768",
            causes=[cause],
        )


def test_chip_memory(exercise):
    """at most one tile of 32 x 33 floats in shared memory"""
    _, trace = launch(exercise, *matrices((64, 64)))
    expect_chip_memory(trace, shared=SHARED, local=128, allowed="one tile of 32 x 33 floats")


def test_hbm_traffic(exercise):
    """each element of x is loaded once, each sum stored once"""
    x, y = matrices((64, 96), (64,))
    _, trace = launch(exercise, x, y)
    wanted = {
        ("x", "loads"): (64 * 96, "all of x"),
        ("y", "stores"): (64, "a sum for each row"),
        ("x", "stores"): (0, "it is an input"),
        ("y", "loads"): (0, "a sum is a register"),
    }
    expect_traffic(trace, wanted)
    why = "a thread block owns 32 rows"
    expect_stores_by({"y": trace.arrays["y"]}, blocks=2, why=why)


def test_nothing_else(exercise):
    """writes y and nothing beside it; broken_kernel is as it was given"""
    (x,) = matrices((64, 64))
    frame = np.full(70, 7, np.float32)
    launch(exercise, x, frame[3:67])
    assert (frame[:3] == 7).all() and (frame[67:] == 7).all(), "floats beside y were written"
    _, broken = launch(exercise, x, kernel="broken_kernel")
    assert price(broken) == (4096, 0), "broken_kernel is to stay as it was given: mend `kernel`"


def test_float32(exercise):
    """computes in float32"""
    expect_float32(launch(exercise, *matrices((32, 64)))[1])


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    gpu_ready(exercise.kernel, tuple(matrices((32, 32), (32,))))
