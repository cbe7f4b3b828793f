"""Grader of ex06a: one tile's update of out, l and m."""

import numpy as np
import pytest

from fa_numba.workbook.graders.attention import (
    expect_close,
    expect_unchanged,
    large_scores,
    low_scores,
    ordered_scores,
    random_head,
    steep_scores,
)
from fa_numba.workbook.graders.mistakes import forward_mistakes


def start(rows, head_dim):
    """out, l, m before the first tile."""
    zeros = np.zeros((rows, head_dim), np.float32), np.zeros(rows, np.float32)
    return *zeros, np.full(rows, -np.inf, np.float32)


def walk(exercise, s, v, tile, order=1):
    """Feed the columns of s to tile_update, `tile` at a time; return out, l, m."""
    state = start(len(s), v.shape[1])
    for n in range(0, s.shape[1], tile)[::order]:
        state = update(exercise, s[:, n : n + tile], v[n : n + tile], *state)
    return state


def update(exercise, *arguments):
    """The learner's tile_update, held to three arrays."""
    with np.errstate(all="ignore"):  # a warning is no wrong answer
        state = exercise.tile_update(*arguments)
    three = isinstance(state, (tuple, list)) and len(state) == 3
    assert three, f"return out, l, m: three arrays, got {_short(state)}"
    for name, x in zip(("out", "l", "m"), state, strict=True):
        assert isinstance(x, np.ndarray), f"{name} must be an array, got {_short(x)}"
    return tuple(state)


def _short(x):
    return "None: is a return missing?" if x is None else f"a {type(x).__name__}"


def check(head, state, seen=slice(None), *, tile=4):
    """Compare with attention over the keys in `seen`, which came `tile` at a time."""
    answers = []
    for precision in (head, head.plain):
        s, v = precision.scores[:, seen], precision.v[seen].astype(precision.dtype)
        m = s.max(axis=1)
        p = np.exp(s - np.where(np.isneginf(m), 0, m)[:, None])
        l = p.sum(axis=1)
        answers.append((p @ v / np.where(l > 0, l, 1)[:, None], l, m))
    for name, got, want, plain in zip(("out", "l", "m"), state, *answers, strict=True):
        assert got.shape == want.shape, f"{name} must have shape {want.shape}, got {got.shape}"
        mistakes = forward_mistakes(head, len(want), tile) if seen == slice(None) else ()
        expect_close(name, got, want, plain, tile=len(want), mistakes=mistakes)


def scores(head):
    return head.plain.scores, head.v


def test_one_tile(exercise):
    """the first tile alone gives plain softmax"""
    head = random_head(6, 8, 5)
    check(head, walk(exercise, *scores(head), tile=8), tile=8)


def test_two_tiles(exercise):
    """two tiles give the softmax of both"""
    head = random_head(6, 16, 131)
    check(head, walk(exercise, *scores(head), tile=8), tile=8)


@pytest.mark.parametrize("tile", [1, 3, 7, 20])
def test_tile_width(exercise, tile):
    """the width of the tile does not change the answer"""
    head = random_head(6, 20, 5)
    check(head, walk(exercise, *scores(head), tile=tile), tile=tile)


def test_tile_order(exercise):
    """the order of the tiles does not change the answer"""
    head = random_head(6, 24, 5)
    check(head, walk(exercise, *scores(head), tile=4, order=-1))


def test_always_normalised(exercise):
    """after every tile out is a finished softmax over the keys seen so far"""
    head = random_head(6, 24, 5)
    s, v = scores(head)
    state = start(6, 5)
    for n in range(0, 24, 4):
        state = update(exercise, s[:, n : n + 4], v[n : n + 4], *state)
        check(head, state, slice(0, n + 4))


def test_ascending_scores(exercise):
    """a new maximum in every tile rescales what was summed before"""
    head = ordered_scores()
    check(head, walk(exercise, *scores(head), tile=4))


def test_large_scores(exercise):
    """stable at scores of 1e4 and -1e4"""
    head = large_scores()
    check(head, walk(exercise, *scores(head), tile=4))


def test_masked_keys(exercise):
    """a masked key (-inf) has no weight"""
    head = random_head(12, 24, 5, causal=True)
    check(head, walk(exercise, *scores(head), tile=4))


def test_masked_tile(exercise):
    """a tile that is masked out completely changes nothing"""
    head = random_head(6, 8, 5)
    before = walk(exercise, *scores(head), tile=8)
    masked = np.full((6, 4), -np.inf, np.float32)
    after = update(exercise, masked, np.ones((4, 5), np.float32), *before)
    for name, x, y in zip(("out", "l", "m"), before, after, strict=True):
        expect_close(name, y, x, x, tile=6)


def test_rows_that_see_no_key(exercise):
    """a row that sees no key stays at out = 0, l = 0, m = -inf, beside rows that do"""
    head = random_head(12, 5, 5, causal=True)  # rows 0 to 6 see nothing
    check(head, walk(exercise, *scores(head), tile=2))


@pytest.mark.parametrize("lowest", [-2e4, -2e9, -2e30])
def test_low_scores(exercise, lowest):
    """scores far below 0 are scores: only -inf is masked, in rows that are not masked and beside"""
    head = low_scores(lowest)
    check(head, walk(exercise, *scores(head), tile=8))
    s, v = scores(head)
    s[3] = -np.inf
    out, l, m = walk(exercise, s, v, tile=8)
    assert not out[3].any() and l[3] == 0 and m[3] == -np.inf, (
        f"a masked row beside scores of {lowest:g} must keep out = 0, l = 0, m = -inf, got "
        f"{out[3, 0]}, {l[3]}, {m[3]}"
    )


def test_steep_scores(exercise):
    """a key far below the maximum counts, where its value is large"""
    head = steep_scores()
    for tile in (4, 8):
        check(head, walk(exercise, *scores(head), tile=tile), tile=tile)
        check(head, walk(exercise, *scores(head), tile=tile, order=-1), tile=tile)


@pytest.mark.parametrize("rows, cols", [(4_000_000, 2), (2, 10_000_000)])
def test_large_tiles(exercise, rows, cols):
    """millions of rows or columns at once: NumPy walks them, and no Python loop"""
    rng = np.random.default_rng(0)
    times = rows // 1000 or 1  # rows that repeat are quicker to check
    some = rng.standard_normal((rows // times, cols), np.float32)
    v = rng.standard_normal((cols, 1), np.float32)
    out, l, m = update(exercise, np.tile(some, (times, 1)), v, *start(rows, 1))
    p = np.exp(some.astype(np.float64) - some.max(axis=1, keepdims=True))
    want = (p @ v)[:, 0] / p.sum(axis=1), p.sum(axis=1), some.max(axis=1)
    for name, got, x in zip(("out", "l", "m"), (out, l, m), want, strict=True):
        error = np.abs(np.reshape(got, (times, -1)) - x).max()
        allowed = 1e-5 * np.abs(x).max() + 1e-5
        assert error <= allowed, f"{rows} rows of {cols} columns: {name} is off by {error:.2g}"


def test_inputs_unchanged(exercise):
    """the arguments stay as they are, and no argument is returned as if it were new"""
    head = random_head(4, 12, 3)
    s, v = scores(head)
    masked = np.full((4, 4), -np.inf, np.float32)
    some = s[:, 8:].copy()
    some[1], some[2:, 1] = -np.inf, -np.inf
    for tile in (s[:, 8:], masked, some):
        out, l, m = (x.copy() for x in walk(exercise, s[:, :8], v[:8], tile=4))
        inputs = {"s": tile.copy(), "v": v[8:].copy(), "out": out, "l": l, "m": m}
        before = {name: x.copy() for name, x in inputs.items()}
        after = update(exercise, *inputs.values())
        expect_unchanged(before, inputs)
        for x in after:
            x[...] = -7
        for name, x in before.items():
            assert (x == inputs[name]).all(), (
                f"what is returned shares its memory with the argument {name}: return new arrays"
            )


def test_float32(exercise):
    """float32 in, float32 out"""
    head = random_head(4, 12, 3)
    for name, x in zip(("out", "l", "m"), walk(exercise, *scores(head), tile=4), strict=True):
        assert x.dtype == np.float32, f"{name} must stay float32, as on the GPU; got {x.dtype}"
