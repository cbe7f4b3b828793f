"""Grader of ex08d: gradients of attention with dropout."""

import numpy as np
import pytest

from fa_numba.workbook.graders.causes import Wrong

NAMES = ("dq", "dk", "dv")


def problem(seqlen_q=5, seqlen_k=7, head_dim=3, *, dropout_p=0.4, seed=0, size=1.0):
    """dout, q, k, v, z and a scale."""
    rng = np.random.default_rng(seed)
    q, dout = rng.standard_normal((2, seqlen_q, head_dim))
    k, v = rng.standard_normal((2, seqlen_k, head_dim))
    kept = rng.random((seqlen_q, seqlen_k)) >= dropout_p
    return dout, size * q, k, v, kept / (1 - dropout_p), head_dim**-0.5


def weights(q, k, scale):
    s = scale * q @ k.T
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def loss(dout, q, k, v, z, scale):
    return np.sum(dout * ((weights(q, k, scale) * z) @ v))


def slopes(dout, q, k, v, z, scale, step=1e-5):
    """dq, dk, dv by finite differences."""
    found = []
    for which in range(3):
        gradient = np.zeros_like((q, k, v)[which])
        for index in np.ndindex(gradient.shape):
            ends = []
            for sign in (1, -1):
                moved = [x.copy() for x in (q, k, v)]
                moved[which][index] += sign * step
                ends.append(loss(dout, *moved, z, scale))
            gradient[index] = (ends[0] - ends[1]) / (2 * step)
        found.append(gradient)
    return found


def from_ds(dout, q, k, v, z, scale, rule):
    """The gradients, with dS by this rule of p, pz, z, dO V^T and delta."""
    p = weights(q, k, scale)
    pz = p * z
    delta = np.sum(dout * (pz @ v), axis=1, keepdims=True)
    ds = rule(p, pz, z, dout @ v.T, delta, np.sum(p * (dout @ v.T), axis=1, keepdims=True))
    return scale * ds @ k, scale * ds.T @ q, pz.T @ dout


def right(p, pz, z, dp, d, d0):
    """dS as it must be: P ∘ (dP - delta), with Z in dP."""
    return p * (z * dp - d)


RULES = {
    "That is what `published_bwd` returns.": lambda p, pz, z, dp, d, d0: pz * (z * dp - d),
    "dP lacks Z: dP = (dO V^T) ∘ Z.": lambda p, pz, z, dp, d, d0: p * (dp - d),
    "The dropout is ignored in dS.": lambda p, pz, z, dp, d, d0: p * (dp - d0),
    "delta is missing.": lambda p, pz, z, dp, d, d0: p * z * dp,
    "delta is added: dS = P ∘ (dP - delta).": lambda p, pz, z, dp, d, d0: p * (z * dp + d),
    "Z belongs to dP alone: dS = P ∘ (dP - delta).": lambda p, pz, z, dp, d, d0: pz * (dp - d),
    "Z is there twice, in P ∘ Z and in dP, and delta has the whole P.": (
        lambda p, pz, z, dp, d, d0: pz * (z * dp - d0)
    ),
    "delta is that of no dropout: rowsum(dO ∘ out) has Z.": (
        lambda p, pz, z, dp, d, d0: p * (z * dp - d0)
    ),
}


def check(exercise, case, want=None):
    got = exercise.mended_bwd(*case)
    assert isinstance(got, tuple | list) and len(got) == 3, "mended_bwd must return (dq, dk, dv)"
    by_difference = want is None
    want = slopes(*case) if by_difference else want
    for i, name in enumerate(NAMES):
        found = np.asarray(got[i])
        assert found.shape == want[i].shape, (
            f"{name} must have the shape {want[i].shape}, got {found.shape}"
        )
        wrong = np.argwhere(~(np.abs(found - want[i]) <= 1e-6 * (1 + np.abs(want[i]).max())))
        if len(wrong):
            at = tuple(int(x) for x in wrong[0])
            causes = [
                sentence
                for sentence, rule in RULES.items()
                if np.allclose(found, from_ds(*case, rule)[i], rtol=1e-5)
            ]
            raise Wrong(
                f"{name}{list(at)} is {found[at]:.6g}, but sum(dout * out) changes by "
                f"{want[i][at]:.6g} per unit of {name[1]}{list(at)}. {causes[0] if causes else ''}",
                causes=causes,
                where=f"{name}{list(at)}",
            )


def test_no_dropout(exercise):
    """no dropout, where the published program is right as well"""
    case = problem(dropout_p=0.0)
    check(exercise, case)
    published = exercise.published_bwd(*case)
    assert all(np.allclose(a, b) for a, b in zip(published, slopes(*case), strict=True))


@pytest.mark.parametrize("dropout_p", [0.1, 0.5, 0.8])
def test_finite_differences(exercise, dropout_p):
    """moving one number of q, k or v changes the loss as dq, dk and dv say"""
    check(exercise, problem(dropout_p=dropout_p, seed=int(10 * dropout_p)))


def test_rows_of_ds(exercise):
    """adding one vector to all keys changes nothing: the rows of dk sum to 0"""
    case = problem(4, 9, 2, seed=3)
    total = np.sum(exercise.mended_bwd(*case)[1], axis=0)
    assert np.abs(total).max() <= 1e-9, (
        f"adding one vector to all keys adds one number to all scores of a row, which a softmax "
        f"does not see; so the rows of dk must sum to 0, but they sum to {total}"
    )


def test_all_dropped(exercise):
    """a row whose entries are all dropped: its out is 0, and so is its dq"""
    case = problem(3, 4, 2)
    case[4][1] = 0
    check(exercise, case)


def test_one_key(exercise):
    """one key: its weight is 1, whatever q and k are"""
    check(exercise, problem(3, 1, 2, dropout_p=0.0))


def test_large_scores(exercise):
    """scores of a hundred: exp without a maximum would overflow"""
    case = problem(3, 5, 2, size=1000.0, seed=5)
    rule = RULES["That is what `published_bwd` returns."]
    assert np.isfinite(from_ds(*case, rule)[0]).all()
    check(exercise, case, from_ds(*case, right))


@pytest.mark.parametrize("sizes", [(131, 3, 2), (3, 131, 2), (3, 5, 131)], ids=str)
def test_long(exercise, sizes):
    """many queries, many keys, many columns"""
    case = problem(*sizes, seed=6)
    check(exercise, case, from_ds(*case, right))


def test_published(exercise):
    """published_bwd is as it was given: right in dv, wrong in dq and dk, with no NaN to show it"""
    case = problem()
    published = exercise.published_bwd(*case)
    found = zip(published, slopes(*case), strict=True)
    good = [bool(np.allclose(a, b, rtol=1e-4)) for a, b in found]
    assert good == [False, False, True] and not any(np.isnan(x).any() for x in published), (
        "published_bwd is to stay: write mended_bwd"
    )


def test_inputs(exercise):
    """dout, q, k, v and z are left as they were"""
    case = problem()
    before = [np.copy(x) for x in case]
    exercise.mended_bwd(*case)
    same = all(np.array_equal(a, b) for a, b in zip(before, case, strict=True))
    assert same, "an input has been written"
