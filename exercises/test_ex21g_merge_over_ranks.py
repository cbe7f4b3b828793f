"""Grader of ex21g: states of several ranks, merged by a maximum and a sum."""

import math

import numpy as np
import pytest

from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import random_head
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.kernels import expect_at_most, launched
from fa_numba.workbook.graders.meter import expect_chip_memory

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


def run(exercise, out, lse, threads=64):
    """The merged out and lse, and the traces of both kernels."""
    m, rows = lse.max(axis=0), lse.shape[1]
    parts = []
    for one_out, one_lse in zip(out, lse, strict=True):
        packed = np.full((rows, out.shape[2] + 1), np.nan, np.float32)
        given = {"out": one_out, "lse": one_lse, "m": m, "packed": packed}
        got, before = launched(exercise.weigh, rows, threads, ("packed",), **given)
        nans = np.argwhere(np.isnan(got["packed"]))
        if len(nans):
            row, column = nans[0].tolist()
            none = np.isneginf(m[row])
            causes = {
                "-inf - -inf is NaN: where m is -inf, no rank has a key.": none,
                "packed has head_dim + 1 columns, and all are to be written.": not none,
            }
            raise Wrong(
                f"packed[{row}, {column}] is NaN, where the rank has lse {one_lse[row]:g} and m is "
                f"{m[row]:g}",
                causes=[cause for cause, is_so in causes.items() if is_so],
                where="packed",
            )
        parts.append(got["packed"])
    given = {"total": np.sum(parts, axis=0, dtype=np.float32), "m": m}
    given |= {"out": np.full_like(out[0], np.nan), "lse": np.full_like(lse[0], np.nan)}
    got, after = launched(exercise.finish, rows, threads, ("out", "lse"), **given)
    return got, before, after


def check(exercise, out, lse, threads=64):
    got, *traces = run(exercise, out, lse, threads)
    for name, want in zip(("out", "lse"), definition(out, lse), strict=True):
        # lse is known to a spacing of its own size, and a weight is as good as that.
        finite = np.where(np.isfinite(lse), np.abs(lse), 0).max()
        tolerance = 1e-5 + 4 * float(np.spacing(np.float32(finite)))
        found = got[name]
        with np.errstate(invalid="ignore"):
            wrong = np.argwhere(~((found == want) | (np.abs(found - want) <= tolerance)))
        if len(wrong):
            at = tuple(int(i) for i in wrong[0])
            said = [float(f"{x:.5g}") for x in lse[:, at[0]]]
            cause = hint(name, float(found[at]), found, want, out, lse, 0)
            where = f"W = {len(out)}: {name}{list(at)}"
            raise Wrong(
                f"{where} must be {want[at]:.6g}, got {found[at]:.6g}; the ranks have lse {said} "
                f"there. {cause}",
                causes=[cause],
                where=where,
            )
    return got, *traces


def hint(name, value, got, want, out, lse, rank):
    """One sentence on the most likely cause."""
    if math.isnan(value):
        return "NaN is -inf - -inf, 0 / 0 or inf / inf: guard the maximum and the division."
    if math.isinf(value) and not np.isinf(want).any():
        return "e^lse is larger than float32 holds: subtract the largest lse first."
    m = lse.max(axis=0)
    with np.errstate(all="ignore"):
        w, w_2 = np.exp(lse - m)[:, :, None], np.exp2(lse - m)[:, :, None]
        total, l, inverse = (w * out).sum(axis=0), w.sum(axis=0), np.exp(m - lse)[:, :, None]
        column = "Column head_dim of packed is the weight, and of total l, their sum."
        known = {
            "out": [
                ("That is this rank's own state.", out[rank]),
                ("Weigh each out by e^(lse - m).", out.sum(axis=0)),
                ("Weigh each out by e^(lse - m).", out.mean(axis=0)),
                ("Weigh each out by e^(lse - m).", out.sum(axis=0) / l),
                (
                    "The weights are e^(lse - m), not e^(m - lse).",
                    (inverse * out).sum(axis=0) / inverse.sum(axis=0),
                ),
                ("Divide by the sum of the weights.", total),
                ("Divide by the sum of the weights.", total * l),
                ("Divide by the weights of all ranks.", total / w[rank]),
                (column, total / len(out)),
                *(
                    (column, np.where((x := total[:, i : i + 1]) > 0, total / x, 0))
                    for i in (0, out.shape[2] - 1)
                ),
                (column, np.where((x := lse.sum(axis=0)[:, None]) > 0, total / x, 0)),
                ("The weights are powers of e.", (w_2 * out).sum(axis=0) / w_2.sum(axis=0)),
            ],
            "lse": [
                ("That is the largest lse: add the log of the summed weights.", m),
                ("The weights are e^(lse - m): subtract m.", m + np.log(np.exp(lse).sum(axis=0))),
                ("The log of the summed weights is missing.", m + l[:, 0]),
                ("Add the largest lse, which was subtracted.", np.log(l[:, 0])),
                ("Add the log, not subtract it: lse = m + log(l).", m - np.log(l[:, 0])),
                ("A natural logarithm, not log2.", m + np.log2(l[:, 0])),
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
    got, *_ = check(exercise, out, lse)
    error = np.abs(got["out"] - head.forward["out"]).max()
    assert error < 1e-5, f"out is off by {error:.1g} from attention to all keys at once"


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


def test_weightless_out(exercise):
    """exp of -120 is 0: a rank that far below the largest lse adds nothing, whatever its out"""
    out, lse = states(3, seed=8)
    lse[1], out[1] = lse.max() - 160, 3e38
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


@pytest.mark.parametrize(
    "rows, head_dim, threads", [(1, 1, 32), (300, 3, 64), (2, 70, 96), (2, 128, 64), (3, 650, 64)]
)
def test_sizes(exercise, rows, head_dim, threads):
    """any numbers of rows, columns and threads"""
    check(exercise, *states(4, rows, head_dim), threads)


def test_traffic(exercise):
    """each number is loaded or stored once; no shared memory"""
    out, lse = states(3, 4, 64)
    _, before, after = check(exercise, out, lse)
    numbers = 4 * 64
    expect_at_most(
        before,
        out_loads=(numbers, "once for each number"),
        packed_stores=(numbers + 4, "once for each number, and a weight for each row"),
        packed_loads=(0, "packed is only written"),
    )
    expect_at_most(
        after,
        total_loads=(numbers + 4 * 64, "once for each number, and the sum of weights"),
        out_stores=(numbers, "once for each number"),
        out_loads=(0, "out is only written"),
        lse_stores=(4, "one thread stores a row's lse"),
    )
    for trace, name, kind in ((before, "packed", "store"), (after, "total", "load")):
        array = trace.arrays[name]
        sectors, most = getattr(array, f"{kind}_sectors"), 4 * 10 + 4 * 2
        assert sectors <= most, (
            f"{name}: 4 rows of 65 numbers lie in about 40 sectors of 32 bytes, the kernel "
            f"touches {sectors}: neighbouring threads take neighbouring columns"
        )
        expect_chip_memory(trace, allowed="a weight is a register")


def test_compiles_for_a_gpu(exercise):
    """both compile for a GPU, in float32 throughout"""
    out, lse = (x[0] for x in states(1))
    packed = np.zeros((5, 7), np.float32)
    gpu_ready(exercise.weigh, (out, lse, lse, packed))
    gpu_ready(exercise.finish, (packed, lse, out, lse))
