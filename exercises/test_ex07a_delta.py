"""Grader of ex07a: delta = rowsum(dout * out)."""

import math

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.workbook.attention_checks import (
    expect_close,
    expect_guard,
    expect_traffic,
    expect_unchanged,
    guarded,
)
from fa_numba.workbook.attention_mistakes import delta_mistakes


def random_rows(seqlen_q, head_dim, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((seqlen_q, head_dim), np.float32) for _ in range(2)]


def launch(exercise, dout, out, how=simt.run):
    delta, larger = guarded(len(out))
    grid = math.ceil(len(out) / exercise.ROWS)
    result = how(exercise.delta_kernel, grid, (32, exercise.ROWS), dout, out, delta)
    return delta, larger, result


def check(exercise, dout, out):
    delta, _, _ = launch(exercise, dout, out)
    want, plain = (
        np.sum(dout.astype(dtype) * out.astype(dtype), axis=1) for dtype in (np.float64, np.float32)
    )
    mistakes = delta_mistakes(dout, out)
    expect_close("delta", delta, want, plain, tile=exercise.ROWS, factor=3, mistakes=mistakes)


def test_matches(exercise):
    """matches rowsum(dout * out) in float64"""
    check(exercise, *random_rows(16, 64))


@pytest.mark.parametrize("seqlen_q", [1, 5, 18])
def test_ragged_rows(exercise, seqlen_q):
    """the number of rows need not be a multiple of ROWS"""
    check(exercise, *random_rows(seqlen_q, 32))


@pytest.mark.parametrize("head_dim", [1, 2, 31, 33, 100, 256])
def test_head_dim(exercise, head_dim):
    """any head_dim, fewer and more columns than a warp has lanes"""
    check(exercise, *random_rows(6, head_dim))


def test_each_column_once(exercise):
    """every column counts, once"""
    dout = np.ones((1, 70), np.float32)
    for d in range(70):
        out = np.zeros((1, 70), np.float32)
        out[0, d] = 1
        delta, _, _ = launch(exercise, dout, out)
        assert delta[0] == 1, f"column {d} counts {delta[0]:g} times, must count once"


def test_signs(exercise):
    """products of both signs cancel"""
    dout, out = random_rows(8, 64)
    dout[:, 32:], out[:, 32:] = dout[:, :32], -out[:, :32]
    delta, _, _ = launch(exercise, dout, out)
    assert (np.abs(delta) <= 1e-5).all(), f"the halves cancel: delta must be 0, got {delta}"


def test_not_a_probability(exercise):
    """equals rowsum(dP * P), the sum over the keys that it stands for"""
    rng = np.random.default_rng(3)
    s = rng.standard_normal((8, 40))
    p = np.exp(s) / np.exp(s).sum(axis=1, keepdims=True)
    v = rng.standard_normal((40, 16))
    dout = rng.standard_normal((8, 16))
    want = np.sum(p * (dout @ v.T), axis=1)
    delta, _, _ = launch(exercise, dout.astype(np.float32), (p @ v).astype(np.float32))
    expect_close("delta", delta, want, want, tile=exercise.ROWS)


def test_traffic(exercise):
    """HBM: dout and out once, delta once"""
    dout, out = random_rows(18, 70)
    _, _, trace = launch(exercise, dout, out, how=simt.trace)
    once = (out.size, "seqlen_q * head_dim")
    wanted = {
        ("dout", "loads"): once,
        ("out", "loads"): once,
        ("delta", "stores"): (18, "seqlen_q"),
    }
    expect_traffic(trace, wanted)


def test_coalesced(exercise):
    """neighbouring lanes load neighbouring columns: 4 sectors of 32 bytes per request"""
    dout, out = random_rows(8, 64)
    _, _, trace = launch(exercise, dout, out, how=simt.trace)
    sectors = trace.arrays["out"].load_sectors / max(trace.arrays["out"].load_requests, 1)
    assert sectors <= 4, (
        f"a warp's request for out touches {sectors:g} sectors; 32 neighbours of 4 bytes lie in 4. "
        "Lane 0 takes column 0, lane 1 column 1, and so on"
    )


def test_inputs_unchanged(exercise):
    """dout and out stay as they are"""
    dout, out = random_rows(6, 40)
    before = {"dout": dout.copy(), "out": out.copy()}
    launch(exercise, dout, out)
    expect_unchanged(before, {"dout": dout, "out": out})


def test_nothing_written_outside(exercise):
    """nothing is written beside delta"""
    _, larger, _ = launch(exercise, *random_rows(6, 40))
    expect_guard("delta", larger)


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without float64"""
    from fa_numba.analysis.machine_code import gpu_ready

    x = np.zeros((4, 64), np.float32)
    gpu_ready(exercise.delta_kernel, (x, x, np.zeros(4, np.float32)))
