"""Grader of ex23e: drafted tokens, kept or dropped; what comes out has the large model's odds."""

import numpy as np
import pytest

from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.grading.proxies import each

P = np.array([0.5, 0.25, 0.125, 0.125])
Q = np.array([0.25, 0.125, 0.5, 0.125])
LATER = np.array([0.0, 0.5, 0.5, 0.0])


def test_every_number(exercise):
    """num_kept: kept where uniform < p / q, and always where p >= q"""
    p, q = np.stack([P, LATER]), Q[None]
    cases = [(x, u) for x in range(4) for u in (0.0, 0.1, 0.2499, 0.25, 0.26, 0.9, 0.999)]
    got = [exercise.num_kept(p, q, [x], np.array([u])) for x, u in cases]
    want = [int(u < P[x] / Q[x]) for x, u in cases]
    if got == want and all(type(n) is int for n in got):
        return
    known = {
        "That is q / p: upside down.": [u < Q[x] / P[x] for x, u in cases],
        "That is p, without q.": [u < P[x] for x, u in cases],
        "Kept and dropped have changed places.": [u >= P[x] / Q[x] for x, u in cases],
        "uniform < p / q, not <=.": [u <= P[x] / Q[x] for x, u in cases],
        "A token with p < q is kept as well, with the probability p / q.": [
            P[x] >= Q[x] for x, u in cases
        ],
        "The row of p after the token does not judge it: p[i] follows the first i tokens.": [
            u < LATER[x] / Q[x] for x, u in cases
        ],
        "The token that is not kept is counted, too.": [True for _ in cases],
    }
    at = next(i for i, n in enumerate(got) if type(n) is not int or n != want[i])
    x, u = cases[at]
    raise Wrong(
        f"p = {P[x]}, q = {Q[x]}, uniform = {u}: {want[at]} must be kept, got {got[at]!r}",
        causes=[cause for cause, by_it in known.items() if got == [int(n) for n in by_it]],
    )


def test_first_rejection_ends(exercise):
    """num_kept: the first token that is not kept ends it"""
    p, q = np.tile(P, (5, 1)), np.tile(Q, (4, 1))
    for uniform, want in (
        ([0.9, 0.9, 0.9, 0.9], 4), ([0.9, 0.9, 0.1, 0.9], 4), ([0.9] * 4, 4),
    ):  # fmt: skip
        got = exercise.num_kept(p, q, [0, 1, 3, 0], np.array(uniform))
        assert got == want, f"all have p >= q: {want} must be kept, got {got!r}"
    got = exercise.num_kept(p, q, [0, 2, 1, 2], np.array([0.9, 0.9, 0.0, 0.0]))
    if got != 1:
        raise Wrong(
            f"the second of four is not kept: 1 must be kept, got {got!r}",
            causes=[got == 3 and "All kept ones are counted, those after the rejected one too."],
        )
    got = exercise.num_kept(p, q, [0, 2, 1, 2], np.array([0.9, 0.1, 0.9, 0.9]))
    assert got == 3, f"each token has its own random number: 3 must be kept, got {got!r}"
    got = exercise.num_kept(p, q, [2, 0, 0, 0], np.array([0.25, 0.0, 0.0, 0.0]))
    assert got == 0, f"the first is not kept: 0 must be kept, got {got!r}"


def test_rows_follow_the_draft(exercise):
    """num_kept: token i is judged by row i"""
    p, q = np.stack([P, LATER, P]), np.stack([Q, P])
    for drafted, uniform, want in (
        ([0, 0], [0.5, 0.0], 1),  # LATER gives token 0 nothing
        ([0, 1], [0.5, 0.999], 2),
        ([2, 1], [0.2, 0.5], 2),
        ([2, 1], [0.5, 0.2], 0),
    ):
        got = exercise.num_kept(p, q, drafted, np.array(uniform))
        assert got == want, f"drafted {drafted}, uniform {uniform}: {want} kept, got {got!r}"


def test_one_more_token(exercise):
    """next_probabilities: all kept, so that the last row of p is next"""
    p, q = np.stack([P, LATER, P[::-1]]), np.stack([Q, Q])
    got = exercise.next_probabilities(p, q, 2)
    assert np.allclose(got, p[2], rtol=0, atol=1e-15), f"must be p[2] = {p[2]}, got {got}"


def test_after_a_rejection(exercise):
    """next_probabilities: the large model's excess over the draft, divided by its sum"""
    p, q = np.stack([P, LATER, P]), np.stack([Q, P])
    for kept in (0, 1):
        rest = np.maximum(p[kept] - q[kept], 0)
        want = rest / rest.sum()
        got = np.asarray(exercise.next_probabilities(p, q, kept))
        if got.shape == want.shape and np.allclose(got, want, rtol=0, atol=1e-12):
            continue
        difference = p[kept] - q[kept]
        known = {
            "That is p itself: tokens that the draft gives too often would come too often.": p[
                kept
            ],
            "It does not add up to 1: divide by its sum.": rest,
            "Negative differences must be 0.": difference,
            "The absolute value is not the positive part.": np.abs(difference)
            / np.abs(difference).sum(),
            "That is max(q - p, 0): upside down.": np.maximum(-difference, 0)
            / np.maximum(-difference, 0).sum(),
            "That is another row.": np.maximum(p[1 - kept] - q[1 - kept], 0)
            / np.maximum(p[1 - kept] - q[1 - kept], 0).sum(),
        }
        raise Wrong(
            f"kept = {kept}: must be {want.round(4).tolist()}, got {got.round(4).tolist()}",
            causes=[
                cause
                for cause, x in known.items()
                if got.shape == x.shape and np.allclose(got, x, rtol=0, atol=1e-9)
            ],
        )


def test_many(exercise):
    """70 drafted tokens of 300"""
    p = np.random.default_rng(4).dirichlet(np.ones(300), 71)
    q = np.roll(p[:70], 1, axis=1)
    drafted = [int(x) for x in (p[:70] - q).argmax(axis=1)]  # kept: there p > q
    for want in (70, 69):
        got = exercise.num_kept(p, q, drafted, np.full(70, 0.999))
        assert got == want, f"70 drafted, the first {want} have p > q: want {want}, got {got!r}"
        drafted[69] = int((q[69] - p[69]).argmax())
    rest = np.maximum(p[66] - q[66], 0)
    got = exercise.next_probabilities(p, q, 66)
    assert np.allclose(got, rest / rest.sum(), rtol=0, atol=1e-12), "66 of 70 are kept: row 66"


def test_inputs_stay(exercise):
    """p and q are not written, whatever is kept, and drafted and uniform neither"""
    given = np.stack([P, LATER, P]), np.stack([Q, P]), [2, 1], np.array([0.2, 0.9])
    p, q, drafted, uniform = (x.copy() for x in given)
    for first in (0.2, 0.9):
        uniform[0] = given[3][0] = first
        exercise.num_kept(p, q, drafted, uniform)
    for kept in (0, 1, 2):
        exercise.next_probabilities(p, q, kept)
    for name, now, was in zip(("p", "q", "drafted", "uniform"), (p, q, drafted, uniform), given,
                              strict=True):  # fmt: skip
        if not np.array_equal(now, was):
            raise Wrong(
                f"{name} is an input: it must not be changed",
                causes=["An argument is written: make an array of the result."],
            )


@pytest.mark.parametrize("draft", ["like the model", "far from it", "without a token", "certain"])
def test_distribution_stays(exercise, draft):
    """drafting changes no probability: what comes out is drawn from p"""
    rng = np.random.default_rng(3)
    n = 16  # p and q are sixteenths, uniform runs through the middles of 240 equal parts
    p = rng.multinomial(n, np.ones(5) / 5) / n
    q = {
        "like the model": p,
        "far from it": p[::-1] * 0.5 + np.array([0.5, 0, 0, 0, 0]),
        "without a token": np.array([0.5, 0.5, 0, 0, 0]),
        "certain": np.array([0, 0, 0, 1.0, 0]),
    }[draft]
    both = np.stack([p, p]), q[None]
    uniforms = [(j + 0.5) / 240 for j in range(240)]
    out = np.zeros(5)
    for x in np.flatnonzero(q):
        kept = each(lambda u, x=x: exercise.num_kept(*both, [int(x)], np.array([u])), uniforms)
        share = np.mean(np.array(kept) == 1)
        out[x] += q[x] * share
        if share < 1:
            out += q[x] * (1 - share) * np.asarray(exercise.next_probabilities(*both, 0))
    worst = int(np.abs(out - p).argmax())
    limit = 1 / 100
    assert np.abs(out - p).max() <= limit, (
        f"draft {draft}: token {worst} has p = {p[worst]:.4f} and comes out with {out[worst]:.4f}"
    )


def test_no_draft(exercise):
    """k = 0: nothing to keep, p[0] is next"""
    p, q = P[None], np.empty((0, 4))
    assert exercise.num_kept(p, q, [], np.empty(0)) == 0, "nothing was drafted: 0 are kept"
    got = exercise.next_probabilities(p, q, 0)
    assert np.allclose(got, P), f"must be p[0] = {P}, got {got}"
