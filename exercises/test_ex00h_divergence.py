"""Grader of ex00h: the rotation of points by warps that agree."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.elements import expect_elements, unwritten, vectors
from fa_numba.workbook.graders.meter import (
    expect_chip_memory,
    expect_no_races,
    expect_stores_by,
    expect_traffic,
)

POINTS, THREADS, BUDGET, PAR = 64, 128, 20, 12
INPUTS = "x", "y", "c", "s"


def run(exercise, n):
    x, y, angle = vectors(3, n)
    c, s = np.cos(angle), np.sin(angle)
    out_x, out_y = unwritten(2, n)
    arguments = [a.copy() for a in (x, y, c, s)]
    trace = simt.trace(exercise.kernel, n // POINTS, THREADS, *arguments, out_x, out_y)
    return (x, y, c, s), (out_x, out_y), trace


def check(inputs, outputs):
    x, y, c, s = (a.astype(np.float64) for a in inputs)
    new_x, new_y = c * x - s * y, s * x + c * y
    terms = np.abs(c * x) + np.abs(s * y)
    for name, got, want, other in (
        ("out_x", outputs[0], new_x, new_y),
        ("out_y", outputs[1], new_y, new_x),
    ):
        near = np.abs(got - want) <= 1e-6 * (terms + np.abs(s * x) + np.abs(c * y))
        mistakes = {
            "out_x and out_y are exchanged.": other,
            "It turns the wrong way: the sign of s is wrong.": (
                c * x + s * y if name == "out_x" else c * y - s * x
            ),
        }
        case = f"{len(x)} points"
        expect_elements(np.where(near, want, got), want, name=name, case=case, mistakes=mistakes)


@pytest.mark.parametrize("n", [64, 128, 704])
def test_every_point(exercise, n):
    """every point is rotated by its angle"""
    inputs, outputs, _ = run(exercise, n)
    check(inputs, outputs)


def test_budget(exercise):
    """budget: at most 20 requests per thread block"""
    *_, trace = run(exercise, 2 * POINTS)
    requests = {name: a.load_requests + a.store_requests for name, a in trace.arrays.items()}
    each = sum(requests.values()) / 2
    if each > BUDGET:
        stores = requests["out_x"] + requests["out_y"]
        causes = []
        if stores > 2 * THREADS // 32:
            causes = [
                f"{stores // 2} requests store into out_x and out_y, and there are "
                f"{THREADS // 32} warps: some warps take both sides of the branch."
            ]
        raise Wrong(
            f"{each:g} requests per thread block, the budget is {BUDGET} (par {PAR}): "
            + ", ".join(f"{name} {number / 2:g}" for name, number in requests.items()),
            causes=causes,
            where="requests",
        )


def test_work(exercise):
    """each element is stored once, and no number is loaded more often than by two threads"""
    n = 2 * POINTS
    inputs, outputs, trace = run(exercise, n)
    check(inputs, outputs)
    expect_no_races(trace)
    wanted = {(name, "loads"): (2 * n, "two threads for each point") for name in INPUTS}
    wanted |= {(name, "stores"): (0, f"{name} is an input") for name in INPUTS}
    for name in ("out_x", "out_y"):
        wanted[name, "stores"] = n, "one for each point"
        wanted[name, "loads"] = 0, f"{name} is only written"
    expect_traffic(trace, wanted, less_is_fine=True)
    written = {name: trace.arrays[name] for name in ("out_x", "out_y")}
    expect_stores_by(written, threads=n, why="a thread stores one element of an array")
    expect_chip_memory(trace, allowed="the numbers of a point are registers")


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU"""
    x = np.zeros(POINTS, np.float32)
    gpu_ready(exercise.kernel, (x,) * 6)
