"""Grader of ex21e: states of a kernel that works in powers of two, merged over ranks."""

import numpy as np
import pytest

from fa_numba import reference
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.kernels import expect_at_most, launched
from fa_numba.workbook.graders.meter import expect_chip_memory
from fa_numba.workbook.graders.training import expect


def problem(lengths, rows=6, head_dim=8, *, seed=0, size=1.0):
    """q, and keys and values of ranks of these lengths, whose scores are `size` times as large."""
    rng = np.random.default_rng(seed)
    q = np.float32(size) * rng.standard_normal((rows, head_dim), np.float32)
    return q, [rng.standard_normal((2, c, head_dim), np.float32) for c in lengths]


def attention(q, kv, dtype=np.float64):
    """out, and lse as a natural logarithm."""
    out, lse = reference.attention(*(x[None, :, None] for x in (q, *kv)), dtype=dtype)
    return out[0, :, 0], lse[0, 0]


def states_of(q, kvs):
    """What the ranks' kernel leaves: outs, and lses in log2, in float32."""
    outs, lses = zip(*(attention(q, kv) for kv in kvs), strict=True)
    return np.float32(outs), np.float32(np.array(lses) / np.log(2))


def run(kernel, outs, lses, threads=64):
    outputs = {"out": np.full(outs.shape[1:], np.nan, np.float32)}
    outputs["lse"] = np.full(outs.shape[1], np.nan, np.float32)
    given = {"outs": outs, "lses": lses, **outputs}
    return launched(kernel, outs.shape[1], threads, ("out", "lse"), **given)


def check(exercise, q, kvs, threads=64):
    outs, lses = states_of(q, kvs)
    got, _ = run(exercise.kernel, outs, lses, threads)
    broken, _ = run(exercise.broken_kernel, outs, lses)
    everything = np.concatenate(kvs, axis=1)
    want, plain = attention(q, everything), attention(q, everything, np.float32)
    of = f"keys on each rank: {[kv.shape[1] for kv in kvs]}"
    # A state is known to the spacing of its lse, and a weight is as good as that.
    off = 2 * np.spacing(np.abs(lses).max(initial=1))
    for i, name in enumerate(("out", "lse")):
        mistakes = [("That is what broken_kernel returns.", broken[name])]
        if name == "lse":
            mistakes += [
                ("That is log2 of the sum of e^score, not ln.", want[1] / np.log(2)),
                ("The factor is upside down: ln(2), not 1 / ln(2).", want[1] / np.log(2) ** 2),
            ]
        rounded = np.where(plain[i] < want[i], plain[i] - off, plain[i] + off)
        expect(name, got[name], want[i], rounded, of=of, mistakes=mistakes)


def test_one_rank(exercise):
    """one rank: out as before, and lse is the natural logarithm"""
    check(exercise, *problem([9]))


@pytest.mark.parametrize("lengths", [(8, 8), (3, 20), (20, 3), (1, 1)], ids=str)
def test_two_ranks(exercise, lengths):
    """two ranks, whose parts differ in weight"""
    check(exercise, *problem(lengths))


@pytest.mark.parametrize("ranks", [3, 5, 9])
def test_many_ranks(exercise, ranks):
    """more ranks, 300 rows"""
    check(exercise, *problem([5 + 3 * r for r in range(ranks)], 300, 4, seed=ranks))


@pytest.mark.parametrize("head_dim, threads", [(1, 32), (70, 64), (128, 64), (130, 96), (650, 64)])
def test_columns(exercise, head_dim, threads):
    """any number of columns and threads"""
    check(exercise, *problem([4, 7], 3, head_dim), threads)


def test_heavy_and_light(exercise):
    """one rank has nearly all the weight"""
    check(exercise, *problem([6, 6, 6], size=8.0, seed=3))
    q, kvs = problem([6, 6])
    q[:, 0] = 30
    kvs[0][0, :, 0], kvs[1][0, :, 0] = -9, 9
    check(exercise, q, kvs)
    check(exercise, q, kvs[::-1])


def test_large_lse(exercise):
    """lse of 2000 and -2000: e^lse is inf or 0 in float32"""
    rng = np.random.default_rng(4)
    outs = rng.standard_normal((3, 5, 8), np.float32)
    for size in (2000, -2000):
        lses = np.float32(size + rng.integers(-3, 4, (3, 5)))
        got, _ = run(exercise.kernel, outs, lses)
        w = np.exp2(lses.astype(np.float64) - size)
        want = (w[..., None] * outs).sum(axis=0) / w.sum(axis=0)[:, None]
        lse = np.log(2) * size + np.log(w.sum(axis=0))
        assert np.allclose(got["out"], want, atol=2e-3), f"lse near {size}: out is wrong"
        assert np.allclose(got["lse"], lse, rtol=1e-6), f"lse near {size}: lse is wrong"


def test_cut_changes_nothing(exercise):
    """the same keys, cut among ranks in other ways"""
    q, (kv,) = problem([24], seed=5)
    for cuts in ([12], [1], [23], [4, 9], [6, 12, 18]):
        check(exercise, q, [np.ascontiguousarray(x) for x in np.split(kv, cuts, axis=1)])


def test_traffic(exercise):
    """outs is loaded once, out and lse are stored once"""
    outs, lses = states_of(*problem([4, 5, 6], 4, 64))
    _, trace = run(exercise.kernel, outs, lses)
    expect_at_most(
        trace,
        outs_loads=(outs.size, "once for each number"),
        out_stores=(4 * 64, "once for each number"),
        out_loads=(0, "acc is a register"),
        lse_stores=(4, "one thread stores a row's lse"),
        lses_loads=(3 * lses.size * 64, "three times by each thread"),
    )
    expect_chip_memory(trace, allowed="weights are computed again, and kept nowhere")


def test_broken_as_given(exercise):
    """broken_kernel is as it was given"""
    outs, lses = states_of(*problem([2, 9]))
    got, _ = run(exercise.broken_kernel, outs, lses)
    w = np.exp(lses.astype(np.float64) - lses.max(axis=0))
    want = (w[..., None] * outs).sum(axis=0) / w.sum(axis=0)[:, None]
    assert np.allclose(got["out"], want, atol=1e-5), "broken_kernel is to stay: write kernel"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    outs, lses = states_of(*problem([4, 5]))
    gpu_ready(exercise.kernel, (outs, lses, outs[0], lses[0]))
