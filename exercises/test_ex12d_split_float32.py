"""Grader of ex12d: float32 products out of TF32."""

import numpy as np
import pytest

from fa_numba.workbook.graders.causes import Wrong

EPS = 2.0**-24  # of float32: half of the last bit


def nearest_tf32(x):
    """The nearest TF32, by float64: 11 significant bits."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.round(mantissa * 2**11) / 2**11, exponent)


def to_tf32(x):
    """As in the exercise: ties away from 0."""
    bits = x.astype(np.float32).view(np.uint32) + np.uint32(1 << 12)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


def numbers(seed=0, count=2000):
    rng = np.random.default_rng(seed)
    return np.ldexp(rng.standard_normal(count), rng.integers(-40, 40, count)).astype(np.float32)


def parts(exercise, x):
    got = exercise.split(x)
    assert isinstance(got, tuple) and len(got) == 2, f"split returns (big, small), got {got!r:.60}"
    big, small = map(np.asarray, got)
    for name, part in (("big", big), ("small", small)):
        right = part.dtype == np.float32 and part.shape == x.shape
        assert right, f"{name} must be float32 of shape {x.shape}, got {part.dtype} {part.shape}"
    return big, small


def is_tf32(x):
    return (x.view(np.uint32) & 0x1FFF) == 0


def test_big(exercise):
    """split: big is the nearest TF32"""
    x = numbers()
    big, _ = parts(exercise, x)
    bad = np.flatnonzero(np.abs(big - x.astype(np.float64)) > np.abs(nearest_tf32(x) - x))
    if len(bad):
        i = bad[0]
        cut = (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        causes = ["The bits are cut off, not rounded."] if np.array_equal(big, cut) else []
        want = f"{nearest_tf32(x)[i]:.9g}"
        raise Wrong(f"big of {x[i]:.9g} must be {want}, got {big[i]:.9g}", causes=causes)
    assert is_tf32(big).all(), "big has more than 11 significant bits"


def test_small(exercise):
    """split: big + small is x, but for 2^-22 of it, and small is a TF32, too"""
    x = numbers(1)
    big, small = parts(exercise, x)
    off = np.abs(big.astype(np.float64) + small - x) / np.abs(x)
    if not (off <= 2.0**-22).all():
        causes = []
        if not small.any():
            causes = ["small is 0: it is the rest of x, not of big."]
        elif (big * small < 0).mean() < 0.1 or np.abs(small / x).max() > 2.0**-10:
            causes = ["small is not x - big."]
        i = int(np.argmax(off))
        raise Wrong(
            f"{x[i]:.9g} is split into {big[i]:.9g} and {small[i]:.9g}: their sum is off by "
            f"{off[i]:.2g} of it, at most 2^-22 = 2.4e-07 is needed",
            causes=causes,
        )
    if not is_tf32(small).all():
        raise Wrong(
            "small has more than 11 significant bits",
            causes=["small is x - big, not rounded: the tensor core would round it."],
        )


def test_split_of_a_tf32(exercise):
    """split: a number that is a TF32 already has nothing left; zeros and signs are kept"""
    x = np.float32([0, 1, -2, 1.5, 2.0**-100, -3 * 2.0**60])
    big, small = parts(exercise, x)
    assert (big == x).all() and not small.any(), f"{x} is split into {big} and {small}"


SHAPES = [(16, 16, 16), (5, 64, 9), (300, 300, 270), (1, 300, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_product(exercise, shape):
    """product: the error of float32"""
    m, k, n = shape
    rng = np.random.default_rng(k)
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    got = np.asarray(exercise.product(a, b))
    assert got.shape == (m, n) and got.dtype == np.float32, (
        f"want float32 of shape {(m, n)}, got {got.dtype} of {got.shape}"
    )
    want = a.astype(np.float64) @ b
    allowed = 2.0**-20 * (np.abs(a).astype(np.float64) @ np.abs(b))
    if not (np.abs(got - want) <= allowed).all():
        raise Wrong(
            f"{m} x {k} times {k} x {n}: off by {np.abs(got - want).max():.2g}, float32 is off by "
            f"{np.abs(a @ b - want).max():.2g}",
            causes=causes(a, b, got),
        )


def causes(a, b, got):
    """The likely reason, by what the result would be."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    A, B = nearest_tf32(a), nearest_tf32(b)
    mistakes = {
        "Only big times big is there.": A @ B,
        "The term a_small b_big is missing.": a @ b - (a - A) @ B,
        "The term a_big b_small is missing.": a @ b - A @ (b - B),
        "The mixed terms are there, big times big is missing.": a @ b - A @ B,
        "small times small is there in the place of a mixed term.": A @ B + (a - A) @ (b - B),
    }
    scale = np.abs(a) @ np.abs(b)
    return [c for c, wrong in mistakes.items() if (np.abs(got - wrong) <= 2.0**-19 * scale).all()]


def test_three_products(exercise):
    """product: three terms; small times small is left out, and float32 is not used instead"""
    x = 1 + 2.0**-11 - 2.0**-20  # big is 1, small 2^-11 - 2^-20
    a = b = np.full((1, 1), x, np.float32)
    got = float(np.asarray(exercise.product(a, b))[0, 0])
    small = 2.0**-11 - 2.0**-20
    three, four = 1 + 2 * small, np.float32(x) * np.float32(x)
    if abs(got - three) > EPS:
        cause = "small times small is there: three terms are enough."
        raise Wrong(
            f"of 1 + {small:.4g}, squared, the three terms are {three:.9f}, got {got:.9f}",
            causes=[cause] if abs(got - four) <= 2 * EPS else [],
        )


def test_small_terms_first(exercise):
    """product: the mixed terms are added to each other before the large one"""
    rng = np.random.default_rng(7)
    a, b = rng.random((40, 1), np.float32) + 1, rng.random((1, 40), np.float32) + 1
    got = np.asarray(exercise.product(a, b))
    A, B = to_tf32(a).astype(np.float64), to_tf32(b).astype(np.float64)
    small_a, small_b = to_tf32(a - A), to_tf32(b - B)
    terms = [x.astype(np.float32) for x in (small_a * B, A * small_b, A * B)]
    want = terms[0] + terms[1] + terms[2]
    if not np.array_equal(got, want) and np.abs(got - want).max() <= 2.0**-20:
        raise Wrong(
            f"{(got != want).sum()} of {want.size} products are a bit off",
            causes=["The large term is added before both small ones: each sum rounds once more."],
        )
    assert np.array_equal(got, want), f"off by {np.abs(got - want).max():.2g}"


def test_inputs_unchanged(exercise):
    """inputs stay as they are; views will do"""
    whole = np.random.default_rng(3).standard_normal((12, 12)).astype(np.float32)
    before = whole.copy()
    whole.flags.writeable = False
    got = exercise.product(whole[::2, 1:7], whole[1:7, ::3])
    want = whole[::2, 1:7].astype(np.float64) @ whole[1:7, ::3]
    assert np.abs(got - want).max() <= 1e-5, "of views of a larger array"
    assert (whole == before).all(), "the inputs were written"
