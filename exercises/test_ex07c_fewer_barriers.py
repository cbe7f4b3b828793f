"""Grader of ex07c: a budget of barriers."""

import numpy as np
import pytest

from fa_numba.analysis.gpu_ready import gpu_ready
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

BUDGET = 3  # barriers for each tile
BLOCK_N = 32


def run(exercise, head, BLOCK_M=2, make="make_kernel"):
    """Run checked, compare out and lse; the trace."""
    kernel = getattr(exercise, make)(head.v.shape[1], BLOCK_M)
    outputs, trace = trace_of(kernel, head, (BLOCK_N, BLOCK_M))
    expect_no_races(trace)
    expect_rows(outputs, head, (BLOCK_N, BLOCK_M))
    return trace


def test_one_tile(exercise):
    """one tile of keys"""
    run(exercise, random_scores(2, 32, 32))


def test_many_tiles(exercise):
    """ten tiles of keys, 65 of queries: no race, within a tile or from one to the next"""
    run(exercise, random_scores(2, 320, 32))
    run(exercise, random_scores(260, 32, 32), 4)


@pytest.mark.parametrize("BLOCK_M", [1, 4, 5])
def test_warps(exercise, BLOCK_M):
    """one warp, four, and five, which load unequal shares of v"""
    run(exercise, random_scores(BLOCK_M, 96, 32, seed=BLOCK_M), BLOCK_M)


def test_ascending(exercise):
    """a new maximum in every tile rescales what was summed before"""
    run(exercise, sloping_scores(2, 96, 32))


def test_large_scores(exercise):
    """scores that rise or fall by 200 from key to key, and a maximum of 0 far above the others"""
    rising = 200.0 * np.arange(64)
    run(exercise, head_of_scores(np.stack([rising, rising[::-1]]), 32))
    run(exercise, low_scores(2, 64, 32))


def test_columns(exercise):
    """four columns of out in a thread"""
    run(exercise, random_scores(2, 64, 128))


def test_budget(exercise):
    """at most 3 barriers for each tile"""
    tiles = 4
    trace = run(exercise, random_scores(2, 32 * tiles, 32))
    if trace.barriers > BUDGET * tiles:
        each = trace.barriers / tiles
        raise Wrong(
            f"{trace.barriers} barriers for {tiles} tiles of keys are {each:g} for each; the "
            f"budget is {BUDGET}, and 2 are enough",
            causes=[
                "A barrier between two steps that touch different arrays, or only what the thread "
                "itself wrote, protects nothing."
            ],
        )


def test_cautious_kernel(exercise):
    """cautious_kernel is as it was given"""
    trace = run(exercise, random_scores(2, 64, 32), make="make_cautious_kernel")
    assert trace.barriers == 6 * 2, "cautious_kernel is to stay: write `kernel`"


def test_memory(exercise):
    """no memory on the chip but v_tile, s_tile and p_tile, and acc"""
    trace = run(exercise, random_scores(4, 64, 64), 4)
    padded = 32 * 65 + 2 * 4 * 33
    allowed = "one tile each of v, s and p, and NUM_COLS floats of acc"
    expect_chip_memory(trace, shared=4 * padded, local=4 * 2, allowed=allowed)


def test_traffic(exercise):
    """HBM traffic: the scores once, v once per thread block, out and lse stored once"""
    head = random_scores(4, 64, 32)
    expect_traffic(run(exercise, head), traffic_of(head, (BLOCK_N, 2)))


def test_nothing_else(exercise):
    """s and v are left as they were, and nothing is written beside out and lse"""
    expect_inputs_kept(exercise.make_kernel(32, 2), random_scores(2, 64, 32), (BLOCK_N, 2))


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without float64"""
    x, y = np.zeros((4, 32), np.float32), np.zeros(4, np.float32)
    gpu_ready(exercise.make_kernel(32, 4), (x, np.zeros((32, 32), np.float32), x, y))
