"""Grader of ex13c: attention over tiles from TMA, at every number of keys."""

import numpy as np
import pytest

from fa_numba.analysis import fp8
from fa_numba.workbook.graders.causes import Wrong


def inputs(seqlen_q, seqlen_k, head_dim=8, *, seed=0, size=1.0):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((n, head_dim)) for n in (seqlen_q, seqlen_k, seqlen_k))
    return size * q, k, v


def scored(scores):
    """Two queries that give key n the score `scores[n]`."""
    q, k, v = inputs(2, len(scores), 4)
    q[:], k[:] = (2, 0, 0, 0), 0
    k[:, 0] = scores
    return q, k, v


def padded(q, k, v, BLOCK_N, weight=0.0):
    """The result if keys of zeros count."""
    missing = -len(k) % BLOCK_N
    k, v = (np.concatenate([x, np.full((missing, x.shape[1]), weight)]) for x in (k, v))
    return fp8.attention(q, k, v)


def check(exercise, q, k, v, BLOCK_N, what):
    case = f"{what}: {len(k)} keys in tiles of {BLOCK_N}"
    try:
        got = np.asarray(exercise.mended(q, k, v, BLOCK_N))
    except Exception as error:
        if "waits for ever" not in str(error):
            raise
        raise Wrong(
            f"{case}: {error}", causes=["Fewer bytes are announced than arrive."], where=case
        ) from None
    want = fp8.attention(q, k, v)
    assert got.shape == want.shape, f"{case}: out must be of shape {want.shape}, got {got.shape}"
    wrong = ~(np.abs(got - want) <= 1e-9 * (1 + np.abs(want)))
    if not wrong.any():
        return
    row, col = map(int, np.argwhere(wrong)[0])
    causes = []
    if np.allclose(got, padded(q, k, v, BLOCK_N)):
        causes = ["The keys that do not exist count: their score must be -inf."]
    elif len(k) > BLOCK_N and np.allclose(got, fp8.attention(q, *cut(k, v, BLOCK_N))):
        causes = ["The keys of the last tile are left out."]
    elif np.isnan(got).any():
        causes = ["A NaN: -inf - -inf, or a first maximum above all scores, so that l_i is 0."]
    raise Wrong(
        f"{case}: out[{row}, {col}] must be {want[row, col]:.6g}, got {got[row, col]:.6g}",
        causes=causes,
        where=f"{case}, out[{row}, {col}]",
    )


def cut(k, v, BLOCK_N):
    whole = len(k) // BLOCK_N * BLOCK_N
    return k[:whole], v[:whole]


def test_whole_tiles(exercise):
    """a multiple of BLOCK_N keys, as before"""
    for seqlen_k, BLOCK_N in ((4, 4), (32, 8), (48, 16)):
        check(exercise, *inputs(5, seqlen_k), BLOCK_N, "whole tiles")


@pytest.mark.parametrize("seqlen_k, BLOCK_N", [(5, 4), (7, 4), (33, 16), (1, 8), (103, 100)])
def test_last_tile(exercise, seqlen_k, BLOCK_N):
    """any number of keys: the last tile is incomplete"""
    check(exercise, *inputs(6, seqlen_k), BLOCK_N, "an incomplete tile")


def test_many(exercise):
    """many queries, keys and columns"""
    check(exercise, *inputs(300, 270, 130), 16, "many queries, keys and columns")


@pytest.mark.parametrize("size", [10, 3e4, 2e9, 2e30])
def test_low_scores(exercise, size):
    """all scores far below 0: keys that do not exist would take nearly all the weight"""
    check(exercise, *scored(-size * (1 + np.arange(13) % 3)), 8, "scores below 0")


def test_maximum_0(exercise):
    """a largest score of exactly 0"""
    check(exercise, *scored(-(np.arange(13) % 5.0)), 8, "a largest score of 0")


def test_large_scores(exercise):
    """scores up to some hundreds"""
    check(exercise, *inputs(4, 21, size=100.0, seed=3), 16, "large scores")


def test_every_length(exercise):
    """every length from 1 to 20, in tiles of 1, 4 and 7"""
    for seqlen_k in range(1, 21):
        for BLOCK_N in (1, 4, 7):
            check(exercise, *inputs(3, seqlen_k, seed=seqlen_k), BLOCK_N, "every length")


def test_inputs_unchanged(exercise):
    """inputs stay as they are"""
    q, k, v = inputs(4, 9)
    before = [x.copy() for x in (q, k, v)]
    exercise.mended(q, k, v, 4)
    for name, x, old in zip("qkv", (q, k, v), before, strict=True):
        assert (x == old).all(), f"{name} was changed"


def test_float32(exercise):
    """float32 inputs: their bytes are announced, too"""
    q, k, v = (x.astype(np.float32) for x in inputs(3, 6))
    got = np.asarray(exercise.mended(q, k, v, 4))
    assert np.abs(got - fp8.attention(q, k, v)).max() <= 1e-5, "of float32 inputs"


def test_published_stays(exercise):
    """published is as it was given"""
    q, k, v = inputs(3, 8)
    assert np.allclose(exercise.published(q, k, v, 4), fp8.attention(q, k, v))
    with pytest.raises(Exception, match="waits for ever"):
        exercise.published(*inputs(3, 5), 4)
