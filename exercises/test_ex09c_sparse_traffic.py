"""Grader of ex09c: elements that block-sparse FlashAttention-1 moves."""

import functools

import numpy as np
import pytest

import fa_numba
from fa_numba import simt
from fa_numba.workbook.graders.causes import Wrong

NAMES = "q", "k", "v", "out", "l", "m"
SHAPE = 24, 32
MASKS = {
    "all": lambda m, n: m >= 0,
    "none": lambda m, n: m < 0,
    "causal": lambda m, n: n <= m + 8,
    "window": lambda m, n: (n <= m + 8) & (n > m),
    "one pair in each tile": lambda m, n: (m % 4 == 1) & (n % 8 == 3),
    "one tile": lambda m, n: (m // 8 == 1) & (n // 8 == 2),
    "first keys and neighbours": lambda m, n: (n < 2) | (abs(m - n) < 3),
    "random": lambda m, n: np.random.default_rng(0).random(m.shape) < 0.02,
}


def mask_of(name, shape=SHAPE):
    return MASKS[name](*np.indices(shape))


@functools.cache
def metered(name, shape, BLOCK_M, BLOCK_N, HEAD_DIM):
    """What flash_attn_v1 moves with this mask: tiles are live by a loop over them."""
    sees, (seqlen_q, seqlen_k) = mask_of(name, shape), shape
    live = np.array([
        [sees[i : i + BLOCK_M, j : j + BLOCK_N].any() for j in range(0, seqlen_k, BLOCK_N)]
        for i in range(0, seqlen_q, BLOCK_M)
    ])  # fmt: skip
    lengths = seqlen_q, seqlen_k, seqlen_k
    q, k, v = (np.ones((1, length, 1, HEAD_DIM), np.float32) for length in lengths)
    with simt.tracing() as traces:
        fa_numba.flash_attn_v1(q, k, v, block_mask=live, block_m=BLOCK_M, block_n=BLOCK_N)
    arrays = traces[0].arrays
    return {name: arrays[name].loads + arrays[name].stores for name in NAMES}, live


def check(exercise, name, BLOCK_M, BLOCK_N, HEAD_DIM, shape=SHAPE):
    want, live = metered(name, shape, BLOCK_M, BLOCK_N, HEAD_DIM)
    got = exercise.elements_moved(mask_of(name, shape), BLOCK_M, BLOCK_N, HEAD_DIM)
    assert isinstance(got, dict) and set(got) == set(NAMES), (
        f"return a dict with the keys {', '.join(NAMES)}, got {got!r}"
    )
    for array in NAMES:
        if got[array] != want[array]:
            case = f"mask “{name}”, tiles of {BLOCK_M} x {BLOCK_N}, HEAD_DIM={HEAD_DIM}"
            raise Wrong(
                f"{case}: {live.sum()} live tiles in {live.any(axis=0).sum()} columns. The meter "
                f"shows {want[array]} elements of {array}, predicted are {got[array]}",
                causes=causes(array, got[array], live, BLOCK_M, BLOCK_N, HEAD_DIM),
                where=f"{array}, {case}",
            )


def causes(array, got, live, BLOCK_M, BLOCK_N, HEAD_DIM):
    """Of a wrong number, by the numbers of some mistakes."""
    width = 1 if array in ("l", "m") else HEAD_DIM
    loads = live.any(axis=0).sum() * BLOCK_N if array in ("k", "v") else live.sum() * BLOCK_M
    times = 2 if array in ("out", "l", "m") else 1
    for mistake, number in (
        (f"{array} is loaded and stored.", loads * width),
        ("A tile of K and V is loaded once for its column, not for each live tile.",
         live.sum() * BLOCK_N * width),
        ("Dead tiles are counted, too.", times * live.size * BLOCK_M * width),
        ("A column without a live tile is not loaded.", live.shape[1] * BLOCK_N * width),
        ("These are bytes: count elements.", 4 * times * loads * width),
    ):  # fmt: skip
        if got == number:
            return [mistake]
    return []


@pytest.mark.parametrize("name", MASKS)
def test_masks(exercise, name):
    """the prediction is what the meter shows, array by array"""
    check(exercise, name, 4, 8, 6)


@pytest.mark.parametrize("BLOCK_M, BLOCK_N, HEAD_DIM", [(8, 8, 4), (12, 4, 1), (24, 32, 3)])
def test_tiles(exercise, BLOCK_M, BLOCK_N, HEAD_DIM):
    """other tiles, other live tiles"""
    for name in ("causal", "random"):
        check(exercise, name, BLOCK_M, BLOCK_N, HEAD_DIM)


def test_many_tiles(exercise):
    """eleven large tiles of queries, or of keys; a wide head"""
    check(exercise, "random", 72, 4, 1, (792, 4))
    check(exercise, "random", 4, 72, 1, (4, 792))
    check(exercise, "one tile", 8, 8, 131)


def test_mask_unchanged(exercise):
    """sees stays as it is"""
    sees = mask_of("causal")
    exercise.elements_moved(sees, 4, 8, 6)
    assert np.array_equal(sees, mask_of("causal")), "sees is an input, but it was changed"
