"""Grader of ex08a: delta = rowsum(dout * out)."""

import math

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import (
    expect_clean,
    expect_close,
    guarded,
)
from fa_numba.workbook.graders.meter import expect_traffic
from fa_numba.workbook.graders.mistakes import delta_mistakes


def random_rows(seqlen_q, head_dim, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((seqlen_q, head_dim), np.float32) for _ in range(2)]


def prepare(exercise, dout, out):
    delta, larger = guarded(len(out))
    grid = math.ceil(len(out) / exercise.ROWS)
    return (exercise.delta_kernel, grid, (32, exercise.ROWS), dout, out, delta), delta, larger


def launch(exercise, dout, out):
    args, delta, larger = prepare(exercise, dout, out)
    simt.run(*args)
    return delta, larger


def trace_of(exercise, dout, out):
    return simt.trace(*prepare(exercise, dout, out)[0])


def check(exercise, dout, out):
    delta, _ = launch(exercise, dout, out)
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


@pytest.mark.parametrize("head_dim", [1, 2, 31, 33, 100, 128])
def test_head_dim(exercise, head_dim):
    """any head_dim, fewer and more columns than a warp has lanes"""
    check(exercise, *random_rows(6, head_dim))


def test_long(exercise):
    """a thousand rows, and rows of 5000 columns"""
    check(exercise, *random_rows(1001, 3))
    check(exercise, *random_rows(2, 5003))


def test_large_numbers(exercise):
    """gradients of 1e15, and of 1e-15: no sum is clipped, none starts from a constant"""
    for size in (1e15, 1e-15):
        dout, out = random_rows(6, 50)
        delta, _ = launch(exercise, dout * np.float32(size), out)
        want = np.sum(dout.astype(float) * out, axis=1) * size
        row = int(np.argmax(np.abs(delta - want)))
        assert np.abs(delta - want)[row] <= 1e-5 * size, (
            f"dout of about {size:g}: delta[{row}] must be {want[row]:.6g}, got {delta[row]:.6g}"
        )


def test_each_column_once(exercise):
    """every column counts, once"""
    dout = np.ones((1, 70), np.float32)
    for d in range(70):
        out = np.zeros((1, 70), np.float32)
        out[0, d] = 1
        delta, _ = launch(exercise, dout, out)
        assert delta[0] == 1, f"column {d} counts {delta[0]:g} times, must count once"


def test_signs(exercise):
    """products of both signs cancel"""
    dout, out = random_rows(8, 64)
    dout[:, 32:], out[:, 32:] = dout[:, :32], -out[:, :32]
    delta, _ = launch(exercise, dout, out)
    assert (np.abs(delta) <= 1e-5).all(), f"the halves cancel: delta must be 0, got {delta}"


def test_not_a_probability(exercise):
    """equals rowsum(dP * P), the sum over the keys that it stands for"""
    rng = np.random.default_rng(3)
    s = rng.standard_normal((8, 40))
    p = np.exp(s) / np.exp(s).sum(axis=1, keepdims=True)
    v = rng.standard_normal((40, 16))
    dout = rng.standard_normal((8, 16))
    want = np.sum(p * (dout @ v.T), axis=1)
    delta, _ = launch(exercise, dout.astype(np.float32), (p @ v).astype(np.float32))
    expect_close("delta", delta, want, want, tile=exercise.ROWS)


def test_traffic(exercise):
    """HBM: dout and out once, delta once"""
    dout, out = random_rows(18, 70)
    trace = trace_of(exercise, dout, out)
    once = (out.size, "seqlen_q * head_dim")
    wanted = {
        ("dout", "loads"): once,
        ("out", "loads"): once,
        ("delta", "stores"): (18, "seqlen_q"),
        ("delta", "loads"): (0, "delta is only written"),
    }
    expect_traffic(trace, wanted)


def test_no_shared_memory(exercise):
    """no shared memory and no barrier: the lanes add up by shuffles"""
    trace = trace_of(exercise, *random_rows(8, 64))
    assert not trace.shared_bytes, (
        f"the lanes of a warp hand their sums on by shuffles, without shared memory: "
        f"{trace.shared_bytes} bytes of it in {', '.join(trace.shared)}"
    )
    assert not trace.barriers, "a warp has its row to itself: it needs no barrier"


def test_coalesced(exercise):
    """neighbouring lanes load neighbouring columns: 4 sectors of 32 bytes per request"""
    for head_dim in (64, 256):
        trace = trace_of(exercise, *random_rows(8, head_dim))
        for name in ("dout", "out"):
            moved = trace.arrays[name]
            sectors = moved.load_sectors / max(moved.load_requests, 1)
            assert sectors <= 4, (
                f"a warp's request for {name} touches {sectors:g} sectors; 32 neighbours of 4 "
                "bytes lie in 4. Lane 0 takes column 0, lane 1 column 1, and so on"
            )


def test_inputs_and_edges(exercise):
    """dout and out stay as they are, and nothing is written beside delta"""
    launch, *delta = prepare(exercise, *random_rows(6, 40))
    expect_clean(launch, {"delta": delta}, "dout out")


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without float64"""
    x = np.zeros((4, 64), np.float32)
    gpu_ready(exercise.delta_kernel, (x, x, np.zeros(4, np.float32)))
