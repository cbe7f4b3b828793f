"""Grader of ex13c: attention over tiles from TMA, at every number of keys."""

import numpy as np
import pytest

from fa_numba import reference
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.kernels import expect_at_most, launched
from fa_numba.workbook.graders.meter import expect_chip_memory


def inputs(seqlen_q, seqlen_k, head_dim=8, *, seed=0, size=1.0):
    rng = np.random.default_rng(seed)
    q, k, v = (
        rng.standard_normal((n, head_dim), np.float32) for n in (seqlen_q, seqlen_k, seqlen_k)
    )
    return np.float32(size) * q, k, v


def scored(scores):
    """Two queries that give key n the score `scores[n]`."""
    q, k, v = inputs(2, len(scores), 4)
    q[:], k[:] = (2, 0, 0, 0), 0
    k[:, 0] = scores
    return q, k, v


def attention(q, k, v, dtype=np.float64):
    out, _ = reference.attention(*(x[None, :, None] for x in (q, k, v)), dtype=dtype)
    return out[0, :, 0]


def padded(q, k, v, BLOCK_N):
    """The result if keys of zeros count."""
    missing = -len(k) % BLOCK_N
    return attention(q, *(np.pad(x, [(0, missing), (0, 0)]) for x in (k, v)))


def run(make, q, k, v, BLOCK_N):
    given = {"q": q, "k": k, "v": v, "out": np.full_like(q, np.nan)}
    kernel, scale = make(q.shape[1], BLOCK_N), np.float32(1 / np.sqrt(q.shape[1]))
    got, trace = launched(kernel, -(-len(q) // 64), 64, ("out",), **given, softmax_scale=scale)
    return got["out"], trace


def check(exercise, q, k, v, BLOCK_N, what):
    case = f"{what}: {len(k)} keys in tiles of {BLOCK_N}"
    try:
        got, trace = run(exercise.make_kernel, q, k, v, BLOCK_N)
    except Exception as error:
        if "waits for ever" not in str(error):
            raise
        raise Wrong(
            f"{case}: {error}", causes=["Fewer bytes are announced than arrive."], where=case
        ) from None
    want, plain = attention(q, k, v), attention(q, k, v, np.float32)
    wrong = ~(np.abs(got - want) <= 4 * np.abs(plain - want).max() + 2e-6 * (1 + np.abs(want)))
    if not wrong.any():
        return trace
    row, col = map(int, np.argwhere(wrong)[0])
    causes = []
    if np.allclose(got, padded(q, k, v, BLOCK_N), 1e-4, 1e-5):
        causes = ["The keys that do not exist count: their score must be -inf."]
    elif len(k) > BLOCK_N and np.allclose(got, attention(q, *cut(k, v, BLOCK_N)), 1e-4, 1e-5):
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
    check(exercise, *inputs(300, 13, 2), 4, "many queries")
    check(exercise, *inputs(3, 270, 1), 16, "many keys")
    check(exercise, *inputs(3, 5, 130), 4, "many columns")
    check(exercise, *inputs(3, 5, 128), 4, "128 columns")
    check(exercise, *inputs(3, 73, 1), 70, "a large tile")


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


@pytest.mark.parametrize("BLOCK_N", [1, 4, 7])
def test_every_length(exercise, BLOCK_N):
    """every length from 1 to 9"""
    for seqlen_k in range(1, 10):
        check(exercise, *inputs(3, seqlen_k, 2, seed=seqlen_k), BLOCK_N, "every length")


def test_traffic(exercise):
    """each key and value is loaded once by a thread block; shared memory: two tiles"""
    trace = check(exercise, *inputs(130, 22, 8), 8, "three thread blocks")
    once = 3 * 22 * 8, "once for each thread block"
    expect_at_most(
        trace,
        k_loads=once,
        v_loads=once,
        out_stores=(130 * 8, "once for each number"),
        out_loads=(0, "acc is on the chip"),
    )
    allowed = "two tiles, and the bytes of a barrier; a thread has its scores and acc"
    expect_chip_memory(trace, shared=4 * (2 * 64 + 2), local=4 * (8 + 8), allowed=allowed)


def test_broken_as_given(exercise):
    """make_broken is as it was given"""
    q, k, v = inputs(3, 8)
    got, _ = run(exercise.make_broken, q, k, v, 4)
    assert np.allclose(got, attention(q, k, v), 1e-4, 1e-5), "make_broken is to stay"
    with pytest.raises(Exception, match="waits for ever"):
        run(exercise.make_broken, *inputs(3, 5), 4)


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    q, k, v = inputs(3, 5)
    gpu_ready(exercise.make_kernel(8, 4), (q, k, v, q, np.float32(1)))
