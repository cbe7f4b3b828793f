"""Grader of ex09d: the gradient of a sink."""

import numpy as np
import pytest

from fa_numba import reference, simt
from fa_numba.workbook.graders.attention import (
    expect_clean,
    expect_close,
    guarded,
)
from fa_numba.workbook.graders.meter import expect_traffic


def random_rows(num_heads, seqlen_q, seed=0):
    """lse, delta and sinks; lse is at least the sink."""
    rng = np.random.default_rng(seed)
    sinks = rng.standard_normal(num_heads, np.float32)
    more = np.abs(rng.standard_normal((num_heads, seqlen_q), np.float32))
    return sinks[:, None] + more, rng.standard_normal((num_heads, seqlen_q), np.float32), sinks


def definition(lse, delta, sinks, dtype=np.float64):
    weights = np.exp(sinks.astype(dtype)[:, None] - lse.astype(dtype))
    return -(weights * delta.astype(dtype)).sum(axis=1)


def mistakes_of(lse, delta, sinks):
    lse, delta, sinks = (x.astype(np.float64) for x in (lse, delta, sinks))
    right = definition(lse, delta, sinks)
    weights = np.exp(sinks[:, None] - lse)
    for sentence, wrong in (
        ("The sign: dP of the sink is 0, and dS = P (dP - delta).", -right),
        ("delta is missing: dS = P (dP - delta).", -weights.sum(axis=1)),
        ("dP of the sink is 0, not 1: its value is a row of zeros.",
         (weights * (1 - delta)).sum(axis=1)),
        ("The sink's weight is exp(sink - lse): exp(sink) is not divided by the row's sum.",
         -(np.exp(sinks)[:, None] * delta).sum(axis=1)),
        ("The sink's weight is exp(sink - lse), and not exp(-lse).",
         -(np.exp(-lse) * delta).sum(axis=1)),
        ("This is the mean of the rows: the loss is their sum.", right / lse.shape[1]),
        ("These are the rows of the first 128 queries alone.",
         definition(lse[:, :128], delta[:, :128], sinks)),
        ("This is one thread's part of the sum: add up the thread block, by block_sum.",
         definition(lse[:, ::128], delta[:, ::128], sinks)),
        ("Every head takes the sink of head 0.",
         -(np.exp(sinks[0] - lse) * delta).sum(axis=1)),
    ):  # fmt: skip
        yield sentence, {"dsinks": wrong}


def launch_of(exercise, lse, delta, sinks):
    dsinks, larger = guarded(len(sinks))
    return (exercise.sink_grad_kernel, len(sinks), 128, lse, delta, sinks, dsinks), dsinks, larger


def check(exercise, lse, delta, sinks):
    launch, dsinks, _ = launch_of(exercise, lse, delta, sinks)
    simt.run(*launch)
    want, plain = (definition(lse, delta, sinks, dtype) for dtype in (np.float64, np.float32))
    expect_close("dsinks", dsinks, want, plain, tile=1, rows="head", factor=4,
                 mistakes=mistakes_of(lse, delta, sinks))  # fmt: skip


def test_matches(exercise):
    """matches the definition in float64"""
    check(exercise, *random_rows(3, 200))


@pytest.mark.parametrize("seqlen_q", [1, 5, 127, 128, 129, 1500])
def test_seqlen(exercise, seqlen_q):
    """any number of queries, fewer and more than threads"""
    check(exercise, *random_rows(2, seqlen_q))


@pytest.mark.parametrize("num_heads", [1, 70, 300])
def test_heads(exercise, num_heads):
    """a thread block for each head"""
    check(exercise, *random_rows(num_heads, 7))


def test_derivative(exercise):
    """is the derivative of the loss: the sink moved a little, out computed anew in float64"""
    rng = np.random.default_rng(1)
    q, k, v, dout = rng.standard_normal((4, 1, 9, 2, 4))
    sinks, step = np.array([0.3, -0.8]), 1e-5

    def loss(sinks):
        return (dout * reference.attention(q, k, v, causal=True, sinks=sinks)[0]).sum()

    out, lse = reference.attention(q, k, v, causal=True, sinks=sinks)
    delta = (dout * out).sum(axis=-1)[0].T
    args = [np.ascontiguousarray(x, np.float32) for x in (lse[0], delta, sinks)]
    launch, dsinks, _ = launch_of(exercise, *args)
    simt.run(*launch)
    for head in range(2):
        moved = np.eye(2)[head] * step
        want = (loss(sinks + moved) - loss(sinks - moved)) / (2 * step)
        assert abs(dsinks[head] - want) <= 1e-4, (
            f"head {head}: moving the sink by {step} changes the loss by {want:.6g} per unit, got "
            f"{dsinks[head]:.6g}"
        )


@pytest.mark.parametrize("size", [1e4, -1e4, 100.0, -100.0])
def test_large_sinks(exercise, size):
    """sinks far from 0: exp(sink) alone is inf or 0 in float32"""
    lse, delta, sinks = random_rows(2, 140)
    check(exercise, np.rint(lse) + np.float32(size), delta, np.rint(sinks) + np.float32(size))


def test_traffic(exercise):
    """HBM traffic is the formula, element for element; neighbours load neighbours"""
    args, _, _ = launch_of(exercise, *random_rows(3, 300))
    trace = simt.trace(*args)
    once = (900, "num_heads * seqlen_q")
    expect_traffic(trace, {
        ("lse", "loads"): once, ("delta", "loads"): once, ("dsinks", "stores"): (3, "num_heads"),
        ("dsinks", "loads"): (0, "it is written alone"),
    })  # fmt: skip
    for name in ("lse", "delta"):
        sectors = trace.arrays[name].load_sectors
        assert sectors <= 3 * 300 // 8 + 3 * 12, (
            f"{name}: neighbouring threads must load neighbouring queries; the meter shows "
            f"{sectors} sectors of 32 bytes, {3 * 300 // 8} hold all"
        )


def test_inputs_and_edges(exercise):
    """lse, delta and sinks stay as they are, and nothing is written beside dsinks"""
    launch, *dsinks = launch_of(exercise, *random_rows(3, 40))
    expect_clean(launch, {"dsinks": dsinks}, "lse delta sinks")


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without float64"""
    from fa_numba.analysis.gpu_ready import gpu_ready

    launch, _, _ = launch_of(exercise, *random_rows(2, 4))
    simt.run(*launch)  # a stub says here that it is not written
    kernel, _, _, *args = launch
    gpu_ready(kernel, args)
