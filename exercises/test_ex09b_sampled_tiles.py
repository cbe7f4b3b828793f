"""Grader of ex09b: a mask that fools five points of a tile, and the right class of a tile."""

import numpy as np
import pytest

from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.loops import expect_no_loop

NAMES = "HIDDEN", "MIXED", "WHOLE"
MASKS = {
    "causal": lambda m, n: n <= m,
    "a window": lambda m, n: (n <= m) & (m - n < 9),
    "dilated": lambda m, n: (n <= m) & ((m - n) % 7 == 0),
    "everything": lambda m, n: m >= 0,
    "nothing": lambda m, n: m < 0,
    "one pair in each tile": lambda m, n: (m % 8 == 3) & (n % 6 == 4),
    "all but one pair in each tile": lambda m, n: (m % 8 != 5) | (n % 6 != 2),
    "neighbours of an image": lambda m, n: (abs(m // 8 - n // 8) <= 1) & (abs(m % 8 - n % 8) <= 1),
}


def five_points(step, BLOCK):
    """m - n of the points that broken_class looks at, by whether they are seen."""
    return [distance % step == 0 for distance in (1, BLOCK, 2 * BLOCK - 1)]


@pytest.mark.parametrize("BLOCK", [3, 4, 5, 8, 16, 100, 128, 1000, 10**6])
def test_fooling_step(exercise, BLOCK):
    """fooling_step: the five points see nothing, and a query sees a key"""
    step = exercise.fooling_step(BLOCK)
    assert type(step) is int and step >= 1, f"BLOCK = {BLOCK}: a step is an int >= 1, got {step!r}"
    if any(five_points(step, BLOCK)):
        raise Wrong(
            f"BLOCK = {BLOCK}, step {step}: m - n is 1, {BLOCK} and {2 * BLOCK - 1} at the five "
            f"points, and {step} divides one of them, so that broken_class does not skip the tile",
            causes=["One of the five points sees its key: the tile is not skipped."],
        )
    if step > 2 * BLOCK - 1:
        raise Wrong(
            f"BLOCK = {BLOCK}, step {step}: m - n is at most {2 * BLOCK - 1} in the tile, so that "
            "no query of it sees a key, and broken_class is right",
            causes=["No query of the tile sees a key: the tile is hidden."],
        )


def check(exercise, name, BLOCK_M, BLOCK_N, shape, mask=None):
    sees = (mask or MASKS[name])(*np.indices(shape))
    for m in range(0, shape[0], BLOCK_M):
        for n in range(0, shape[1], BLOCK_N):
            tile = sees[m : m + BLOCK_M, n : n + BLOCK_N]
            want = 0 if not tile.any() else 2 if tile.all() else 1
            got = exercise.tile_class(sees, m, n, BLOCK_M, BLOCK_N)
            if got != want:
                said = NAMES[got] if got in (0, 1, 2) else repr(got)
                sampled = {bool(tile[i, j]) for i in (0, -1) for j in (0, -1)}
                raise Wrong(
                    f"mask “{name}”, tile of queries {m} to {m + BLOCK_M - 1} and keys {n} to "
                    f"{n + BLOCK_N - 1}: {tile.sum()} of {tile.size} pairs are seen, so that it is "
                    f"{NAMES[want]}, got {said}",
                    causes=["The corners do not tell what is between them."]
                    if len(sampled) == 1 else [],
                    where=f"mask “{name}”",
                )  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
def test_tile_class(exercise, name):
    """tile_class: the class of every tile agrees with its pairs"""
    check(exercise, name, 8, 6, (40, 36))


@pytest.mark.parametrize("BLOCK_M, BLOCK_N, shape", [
    (1, 1, (7, 9)), (16, 3, (48, 33)), (5, 11, (65, 44)), (300, 4, (3300, 8)), (4, 300, (8, 3300)),
])  # fmt: skip
def test_tile_size(exercise, BLOCK_M, BLOCK_N, shape):
    """tile_class: any size of the tile"""
    for name in ("one pair in each tile", "all but one pair in each tile", "dilated"):
        check(exercise, name, BLOCK_M, BLOCK_N, shape)

    def late(m, n):
        return (m % BLOCK_M == BLOCK_M * 7 // 8) & (n % BLOCK_N == BLOCK_N * 7 // 8)

    check(exercise, "one pair in each tile, in its last quarter", BLOCK_M, BLOCK_N, shape, late)


def test_no_loop(exercise):
    """no loop over the pairs of a tile"""
    sees = np.ones((600, 600), bool)
    expect_no_loop(exercise.tile_class, sees, 0, 0, 600, 600, over="the pairs of a tile")
    expect_no_loop(exercise.fooling_step, 10**6, over="steps")


def test_mask_unchanged(exercise):
    """sees stays as it is"""
    sees = MASKS["dilated"](*np.indices((16, 16)))
    before = sees.copy()
    exercise.tile_class(sees, 8, 0, 8, 8)
    assert np.array_equal(sees, before), "sees is an input, but it was changed"
