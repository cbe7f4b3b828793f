"""Grader of ex04b: a mask that is wrong twice."""

import numpy as np
import pytest

from fa_numba.workbook.graders.causes import Wrong


def lower(N_q, N_k):
    """Causal, aligned at the last query and the last key."""
    return np.tril(np.ones((N_q, N_k), bool), N_k - N_q)


def scattered(N_q, N_k, share, seed=1):
    mask = np.random.default_rng(seed).random((N_q, N_k)) < share
    mask[np.arange(N_q), np.arange(N_q) % N_k] = True
    return mask


def with_empty(mask, *rows):
    mask = mask.copy()
    mask[list(rows)] = False
    return mask


def inputs(N_q, N_k, d=4, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((N, d), np.float32) for N in (N_q, N_k, N_k)]


def exact(q, k, v, mask, dtype=np.float64):
    """The definition, row by row: only the keys that a query sees."""
    out = np.zeros((len(q), v.shape[1]), dtype)
    for m, sees in enumerate(mask):
        if sees.any():
            s = k[sees].astype(dtype) @ q[m].astype(dtype) / np.sqrt(dtype(q.shape[1]))
            p = np.exp(s - s.max())
            out[m] = p / p.sum() @ v[sees].astype(dtype)
    return out


def uniform(q, k, v, mask):
    """A wrong softmax: a row that sees no key gets the mean of all values."""
    out = exact(q, k, v, mask)
    out[~mask.any(axis=1)] = v.astype(np.float64).mean(axis=0)
    return out


def hidden_maximum(q, k, v, mask):
    """A wrong softmax: it takes the maximum over hidden keys too."""
    s = q @ k.T / np.sqrt(np.float32(q.shape[1]))
    p = np.exp(s - s.max(axis=1, keepdims=True)) * mask
    return p @ v / np.maximum(p.sum(axis=1, keepdims=True), np.float32(1e-37))


MASKS = {
    "causal": lower(6, 6),
    "causal, more keys than queries": lower(300, 310),
    "every key": np.ones((5, 7), bool),
    "scattered": scattered(8, 11, 0.5),
    "one key each": scattered(6, 6, 0.0),
    "one query": lower(1, 5),
}
EMPTY = {
    "one empty row": with_empty(lower(6, 6), 3),
    "causal, more queries than keys": lower(8, 5),
    "no key at all": np.zeros((3, 4), bool),
    "the first and the last row": with_empty(scattered(7, 5, 0.6), 0, 6),
}


NO_KEY = "A row that sees no key makes -inf - (-inf), or 0 / 0, which is NaN."
HIDDEN_MAXIMUM = (
    "The maximum of a row counts hidden keys too: where one of them has the largest score, the "
    "weights of the keys that the query sees become 0. Take the maximum of these keys alone."
)


def check(exercise, mask, what, data=None):
    q, k, v = data or inputs(*mask.shape)
    got = exercise.attention(q, k, v, mask)
    want = exact(q, k, v, mask)
    assert isinstance(got, np.ndarray) and got.shape == want.shape, (
        f"{what}: want an array of shape {want.shape}, got {got!r:.60}"
    )
    tolerance = 2 * np.abs(exact(q, k, v, mask, np.float32) - want) + 1e-6
    wrong = np.argwhere(~(np.abs(got - want) <= np.where(mask.any(axis=1)[:, None], tolerance, 0)))
    if not len(wrong):
        return
    m = int(wrong[0][0])
    sees = np.flatnonzero(mask[m]).tolist()
    keys = f"sees the keys {sees}" if sees else "sees no key"
    known = (
        ("The mask is inverted: np.where(mask, x, y) takes x where mask is True, and True means "
         "that the query sees the key.", uniform(q, k, v, ~mask)),
        ("The mask is inverted: np.where(mask, x, y) takes x where mask is True, and True means "
         "that the query sees the key.", exact(q, k, v, ~mask)),
        ("A query that sees no key gets the mean of all values: equal scores make equal weights. "
         "Set the weights of hidden keys to 0.", uniform(q, k, v, mask)),
        ("The mask is not used.", exact(q, k, v, np.ones_like(mask))),
        (HIDDEN_MAXIMUM, hidden_maximum(q, k, v, mask)),
    )  # fmt: skip
    near = [words for words, x in known if (np.abs(got - x) <= 1e-4 + 1e-4 * np.abs(x)).all()]
    nan = np.isnan(got).any(axis=1)
    if nan.any():  # in a row with keys every weight has become 0
        near = [HIDDEN_MAXIMUM if mask[nan].any(axis=1).all() else NO_KEY]
    raise Wrong(
        f"{what}: row {m} {keys}, so it must begin with {want[m, 0]:.6g}, got {got[m, 0]:.6g}",
        causes=list(dict.fromkeys(near)),
        where=f"row {m}",
    )


@pytest.mark.parametrize("case", MASKS)
def test_sees(exercise, case):
    """a query sees the keys for which mask is True, and no other"""
    check(exercise, MASKS[case], case)


@pytest.mark.parametrize("case", EMPTY)
def test_no_key(exercise, case):
    """a query that sees no key gets 0"""
    check(exercise, EMPTY[case], case)


def test_hidden_scores(exercise):
    """hidden keys weigh nothing, however large their scores are"""
    mask = lower(5, 5)
    q, k, v = inputs(5, 5)
    q[:, 0], k[3:, 0] = 1, 2e4
    check(exercise, mask, "hidden keys have scores of 1e4", (q, k, v))
    v[3:] = 1e30
    mask[:, 3:] = False
    check(exercise, mask, "hidden keys have values of 1e30", (q, k, v))


@pytest.mark.parametrize("score", [-2e4, -2e9, -2e30])
def test_low_scores(exercise, score):
    """scores far below 0 are scores"""
    mask = with_empty(lower(5, 5), 2)
    q, k, v = inputs(5, 5)
    q[:], k[:] = 0, 0
    q[:, 0], k[:, 0] = 1, 2 * np.float32(score)  # divided by sqrt(4)
    check(exercise, mask, f"all scores are {score:g}", (q, k, v))


def test_scores_from_zero_down(exercise):
    """a score of 0 is a score, and so is a largest score of 0"""
    mask = with_empty(lower(5, 6), 2)
    q, k, v = inputs(5, 6)
    q[:] = 1
    k[:] = -np.arange(6)[:, None]
    check(exercise, mask, "key n has the score -2 n", (q, k, v))


def test_inputs_unchanged(exercise):
    """the inputs are left as they were, and broken_attention as it was given"""
    mask = with_empty(lower(5, 5), 2)
    given = [*inputs(5, 5), mask]
    before = [a.copy() for a in given]
    exercise.attention(*given)
    for name, a, b in zip(("q", "k", "v", "mask"), given, before, strict=True):
        assert (a == b).all(), f"{name} is an input, and was changed"
    q, k, v, _ = given
    got, want = exercise.broken_attention(q, k, v, mask), uniform(q, k, v, ~mask)
    assert np.allclose(got, want, atol=1e-5), "broken_attention is to stay: mend `attention`"
