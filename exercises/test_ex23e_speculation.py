"""Grader of ex23e: drafted tokens, kept or dropped; what comes out has the large model's odds."""

import numpy as np
import pytest

from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.elements import expect_neighbours
from fa_numba.workbook.graders.kernels import expect_at_most, launched
from fa_numba.workbook.graders.meter import expect_chip_memory

NUM_THREADS = 64
P = np.array([0.5, 0.25, 0.125, 0.125])
Q = np.array([0.25, 0.125, 0.5, 0.125])
LATER = np.array([0.0, 0.5, 0.5, 0.0])


def run(exercise, p, q, drafted, uniform, noise=None):
    """kept and token of requests, and the trace."""
    batch, rows, vocabulary = p.shape
    if noise is None:
        noise = np.random.default_rng(1).exponential(size=(batch, vocabulary))
    given = {"p": np.float32(p), "q": np.float32(np.reshape(q, (batch, rows - 1, vocabulary)))}
    given["drafted"] = np.array(drafted, np.int32).reshape(batch, rows - 1)
    given["uniform"] = np.array(uniform, np.float32).reshape(batch, rows - 1)
    given |= {"noise": np.float32(noise)}
    given |= {name: np.full(batch, -9, np.int32) for name in ("kept", "token")}
    got, trace = launched(exercise.kernel, batch, NUM_THREADS, ("kept", "token"), **given)
    return got["kept"], got["token"], trace


def kept_of(p, q, drafted, uniform, rule=lambda u, p, q: u * q < p):
    """How many are kept of one request."""
    for i, x in enumerate(drafted):
        if not rule(np.float32(uniform[i]), np.float32(p[i, x]), np.float32(q[i, x])):
            return i
    return len(drafted)


def weights_of(p, q, kept):
    p, q = np.float32(p), np.float32(q)
    return p[kept] if kept == len(q) else np.maximum(p[kept] - q[kept], 0)


def check(exercise, p, q, drafted, uniform, noise=None):
    batch, vocabulary = len(p), p.shape[2]
    if noise is None:
        noise = np.random.default_rng(1).exponential(size=(batch, vocabulary))
    noise = np.float32(noise)
    kept, token, trace = run(exercise, p, q, drafted, uniform, noise)
    requests = list(zip(p, q, drafted, uniform, strict=True))
    want = [kept_of(*r) for r in requests]
    if kept.tolist() != want:
        rules = {
            "That is q / p: upside down.": lambda u, p, q: u * p < q,
            "That is p, without q.": lambda u, p, q: u < p,
            "Kept and dropped have changed places.": lambda u, p, q: u * q >= p,
            "uniform < p / q, not <=.": lambda u, p, q: u * q <= p,
            "A token with p < q is kept as well, with the probability p / q.": (
                lambda u, p, q: p >= q
            ),
        }
        known = {said: [kept_of(*r, rule) for r in requests] for said, rule in rules.items()}
        known["The token that is not kept is counted, too."] = [
            min(n + 1, len(r[2])) for n, r in zip(want, requests, strict=True)
        ]
        known["All kept ones are counted, those after the rejected one too."] = [
            sum(bool(u * q[i, x] < p[i, x]) for i, (x, u) in enumerate(zip(d, us, strict=True)))
            for p, q, d, us in requests
        ]
        known["Each request has its own row: b."] = [kept_of(*requests[0])] * batch
        b = int(np.argmax(kept != want))
        raise Wrong(
            f"request {b}: drafted {list(drafted[b])[:8]}: {want[b]} must be kept, got {kept[b]}",
            causes=[cause for cause, by_it in known.items() if kept.tolist() == by_it],
            where=f"kept[{b}]",
        )
    races = [
        weights_of(*r[:2], n) / noise[b]
        for b, (n, r) in enumerate(zip(want, requests, strict=True))
    ]
    right = np.array([race.argmax() for race in races])
    if (token == right).all():
        return trace
    b = int(np.argmax(token != right))
    known = {
        "That is drawn from p itself: tokens that the draft gives too often come too often.": [
            np.argmax(np.float32(r[0][n]) / noise[i])
            for i, (n, r) in enumerate(zip(want, requests, strict=True))
        ],
        "That is the largest weight: divide by noise.": [
            weights_of(*r[:2], n).argmax() for n, r in zip(want, requests, strict=True)
        ],
        "Weights are divided by noise, not multiplied.": [
            np.argmax(weights_of(*r[:2], n) * noise[i])
            for i, (n, r) in enumerate(zip(want, requests, strict=True))
        ],
        "That is max(q - p, 0): upside down.": [
            np.argmax(np.maximum(-np.float32(r[0][n] - r[1][n]), 0) / noise[i])
            if n < len(r[1])
            else right[i]
            for i, (n, r) in enumerate(zip(want, requests, strict=True))
        ],
        "The first NUM_THREADS tokens alone take part: a thread has more than one.": [
            race[:NUM_THREADS].argmax() for race in races
        ],
        "The first thread alone has looked: call winner.": [
            NUM_THREADS * race[::NUM_THREADS].argmax() for race in races
        ],
    }
    raise Wrong(
        f"request {b}, {want[b]} kept: token {right[b]} wins the race, got {token[b]}",
        causes=[said for said, by_it in known.items() if np.array_equal(token, by_it)],
        where=f"token[{b}]",
    )


def test_every_number(exercise):
    """kept where uniform < p / q, and always where p >= q"""
    cases = [(x, u) for x in range(4) for u in (0.0, 0.1, 0.2499, 0.25, 0.26, 0.9, 0.999)]
    n = len(cases)
    p, q = np.tile([P, LATER], (n, 1, 1)), np.tile(Q, (n, 1, 1))
    check(exercise, p, q, [[x] for x, _ in cases], [[u] for _, u in cases])


def test_first_rejection_ends(exercise):
    """the first token that is not kept ends it"""
    drafts = [[0, 1, 3, 0]] * 3 + [[0, 2, 1, 2]] * 2 + [[2, 0, 0, 0]]
    uniform = [[0.9] * 4, [0.9, 0.9, 0.1, 0.9], [0.0] * 4]
    uniform += [[0.9, 0.9, 0.0, 0.0], [0.9, 0.1, 0.9, 0.9], [0.25, 0.0, 0.0, 0.0]]
    n = len(drafts)
    check(exercise, np.tile(P, (n, 5, 1)), np.tile(Q, (n, 4, 1)), drafts, uniform)


def test_rows_follow_the_draft(exercise):
    """token i is judged by row i"""
    drafts = [[0, 0], [0, 1], [2, 1], [2, 1]]
    uniform = [[0.5, 0], [0.5, 0.999], [0.2, 0.5], [0.5, 0.2]]
    p, q = np.tile([P, LATER, P], (4, 1, 1)), np.tile([Q, P], (4, 1, 1))
    check(exercise, p, q, drafts, uniform)


def test_no_draft(exercise):
    """k = 0: nothing to keep, p[0] is next"""
    check(exercise, np.tile(P, (40, 1, 1)), np.empty((40, 0, 4)), [[]] * 40, [[]] * 40)


def test_all_kept(exercise):
    """all kept: the last row of p is drawn from"""
    p, q = np.tile([P, P, LATER], (40, 1, 1)), np.tile([Q, Q], (40, 1, 1))
    check(exercise, p, q, [[0, 1]] * 40, [[0.0, 0.0]] * 40)


def random_batch(batch, k, vocabulary, seed=0):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(vocabulary, 0.5), (batch, k + 1))
    q = np.roll(p[:, :k], 1, axis=2) * 0.5 + 0.5 * p[:, :k]
    drafted = rng.integers(0, vocabulary, (batch, k))
    q[np.arange(batch)[:, None], np.arange(k), drafted] += 1e-3
    return p, q, drafted.tolist(), rng.random((batch, k)).tolist()


@pytest.mark.parametrize(
    "batch, k, vocabulary", [(7, 3, 2), (5, 4, 63), (5, 2, 65), (3, 2, 650), (300, 2, 5)]
)
def test_random(exercise, batch, k, vocabulary):
    """random requests, any vocabulary"""
    check(exercise, *random_batch(batch, k, vocabulary, seed=k))


def test_many_drafted(exercise):
    """70 drafted tokens: all kept, and all but the last"""
    p = np.random.default_rng(4).dirichlet(np.ones(30), (2, 71))
    q = np.roll(p[:, :70], 1, axis=2)
    drafted = (p[:, :70] - q).argmax(axis=2)  # kept: there p > q
    drafted[1, 69] = (q[1, 69] - p[1, 69]).argmax()
    check(exercise, p, q, drafted.tolist(), np.full((2, 70), 0.999).tolist())


def test_last_place_wins(exercise):
    """any place of the vocabulary may win"""
    places = [0, 1, 31, 32, 63, 64, 127, 128, 129]
    noise = np.ones((len(places), 130))
    noise[np.arange(len(places)), places] = 1e-3
    p = np.full((len(places), 1, 130), 1 / 130)
    n = len(places)
    check(exercise, p, np.empty((n, 0, 130)), [[]] * n, [[]] * n, noise)


@pytest.mark.parametrize("draft", ["like the model", "far from it", "without a token", "certain"])
def test_distribution_stays(exercise, draft):
    """drafting changes no probability: what comes out is drawn from p"""
    rng, batch = np.random.default_rng(3), 3000
    p = rng.multinomial(16, np.ones(5) / 5) / 16
    q = {
        "like the model": p,
        "far from it": p[::-1] * 0.5 + np.array([0.5, 0, 0, 0, 0]),
        "without a token": np.array([0.5, 0.5, 0, 0, 0]),
        "certain": np.array([0, 0, 0, 1.0, 0]),
    }[draft]
    drafted = rng.choice(5, (batch, 1), p=q)
    both = np.tile([p, p], (batch, 1, 1)), np.tile(q, (batch, 1, 1))
    noise = rng.exponential(size=(batch, 5))
    kept, token, _ = run(exercise, *both, drafted, rng.random((batch, 1)), noise)
    out = np.bincount(np.where(kept == 1, drafted[:, 0], token), minlength=5) / batch
    worst = int(np.abs(out - p).argmax())
    assert np.abs(out - p).max() <= 0.04, (
        f"draft {draft}: token {worst} has p = {p[worst]:.4f} and comes out with {out[worst]:.4f}"
    )


def test_traffic(exercise):
    """the row that is drawn from is loaded once, by neighbouring threads"""
    p, q = np.tile(P.repeat(64) / 64, (2, 2, 1)), np.tile(Q.repeat(64) / 64, (2, 1, 1))
    _, _, trace = run(exercise, p, q, [[200], [3]], [[0.9], [0.9]])  # the first is dropped
    threads = 2 * NUM_THREADS
    row = "once for each token of the vocabulary, and a drafted one by each thread"
    expect_at_most(
        trace,
        p_loads=(2 * 256 + threads, row),
        q_loads=(2 * 256 + threads, row),
        noise_loads=(2 * 256, "once for each token"),
        kept_stores=(2, "one thread stores"),
        token_stores=(2, "one thread stores"),
    )
    expect_neighbours(trace, ["noise"], "Thread x has the tokens x, x + NUM_THREADS, ...")
    allowed = "values and places have a number for each thread"
    expect_chip_memory(trace, shared=8 * NUM_THREADS, allowed=allowed)


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    p, q, drafted, uniform = random_batch(2, 3, 5)
    arrays = (
        np.float32(p),
        np.float32(q),
        np.int32(drafted),
        np.float32(uniform),
        np.float32(p[:, 0]),
    )
    gpu_ready(exercise.kernel, (*arrays, np.zeros(2, np.int32), np.zeros(2, np.int32)))
