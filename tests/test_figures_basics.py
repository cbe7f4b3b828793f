"""The drawings of the first lessons show what they claim to show."""

import numpy as np
import pytest
from numba import cuda

from fa_numba.analysis.devices import DEVICES
from fa_numba.figures import (
    divergence,
    layer_limits,
    memory_hierarchy,
    roofline,
    thread_grid,
)
from fa_numba.figures.number_lines import number_lines


@pytest.mark.parametrize("shape, block", [((8, 32), (16, 4)), ((5, 7), (4, 2)), ((1, 1), (32, 1))])
def test_thread_grid_shows_the_owner_of_each_element(shape, block):
    block_of, thread_of = thread_grid.owners(shape, block)
    blocks_per_row = -(-shape[1] // block[0])
    row, col = np.indices(shape)
    assert (block_of == row // block[1] * blocks_per_row + col // block[0]).all()
    assert (thread_of == row % block[1] * block[0] + col % block[0]).all()
    drawing = thread_grid.thread_grid(shape, block)
    assert len(drawing.describe().splitlines()) == 1 + shape[0]
    assert drawing.png().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", DEVICES)
def test_memory_hierarchy_names_every_level(name):
    text = memory_hierarchy.memory_hierarchy(name).describe()
    for level in ("registers", "shared memory", "L2 cache", DEVICES[name].memory):
        assert level in text


def test_roofline_says_what_bounds_each_point():
    drawing = roofline.roofline({"little": 1 / 12, "much": 500.0}, "A100-40GB")
    _, little, much = drawing.describe().splitlines()
    assert "bound by memory" in little and "0.13 TFLOP/s" in little
    assert "bound by arithmetic" in much and "19.5 TFLOP/s" in much


def test_number_lines_say_how_many_numbers_and_which_steps():
    drawing = number_lines({"whole": np.arange(-3, 9), "powers": 2.0 ** np.arange(-2, 4)}, upto=4)
    assert drawing.text.splitlines() == [
        "whole: 5 numbers from 0 to 4, steps of 1 to 1",
        "powers: 5 numbers from 0 to 4, steps of 0.25 to 2",
    ]


@cuda.jit
def branch_by_thread(x, out):
    """Every other thread takes the other side."""
    t = cuda.threadIdx.x
    if t % 2 == 0:
        out[t] = x[t] + 1
    else:
        out[t] = x[t] - 1


@cuda.jit
def branch_by_warp(x, out):
    """Every other warp takes the other side."""
    t = cuda.threadIdx.x
    if t // 32 == 0:
        out[t] = x[t] + 1
    else:
        out[t] = x[t] - 1


def test_a_divergent_warp_runs_both_sides():
    x = np.zeros(40, np.float32)
    both = divergence.issued_lines(branch_by_thread, 40, x, x.copy())
    assert [[int(lanes.sum()) for _, lanes in warp] for warp in both] == [[16, 16], [4, 4]]
    assert (both[0][0][1] == (np.arange(32) % 2 == 0)).all()
    one = divergence.issued_lines(branch_by_warp, 40, x, x.copy())
    assert [[int(lanes.sum()) for _, lanes in warp] for warp in one] == [[32], [8]]
    assert one[0][0][0] < one[1][0][0], "each warp has a line of its own"


@pytest.mark.parametrize(
    "batch, launch, limit", [(1, 1e-6, "memory"), (1, 1e-3, "overhead"), (4096, 1e-6, "arithmetic")]
)
def test_a_layer_has_three_limits(batch, launch, limit):
    times = layer_limits.layer_times("A100-40GB", batch, 4096, launch)
    assert max(times, key=times.get) == limit
    drawing = layer_limits.layer_limits("A100-40GB", batch, launch=launch)
    assert drawing.describe().endswith(f"the limit is {limit}")
