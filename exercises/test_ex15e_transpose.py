"""Grader of ex15e: a transposition within a budget of sectors and shared memory."""

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
from fa_numba.workbook.graders.tiles import matrices

SHAPES = pytest.mark.parametrize("shape", [(32, 32), (64, 96), (320, 32), (32, 320)], ids=str)
BUDGET = 4224  # bytes of shared memory


def launch(exercise, x, y=None, kernel="transpose"):
    y = np.full(x.shape[::-1], np.nan, np.float32) if y is None else y
    grid = x.shape[1] // 32, x.shape[0] // 32
    return y, simt.trace(getattr(exercise, kernel), grid, (32, 8), x, y)


def check(y, x):
    wrong = np.argwhere(~(y == x.T))
    if len(wrong):
        row, col = wrong[0]
        causes = {
            "y is x, not x.T.": y.shape == x.shape and (y == x).all(),
            "Each tile is in its place, but not transposed itself.": all(
                (y[c : c + 32, r : r + 32] == x[r : r + 32, c : c + 32]).all()
                for r in range(0, x.shape[0], 32)
                for c in range(0, x.shape[1], 32)
            ),
            "Parts of y are never written.": np.isnan(y).any(),
        }
        raise Wrong(
            f"x {x.shape}: {len(wrong)} of {y.size} elements are wrong, first y[{row}, {col}]: "
            f"must be x[{col}, {row}] = {x[col, row]:.6g}, got {y[row, col]:.6g}",
            causes=[cause for cause, is_so in causes.items() if is_so],
            where=f"y[{row}, {col}]",
        )


@SHAPES
def test_transposes(exercise, shape):
    """y = x.T, whatever the shape, without a race"""
    (x,) = matrices(shape)
    y, trace = launch(exercise, x)
    expect_no_races(trace)
    assert not trace.uninitialised, str(trace.uninitialised[0])
    check(y, x)


def test_sectors(exercise):
    """4 sectors for each request, in loads and stores"""
    (x,) = matrices((64, 32))
    _, trace = launch(exercise, x)
    for name, action, done in (("x", "load", "loaded"), ("y", "store", "stored")):
        sectors = getattr(trace.arrays[name], f"{action}_sectors")
        requests = getattr(trace.arrays[name], f"{action}_requests")
        if sectors > x.nbytes // 32:
            raise Wrong(
                f"{name} is {done} in {requests} requests of {sectors / requests:.3g} sectors; 4 "
                "are enough",
                causes=[f"{name} is {done} down a column: neighbouring threads must have "
                        "neighbouring columns."],
                where=name,
            )  # fmt: skip


def test_no_conflicts(exercise):
    """no bank conflict, in stores to the tile and in loads from it"""
    (x,) = matrices((64, 32))
    _, trace = launch(exercise, x)
    expect_no_races(trace)
    assert trace.shared, "the tile goes through shared memory"
    for action in ("load", "store"):
        number = sum(getattr(array, f"{action}_conflicts") for array in trace.shared.values())
        if number:
            asked = sum(getattr(array, f"{action}_requests") for array in trace.shared.values())
            raise Wrong(
                f"{asked} {action} requests of the tile take {asked + number} wavefronts",
                causes=["The threads of a warp use a column of the tile, and its rows begin in "
                        "the same bank."],
            )  # fmt: skip


def test_shared_memory(exercise):
    """at most 4224 bytes of shared memory"""
    (x,) = matrices((32, 32))
    _, trace = launch(exercise, x)
    expect_chip_memory(trace, shared=BUDGET, allowed="a tile of 32 x 32, and 128 bytes of padding")


def test_hbm_traffic(exercise):
    """x is loaded once, y stored once, by all threads of all thread blocks"""
    (x,) = matrices((64, 96))
    _, trace = launch(exercise, x)
    wanted = {
        ("x", "loads"): (x.size, "every element once"),
        ("y", "stores"): (x.size, "every element once"),
        ("x", "stores"): (0, "it is an input"),
        ("y", "loads"): (0, "it is the result"),
    }
    expect_traffic(trace, wanted)
    why = "each thread moves four elements of its tile"
    expect_stores_by({"y": trace.arrays["y"]}, threads=6 * 256, blocks=6, why=why)


def test_broken_kernel_stays(exercise):
    """broken_kernel is as it was given"""
    (x,) = matrices((32, 32))
    y, trace = launch(exercise, x, kernel="broken_kernel")
    assert (y == x.T).all() and trace.arrays["y"].store_sectors == 32 * 32, (
        "broken_kernel is to stay: write `transpose`"
    )


def test_nothing_else_written(exercise):
    """writes y and not one element beside it"""
    (x,) = matrices((32, 64))
    frame = np.full((70, 40), 7, np.float32)
    check(launch(exercise, x, frame[3:67, 5:37])[0], x)
    frame[3:67, 5:37] = 7
    assert (frame == 7).all(), f"{(frame != 7).sum()} elements around y were written"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU"""
    (x,) = matrices((32, 32))
    gpu_ready(exercise.transpose, (x, np.zeros_like(x)))
