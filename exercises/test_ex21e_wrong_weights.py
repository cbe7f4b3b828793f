"""Grader of ex21e: states of a kernel that works in powers of two, merged over ranks."""

import numpy as np
import pytest

from fa_numba import reference
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.ranks import first_difference


def problem(lengths, rows=6, head_dim=8, *, seed=0, size=1.0):
    """q, and keys and values of ranks of these lengths, whose scores are `size` times as large."""
    rng = np.random.default_rng(seed)
    q = np.float32(size) * rng.standard_normal((rows, head_dim), np.float32)
    return q, [rng.standard_normal((2, c, head_dim), np.float32) for c in lengths]


def answers(q, kvs, dtype=np.float64):
    """out and lse of q and the keys of all ranks at once."""
    k, v = np.concatenate(kvs, axis=1)
    out, lse = reference.attention(*(x[None, :, None] for x in (q, k, v)), dtype=dtype)
    return out[0, :, 0], lse[0, 0]


def check(exercise, q, kvs, factor=6):
    got = exercise.mended(q, kvs)
    right = isinstance(got, tuple | list) and len(got) == 2
    assert right, f"mended must return (out, lse), got {got!r:.40}"
    published = exercise.published(q, kvs)
    want, plain = answers(q, kvs), answers(q, kvs, np.float32)
    for i, name in enumerate(("out", "lse")):
        found = np.asarray(got[i])
        assert found.shape == want[i].shape, (
            f"{name} must have the shape {want[i].shape}, got {found.shape}"
        )
        at = first_difference(found, want[i], plain[i], factor)
        if at is None:
            continue
        causes = [("That is what `published` returns.", published[i])]
        if name == "lse":
            causes += [
                ("That is log2 of the sum of e^score, not ln.", want[1] / np.log(2)),
                ("The factor is upside down: must be ln(2), not 1 / ln(2).",
                 want[1] / np.log(2) ** 2),
            ]  # fmt: skip
        causes = [words for words, x in causes if np.allclose(found, x, rtol=1e-4, atol=1e-5)]
        raise Wrong(
            f"keys on each rank: {[kv.shape[1] for kv in kvs]}: {name}{list(at)} must be "
            f"{want[i][at]:.6g}, got {found[at]:.6g}. {causes[0] if causes else ''}",
            causes=causes,
        )


def test_one_rank(exercise):
    """one rank: out as before, and lse is the natural logarithm"""
    check(exercise, *problem([9]))


@pytest.mark.parametrize("lengths", [(8, 8), (3, 20), (20, 3), (1, 1)], ids=str)
def test_two_ranks(exercise, lengths):
    """two ranks, whose parts differ in weight"""
    check(exercise, *problem(lengths))


@pytest.mark.parametrize("ranks", [3, 5, 8])
def test_many_ranks(exercise, ranks):
    """more ranks, 300 rows of 70 numbers"""
    check(exercise, *problem([5 + 3 * r for r in range(ranks)], 300, 70, seed=ranks))


def test_equal_parts(exercise):
    """equal parts, where the published program is right as well"""
    q, (kv,) = problem([7])
    check(exercise, q, [kv, kv])
    published = exercise.published(q, [kv, kv])[0]
    assert np.abs(published - answers(q, [kv, kv])[0]).max() < 1e-5


@pytest.mark.parametrize("size", [30.0, 300.0])
def test_large_scores(exercise, size):
    """scores far from 0, on every rank"""
    check(exercise, *problem([6, 11, 4], size=size), factor=60)  # lse has fewer digits here


def test_scores_of_opposite_sign(exercise):
    """one rank with scores near -100, one near 100"""
    q, kvs = problem([6, 6])
    q[:, 0] = 30
    kvs[0][0, :, 0], kvs[1][0, :, 0] = -9, 9
    check(exercise, q, kvs)
    check(exercise, q, kvs[::-1])


def test_cut_changes_nothing(exercise):
    """the same keys, cut among ranks in other ways"""
    q, (kv,) = problem([24], seed=5)
    for cuts in ([12], [1], [23], [4, 9], [6, 12, 18]):
        check(exercise, q, [np.ascontiguousarray(x) for x in np.split(kv, cuts, axis=1)])


def test_dtype_and_inputs(exercise):
    """float32 results; q and kvs are not written"""
    q, kvs = problem([4, 6])
    before = q.copy(), [kv.copy() for kv in kvs]
    out, lse = exercise.mended(q, kvs)
    assert (out.dtype, lse.dtype) == (np.float32, np.float32), f"got {out.dtype} and {lse.dtype}"
    unchanged = np.array_equal(q, before[0]) and all(map(np.array_equal, kvs, before[1]))
    assert unchanged, "q or kvs has been written"
