"""Grader of ex13e: a producer and its consumers in a kernel, whose waits the engine judges."""

import numpy as np
import pytest

from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.kernels import expect_at_most, launched
from fa_numba.workbook.graders.meter import expect_chip_memory

PRODUCERS = 32  # threads of the first warp
SECONDS_PER_CHECK = 5.0  # 260 tiles take our solution one, on a busy machine two
CAUSES = {  # words of the engine's error -> the mistake
    "for ever for full": "full: the copy of this use ends the phase use = tile // NUM_STAGES.",
    "for ever for empty": "empty: all consumers arrive, once for each tile; and the parity?",
    "without having waited": "A stage is read before wait_full has returned for its copy.",
    "after its arrival": "A consumer gives the stage back before it has read.",
    "arrives too often": "Each consumer arrives once for each tile, and nobody else.",
    "may still read": "A copy begins before wait_empty has returned for the reads of its stage.",
    "has not so many": "The neighbour of the last element is the first: (i + 1) % TILE.",
}


def run(exercise, tiles, stages, TILE=6, blocks=1, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.integers(1, 99, (blocks, tiles, TILE), dtype=np.int32)
    given = {"x": x, "out": np.full((blocks, TILE), -9, np.int32)}
    given["log"] = np.full((blocks, tiles), -9, np.int32)
    case = f"tiles: {tiles}, stages: {stages}, consumers: {TILE}"
    kernel = exercise.make_kernel(TILE, stages)
    try:
        got, trace = launched(kernel, blocks, PRODUCERS + TILE, ("out", "log"), **given)
    except Exception as error:
        causes = [cause for words, cause in CAUSES.items() if words in str(error)]
        if not causes:
            raise
        raise Wrong(f"{case}: {error}. {causes[0]}", causes=causes, where=case) from None
    return x, got["out"], got["log"], trace, case


def check(exercise, tiles, stages, TILE=6, blocks=1):
    x, out, log, trace, case = run(exercise, tiles, stages, TILE, blocks)
    products = x * np.roll(x, -1, axis=2)
    want = products.sum(axis=1)
    if not np.array_equal(out, want):
        b, i = map(int, np.argwhere(out != want)[0])
        causes = {
            "Each element is multiplied by itself, not by its neighbour.": (x * x).sum(axis=1),
            "The neighbour is that to the right, i + 1.": np.roll(products, 1, axis=2).sum(axis=1),
            "The elements are added, not multiplied.": (x + np.roll(x, -1, axis=2)).sum(axis=1),
        }
        raise Wrong(
            f"{case}: out[{b}, {i}] must be {want[b, i]}, got {out[b, i]}",
            causes=[said for said, wrong in causes.items() if np.array_equal(out, wrong)],
            where=f"out[{b}, {i}]",
        )
    ahead = np.maximum(np.arange(tiles) - stages + 1, 0)
    if not (log == ahead).all():
        b, t = map(int, np.argwhere(log != ahead)[0])
        said = "was never copied" if log[b, t] == -9 else f"started when {log[b, t]} had been read"
        raise Wrong(
            f"{case}: the copy of tile {t} must start when {ahead[t]} tiles have been read by all, "
            f"but {said}",
            causes=["Another tile is copied than the one that `produce` is called for."],
            where=f"tile {t}",
        )
    return trace


@pytest.mark.parametrize("tiles, stages", [(1, 1), (5, 1), (2, 2), (7, 2), (10, 3), (9, 4)])
def test_ring(exercise, tiles, stages):
    """every tile is read, through rings of several stages"""
    check(exercise, tiles, stages)


@pytest.mark.parametrize("tiles, stages", [(1, 3), (2, 5), (4, 9)])
def test_more_stages_than_tiles(exercise, tiles, stages):
    """more stages than tiles: nobody copies a tile that does not exist"""
    check(exercise, tiles, stages)


def test_several_warps(exercise):
    """two warps of consumers, two thread blocks"""
    check(exercise, 6, 2, TILE=64, blocks=2)


def test_many(exercise):
    """260 tiles through three stages, and 13 through eleven"""
    check(exercise, 260, 3, TILE=2)
    check(exercise, 13, 11, TILE=2)


def test_no_barrier_in_the_loop(exercise):
    """no further barrier of the thread block, and no other array"""
    *_, trace, _ = run(exercise, 8, 3)
    assert trace.barriers <= 1, (
        f"one barrier, behind init, is there already; got {trace.barriers}: mbarriers do the rest"
    )
    allowed = "ring and bars are given"
    expect_chip_memory(trace, shared=4 * 3 * (6 + 4 + 3 * (PRODUCERS + 6)), allowed=allowed)


def test_copied_once(exercise):
    """each tile is copied once"""
    *_, trace, _ = run(exercise, 8, 3)
    expect_at_most(trace, x_loads=(48, "once for each number"), out_stores=(6, "one for each"))
