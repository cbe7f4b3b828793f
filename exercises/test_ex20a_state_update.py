"""Grader of ex20a: recurrent linear attention."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import UNWRITTEN, expect_close
from fa_numba.workbook.graders.linear import LinearHead, check_linear_head, random_linear_head
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_traffic


def run(exercise, phi_q, phi_k, v, state, out):
    simt.run(exercise.kernel, 1, v.shape[1] + 1, phi_q, phi_k, v, state, out)


def check(exercise, head, factor=2):
    check_linear_head(lambda *args: run(exercise, *args), head, factor=factor)


def whole(exercise, head, cuts=()):
    """out and the last state, by one call or by several that pass the state on."""
    state, pieces = head.before.copy(), []
    for start, stop in zip((0, *cuts), (*cuts, len(head.v)), strict=True):
        piece = [x[start:stop] for x in head.arrays.values()]
        pieces.append(np.full_like(piece[2], UNWRITTEN))
        run(exercise, *piece, state, pieces[-1])
    return np.concatenate(pieces), state


def test_one_token(exercise):
    """a single token sees itself alone: out is v"""
    head = random_linear_head(1, 8, 8)
    out, _ = whole(exercise, head)
    assert np.allclose(out, head.v, rtol=1e-5), (
        f"the only weight, divided by itself, is 1: out[0] must be v[0] = {head.v[0, :3]}..., got "
        f"{out[0, :3]}..."
    )


def test_many_tokens(exercise):
    """many tokens match float64, the state too"""
    check(exercise, random_linear_head(40, 16, 16))


@pytest.mark.parametrize("head_dim", [1, 31, 32, 63, 128])
def test_head_dim(exercise, head_dim):
    """head_dim + 1 threads: less than a warp, a warp, more, and no whole number of them"""
    check(exercise, random_linear_head(6, 5, head_dim))


@pytest.mark.parametrize("feature_dim", [1, 7, 73])
def test_feature_dim(exercise, feature_dim):
    """feature_dim smaller and larger than head_dim"""
    check(exercise, random_linear_head(9, feature_dim, 12))


def test_given_state(exercise):
    """tokens before the first are in the state that is given"""
    check(exercise, random_linear_head(10, 8, 8, before=True))


def test_state_is_the_sum(exercise):
    """the state is the sum of phi(k) [v, 1], whatever the queries"""
    head = random_linear_head(12, 6, 10)
    states = []
    for phi_q in (head.phi_q, 2 * head.phi_q[::-1].copy()):
        other = LinearHead(phi_q, head.phi_k, head.v, head.before)
        states.append(whole(exercise, other)[1])
    want, plain = head.answers["state"], head.plain.answers["state"]
    expect_close("state", states[0], want, plain, tile=1, rows="feature")
    assert np.array_equal(*states), "the state depends on phi_q: only keys and values belong in it"


@pytest.mark.parametrize("cuts", [(20,), (1, 2, 3, 29), tuple(range(1, 30))], ids=str)
def test_decoding(exercise, cuts):
    """decoding: calls that pass the state on give what one call gives"""
    head = random_linear_head(30, 8, 8)
    out, state = whole(exercise, head, cuts)
    for name, got in (("out", out), ("state", state)):
        want, plain = head.answers[name], head.plain.answers[name]
        expect_close(name, got, want, plain, tile=1, rows="token" if name == "out" else "feature")


def test_no_weight(exercise):
    """a token whose weights sum to 0 has the output 0, not NaN"""
    head = random_linear_head(12, 6, 8)
    head.phi_q[[0, 5, 11]] = 0
    check(exercise, head)


def test_features_of_any_sign(exercise):
    """features may be negative"""
    head = random_linear_head(16, 8, 8, before=True)
    head.phi_q[:, 1:4] *= -0.25
    head.phi_k[:, 2:6] *= -0.5
    head.before[0] += 40  # the sums of the weights stay away from 0
    check(exercise, head)


def test_negative_sums(exercise):
    """weights that sum to less than 0: only a sum of 0 has the output 0"""
    head = random_linear_head(12, 6, 8, before=True)
    head.phi_q[...] *= -1
    check(exercise, head)


def test_long(exercise):
    """700 tokens, 300 features, HEAD_DIM 256"""
    check(exercise, random_linear_head(700, 1, 1), factor=8)  # long sums, one after the other
    check(exercise, random_linear_head(3, 300, 256), factor=8)


@pytest.mark.parametrize("size", [1e-20, 1e-4, 1e4, 1e20])
def test_scale_of_features(exercise, size):
    """tiny and large features: the division takes them out again"""
    head = random_linear_head(12, 6, 8)
    head.phi_q[...] *= np.float32(size)
    check(exercise, head)


def test_blind_to_the_future(exercise):
    """a NaN in a later token does not reach earlier ones"""
    head = random_linear_head(12, 6, 8)
    head.phi_k[9], head.v[9] = np.nan, np.nan
    out, _ = whole(exercise, head)
    bad = np.flatnonzero(~np.isfinite(out[:9]).all(axis=1))
    assert not len(bad), f"token {bad[0]} is NaN, but only token 9, which comes later, is"


@pytest.mark.parametrize("seqlen, feature_dim, head_dim", [(1, 16, 16), (7, 20, 12)])
def test_traffic(exercise, seqlen, feature_dim, head_dim):
    """HBM traffic is the formula: the state to and fro once per token"""
    head = random_linear_head(seqlen, feature_dim, head_dim)
    state, out = head.before.copy(), np.zeros_like(head.v)
    launch = exercise.kernel, 1, head_dim + 1, *head.arrays.values(), state, out
    trace = simt.trace(*launch)
    per_token = seqlen * feature_dim * (head_dim + 1), "seqlen * feature_dim * (head_dim + 1)"
    once = head.v.size, "seqlen * head_dim"
    expect_traffic(
        trace,
        {
            ("state", "loads"): per_token,
            ("state", "stores"): per_token,
            ("v", "loads"): once,
            ("out", "stores"): once,
            ("out", "loads"): (0, "out is only written"),
        },
    )
    for name in ("phi_q", "phi_k"):
        got, most = trace.arrays[name].loads, per_token[0]
        assert got <= most, (
            f"{name}: each thread needs an element of a token once, {most} loads at most in all, "
            f"but the meter shows {got}"
        )


def test_memory(exercise):
    """shared memory: a few floats, whatever head_dim and feature_dim; no local array"""
    head = random_linear_head(2, 20, 63)
    args = *head.arrays.values(), head.before.copy(), np.zeros_like(head.v)
    trace = simt.trace(exercise.kernel, 1, 64, *args)
    allowed = (
        "one float for the divisor, eight at most; each element of the state goes straight to HBM "
        "and back"
    )
    expect_chip_memory(trace, shared=32, allowed=allowed)


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without float64"""
    head = random_linear_head(2, 4, 64)
    check(exercise, head)  # a function that is not written yet says so here
    gpu_ready(exercise.kernel, (*head.arrays.values(), head.before, head.v.copy()))
