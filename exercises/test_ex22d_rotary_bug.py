"""Grader of ex22d: rotary embedding in place and its gradient, against float64."""

import numpy as np
import pytest

from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.training import expect, expect_same

CONTEXT = 300
ALIASED = {
    "left": "left is read after it was changed: that is what `published` computes.",
    "right": "right is read after it was changed.",
}


def table(head_dim, dtype=np.float32):
    angles = np.outer(np.arange(CONTEXT), 100.0 ** (-2 * np.arange(head_dim // 2) / head_dim))
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def turned(x, positions, *, back=False, dtype=np.float64, bug="", pairs=False):
    """The rotation by its definition; `pairs`, and `bug` (the half written first), are mistakes."""
    x, half = x.astype(dtype), x.shape[2] // 2
    c, s = (t[positions][:, None] for t in table(x.shape[2], dtype))
    s = -s if back else s
    left, right = (x[:, :, ::2], x[:, :, 1::2]) if pairs else (x[:, :, :half], x[:, :, half:])
    new_left = left * c - right * s
    new_right = right * c + (new_left if bug == "left" else left) * s
    if bug == "right":
        new_left = left * c - new_right * s
    if pairs:
        return np.stack([new_left, new_right], axis=3).reshape(x.shape)
    return np.concatenate([new_left, new_right], axis=2)


def case(rows=10, heads=3, head_dim=6, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, heads, head_dim), np.float32)
    return x, rng.integers(0, CONTEXT, rows, dtype=np.int32)


def check(function, x, positions, *, back, of):
    cos, sin = table(x.shape[2])
    want, plain = (turned(x, positions, back=back, dtype=d) for d in (np.float64, np.float32))
    mistakes = [
        (ALIASED[half], turned(x, positions, back=back, bug=half)) for half in ("left", "right")
    ]
    mistakes += [
        ("A negative position reads the table from its end: no angle is negative there.",
         turned(x, -positions)),
        ("It turns the other way.", turned(x, positions, back=not back)),
        ("The pairs are x[d] and x[d + half], not neighbours.",
         turned(x, positions, back=back, pairs=True)),
        ("The array is as it was: change it in place.", x.copy()),
    ]  # fmt: skip
    given = positions.copy(), cos.copy(), sin.copy()
    result = function(x, positions, cos, sin)
    assert result is None, f"{of}: it must change its array and return None, got {result!r:.40}"
    name = "dx" if back else "x"
    expect(name, x, want, plain, of=of, mistakes=mistakes)
    for label, now, was in zip(("positions", "cos", "sin"), (positions, cos, sin), given,
                               strict=True):  # fmt: skip
        expect_same(label, now, was)


def test_quarter_turn(exercise):
    """mended: (1, 0) turned by a quarter is (0, 1)"""
    x, zero = np.array([[[1, 0]]], np.float32), np.zeros((1, 1), np.float32)
    exercise.mended(x, np.zeros(1, np.int32), zero, zero + 1)
    got = x.ravel().tolist()
    if not np.allclose(got, [0, 1]):
        causes = [ALIASED["left"] if got == [0, 0] else ALIASED["right"] if got == [-1, 1] else ""]
        said = f"cos 0, sin 1: (1, 0) must become (0, 1), got {got}. {causes[0]}"
        raise Wrong(said.rstrip(), causes=causes)


@pytest.mark.parametrize("rows, heads, head_dim", [(1, 1, 2), (300, 1, 8), (10, 18, 66)])
def test_mended(exercise, rows, heads, head_dim):
    """mended: the rotation of each position"""
    x, positions = case(rows, heads, head_dim)
    check(exercise.mended, x, positions, back=False, of="mended")


def test_lengths(exercise):
    """mended: a rotation keeps lengths"""
    x, positions = case(seed=1)
    before = np.linalg.norm(x, axis=2)
    exercise.mended(x, positions, *table(6))
    after = np.linalg.norm(x, axis=2)
    worst = np.unravel_index(np.abs(after - before).argmax(), before.shape)
    assert np.allclose(before, after, rtol=1e-4), (
        f"position {positions[worst[0]]}: a head of length {before[worst]:.4f} has length "
        f"{after[worst]:.4f} after it"
    )


def test_distance_alone(exercise):
    """mended: a score depends on the distance of query and key alone"""
    rng, scores = np.random.default_rng(2), []
    q, k = rng.standard_normal((2, 8), np.float32)
    for start in range(0, 18, 3):
        x = np.stack([q, k])[:, None].copy()
        exercise.mended(x, np.array([start + 5, start], np.int32), *table(8))
        scores.append(float(x[0, 0] @ x[1, 0]))
    assert np.ptp(scores) <= 1e-4, (
        f"distance 5, keys at 0, 3, 6, ...: scores from {min(scores):.4f} to {max(scores):.4f}"
    )


def test_a_view(exercise):
    """mended: on a view of a larger array, whose other columns stay"""
    together, positions = case(7, 4, 4, seed=3)
    before = together.copy()
    check(exercise.mended, together[:, :3], positions, back=False, of="a view")
    assert np.array_equal(together[:, 3], before[:, 3]), "columns outside of x were changed"


@pytest.mark.parametrize("rows, heads, head_dim", [(1, 1, 2), (10, 3, 6)])
def test_gradient(exercise, rows, heads, head_dim):
    """mended_grad: turns back"""
    dx, positions = case(rows, heads, head_dim, seed=4)
    check(exercise.mended_grad, dx, positions, back=True, of="mended_grad")


def test_there_and_back(exercise):
    """mended_grad after mended: a rotation's transpose is its inverse"""
    x, positions = case(seed=5)
    before, tables = x.copy(), table(6)
    exercise.mended(x, positions, *tables)
    exercise.mended_grad(x, positions, *tables)
    assert np.allclose(x, before, atol=1e-5), (
        f"there and back: off by {np.abs(x - before).max():.3g}"
    )
