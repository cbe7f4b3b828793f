"""Grader of ex20c: elu + 1, relu and Taylor features."""

import math

import numpy as np
import pytest
from numba import cuda

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong

FEATURES = {"elu1": lambda d: d, "taylor2": lambda d: 1 + d + d * d}


def caller(function):
    """A kernel that calls a device function for all rows and features."""

    @cuda.jit
    def kernel(x, phi):
        i = cuda.grid(1)
        if i < phi.size:
            row, f = i // phi.shape[1], i % phi.shape[1]
            phi[row, f] = function(x[row], f)

    return kernel


def features(exercise, name, x):
    """phi of each row of x."""
    x = np.atleast_2d(np.asarray(x, np.float32))
    phi = np.full((len(x), FEATURES[name](x.shape[1])), np.nan, np.float32)
    simt.run(caller(getattr(exercise, name)), math.ceil(phi.size / 64), 64, x, phi)
    return phi


def check_values(exercise, name, x, want):
    x = np.float32(x)
    got = features(exercise, name, x)[0]
    for i in range(len(x)):
        assert abs(got[i] - want[i]) <= 1e-6 * max(1, abs(want[i])), (
            f"{name} of {x[i]:.6g} must be {want[i]:.6g}, got {got[i]:.6g}"
        )


def test_elu1(exercise):
    """elu1: x + 1 above 0, e^x below"""
    x = np.concatenate([np.linspace(-6, 6, 301), [0.0, -1e-6, 1e-6, 33.0, 1e4, -1e4]])
    check_values(exercise, "elu1", x, np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))))


def test_small_elu1(exercise):
    """elu1: e^x to float32's relative precision, down to e^-80"""
    x = np.linspace(-80, -5, 31, dtype=np.float32)
    got, want = features(exercise, "elu1", x)[0], np.exp(x.astype(float))
    i = int(np.argmax(np.abs(got / want - 1)))
    assert abs(got[i] / want[i] - 1) <= 1e-4, (
        f"elu1 of {x[i]:.6g} must be e^x = {want[i]:.6g}, got {got[i]:.6g}"
    )


def test_elu1_is_positive(exercise):
    """elu1: positive everywhere, so that no weight is 0 or negative"""
    x = np.float32([-80, -40, -10, -1, 0, 1, 1e4])
    got = features(exercise, "elu1", x)[0]
    for i in range(len(x)):
        assert got[i] > 0, f"elu1 of {x[i]:.6g} must be positive, got {got[i]:.6g}"


def test_elu1_is_nowhere_flat(exercise):
    """elu1: it grows everywhere, so that every feature has a gradient"""
    x = np.linspace(-20, 20, 81, dtype=np.float32)
    steps = np.diff(features(exercise, "elu1", x)[0])
    i = int(np.argmin(steps))
    assert (steps > 0).all(), (
        f"from x = {x[i]:.3g} to {x[i + 1]:.3g} elu1 grows by {steps[i]:.3g}: it must grow"
    )


def check_taylor(exercise, q, k):
    d = q.shape[1]
    phi_q, phi_k = (features(exercise, "taylor2", x).astype(float) for x in (q, k))
    got = np.sum(phi_q * phi_k, axis=1)
    products = q.astype(float) * k
    s, size = products.sum(axis=1) / math.sqrt(d), np.abs(products).sum(axis=1) / math.sqrt(d)
    want = 1 + s + s**2 / 2
    causes = (
        ("That is 1 + s + s^2: the 1/2 of s^2 / 2 is missing.", 1 + s + s**2),
        ("That is 1 + s: the pairs x_i x_j are missing.", 1 + s),
        ("That is s + s^2 / 2: the feature 1 is missing.", s + s**2 / 2),
        ("The scale is missing: s = q . k / sqrt(d).", 1 + s * d**0.5 + s**2 * d / 2),
        ("The scale of the first degree is missing.", 1 + s * d**0.5 + s**2 / 2),
        ("The scale of the second degree is missing.", 1 + s + s**2 * d / 2),
        *(
            (
                "s is divided by sqrt(d) twice: of 1 / sqrt(d) each of q and k takes d^(-1/4).",
                1 + s / d**0.5 + square,
            )
            for square in (s**2 / 2, s**2 / (2 * d))
        ),
        (
            "That is 1 + q.k + (q.k)^2, the features 1, x_i, x_i x_j as they are.",
            1 + s * d**0.5 + s**2 * d,
        ),
    )
    limit = 1e-5 * (1 + size + size**2)  # the terms may cancel
    for i in range(len(q)):
        cause = next((c for c, x in causes if d > 1 and (np.abs(got - x) <= limit).all()), "")
        if not abs(got[i] - want[i]) <= limit[i]:
            raise Wrong(
                f"d = {d}, s = {s[i]:.4g}: phi(q) . phi(k) must be 1 + s + s^2 / 2 = "
                f"{want[i]:.6g}, got {got[i]:.6g}. {cause}",
                causes=[cause],
            )
    return s, got


@pytest.mark.parametrize("d", [1, 2, 3, 8, 15, 33])
def test_taylor_series(exercise, d):
    """taylor2: the product of two maps is the Taylor series 1 + s + s^2 / 2"""
    check_taylor(exercise, *np.random.default_rng(d).standard_normal((2, 9, d), dtype=np.float32))


def test_taylor_on_one_axis(exercise):
    """taylor2: each component meets itself, and each pair of components"""
    eye = np.eye(4, dtype=np.float32)
    for i in range(4):
        for j in range(4):
            s = 0.5 if i == j else 0.0
            got = float(np.prod(
                [features(exercise, "taylor2", eye[n]).astype(float) for n in (i, j)], axis=0
            ).sum())  # fmt: skip
            want = 1 + s + s * s / 2
            assert abs(got - want) <= 1e-5, (
                f"d = 4, q = unit vector {i}, k = unit vector {j}: s = {s}, so the product must "
                f"be {want:.6g}, got {got:.6g}"
            )


def test_taylor_is_never_negative(exercise):
    """taylor2: a product is never below 1/2, however negative s is"""
    q = np.random.default_rng(0).standard_normal((12, 6), dtype=np.float32)
    k = -q * np.linspace(0.05, 4, 12, dtype=np.float32)[:, None]
    s, got = check_taylor(exercise, q, k)
    i = int(np.argmin(got))
    assert got[i] >= 0.5 - 1e-3, f"s = {s[i]:.4g}: the product is {got[i]:.6g}, and must be >= 1/2"


def test_taylor_is_close_to_exp(exercise):
    """taylor2: close to e^s for small s, within |s|^3 / 3"""
    rng = np.random.default_rng(1)
    q, k = 0.6 * rng.standard_normal((2, 20, 8), dtype=np.float32)
    s, got = check_taylor(exercise, q, k)
    error = np.abs(got - np.exp(s))
    i = int(np.argmax(error - np.abs(s) ** 3 / 3))
    assert error[i] <= abs(s[i]) ** 3 / 3 + 1e-5, (
        f"s = {s[i]:.4g}: e^s = {np.exp(s[i]):.6g}, the product {got[i]:.6g}"
    )


def test_many_components(exercise):
    """taylor2: rows of 90 numbers, 8191 features"""
    q, k = np.random.default_rng(3).standard_normal((2, 2, 90), dtype=np.float32)
    check_taylor(exercise, q, k)


@pytest.mark.parametrize("name", FEATURES)
def test_x_is_read_only(exercise, name):
    """x is read, never written, and no function keeps an array"""
    x = np.random.default_rng(4).standard_normal((3, 5), dtype=np.float32)
    before = x.copy()
    phi = np.full((3, FEATURES[name](5)), np.nan, np.float32)
    kernel = caller(getattr(exercise, name))
    trace = simt.trace(kernel, math.ceil(phi.size / 64), 64, x, phi)
    moved, _ = trace.arrays.values()
    assert (x == before).all() and not moved.stores, (
        f"{name} returns a feature: x is only read, but the meter shows {moved.stores} stores"
    )
    assert not trace.shared_bytes and not trace.local_bytes, (
        f"{name} works in registers, without {trace.shared_bytes} bytes of shared memory and "
        f"{trace.local_bytes} of local arrays"
    )


@pytest.mark.parametrize("name", FEATURES)
def test_large_inputs(exercise, name):
    """finite for |x| up to 1e4"""
    x = np.float32([1e4, -1e4, 90, -90])
    got = features(exercise, name, x)[0]
    bad = np.flatnonzero(~np.isfinite(got))
    assert not len(bad), f"{name} of {x.tolist()}: feature {bad[0]} is {got[bad[0]]}"


@pytest.mark.parametrize("name", FEATURES)
def test_linear_attention(exercise, name):
    """linear attention with these features is that of the definition"""
    from fa_numba import reference
    from fa_numba.workbook.graders.attention import expect_close
    from fa_numba.workbook.graders.linear import LinearHead

    q, k, v = np.random.default_rng(2).standard_normal((3, 12, 6), dtype=np.float32)
    phi_q, phi_k = (features(exercise, name, x) for x in (q, k))
    head = LinearHead(phi_q, phi_k, v, np.zeros((phi_q.shape[1], 7), np.float32))
    heads = [x[None, :, None] for x in (q, k, v)]
    want, plain = (
        reference.linear_attn(*heads, feature_map=name, causal=True, dtype=dtype)[0][0, :, 0]
        for dtype in (np.float64, np.float32)
    )
    expect_close("out", head.answers["out"], want, plain, tile=1, rows="token")


@pytest.mark.parametrize("name", FEATURES)
def test_compiles_for_a_gpu(exercise, name):
    """compiles for a GPU, without float64"""
    x, phi = np.ones((2, 4), np.float32), np.ones((2, FEATURES[name](4)), np.float32)
    kernel = caller(getattr(exercise, name))
    simt.run(kernel, 1, 64, x, phi)  # a function that is not written yet says so here
    gpu_ready(kernel, (x, phi))
