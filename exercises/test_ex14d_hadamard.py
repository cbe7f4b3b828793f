"""Grader of ex14d: the rotation in a kernel, and what it does for attention in 8 bits."""

import math

import numpy as np
import pytest

from fa_numba.analysis import fp8
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.kernels import expect_at_most, launched
from fa_numba.workbook.graders.meter import expect_chip_memory

SIZES = [1, 2, 4, 16, 32, 64, 128, 256, 1024]


def matrix(d):
    """H / √d, written out."""
    h = np.ones((1, 1))
    while len(h) < d:
        h = np.block([[h, h], [h, -h]])
    return h / np.sqrt(d)


def random_signs(d, seed=0):
    return np.random.default_rng(seed).choice(np.array([-1.0, 1.0], np.float32), d)


def random_x(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def run(exercise, x, signs, *, back=False):
    kernel = exercise.make_kernel(x.shape[1], back)
    given = {"x": np.float32(x), "signs": signs, "y": np.full(x.shape, np.nan, np.float32)}
    got, trace = launched(kernel, len(x), x.shape[1], ("y",), **given)
    return got["y"], trace


def close(got, want, what, mistakes=()):
    """Fail where two arrays differ; `mistakes` are pairs (sentence, its result)."""
    limit = 4e-6 * max(1.0, np.abs(want).max(initial=0))
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
            f"{what}: y{list(place)} must be {want[place]:.6g}, got {got[place]:.6g}; {len(bad)} "
            f"of {want.size} differ. {''.join(causes[:1])}".rstrip(),
            causes=causes,
            where=f"{what}, {list(place)}",
        )


def test_two(exercise):
    """d = 2: (a, b) becomes (a + b, a − b) / √2"""
    got, _ = run(exercise, np.array([[3.0, 1.0]]), np.ones(2, np.float32))
    got = got[0] * np.sqrt(2)
    assert np.allclose(got, [4, 2]), f"(3, 1) must become (4, 2) / √2, got {got} / √2"


def test_four(exercise):
    """d = 4: each row of H, in order"""
    got, _ = run(exercise, 2 * np.eye(4), np.ones(4, np.float32))
    for i in range(4):
        want = 2 * matrix(4)[i]
        assert np.allclose(got[i], want), f"2 in place {i} must become {want}, got {got[i]}"


@pytest.mark.parametrize("d", SIZES)
def test_rotate(exercise, d):
    """first the signs, then H, for any power of two"""
    x, signs, H = random_x(6, d), random_signs(d), matrix(d)
    mistakes = [
        ("The signs come first, then H.", (x @ H) * signs),
        ("The signs are missing.", x @ H),
        ("H is missing.", x * signs),
    ]
    got, _ = run(exercise, x, signs)
    close(got, (x * signs) @ H, f"x · signs, then H / √d, d = {d}", mistakes)


@pytest.mark.parametrize("d", SIZES)
def test_back(exercise, d):
    """back: first H, then the signs"""
    x, signs, H = random_x(6, d), random_signs(d), matrix(d)
    mistakes = [
        ("Back goes in the other order: H first, then the signs.", (x * signs) @ H),
        ("The signs are missing.", x @ H),
    ]
    got, _ = run(exercise, x, signs, back=True)
    close(got, (x @ H) * signs, f"back, d = {d}", mistakes)


def test_there_and_back(exercise):
    """back undoes the rotation"""
    x, signs = random_x(6, 128), random_signs(128)
    got, _ = run(exercise, run(exercise, x, signs)[0], signs, back=True)
    close(got, x, "there and back")


def test_many_rows(exercise):
    """300 rows: each has its thread block"""
    x, signs = random_x(300, 8), random_signs(8)
    close(run(exercise, x, signs)[0], (x * signs) @ matrix(8), "300 rows")


def test_scores_stay(exercise):
    """orthogonal: Q Kᵀ stays what it is"""
    q, k = random_x(2, 20, 128)
    signs = random_signs(128)
    rotated = run(exercise, q, signs)[0] @ run(exercise, k, signs)[0].T
    assert np.allclose(rotated, q @ k.T, atol=2e-4), "scores of rotated Q and K must stay"


def test_outlier(exercise):
    """one outlier is spread evenly over the row"""
    x = np.zeros((1, 64))
    x[0, 37] = 16
    got = np.abs(run(exercise, x, random_signs(64))[0])
    assert np.allclose(got, 2), f"16 in one place becomes ±2 in all 64, got {np.unique(got)}"


def test_signs_matter(exercise):
    """a constant row: H alone makes an outlier of it, the signs prevent that"""
    x = np.ones((1, 64))
    alone = np.abs(run(exercise, x, np.ones(64, np.float32))[0]).max()
    signed = np.abs(run(exercise, x, random_signs(64))[0]).max()
    assert np.isclose(alone, 8), f"64 ones without signs become one 8 and zeros, got {alone:.3g}"
    assert signed < 5, f"64 ones with random signs must spread, at most 5, got {signed:.3g}"


def test_fp8(exercise):
    """attention in e4m3 with outliers: at most three quarters of the error"""
    squares, signs = np.zeros(2), random_signs(128)
    for seed in range(2):
        q, k, v = fp8.with_outliers(np.random.default_rng(seed), 3, 1024, 128)
        exact = fp8.attention(q, k, v)
        rotated = [run(exercise, x, signs)[0].astype(np.float64) for x in (q, k)]
        squares[0] += fp8.rmse(fp8.attention_e4m3(q, k, v), exact) ** 2
        squares[1] += fp8.rmse(fp8.attention_e4m3(*rotated, v), exact) ** 2
    plain, after = np.sqrt(squares / 2)
    assert after <= 0.75 * plain, (
        f"RMSE of out {plain:.2e} with Q and K as they are: rotated at most 0.75 times that, got "
        f"{after:.2e}"
    )


@pytest.mark.parametrize("d", [8, 128, 1024])
def test_budget(exercise, d):
    """at most 2 log2 d barriers, and a row in shared memory"""
    _, trace = run(exercise, random_x(1, d), random_signs(d))
    most = 2 * int(math.log2(d))
    assert trace.barriers <= most, (
        f"d = {d}: {most} barriers are enough, two for each step, got {trace.barriers}"
    )
    expect_chip_memory(trace, shared=4 * d, allowed="a row, a number for each thread")


def test_traffic(exercise):
    """x is loaded once and y stored once"""
    _, trace = run(exercise, random_x(3, 64), random_signs(64))
    once = 3 * 64, "once for each number"
    expect_at_most(
        trace, x_loads=once, signs_loads=once, y_stores=once, y_loads=(0, "y is only written")
    )


@pytest.mark.parametrize("back", [False, True])
def test_compiles_for_a_gpu(exercise, back):
    """compiles for a GPU, in float32 throughout"""
    x = random_x(2, 64)
    gpu_ready(exercise.make_kernel(64, back), (x, random_signs(64), x.copy()))
