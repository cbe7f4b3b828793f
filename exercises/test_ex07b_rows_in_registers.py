"""Grader of ex07b: the online update of acc and l_i by a tile."""

import numpy as np
import pytest

from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.simt.errors import UnsupportedError
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_no_races, expect_traffic
from fa_numba.workbook.graders.rows import (
    expect_inputs_kept,
    expect_rows,
    head_of_scores,
    low_scores,
    random_scores,
    sloping_scores,
    trace_of,
    traffic_of,
)
from fa_numba.workbook.graders.tiles import expect_float32


def run(exercise, head, BLOCK_M=4, BLOCK_N=4):
    """Run checked, compare out and lse; the trace."""
    kernel = exercise.make_kernel(head.v.shape[1], BLOCK_M, BLOCK_N)
    try:
        outputs, trace = trace_of(kernel, head, (BLOCK_N, BLOCK_M))
    except UnsupportedError as error:
        if "NoneType" in str(error):
            cause = "add_tile returns nothing: is return l_i missing?"
            raise Wrong(f"UnsupportedError: {error}", causes=[cause]) from None
        raise
    expect_no_races(trace)
    expect_rows(outputs, head, (BLOCK_N, BLOCK_M))
    return trace


def test_one_tile(exercise):
    """one tile of keys: out is P V over the sum of P"""
    run(exercise, random_scores(4, 4, 4))


def test_many_tiles(exercise):
    """65 tiles of keys, 65 of queries"""
    run(exercise, random_scores(4, 260, 4))
    run(exercise, random_scores(260, 8, 4))


def test_ascending(exercise):
    """a new maximum in every tile rescales what was summed before"""
    run(exercise, sloping_scores(8, 24, 4))


@pytest.mark.parametrize("columns", [1, 2, 32])
def test_columns(exercise, columns):
    """each of a thread's columns of out"""
    run(exercise, random_scores(4, 12, 4 * columns))


@pytest.mark.parametrize("BLOCK_M, BLOCK_N", [(8, 2), (2, 8), (1, 16), (16, 1), (8, 8)])
def test_tile_size(exercise, BLOCK_M, BLOCK_N):
    """tile size does not change the answer"""
    run(exercise, random_scores(16, 32, 16, seed=1), BLOCK_M, BLOCK_N)


def test_large_scores(exercise):
    """scores from -1e4 to 1e4, and low ones: alpha may be 0, and so may the maximum"""
    run(exercise, random_scores(8, 24, 4, size=4e3))
    run(exercise, low_scores(8, 24, 4))


def test_equal_scores(exercise):
    """equal scores: out is the mean of v"""
    run(exercise, head_of_scores(np.full((4, 20), -3.0), 4))


def test_memory(exercise):
    """no memory on the chip but what was given, no barrier more"""
    trace = run(exercise, random_scores(8, 24, 8), 8, 4)
    allowed = "v_tile, s_tile and p_tile are given; acc has 2 floats"
    expect_chip_memory(trace, shared=4 * (4 * 8 + 2 * 8 * 4), local=4 * 2, allowed=allowed)
    tiles = 6
    assert trace.barriers == 3 * tiles, (
        f"a tile has 3 barriers, which are given; the meter shows {trace.barriers / tiles:g}: "
        "the update needs none"
    )


def test_no_division(exercise):
    """nothing is divided before the end"""
    head = random_scores(8, 24, 8)
    trace = run(exercise, head, 8, 4)
    done = trace.flops.by_kind.get("div", 0)
    assert done <= head.dout.size, (
        f"out has {head.dout.size} elements, divided is {done} times: divide once, at the end"
    )


def test_float32(exercise):
    """computes in float32"""
    expect_float32(run(exercise, random_scores(4, 8, 4)))


def test_traffic(exercise):
    """HBM traffic: the scores once, v once per thread block, out and lse stored once"""
    head = random_scores(8, 24, 8)
    expect_traffic(run(exercise, head, 4, 4), traffic_of(head, (4, 4)))


def test_nothing_else(exercise):
    """s and v are left as they were, and nothing is written beside out and lse"""
    head = random_scores(8, 12, 4)
    expect_inputs_kept(exercise.make_kernel(4, 4, 4), head, (4, 4))


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without float64"""
    x, y = np.zeros((16, 16), np.float32), np.zeros(16, np.float32)
    gpu_ready(exercise.make_kernel(16, 16, 16), (x, x, x, y))
