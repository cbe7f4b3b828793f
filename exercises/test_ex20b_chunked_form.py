"""Grader of ex20b: chunked linear attention."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import UNWRITTEN, expect_close
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.linear import check_linear_head, random_linear_head
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_traffic

CHUNK = 8


def launch(exercise, phi_q, phi_k, v, state, out, chunk=CHUNK):
    """What simt.run and simt.trace take."""
    kernel = exercise.make_kernel(v.shape[1], phi_q.shape[1], chunk)
    return kernel, 1, (v.shape[1] + 1, chunk), phi_q, phi_k, v, state, out


def check(exercise, head, chunk=CHUNK, factor=2):
    def run(*args):
        try:
            simt.run(*launch(exercise, *args, chunk=chunk))
        except Exception as error:
            if "uninitialised read of s_tile" not in str(error):
                raise
            cause = "s_tile[ty, n] is a score for n <= ty alone: a token sees no later ones."
            raise Wrong(str(error), causes=[cause]) from None

    check_linear_head(run, head, chunk=chunk, factor=factor)


def test_one_chunk(exercise):
    """one chunk: scores, mask and division, no state before"""
    check(exercise, random_linear_head(8, 8, 8))


def test_many_chunks(exercise):
    """several chunks match float64: earlier ones come through the state"""
    check(exercise, random_linear_head(40, 16, 12))


@pytest.mark.parametrize("seqlen", [1, 7, 9, 15, 17, 31])
def test_length(exercise, seqlen):
    """a length that is no multiple of the chunk, or less than one"""
    check(exercise, random_linear_head(seqlen, 6, 8))


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 16, 32])
def test_chunk_size(exercise, chunk):
    """the chunk size does not change the answer"""
    check(exercise, random_linear_head(29, 8, 8, before=True), chunk)


@pytest.mark.parametrize("feature_dim, head_dim", [(1, 1), (3, 17), (33, 5), (7, 1), (5, 33)])
def test_sizes(exercise, feature_dim, head_dim):
    """feature_dim and head_dim odd, each smaller and larger than the other and than the chunk"""
    check(exercise, random_linear_head(19, feature_dim, head_dim, before=True))


def test_given_state(exercise):
    """tokens before the first are in the state that is given"""
    check(exercise, random_linear_head(20, 8, 8, before=True))


def test_split_anywhere(exercise):
    """two calls, the state of the first given to the second, give what one call gives"""
    head = random_linear_head(27, 6, 8)
    for cut in (1, 8, 13, 26):
        state, pieces = head.before.copy(), []
        for part in (slice(0, cut), slice(cut, None)):
            args = [x[part] for x in head.arrays.values()]
            pieces.append(np.full_like(args[2], UNWRITTEN))
            simt.run(*launch(exercise, *args, state, pieces[-1]))
        for name, got in (("out", np.concatenate(pieces)), ("state", state)):
            want, plain = head.answers[name], head.plain.answers[name]
            expect_close(name, got, want, plain, tile=CHUNK, rows=f"split at {cut}, row")


def test_no_weight(exercise):
    """a token whose weights sum to 0 has the output 0, not NaN"""
    head = random_linear_head(20, 6, 8)
    head.phi_q[[0, 7, 8, 19]] = 0
    check(exercise, head)


def test_features_of_any_sign(exercise):
    """features may be negative"""
    head = random_linear_head(21, 8, 8, before=True)
    head.phi_q[:, 1:4] *= -0.25
    head.phi_k[:, 2:6] *= -0.5
    head.before[0] += 40  # the sums of the weights stay away from 0
    check(exercise, head)


def test_negative_sums(exercise):
    """weights that sum to less than 0: only a sum of 0 has the output 0"""
    head = random_linear_head(12, 6, 8, before=True)
    head.phi_q[...] *= -1
    check(exercise, head)


@pytest.mark.parametrize("size", [1e-20, 1e-4, 1e4, 1e20])
def test_scale_of_features(exercise, size):
    """tiny and large features: the division takes them out again"""
    head = random_linear_head(20, 6, 8)
    head.phi_q[...] *= np.float32(size)
    check(exercise, head)


def test_long(exercise):
    """300 chunks; chunks of 70, more than the thread block is wide; 300 features; HEAD_DIM 128"""
    check(exercise, random_linear_head(899, 2, 1), 3, factor=8)
    check(exercise, random_linear_head(75, 5, 3, before=True), 70, factor=8)
    check(exercise, random_linear_head(6, 2, 128, before=True), 4, factor=8)
    check(exercise, random_linear_head(9, 300, 6, before=True), 4, factor=8)


@pytest.mark.parametrize("token", [5, 12, 19])
def test_blind_to_the_future(exercise, token):
    """a NaN in a later token does not reach earlier ones, of its own chunk either"""
    head = random_linear_head(20, 6, 8)
    head.phi_k[token], head.v[token] = np.nan, np.nan
    out = np.full_like(head.v, UNWRITTEN)
    simt.run(*launch(exercise, *head.arrays.values(), head.before.copy(), out))
    bad = np.flatnonzero(~np.isfinite(out[:token]).all(axis=1))
    assert not len(bad), (
        f"token {bad[0]} is NaN, but only token {token} is, which comes later: 0 * NaN is NaN, so "
        "a later token must not be summed with weight 0 but left out"
    )


@pytest.mark.parametrize(
    "seqlen, feature_dim, head_dim, chunk", [(32, 16, 12, 8), (29, 9, 7, 8), (29, 9, 7, 16)]
)
def test_traffic(exercise, seqlen, feature_dim, head_dim, chunk):
    """HBM traffic is the formula: everything once, whatever the chunk size"""
    head = random_linear_head(seqlen, feature_dim, head_dim)
    state, out = head.before.copy(), np.zeros_like(head.v)
    args = *head.arrays.values(), state, out
    features = seqlen * feature_dim, "seqlen * feature_dim"
    size = state.size, "feature_dim * (head_dim + 1)"
    tokens = head.v.size, "seqlen * head_dim"
    expect_traffic(
        simt.trace(*launch(exercise, *args, chunk=chunk)),
        {
            ("phi_q", "loads"): features,
            ("phi_k", "loads"): features,
            ("v", "loads"): tokens,
            ("state", "loads"): size,
            ("state", "stores"): size,
            ("out", "stores"): tokens,
            ("out", "loads"): (0, "out is only written"),
        },
    )


def test_memory(exercise):
    """shared memory: five tiles and the divisors; no array of a thread's own"""
    head = random_linear_head(32, 24, 15)
    args = *head.arrays.values(), head.before.copy(), np.zeros_like(head.v)
    trace = simt.trace(*launch(exercise, *args, chunk=16))
    floats = 2 * 16 * 25 + 16 * 17 + 16 * 17 + 24 * 17 + 2 * 16  # a padded column each
    allowed = (
        "tiles of q, k, v1, scores and state are shared, with CHUNK = 16, FEATURE_DIM = 24 and "
        "HEAD_DIM = 15; each thread has one element of y"
    )
    expect_chip_memory(trace, shared=4 * floats, allowed=allowed)


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without float64"""
    head = random_linear_head(2, 32, 32)
    check(exercise, head, chunk=16)  # a function that is not written yet says so here
    kernel, _, _, *args = launch(
        exercise, *head.arrays.values(), head.before, head.v.copy(), chunk=16
    )
    gpu_ready(kernel, args)
