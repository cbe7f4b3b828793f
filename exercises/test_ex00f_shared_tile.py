"""Grader of ex00f: the largest of a tile, by way of shared memory."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.elements import (
    expect_elements,
    expect_neighbours,
    unwritten,
    vectors,
)
from fa_numba.workbook.graders.meter import (
    expect_chip_memory,
    expect_no_races,
    expect_stores_by,
    expect_traffic,
)

TILE = 64


def run(exercise, x):
    out = unwritten(len(x))
    trace = simt.trace(exercise.below_largest, len(x) // TILE, TILE, x.copy(), out)
    return out, trace


def check(x, out, case):
    tiles = x.reshape(-1, TILE)

    def minus(other):
        return (tiles - other).reshape(-1).astype(np.float32)

    largest = tiles.max(axis=1, keepdims=True)
    mistakes = {
        "The sign is wrong: it is x[i] minus the largest.": -minus(largest),
        "The largest starts at 0, and all of the tile is below it.": minus(largest.clip(min=0)),
        "The largest of all x is subtracted, not that of the tile.": minus(x.max()),
        "The smallest is subtracted, not the largest.": minus(tiles.min(axis=1, keepdims=True)),
        "The first element is subtracted: does the loop keep the larger one?": minus(tiles[:, :1]),
        "The last element of the tile is left out.": minus(tiles[:, :-1].max(1, keepdims=True)),
        "The first element of the tile is left out.": minus(tiles[:, 1:].max(1, keepdims=True)),
        "out holds the largest; each element is to be compared with it.": np.repeat(largest, TILE),
    }
    expect_elements(out, minus(largest), case=case, mistakes=mistakes)


@pytest.mark.parametrize("tiles", [1, 2, 11])
def test_every_element(exercise, tiles):
    """how far every element is below the largest of its tile"""
    (x,) = vectors(1, TILE * tiles)
    out, trace = run(exercise, x)
    expect_no_races(trace)
    check(x, out, f"{tiles} tiles")


@pytest.mark.parametrize("place", [0, 1, 31, 32, 63])
def test_the_largest_anywhere(exercise, place):
    """the largest may be at any place, and all elements may be far below 0"""
    x = np.float32(-1e4) * np.arange(3, 3 + 2 * TILE, dtype=np.float32)
    x[[place, TILE + place]] = 0, -2e4
    out, _ = run(exercise, x)
    check(x, out, f"largest at {place}, others far below 0")


def test_traffic(exercise):
    """x is read once per element, and out is written once"""
    (x,) = vectors(1, 2 * TILE)
    _, trace = run(exercise, x)
    wanted = {
        ("x", "loads"): (2 * TILE, "n"),
        ("x", "stores"): (0, "x is an input"),
        ("out", "stores"): (2 * TILE, "n"),
        ("out", "loads"): (0, "out is only written"),
    }
    expect_traffic(trace, wanted)
    why = "each of the 64 threads owns one element"
    expect_stores_by({"out": trace.arrays["out"]}, threads=2 * TILE, why=why)
    expect_neighbours(trace, ("x", "out"), "Let thread t take element t of the tile")


def test_memory_on_the_chip(exercise):
    """shared memory holds the tile alone, and a barrier stands between filling and looking"""
    (x,) = vectors(1, TILE)
    _, trace = run(exercise, x)
    expect_chip_memory(trace, shared=4 * TILE, allowed="the tile as given")
    expect_no_races(trace)


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU"""
    x = np.zeros(TILE, np.float32)
    gpu_ready(exercise.below_largest, (x, x))
