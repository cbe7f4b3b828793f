"""Grader of ex20d: the loss of Hedgehog's distillation, and its gradient."""

import math

import numpy as np
import pytest

from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.loops import expect_no_loop

BOTH_DEPEND = "(F features e^(xw) and F of e^(-xw): both depend on w, the latter with a minus.)"


def problem(N=9, d=4, F=3, *, seed=0, scale=1.0):
    """q, k, w_q, w_k, and the weights p of softmax attention."""
    rng = np.random.default_rng(seed)
    q, k = scale * rng.standard_normal((2, N, d))
    w_q, w_k = 0.5 * rng.standard_normal((2, d, F))
    return q, k, w_q, w_k, softmax_weights(q @ k.T / math.sqrt(d))


def softmax_weights(s):
    s = np.where(np.tri(len(s)), s, -np.inf)
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def weights_of(exercise, q, k, w_q, w_k):
    return exercise.attention_weights(exercise.feature_map(q, w_q), exercise.feature_map(k, w_k))


def entropy(p):
    return -np.sum(p[p > 0] * np.log(p[p > 0])) / len(p)


def loss_of(exercise, *args):
    """The learner's loss, which must be a number."""
    got = exercise.loss(*args)
    assert np.ndim(got) == 0, f"the loss is a number, got {got!r}"
    assert np.isfinite(got), f"the loss is {got}: 0 * log(0) is NaN, leave out the pairs with p = 0"
    return got


def difference(exercise, args, which, i, j, step=1e-5):
    """The loss's central difference by one element of w_q (which = 2) or w_k (which = 3)."""
    sides = []
    for sign in (1, -1):
        moved = list(args)
        moved[which] = args[which].copy()
        moved[which][i, j] += sign * step
        sides.append(loss_of(exercise, *moved))
    return (sides[0] - sides[1]) / (2 * step)


def check_gradient(exercise, args):
    got = exercise.gradient(*args)
    assert len(got) == 2, f"gradient returns a pair, got {len(got)} things"
    for name, which, dw in (("w_q", 2, got[0]), ("w_k", 3, got[1])):
        w = args[which]
        assert np.shape(dw) == w.shape, f"d {name} must have shape {w.shape}, got {np.shape(dw)}"
        want = np.array([
            [difference(exercise, args, which, i, j) for j in range(w.shape[1])]
            for i in range(w.shape[0])
        ])  # fmt: skip
        wrong = ~(np.abs(dw - want) <= 1e-6 + 1e-5 * np.abs(want))
        if not wrong.any():
            continue
        i, j = (int(x) for x in np.argwhere(wrong)[0])
        cause = _cause(args, dw, want)
        raise Wrong(
            f"d loss / d {name}[{i}, {j}]: the loss changes by {want[i, j]:.6g} per unit, the "
            f"gradient says {dw[i, j]:.6g}. {cause or BOTH_DEPEND}",
            causes=[cause],
        )


def _cause(args, dw, want):
    num_queries = len(args[0])
    for sentence, factor in (
        ("The sign is wrong: A - p, not p - A.", -1),
        ("The mean over the queries is missing: 1 / N.", num_queries),
        ("It is divided by N twice.", 1 / num_queries),
    ):
        if np.allclose(dw, factor * want, rtol=1e-3, atol=1e-6):
            return sentence
    return ""


def test_feature_map(exercise):
    """feature_map: [e^(x w), e^(-x w)], all positive"""
    exercise.gradient(*problem())  # first: the rest is given
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((5, 4)), rng.standard_normal((4, 3))
    phi = exercise.feature_map(x, w)
    assert phi.shape == (5, 6), f"5 rows and F = 3 make (5, 6), got {phi.shape}"
    want = np.exp([[sign * sum(x[n] * w[:, f]) for sign in (1, -1) for f in range(3)]
                   for n in range(5)])  # fmt: skip
    wrong = np.argwhere(~np.isclose(phi, want, rtol=1e-10))
    n, f = (int(i) for i in wrong[0]) if len(wrong) else (0, 0)
    assert not len(wrong), f"phi[{n}, {f}] must be {want[n, f]:.6g}, got {phi[n, f]:.6g}"


def test_large_features(exercise):
    """feature_map: x w up to 99 and down to -99, held to nothing"""
    exercise.gradient(*problem())  # first: the rest is given
    xw = np.array([[99.0, -99.0, 40.0, -0.5]])
    phi = exercise.feature_map(xw, np.eye(4))
    want = np.exp(np.concatenate([xw, -xw], axis=1))
    f = int(np.argmax(~np.isclose(phi[0], want[0], rtol=1e-10, atol=0)))
    assert np.allclose(phi, want, rtol=1e-10, atol=0), (
        f"x w = {xw[0].tolist()}: feature {f} must be {want[0, f]:.6g}, got {phi[0, f]:.6g}"
    )


def test_weights(exercise):
    """attention_weights: each row sums to 1, and is 0 for later keys"""
    exercise.gradient(*problem())  # first: the rest is given
    rng = np.random.default_rng(1)
    phi_q, phi_k = rng.uniform(0.1, 2, (2, 7, 5))
    got = exercise.attention_weights(phi_q, phi_k)
    assert got.shape == (7, 7), f"7 queries and keys make (7, 7), got {got.shape}"
    for m in range(7):
        a = np.array([sum(phi_q[m] * phi_k[n]) for n in range(m + 1)])
        want = np.append(a / a.sum(), np.zeros(6 - m))
        assert np.allclose(got[m], want, rtol=1e-10, atol=0), (
            f"row {m} must be {want.round(4)}, got {got[m].round(4)}"
        )


def test_loss_of_even_weights(exercise):
    """loss: with w = 0 all weights are even, and query m has log(m + 1)"""
    exercise.gradient(*problem())  # first: the rest is given
    for N in (1, 2, 9):
        q, k, w_q, w_k, p = problem(N)
        got = loss_of(exercise, q, k, 0 * w_q, 0 * w_k, p)
        want = np.log(np.arange(1, N + 1)).mean()
        assert abs(got - want) <= 1e-12, f"N = {N}: the loss must be {want:.6g}, got {got:.6g}"


def test_loss_by_loops(exercise):
    """loss: the sum over all pairs that are seen"""
    exercise.gradient(*problem())  # first: the rest is given
    args = problem(8, 5, 2, seed=3)
    p, weights = args[4], weights_of(exercise, *args[:4])
    want = -sum(p[m, n] * math.log(weights[m, n]) for m in range(8) for n in range(m + 1)) / 8
    got = loss_of(exercise, *args)
    assert abs(got - want) <= 1e-10, f"the loss must be {want:.6g}, got {got:.6g}"


def test_loss_is_least_at_p(exercise):
    """loss: never below the entropy of p, and equal to it where A is p"""
    exercise.gradient(*problem())  # first: the rest is given
    for seed in range(5):
        args = problem(seed=seed)
        got, least = loss_of(exercise, *args), entropy(args[4])
        assert got >= least, f"the loss is {got:.6g}, below the entropy of p, {least:.6g}"
        own = weights_of(exercise, *args[:4])
        got, least = loss_of(exercise, *args[:4], own), entropy(own)
        assert abs(got - least) <= 1e-10, f"with p = A the loss is {least:.6g}, got {got:.6g}"


@pytest.mark.parametrize("N, d, F", [(9, 4, 3), (2, 1, 1), (6, 1, 5), (5, 7, 2), (12, 3, 3)])
def test_gradient(exercise, N, d, F):
    """gradient: finite differences of every element agree"""
    check_gradient(exercise, problem(N, d, F, seed=N))


@pytest.mark.parametrize("scale", [0.01, 3.0])
def test_gradient_at_other_scales(exercise, scale):
    """gradient: with even weights and with spiky ones"""
    check_gradient(exercise, problem(scale=scale))


def test_hard_targets(exercise):
    """a target that is 0 for some keys and 1 for one: no NaN"""
    q, k, w_q, w_k, _ = problem()
    p = np.zeros((9, 9))
    p[np.arange(9), np.arange(9) // 2] = 1
    with np.errstate(all="raise", under="ignore"):
        loss_of(exercise, q, k, w_q, w_k, p)
    check_gradient(exercise, (q, k, w_q, w_k, p))


def test_gradient_vanishes_where_a_is_p(exercise):
    """gradient: 0 where the weights are p already"""
    args = problem()[:4]
    for name, dw in zip(
        ("w_q", "w_k"), exercise.gradient(*args, weights_of(exercise, *args)), strict=True
    ):
        assert np.abs(dw).max() <= 1e-12, f"p = A: d {name} must be 0, got {np.abs(dw).max():.3g}"


def test_single_token(exercise):
    """one token: its weight is 1 whatever w is, loss and gradient are 0"""
    args = problem(1)
    assert abs(exercise.loss(*args)) <= 1e-12, f"the loss must be 0, got {exercise.loss(*args)}"
    for dw in exercise.gradient(*args):
        assert np.abs(dw).max() <= 1e-12, f"the gradient must be 0, got {np.abs(dw).max():.3g}"


def test_a_small_step_helps(exercise):
    """a small step against the gradient lowers the loss"""
    for seed in range(5):
        q, k, w_q, w_k, p = problem(16, seed=seed)
        dw_q, dw_k = exercise.gradient(q, k, w_q, w_k, p)
        before = exercise.loss(q, k, w_q, w_k, p)
        after = exercise.loss(q, k, w_q - 0.01 * dw_q, w_k - 0.01 * dw_k, p)
        assert after < before, f"the loss was {before:.6g} and became {after:.6g}"


def test_large_exponents(exercise):
    """stable where x w reaches 90"""
    q, k, w_q, w_k, p = problem()
    w_q, w_k = (w * 90 / np.abs(x @ w).max() for x, w in ((q, w_q), (k, w_k)))
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        numbers = [exercise.loss(q, k, w_q, w_k, p), *exercise.gradient(q, k, w_q, w_k, p)]
    assert all(np.isfinite(x).all() for x in numbers), "loss or gradient is inf or NaN"


def test_many_queries(exercise):
    """600 queries, 70 x 66 weights: no loop over queries, keys or weights, no finite differences"""
    q, k, w_q, w_k, p = problem(600, 70, 66, scale=0.3)
    over = "m, n, or the elements of w"
    expect_no_loop(exercise.gradient, q, k, w_q, w_k, p, over=over, most=300)
    dw_q, dw_k = exercise.gradient(q, k, w_q, w_k, p)
    step_q, step_k = np.random.default_rng(5).standard_normal((2, 70, 66))
    sides = [loss_of(exercise, q, k, w_q + x * step_q, w_k + x * step_k, p) for x in (1e-5, -1e-5)]
    want = (sides[0] - sides[1]) / 2e-5
    got = np.sum(dw_q * step_q) + np.sum(dw_k * step_k)
    assert abs(got - want) <= 1e-5 * abs(want), (
        f"600 queries: along a random direction the loss changes by {want:.6g} per unit, the "
        f"gradient says {got:.6g}"
    )


def test_a_number(exercise):
    """loss is a number"""
    exercise.gradient(*problem())  # first: the rest is given
    got = exercise.loss(*problem())
    assert np.ndim(got) == 0 and isinstance(got, float), f"a number, got {got!r}"


def test_features_unchanged(exercise):
    """feature_map and attention_weights leave their arguments as they are"""
    exercise.gradient(*problem())  # first: the rest is given
    x, w = np.random.default_rng(6).standard_normal((2, 4, 4))
    phi_q, phi_k = np.exp(x), np.exp(w)
    before = [a.copy() for a in (x, w, phi_q, phi_k)]
    exercise.feature_map(x, w)
    exercise.attention_weights(phi_q, phi_k)
    for name, a, b in zip(("x", "w", "phi_q", "phi_k"), (x, w, phi_q, phi_k), before, strict=True):
        assert np.array_equal(a, b), f"{name} was changed"


def test_arguments_unchanged(exercise):
    """no argument is changed"""
    args = problem()
    before = [x.copy() for x in args]
    exercise.loss(*args)
    exercise.gradient(*args)
    for name, x, y in zip(("q", "k", "w_q", "w_k", "p"), before, args, strict=True):
        assert np.array_equal(x, y), f"{name} was changed"
