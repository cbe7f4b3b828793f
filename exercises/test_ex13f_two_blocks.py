"""Grader of ex13f: two thread blocks of a cluster, whose waits the engine judges."""

import numpy as np
import pytest

from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.kernels import expect_at_most, launched
from fa_numba.workbook.graders.meter import expect_chip_memory

CAUSES = {  # words of the engine's error -> the mistake
    "more bytes arrive": "full: a block announces all bytes that it gets, whoever copies them.",
    "for ever for full": "full: as many bytes as are announced must arrive; and the parity?",
    "for ever for empty": "empty: all threads of both blocks arrive, at both; and the parity?",
    "without having waited": "A stage is read before wait_full has returned for its copy.",
    "after it has arrived": "Arrive only when nothing of the tile is read any more.",
    "may still read": "A copy begins before both blocks are done with its stage.",
}


def run(make, tiles, TILE=4, clusters=1, seed=0):
    rng = np.random.default_rng(seed)
    k, v = rng.integers(-9, 10, (2, tiles, TILE), dtype=np.int32)
    q = rng.integers(1, 10, (clusters, 2, TILE), dtype=np.int32)
    given = {"q": q, "k": k, "v": v, "out": np.full(q.shape, -999, np.int32)}
    case = f"tiles: {tiles} of {TILE} numbers, clusters: {clusters}"
    try:
        got, trace = launched(make(TILE), clusters, (TILE, 2), ("out",), **given)
    except Exception as error:
        causes = [cause for words, cause in CAUSES.items() if words in str(error)]
        if not causes:
            raise
        raise Wrong(f"{case}: {error}. {causes[0]}", causes=causes, where=case) from None
    return q, k, v, got["out"], trace, case


def check(exercise, tiles, TILE=4, clusters=1):
    q, k, v, out, trace, case = run(exercise.make_kernel, tiles, TILE, clusters)
    products = k * np.roll(v, -1, axis=1)
    want = q * products.sum(axis=0)
    if not np.array_equal(out, want):
        c, rank, i = map(int, np.argwhere(out != want)[0])
        causes = {
            "The last tile is left out.": q * products[:-1].sum(axis=0),
            "The first tiles alone are read.": q * products[:2].sum(axis=0),
            "Both blocks have the queries of block 0.": q[:, :1] * products.sum(axis=0),
        }
        raise Wrong(
            f"{case}: out[{c}, {rank}, {i}] must be {want[c, rank, i]}, got {out[c, rank, i]}",
            causes=[said for said, wrong in causes.items() if np.array_equal(out, out * 0 + wrong)],
            where=f"out[{c}, {rank}, {i}]",
        )
    return trace


@pytest.mark.parametrize("tiles", [1, 2, 3, 4, 5, 12])
def test_tiles(exercise, tiles):
    """every tile is read by both blocks"""
    check(exercise, tiles)


def test_no_tiles(exercise):
    """no tile at all"""
    check(exercise, 0)


@pytest.mark.parametrize("TILE", [1, 2, 33])
def test_threads(exercise, TILE):
    """one thread in a block, and more than a warp"""
    check(exercise, 5, TILE)


def test_clusters(exercise):
    """three clusters, each with queries of its own"""
    check(exercise, 4, clusters=3)


def test_many(exercise):
    """60 tiles, and many numbers"""
    check(exercise, 60, TILE=1)
    check(exercise, 3, TILE=70)


def test_loaded_once(exercise):
    """each number of k and v is loaded once by a cluster: half of what two blocks load alone"""
    *_, trace, _ = run(exercise.make_kernel, 6, clusters=2)
    once = 2 * 6 * 4, "once for each cluster"
    expect_at_most(trace, k_loads=once, v_loads=once, out_stores=(16, "once for each number"))
    allowed = "tiles and bars are given"
    expect_chip_memory(trace, shared=4 * (2 * 2 * 2 * 4 + 2 * 18 * 2), allowed=allowed)


def test_no_barrier_in_the_loop(exercise):
    """the blocks meet at the beginning and at the end, and not for each tile"""
    *_, trace, _ = run(exercise.make_kernel, 9)
    assert trace.barriers <= 2, (
        f"cluster_sync at the beginning and at the end are there already; got {trace.barriers}: "
        "mbarriers do the rest"
    )


def test_broken_as_given(exercise):
    """make_broken is as it was given"""
    with pytest.raises(Wrong, match="more bytes arrive"):
        run(exercise.make_broken, 4)
