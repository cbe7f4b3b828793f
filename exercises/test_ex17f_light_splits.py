"""Grader of ex17f: combine without loading splits that weigh nothing."""

import math

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import expect_guard, guarded
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_no_races, expect_traffic

INF = math.inf
SPLITS, HEADS, HEAD_DIM = 8, 8, 32
WITH_KEYS = 8, 1, 2, 1  # splits of each sequence
LIGHT = 2  # of the splits of sequence 0, at its end: 200 below the others


def ragged(seed=0, *, head_dim=HEAD_DIM, light=LIGHT, order=None):
    """Partial results of four sequences; NaN where a split has no keys."""
    rng = np.random.default_rng(seed)
    lse = np.float32(2 * rng.standard_normal((SPLITS, len(WITH_KEYS), HEADS)))
    out = rng.standard_normal((*lse.shape, head_dim), np.float32)
    for b, kept in enumerate(WITH_KEYS):
        lse[kept:, b], out[kept:, b] = -INF, np.nan
    if light:
        lse[SPLITS - light :, 0] -= 200
    if order is not None:
        out, lse = np.ascontiguousarray(out[order]), np.ascontiguousarray(lse[order])
    return out, lse


def answer(out_partial, lse_partial):
    """A softmax over the splits that have keys."""
    keys = np.isfinite(lse_partial)
    top = np.where(keys.any(axis=0), np.where(keys, lse_partial, -INF).max(axis=0), 0)
    w = np.exp(np.where(keys, lse_partial.astype(np.float64), -INF) - top)
    x = np.where(keys[..., None], out_partial, 0).astype(np.float64)
    total = w.sum(axis=0)
    with np.errstate(divide="ignore"):
        lse = np.where(total > 0, top + np.log(total), -INF)
    return (w[..., None] * x).sum(axis=0) / np.where(total > 0, total, 1)[..., None], lse


def run(exercise, out_partial, lse_partial):
    _, batch, num_heads, head_dim = out_partial.shape
    outputs = {"out": guarded(batch, num_heads, head_dim), "lse": guarded(batch, num_heads)}
    arrays = [array for array, _ in outputs.values()]
    before = out_partial.tobytes(), lse_partial.tobytes()
    kernel = exercise.make_kernel(head_dim)
    trace = simt.trace(kernel, (num_heads, batch), 32, out_partial, lse_partial, *arrays)
    assert (out_partial.tobytes(), lse_partial.tobytes()) == before, "an input was written"
    for name, (_, larger) in outputs.items():
        expect_guard(name, larger)
    return arrays, trace


def check(exercise, out_partial, lse_partial):
    got, trace = run(exercise, out_partial, lse_partial)
    expect_no_races(trace)
    for name, x, y in zip(("out", "lse"), got, answer(out_partial, lse_partial), strict=True):
        with np.errstate(invalid="ignore"):
            wrong = np.argwhere(~((x == y) | (np.abs(x - y) <= 2e-5)))
        if len(wrong):
            at = tuple(int(i) for i in wrong[0])
            row = lse_partial[:, at[0], at[1]]
            if np.isnan(x[at]):
                cause = "A split without keys is merged: its out_partial is NaN here."
            elif not np.isfinite(row).any():
                cause = "A row without any key is out 0 and lse -inf."
            else:
                cause = "A split that has weight is left out, or one is merged twice."
            where = f"{name}{list(at)}"
            raise Wrong(
                f"{where} must be {y[at]:.6g}, got {x[at]:.6g}; lse_partial of the row: "
                f"{', '.join(f'{s:.4g}' for s in row)}",
                causes=[cause],
                where=where,
            )


def loaded(exercise):
    """Splits and rows of out_partial that are loaded, of the ragged batch."""
    _, trace = run(exercise, *ragged())
    return trace.arrays["out_partial"].loads / HEAD_DIM, trace


def test_ragged(exercise):
    """sequences of different lengths"""
    check(exercise, *ragged())


@pytest.mark.parametrize("seed", range(3))
def test_any_order(exercise, seed):
    """splits without keys, and light ones, anywhere in a row"""
    order = np.random.default_rng(seed).permutation(SPLITS)
    check(exercise, *ragged(seed, order=order))


def test_every_split_has_keys(exercise):
    """no split is empty; weights from 1 down to e^-15 count"""
    out_partial, lse_partial = ragged(light=0)
    check(exercise, out_partial[:, :1], lse_partial[:, :1])
    far = np.float32(np.linspace(0, -15, SPLITS))[:, None, None]
    out_partial = np.float32(10 ** -np.linspace(6, 0, SPLITS))[:, None, None, None] * np.ones(
        (SPLITS, 1, HEADS, HEAD_DIM), np.float32
    )
    (out, _), _ = run(exercise, out_partial, np.broadcast_to(far, (SPLITS, 1, HEADS)).copy())
    want, _ = answer(out_partial, np.broadcast_to(far, (SPLITS, 1, HEADS)))
    wrong = np.abs(out - want) > 1e-4 * want
    assert not wrong.any(), (
        f"a light split has weight: want {want[0, 0, 0]:.6g}, got {out[0, 0, 0]:.6g}"
    )


def test_many_splits(exercise):
    """270 splits, of which every second one has keys"""
    rng = np.random.default_rng(3)
    out, lse = rng.standard_normal((270, 1, 1, 2), np.float32), np.zeros((270, 1, 1), np.float32)
    out[::2], lse[::2] = np.nan, -INF
    check(exercise, out, lse)


def test_no_keys_at_all(exercise):
    """a row without any key is out 0, lse -inf"""
    out_partial, lse_partial = ragged()
    out_partial[:, 1], lse_partial[:, 1] = np.nan, -INF
    check(exercise, out_partial, lse_partial)


@pytest.mark.parametrize("head_dim", [1, 31, 128, 330])
def test_head_dim(exercise, head_dim):
    """any head_dim"""
    check(exercise, *(x[:, :, :1] for x in ragged(head_dim=head_dim)))


def test_budget(exercise):
    """out_partial is loaded where a split has keys, and nowhere else"""
    got, _ = loaded(exercise)
    budget = sum(WITH_KEYS) * HEADS
    if got > budget:
        causes = []
        if got == SPLITS * len(WITH_KEYS) * HEADS:
            causes = ["Every split is loaded, those without keys, too: ask for its weight first."]
        raise Wrong(
            f"of {SPLITS * len(WITH_KEYS) * HEADS} splits and rows {budget} have keys, and {got:g} "
            "were loaded",
            causes=causes,
        )


def test_other_traffic(exercise):
    """out and lse are stored once and not loaded; no shared memory, no barrier"""
    _, trace = loaded(exercise)
    rows = len(WITH_KEYS) * HEADS
    expect_traffic(
        trace,
        {
            ("out", "stores"): (rows * HEAD_DIM, "rows * head_dim"),
            ("lse", "stores"): (rows, "rows"),
            ("out", "loads"): (0, "out is never read"),
            ("lse", "loads"): (0, "lse is never read"),
        },
    )
    assert trace.barriers == 0, "threads share nothing: no barrier"
    expect_chip_memory(trace, local=4 * 4, allowed="a thread keeps its columns, and no splits")


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32"""
    out_partial, lse_partial = ragged()
    run(exercise, out_partial, lse_partial)
    gpu_ready(
        exercise.make_kernel(HEAD_DIM), (out_partial, lse_partial, out_partial[0], lse_partial[0])
    )
