"""Grader of ex17e: a merge of splits, some of which have no keys and say so by +inf."""

import math

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import expect_guard, guarded
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import expect_no_races

INF = math.inf
MARKS = pytest.mark.parametrize("mark", [INF, -INF], ids=["+inf", "-inf"])


def partials(num_splits, with_keys, head_dim=5, *, mark=INF, seed=0, size=2.0):
    """Partial results; with_keys[b] are the splits of sequence b that have keys."""
    rng = np.random.default_rng(seed)
    lse = np.float32(size * rng.standard_normal((num_splits, len(with_keys), 2)))
    out = rng.standard_normal((*lse.shape, head_dim), np.float32)
    for b, kept in enumerate(with_keys):
        empty = [split for split in range(num_splits) if split not in kept]
        lse[empty, b], out[empty, b] = mark, np.nan if mark > 0 else 0
    return out, lse


def answer(out_partial, lse_partial):
    """The splits that have keys, merged by definition."""
    keys = np.isfinite(lse_partial)
    score = np.where(keys, lse_partial.astype(np.float64), -INF)
    top = np.where(keys.any(axis=0), score.max(axis=0), 0)
    w = np.exp(score - top)
    x = np.where(keys[..., None], out_partial, 0).astype(np.float64)
    total = w.sum(axis=0)
    with np.errstate(divide="ignore"):
        lse = np.where(total > 0, top + np.log(total), -INF)
    return (w[..., None] * x).sum(axis=0) / np.where(total > 0, total, 1)[..., None], lse


def run(kernel, out_partial, lse_partial):
    _, batch, num_heads, head_dim = out_partial.shape
    outputs = {"out": guarded(batch, num_heads, head_dim), "lse": guarded(batch, num_heads)}
    arrays = [array for array, _ in outputs.values()]
    trace = simt.trace(kernel, (num_heads, batch), 32, out_partial, lse_partial, *arrays)
    for name, (_, larger) in outputs.items():
        expect_guard(name, larger)
    return arrays, trace


def check(exercise, out_partial, lse_partial):
    before = out_partial.tobytes(), lse_partial.tobytes()  # NaN is not equal to NaN
    got, trace = run(exercise.kernel, out_partial, lse_partial)
    now = out_partial.tobytes(), lse_partial.tobytes()
    assert now == before, "the kernel wrote into its partial results"
    expect_no_races(trace)
    for name, x, y in zip(("out", "lse"), got, answer(out_partial, lse_partial), strict=True):
        with np.errstate(invalid="ignore"):
            tolerance = 2e-5 * np.maximum(1, np.where(np.isfinite(y), np.abs(y), 0))
            wrong = np.argwhere(~((x == y) | (np.abs(x - y) <= tolerance)))
        if not len(wrong):
            continue
        at = tuple(int(i) for i in wrong[0])
        row = [float(s) for s in lse_partial[:, at[0], at[1]]]
        empty, value = [s for s in row if not math.isfinite(s)], float(x[at])
        if not math.isfinite(value) and INF in row:
            cause = (
                "A split without keys has lse_partial = +inf and NaN in out_partial: it is still "
                "merged."
            )
        elif not math.isfinite(value) and empty:
            cause = "A split without keys has lse_partial = -inf: -inf - -inf is NaN."
        elif len(empty) == len(row):
            cause = "A row without any key is out 0 and lse -inf."
        else:
            cause = "The splits that have keys are not merged as broken_kernel merges them."
        where = f"{name}{list(at)}"
        raise Wrong(
            f"{where} must be {y[at]:.6g}, got {value:.6g}; lse_partial of the row: "
            f"{', '.join(f'{s:.4g}' for s in row)}",
            causes=[cause],
            where=where,
        )


def test_example(exercise):
    """the example of the statement"""
    out_partial, lse_partial = exercise.example()
    check(exercise, np.array(out_partial), np.array(lse_partial))


def test_no_empty_split(exercise):
    """no split is empty: as before"""
    check(exercise, *partials(4, [range(4)] * 3))


@MARKS
@pytest.mark.parametrize("kept", [[0], [2], [0, 1], [1, 3], [3]], ids=str)
def test_empty_splits(exercise, kept, mark):
    """splits without keys, first, last and between"""
    check(exercise, *partials(4, [range(4), kept], mark=mark))


@MARKS
def test_no_keys_at_all(exercise, mark):
    """a sequence without a key is out 0, lse -inf; its neighbours are as ever"""
    check(exercise, *partials(3, [range(3), [], [1]], mark=mark))


@MARKS
def test_large_lse(exercise, mark):
    """lse of some hundreds, and of ten thousands, of either sign"""
    for size in (300, 3e4):
        check(exercise, *partials(5, [[0, 2, 4], [1], range(5)], mark=mark, size=size))


def test_both_marks(exercise):
    """both ways to say that there are no keys, in one row"""
    out_partial, lse_partial = partials(5, [[1, 3]])
    lse_partial[0], out_partial[0] = -INF, 0
    check(exercise, out_partial, lse_partial)


@pytest.mark.parametrize("head_dim, splits", [(1, 270), (32, 9), (128, 2), (330, 2)])
def test_head_dim(exercise, head_dim, splits):
    """any head_dim, many splits"""
    check(exercise, *partials(splits, [range(splits), [0, splits - 2]], head_dim))


def test_broken_kernel_stays(exercise):
    """broken_kernel is as it was given"""
    out_partial, lse_partial = partials(3, [range(3), [0]])
    with np.errstate(invalid="ignore"):
        (out, _), _ = run(exercise.broken_kernel, out_partial, lse_partial)
    assert np.isnan(out[1]).all(), "leave broken_kernel as it is, mend `kernel`"
    assert np.allclose(out[0], answer(out_partial, lse_partial)[0][0], atol=1e-5)


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32"""
    out_partial, lse_partial = partials(2, [range(2)])
    gpu_ready(exercise.kernel, (out_partial, lse_partial, out_partial[0], lse_partial[0]))
