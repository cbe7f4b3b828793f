"""Grader of ex21g: states of several ranks, merged by a maximum and a sum."""

import math

import numpy as np
import pytest

from fa_numba.workbook.graders.attention import random_head
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.ranks import run_on_ranks

WORLDS = pytest.mark.parametrize("world_size", [2, 3, 5, 8, 1])
INF = math.inf


def states(world_size, rows=5, head_dim=6, *, seed=0, spread=3.0):
    """out and lse of each rank."""
    rng = np.random.default_rng(seed)
    out = rng.standard_normal((world_size, rows, head_dim), np.float32)
    lse = np.float32(spread * rng.standard_normal((world_size, rows)))
    return out, lse


def definition(out, lse):
    """The merged state, in float64."""
    out, lse = out.astype(np.float64), lse.astype(np.float64)
    m = lse.max(axis=0)
    base = np.where(np.isneginf(m), 0, m)
    w = np.exp(lse - base)
    l = w.sum(axis=0)
    with np.errstate(divide="ignore"):
        return (w[:, :, None] * out).sum(axis=0) / np.where(l == 0, 1, l)[:, None], m + np.log(l)


def run(exercise, out, lse, **options):
    shards = list(out.copy()), list(lse.copy())
    ran = run_on_ranks(exercise.merge_over_ranks, len(out), *shards, **options)
    for rank, result in enumerate(ran.results):
        right = isinstance(result, tuple | list) and len(result) == 2
        assert right, f"rank {rank} must return out, lse, got {result!r:.40}"
        for name, x, shape in zip(
            ("out", "lse"), result, (out[0].shape, lse[0].shape), strict=True
        ):
            got = getattr(x, "shape", None), str(getattr(x, "dtype", type(x).__name__))
            assert got == (shape, "float32"), (
                f"rank {rank}: {name} must be float32 of shape {shape}, got {got[1]} of {got[0]}"
            )
    return ran


def check(exercise, out, lse, **options):
    ran = run(exercise, out, lse, **options)
    wants = definition(out, lse)
    for rank, result in enumerate(ran.results):
        for name, got, want in zip(("out", "lse"), result, wants, strict=True):
            # lse is known to a spacing of its own size, and a weight is as good as that.
            finite = np.where(np.isfinite(lse), np.abs(lse), 0).max()
            tolerance = 1e-5 + 4 * float(np.spacing(np.float32(finite)))
            with np.errstate(invalid="ignore"):
                wrong = np.argwhere(~((got == want) | (np.abs(got - want) <= tolerance)))
            if len(wrong):
                at = tuple(int(i) for i in wrong[0])
                value = float(got[at])
                said = [float(f"{x:.5g}") for x in lse[:, at[0]]]
                cause = hint(name, value, got, want, out, lse, rank)
                where = f"W = {len(out)}, rank {rank}: {name}{list(at)}"
                raise Wrong(
                    f"{where} must be {want[at]:.6g}, got {value:.6g}; the ranks have lse {said} "
                    f"there. {cause}",
                    causes=[cause],
                    where=where,
                )
    return ran


def hint(name, value, got, want, out, lse, rank):
    """One sentence on the most likely cause."""
    if math.isnan(value):
        return "NaN is -inf - -inf, 0 / 0 or inf / inf: guard the maximum and the division."
    if math.isinf(value) and not np.isinf(want).any():
        return "e^lse is larger than float32 holds: subtract the largest lse first."
    m = lse.max(axis=0)
    with np.errstate(all="ignore"):
        w, w_2 = np.exp(lse - m)[:, :, None], np.exp2(lse - m)[:, :, None]
        known = {
            "out": [
                ("That is this rank's own state.", out[rank]),
                ("Weigh each out by e^(lse - m).", out.sum(axis=0)),
                ("Weigh each out by e^(lse - m).", out.mean(axis=0)),
                ("Weigh each out by e^(lse - m).", out.sum(axis=0) / w.sum(axis=0)),
                ("Divide by the sum of the weights.", (w * out).sum(axis=0)),
                ("Divide by the weights of all ranks.", (w * out).sum(axis=0) / w[rank]),
                ("The weights are powers of e.", (w_2 * out).sum(axis=0) / w_2.sum(axis=0)),
            ],
            "lse": [
                ("That is the largest lse: add the log of the summed weights.", m),
                ("Add the largest lse, which was subtracted.", np.log(w.sum(axis=0)[:, 0])),
                ("A natural logarithm, not log2.", m + np.log2(w.sum(axis=0)[:, 0])),
                ("That is this rank's own state.", lse[rank]),
            ],
        }[name]
        return next((s for s, x in known if np.allclose(got, x, rtol=1e-4, atol=1e-5)), "")


@WORLDS
def test_result(exercise, world_size):
    """out and lse over the keys of all ranks"""
    check(exercise, *states(world_size))


def test_attention(exercise):
    """keys cut among 4 ranks: attention to all of them"""
    head = random_head(3, 40, 8)
    parts = [
        type(head)(head.q, head.k[n], head.v[n], head.dout).plain.forward
        for n in np.array_split(np.arange(40), [3, 20, 21])
    ]
    out, lse = (np.float32([part[name] for part in parts]) for name in ("out", "lse"))
    ran = check(exercise, out, lse)
    error = np.abs(ran.results[0][0] - head.forward["out"]).max()
    assert error < 1e-5, f"out is off by {error:.1g} from attention to all keys at once"


@WORLDS
def test_same_on_every_rank(exercise, world_size):
    """every rank has the same bits"""
    ran = run(exercise, *states(world_size, seed=1))
    for rank in range(1, world_size):
        for i, name in enumerate(("out", "lse")):
            same = np.array_equal(ran.results[rank][i], ran.results[0][i])
            assert same, f"{name} of rank {rank} differs from that of rank 0"


@pytest.mark.parametrize("size", [1e4, -1e4, 89.0])
def test_large_lse(exercise, size):
    """lse of 1e4 and -1e4, where e^lse is inf or 0 in float32"""
    out, lse = states(4, seed=2)
    check(exercise, out, np.float32(np.round(lse) + size))


def test_rows_far_apart(exercise):
    """rows whose lse differ by thousands: each has a maximum of its own"""
    out, lse = states(3, seed=7)
    check(exercise, out, lse + np.float32([-9e3, 0, 9e3, 100, -50]))


def test_far_apart(exercise):
    """one rank has nearly all the weight"""
    out, lse = states(3, seed=3)
    lse[1] += 500
    check(exercise, out, lse)


@pytest.mark.parametrize("empty", [[0], [2], [0, 1, 2]], ids=str)
def test_ranks_without_keys(exercise, empty):
    """ranks without a key, lse = -inf and out = 0, weigh nothing"""
    out, lse = states(4, seed=4)
    out[empty], lse[empty] = 0, -INF
    check(exercise, out, lse)


@pytest.mark.parametrize("world_size", [1, 3])
def test_no_key_at_all(exercise, world_size):
    """a row without a key on any rank: out = 0 and lse = -inf"""
    out, lse = states(world_size, seed=5)
    out[:, 2], lse[:, 2] = 0, -INF
    check(exercise, out, lse)


def test_no_warning(exercise):
    """no warning, where no rank has a key and where some have none"""
    out, lse = states(3, seed=5)
    out[:, 2], lse[:, 2] = 0, -INF
    out[1], lse[1] = 0, -INF
    try:
        run(exercise, out, lse, strict=True)
    except Warning as warning:
        cause = "NumPy warns of -inf - -inf, 0 / 0 and log(0): guard the first two, allow the last."
        raise Wrong(f"W = 3: {warning}. {cause}", causes=[cause]) from None


@pytest.mark.parametrize("rows, head_dim", [(1, 1), (300, 70), (2, 128)])
def test_numbers_exchanged(exercise, rows, head_dim):
    """at most rows * (head_dim + 2) numbers go through all_reduce, and nothing else is sent"""
    ran = check(exercise, *states(4, rows, head_dim))
    numbers = rows * (head_dim + 2)
    for rank, events in enumerate(ran.events):
        given = sum(e[2] for e in events if e[0] == "all_reduce")
        assert given <= numbers, (
            f"{rows} rows of {head_dim}: rank {rank} gives all_reduce {given} numbers, {numbers} "
            "are enough"
        )
        sent, most = int(ran.bytes_sent[rank].sum()), 4 * 2 * 3 / 4 * numbers + 256
        assert sent <= most, (
            f"{rows} rows of {head_dim}: rank {rank} sends {sent} bytes, two all_reduce of "
            f"{numbers} numbers send about {most:.0f}"
        )


def test_any_order(exercise):
    """the same bits, in whichever order the ranks run"""
    out, lse = states(4, seed=6)
    first = run(exercise, out, lse).results[0]
    for seed in range(4):
        other = run(exercise, out, lse, order=seed).results[3]
        assert all(map(np.array_equal, first, other)), "another order, other bits"


def test_inputs_unchanged(exercise):
    """out and lse of a rank are not written"""
    out, lse = states(3)
    before = out.copy(), lse.copy()
    run_on_ranks(exercise.merge_over_ranks, 3, list(out), list(lse))
    for name, now, was in zip(("out", "lse"), (out, lse), before, strict=True):
        assert np.array_equal(now, was), f"{name} has been written"
