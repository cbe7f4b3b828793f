"""Grader of ex06d: softmax(s) v with one barrier for each tile of rows."""

import math

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import (
    expect_close,
    expect_guard,
    expect_unchanged,
    guarded,
)
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_no_races, expect_traffic
from fa_numba.workbook.graders.tiles import expect_float32

SIZES = ((8, 4, 8), (12, 8, 4), (5, 3, 6))  # (HEAD_DIM, BLOCK_M, BLOCK_N)


def inputs(rows, HEAD_DIM, BLOCK_N, seed=0):
    rng = np.random.default_rng(seed)
    s = 3 * rng.standard_normal((rows, BLOCK_N), np.float32)
    return s, rng.standard_normal((BLOCK_N, HEAD_DIM), np.float32)


def launch(exercise, s, v, BLOCK_M, make="make_kernel"):
    """Run the kernel; return out, its guard and the trace."""
    BLOCK_N, HEAD_DIM = v.shape
    out, larger = guarded(len(s), HEAD_DIM)
    kernel = getattr(exercise, make)(HEAD_DIM, BLOCK_M, BLOCK_N)
    return out, larger, simt.trace(kernel, 1, (BLOCK_N, BLOCK_M), s, v, out)


def softmax(s, v):
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return p @ v / p.sum(axis=1, keepdims=True)


def check(exercise, rows, HEAD_DIM=8, BLOCK_M=4, BLOCK_N=8, *, s=None):
    """Run it without a race, compare out."""
    scores, v = inputs(rows, HEAD_DIM, BLOCK_N)
    s = scores if s is None else s
    out, _, trace = launch(exercise, s, v, BLOCK_M)
    expect_no_races(trace)
    want = softmax(s.astype(np.float64), v)
    expect_close("out", out, want, softmax(s, v), tile=BLOCK_M, rows="row")
    return trace


@pytest.mark.parametrize("rows", [1, 4, 8, 12])
def test_few_tiles(exercise, rows):
    """one row, one tile of rows, and two or three tiles, match float64"""
    check(exercise, rows)


def test_many_tiles(exercise):
    """many tiles of rows, and the last one is not full"""
    check(exercise, 30)
    check(exercise, 67, 4, 2, 4)
    check(exercise, 300, 6, 8, 8)


@pytest.mark.parametrize(
    "HEAD_DIM, BLOCK_M, BLOCK_N",
    [(3, 8, 4), (5, 3, 6), (1, 1, 8), (9, 4, 1), (8, 8, 8), (128, 16, 8)],
)
def test_tile_size(exercise, HEAD_DIM, BLOCK_M, BLOCK_N):
    """any tile, any head_dim"""
    check(exercise, 17, HEAD_DIM, BLOCK_M, BLOCK_N)


def test_large_scores(exercise):
    """stable at scores of 1e4 and -1e5, wherever in the row, and where the largest is 0"""
    check(exercise, 8, s=np.where(np.eye(8) > 0, 0, -1e5).astype(np.float32))
    check(exercise, 8, s=np.where(np.eye(8) > 0, -1e5, -2e5).astype(np.float32))
    check(exercise, 8, s=np.where(np.eye(8) > 0, 1e4, -1e4).astype(np.float32))
    s = np.linspace(-1e4, 1e4, 80, dtype=np.float32).round().reshape(10, 8)
    check(exercise, 10, s=s)


def test_budget(exercise):
    """one barrier for each tile of rows"""
    for HEAD_DIM, BLOCK_M, BLOCK_N in SIZES:
        for rows in (1, 2 * BLOCK_M, 5 * BLOCK_M + 1):
            _, _, trace = launch(exercise, *inputs(rows, HEAD_DIM, BLOCK_N), BLOCK_M)
            expect_no_races(trace)
            tiles = math.ceil(rows / BLOCK_M)
            if trace.barriers > tiles:
                cause = "There are two barriers for each tile: the second waits for p_tile."
                raise Wrong(
                    f"{tiles} tiles of rows took {trace.barriers} barriers, allowed are {tiles}",
                    causes=[cause] if trace.barriers >= 2 * tiles else [],
                )


def test_traffic(exercise):
    """HBM: s, v and out are moved once"""
    for HEAD_DIM, BLOCK_M, BLOCK_N in SIZES:
        s, v = inputs(2 * BLOCK_M + 1, HEAD_DIM, BLOCK_N)
        trace = launch(exercise, s, v, BLOCK_M)[2]
        nothing = (0, "it is an input")
        wanted = {
            ("s", "loads"): (s.size, "rows * BLOCK_N"),
            ("v", "loads"): (v.size, "BLOCK_N * HEAD_DIM"),
            ("out", "stores"): (len(s) * HEAD_DIM, "rows * HEAD_DIM"),
            ("out", "loads"): (0, "a sum is a register"),
            ("s", "stores"): nothing,
            ("v", "stores"): nothing,
        }
        expect_traffic(trace, wanted)


def test_chip_memory(exercise):
    """shared memory: at most one tile of v and two of scores; none local"""
    for HEAD_DIM, BLOCK_M, BLOCK_N in SIZES:
        trace = launch(exercise, *inputs(9, HEAD_DIM, BLOCK_N), BLOCK_M)[2]
        shared = 4 * BLOCK_N * (HEAD_DIM + 2 * BLOCK_M)
        expect_chip_memory(trace, shared=shared, allowed="as much as two_barriers has")


def test_two_barriers_is_as_it_was(exercise):
    """two_barriers still has two barriers for each tile, and is right"""
    check(exercise, 9)  # what is not written yet says so here
    s, v = inputs(12, 8, 8)
    out, _, trace = launch(exercise, s, v, 4, make="make_two_barriers")
    assert trace.barriers == 6 and np.abs(out - softmax(s, v)).max() < 1e-5, (
        "make_two_barriers is to stay as it is: write into make_kernel"
    )


def test_nothing_else_is_written(exercise):
    """s and v stay as they are, and nothing is written beside out"""
    s, v = inputs(9, 8, 8)
    before = {"s": s.copy(), "v": v.copy()}
    _, larger, _ = launch(exercise, s, v, 4)
    expect_unchanged(before, {"s": s, "v": v})
    expect_guard("out", larger)


def test_float32(exercise):
    """computes in float32"""
    expect_float32(launch(exercise, *inputs(9, 8, 8), 4)[2])


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    s, v = inputs(9, 8, 8)
    gpu_ready(exercise.make_kernel(8, 4, 8), (s, v, np.zeros((9, 8), np.float32)))
