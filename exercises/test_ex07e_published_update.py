"""Grader of ex07e: a published update of acc with two bugs."""

import math

import numpy as np

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import (
    expect_close,
    expect_guard,
    expect_unchanged,
    guarded,
)
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_traffic
from fa_numba.workbook.graders.mistakes import forward_mistakes
from fa_numba.workbook.graders.rows import (
    head_of_scores,
    low_scores,
    random_scores,
    row_mistakes,
    sloping_scores,
)
from fa_numba.workbook.graders.tiles import expect_float32

HISTORY = ("m_after", "l_after", "acc_after")


def launch(exercise, head, make="make_kernel"):
    """Outputs with their guards, and the trace."""
    rows, head_dim = head.dout.shape
    tiles = len(head.k) // exercise.TILE
    shapes = {"out": (rows, head_dim), "m_after": (rows, tiles), "l_after": (rows, tiles)}
    shapes["acc_after"] = (rows, tiles, head_dim)
    outputs = {name: guarded(*shape) for name, shape in shapes.items()}
    kernel, arrays = getattr(exercise, make)(head_dim), [array for array, _ in outputs.values()]
    trace = simt.trace(kernel, math.ceil(rows / 32), 32, head.q, head.v, *arrays)
    return outputs, trace


def true_history(head, tile, dtype=np.float64):
    """m, l and acc after each tile, from the definition."""
    s, v = head.q.astype(dtype), head.v.astype(dtype)
    ends = range(tile, s.shape[1] + 1, tile)
    m = np.stack([s[:, :end].max(axis=1) for end in ends], axis=1)
    p = [np.exp(s[:, :end] - m[:, t, None]) for t, end in enumerate(ends)]
    l = np.stack([x.sum(axis=1) for x in p], axis=1)
    acc = np.stack([x @ v[: x.shape[1]] for x in p], axis=1)
    return dict(zip(HISTORY, (m, l, acc), strict=True))


def check(exercise, head):
    """Compare out, then the history tile by tile."""
    outputs, _ = launch(exercise, head)
    tile = exercise.TILE
    want, plain = head.forward["out"], head.plain.forward["out"]
    mistakes = [*row_mistakes(head, tile), *forward_mistakes(head, 1, tile)]
    expect_close("out", outputs["out"][0], want, plain, tile=1, factor=4, mistakes=mistakes)
    truth, plain = true_history(head, tile), true_history(head, tile, np.float32)
    for name in HISTORY:
        got, want = outputs[name][0], truth[name]
        error = 4 * np.abs(plain[name] - want).max() + 1e-5 * np.maximum(1, np.abs(want))
        wrong = np.argwhere(~(np.abs(got - want) <= error))
        if len(wrong):
            at = tuple(int(i) for i in wrong[np.argmin(wrong[:, 1])])
            raise Wrong(
                f"{name}{list(at)} must be {want[at]:.6g}, got {got[at]:.6g}: the first wrong tile "
                f"is {at[1]}",
                causes=[f"{name} must hold the state after the tile, acc not divided by l."],
                where=f"{name}{list(at)}",
            )


def test_ascending(exercise):
    """scores that ascend, so that every tile has a new maximum: 6 tiles of keys, and 65"""
    check(exercise, sloping_scores(2, 24, 3))
    check(exercise, sloping_scores(2, 260, 3))


def test_random(exercise):
    """random scores, 300 rows: more than nine thread blocks have threads"""
    check(exercise, random_scores(300, 12, 2))


def test_one_tile(exercise):
    """a single tile: acc is divided once, and has 3 columns or 128"""
    check(exercise, random_scores(3, 4, 3))
    check(exercise, random_scores(3, 4, 128))


def test_descending(exercise):
    """scores that descend, where the first tile has the maximum"""
    check(exercise, head_of_scores(np.tile(np.linspace(6, -6, 20), (2, 1)), 3))


def test_ones(exercise):
    """values that are all 1: acc equals l after each tile, and out is 1"""
    head = random_scores(4, 20, 2, seed=3)
    head.v[:] = 1
    check(exercise, head)


def test_large_scores(exercise):
    """scores of 1e4 and -1e4, and a maximum of 0 far above the others"""
    check(exercise, random_scores(4, 16, 2, size=4e3))
    check(exercise, low_scores(4, 16, 2))


def test_published_kernel(exercise):
    """published_kernel is as it was given: wrong in acc, right in m and l"""
    head = sloping_scores(2, 16, 2)
    outputs, _ = launch(exercise, head, "make_published_kernel")
    truth = true_history(head, exercise.TILE)
    right = [np.allclose(outputs[name][0], truth[name], rtol=1e-4) for name in HISTORY]
    assert right == [True, True, False], "published_kernel is to stay: write make_kernel"


def test_traffic(exercise):
    """each thread reads its row and v, stores the rest, has HEAD_DIM floats, computes in float32"""
    head = random_scores(4, 16, 2)
    outputs, trace = launch(exercise, head)
    assert trace.arrays["s"].loads <= 2 * head.q.size, "each score is loaded twice at most"
    wanted = {(name, "loads"): (0, "it is only written") for name in outputs}
    expect_traffic(trace, wanted)
    expect_chip_memory(trace, local=4 * 2, allowed="acc has HEAD_DIM floats")
    expect_float32(trace)


def test_nothing_else(exercise):
    """s and v are left as they were, and nothing is written beside the outputs"""
    head = random_scores(5, 12, 2)
    before = {"s": head.q.copy(), "v": head.v.copy()}
    outputs, _ = launch(exercise, head)
    expect_unchanged(before, {"s": head.q, "v": head.v})
    for name, (_, larger) in outputs.items():
        expect_guard(name, larger)


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without float64"""
    x = np.zeros((4, 4), np.float32)
    gpu_ready(exercise.make_kernel(4), (x, x, x, x, x, np.zeros((4, 1, 4), np.float32)))
