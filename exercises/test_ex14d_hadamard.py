"""Grader of ex14d: the rotation, and what it does for attention in 8 bits."""

import numpy as np
import pytest

from fa_numba.analysis import fp8
from fa_numba.workbook.graders.causes import Wrong

SIZES = [1, 2, 4, 16, 64, 128, 256]


def matrix(d):
    """H / √d, written out."""
    h = np.ones((1, 1))
    while len(h) < d:
        h = np.block([[h, h], [h, -h]])
    return h / np.sqrt(d)


def random_signs(d, seed=0):
    return np.random.default_rng(seed).choice(np.array([-1.0, 1.0]), d)


def random_x(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape)


def close(got, want, what, mistakes=()):
    """Fail where two arrays differ; `mistakes` are pairs (sentence, its result)."""
    assert np.shape(got) == want.shape, f"{what}: shape must be {want.shape}, got {np.shape(got)}"
    limit = 1e-12 * max(1.0, np.abs(want).max(initial=0))
    bad = np.argwhere(~(np.abs(got - want) <= limit))
    if len(bad):
        place = tuple(map(int, bad[0]))
        flipped = [(-1) ** j.bit_count() for j in range(want.shape[-1])]
        mistakes = [
            *mistakes,
            ("The second half is a − b, not b − a.", want * flipped),
            ("The division by √d is missing.", want * np.sqrt(want.shape[-1])),
            ("It is divided by d, not by √d.", want / np.sqrt(want.shape[-1])),
        ]
        causes = [said for said, result in mistakes if (np.abs(got - result) <= 10 * limit).all()]
        raise Wrong(
            f"{what}: {list(place)} must be {want[place]:.6g}, got {got[place]:.6g}; {len(bad)} of "
            f"{want.size} differ. {''.join(causes[:1])}".rstrip(),
            causes=causes,
            where=f"{what}, {list(place)}",
        )


def test_two(exercise):
    """d = 2: (a, b) becomes (a + b, a − b) / √2"""
    got = exercise.hadamard(np.array([3.0, 1.0])) * np.sqrt(2)
    assert np.allclose(got, [4, 2], rtol=1e-12), f"(3, 1) must become (4, 2) / √2, got {got} / √2"


def test_four(exercise):
    """d = 4: each row of H, in order"""
    for i in range(4):
        x = np.zeros(4)
        x[i] = 2
        got, want = exercise.hadamard(x), 2 * matrix(4)[i]
        assert np.allclose(got, want), f"2 in place {i} must become {want}, got {got}"


@pytest.mark.parametrize("d", SIZES)
def test_hadamard(exercise, d):
    """any power of two, as the matrix written out says"""
    x = random_x(5, d)
    close(exercise.hadamard(x), x @ matrix(d), f"x H / √d, d = {d}")


SHAPES = [(8,), (300, 8), (2, 5, 3, 16), (0, 4)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_any_shape(exercise, shape):
    """any number of axes: the last one is rotated"""
    x = random_x(*shape)
    got = exercise.hadamard(x)
    assert got.shape == shape, f"shape must be {shape}, got {got.shape}"
    close(got, x @ matrix(shape[-1]), f"x H / √d of shape {shape}")


@pytest.mark.parametrize("d", SIZES)
def test_rotate(exercise, d):
    """rotate: first the signs, then H"""
    x, signs = random_x(6, d), random_signs(d)
    H = matrix(d)
    mistakes = [
        ("rotate: the signs come first, then H.", (x @ H) * signs),
        ("rotate: the signs are missing.", x @ H),
        ("rotate: H is missing.", x * signs),
    ]
    what = f"x · signs, then H / √d, d = {d}"
    close(exercise.rotate(x, signs), (x * signs) @ H, what, mistakes)


@pytest.mark.parametrize("d", SIZES)
def test_there_and_back(exercise, d):
    """unrotate undoes rotate, in either order"""
    x, signs, H = random_x(6, d), random_signs(d), matrix(d)
    first = "unrotate goes back in the other order: H first, then the signs."
    none = "unrotate: the signs are missing."
    got = exercise.unrotate(exercise.rotate(x, signs), signs)
    mistakes = [(first, (x * signs) @ H * signs @ H), (none, x * signs)]
    close(got, x, "unrotate(rotate(x))", mistakes)
    got = exercise.rotate(exercise.unrotate(x, signs), signs)
    mistakes = [(first, (x * signs) @ H * signs @ H), (none, (x @ H * signs) @ H)]
    close(got, x, "rotate(unrotate(x))", mistakes)


def test_lengths_and_scores_stay(exercise):
    """orthogonal: lengths, and Q Kᵀ, stay what they are"""
    q, k = random_x(2, 40, 128)
    signs = random_signs(128)
    q_rotated, k_rotated = exercise.rotate(q, signs), exercise.rotate(k, signs)
    close((q_rotated**2).sum(axis=1), (q**2).sum(axis=1), "squared lengths")
    close(q_rotated @ k_rotated.T, q @ k.T, "Q Kᵀ")


def test_outlier(exercise):
    """one outlier is spread evenly over the row"""
    x = np.zeros(64)
    x[37] = 16
    got = np.abs(exercise.rotate(x, random_signs(64)))
    assert np.allclose(got, 2), f"16 in one place becomes ±2 in all 64, got {np.unique(got)}"


def test_signs_matter(exercise):
    """a constant row: H alone makes an outlier of it, the signs prevent that"""
    x = np.ones(64)
    alone = np.abs(exercise.rotate(x, np.ones(64))).max()
    signed = np.abs(exercise.rotate(x, random_signs(64))).max()
    assert np.isclose(alone, 8), f"64 ones without signs become one 8 and zeros, got {alone:.3g}"
    assert signed < 5, (
        f"64 ones with random signs must spread, at most 5, got {signed:.3g}: the signs come first"
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype(exercise, dtype):
    """the dtype of x, also with integer signs"""
    x, signs = random_x(3, 32).astype(dtype), random_signs(32).astype(int)
    for name in ("rotate", "unrotate"):
        got = getattr(exercise, name)(x, signs).dtype
        assert got == dtype, f"{name}: {np.dtype(dtype)} in, {got} out"
    got = exercise.hadamard(x).dtype
    assert got == dtype, f"hadamard: {np.dtype(dtype)} in, {got} out"


def test_inputs_unchanged(exercise):
    """x and signs stay as they are; a view or a read-only array will do"""
    whole, signs = random_x(6, 64), random_signs(32)
    x = whole[::2, 16:48]
    before = whole.copy()
    whole.flags.writeable = signs.flags.writeable = False
    close(exercise.rotate(x, signs), (x * signs) @ matrix(32), "rotate of a view")
    exercise.hadamard(x)
    exercise.unrotate(x, signs)
    assert (whole == before).all(), "x was changed"


@pytest.mark.parametrize("name", ["hadamard", "rotate", "unrotate"])
def test_long_rows(exercise, name):
    """rows of 2^18: no (d, d) matrix, which would have 2^36 elements, and no d^2 additions"""
    d = 2**18
    i, j = 123_457, np.arange(d)
    x, signs = np.zeros(d), random_signs(d)
    x[i] = 512
    ones = i & j
    for half in (16, 8, 4, 2, 1):
        ones = ones ^ ones >> half  # the parity of the bits, in the lowest
    want = np.where(ones & 1, -1.0, 1.0)
    if name == "hadamard":
        got = exercise.hadamard(x)
    else:
        got = getattr(exercise, name)(x, signs)
        want *= signs[i] if name == "rotate" else signs
    close(got, want, f"{name} of 512 in place {i}, d = 2^18")


def test_float32(exercise):
    """float32 as exact as float32 is"""
    x, signs = random_x(5, 256), random_signs(256)
    got = exercise.rotate(x.astype(np.float32), signs)
    error = np.abs(got - (x * signs) @ matrix(256)).max()
    assert error <= 4e-6, f"float32 in: off by {error:.2g}, at most 4e-6"


def test_fp8(exercise):
    """attention in e4m3 with outliers: at most three quarters of the error"""
    squares = np.zeros(2)
    signs = random_signs(128)
    for seed in range(4):
        q, k, v = fp8.with_outliers(np.random.default_rng(seed), 3, 1024, 128)
        exact = fp8.attention(q, k, v)
        rotated = exercise.rotate(q, signs), exercise.rotate(k, signs)
        squares[0] += fp8.rmse(fp8.attention_e4m3(q, k, v), exact) ** 2
        squares[1] += fp8.rmse(fp8.attention_e4m3(*rotated, v), exact) ** 2
    plain, after = np.sqrt(squares / 4)
    assert after <= 0.75 * plain, (
        f"RMSE of out {plain:.2e} with Q and K as they are: rotated at most 0.75 times that, got "
        f"{after:.2e}"
    )
