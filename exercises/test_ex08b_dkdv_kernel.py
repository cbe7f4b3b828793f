"""Grader of ex08b: the gradients of K and V."""

import math

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import (
    HEADS,
    TILE_SIZES,
    expect_clean,
    expect_close,
    guarded,
    one_negative_score,
    random_head,
)
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_traffic
from fa_numba.workbook.graders.mistakes import backward_mistakes

BOTH = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def prepare(exercise, head, BLOCK_M=8, BLOCK_N=8):
    """The kernel, its grid, thread block and arguments, and the outputs with their guards."""
    kernel = exercise.make_kernel(head.q.shape[1], BLOCK_M, BLOCK_N, head.causal)
    outputs = {"dk": guarded(*head.k.shape), "dv": guarded(*head.v.shape)}
    lse, delta = (x.astype(np.float32) for x in (head.forward["lse"], head.backward["delta"]))
    arrays = [head.dout, head.q, head.k, head.v, lse, delta, *(x for x, _ in outputs.values())]
    grid = math.ceil(len(head.k) / BLOCK_N)
    return (kernel, grid, (BLOCK_N, BLOCK_M), *arrays, head.scale), outputs


def check(exercise, head, BLOCK_M=8, BLOCK_N=8):
    """Run checked, compare dk and dv."""
    launch, outputs = prepare(exercise, head, BLOCK_M, BLOCK_N)
    simt.run(*launch)
    for name, (got, _) in outputs.items():
        want, plain = head.backward[name], head.plain.backward[name]
        causes = {"mistakes": backward_mistakes(head, BLOCK_M, BLOCK_N)}
        expect_close(name, got, want, plain, tile=BLOCK_N, rows="key", factor=3, **causes)


@pytest.mark.parametrize("behaviour", HEADS)
def test_head(exercise, behaviour):
    check(exercise, HEADS[behaviour]())


def test_rows_that_see_no_key(exercise):
    """rows that see no key add nothing, although their lse is -inf"""
    check(exercise, random_head(29, 13, 8, causal=True))
    check(exercise, random_head(22, 9, 8, causal=True))  # rows 8 to 12 share a tile with row 13


@BOTH
@pytest.mark.parametrize("BLOCK_M, BLOCK_N", TILE_SIZES)
def test_tile_size(exercise, BLOCK_M, BLOCK_N, causal):
    """tile size does not change the answer"""
    check(exercise, random_head(22, 27, 12, causal=causal), BLOCK_M, BLOCK_N)


@BOTH
@pytest.mark.parametrize("size", [0, 3e4, 2e30])
def test_negative_scores(exercise, size, causal):
    """scores of 0 and far below: a hidden pair has weight 0 by a test, not by a negative number"""
    check(exercise, one_negative_score(size, causal=causal))


def test_long(exercise):
    """many tiles: 150 of queries, 150 of keys"""
    check(exercise, random_head(601, 3, 2), 4, 4)
    check(exercise, random_head(3, 601, 2, causal=True), 4, 4)


def test_memory(exercise):
    """shared memory: the tiles of the statement; a thread keeps its columns, and no more"""
    trace = simt.trace(*prepare(exercise, random_head(32, 48, 32), 16, 16)[0])
    tiles = 4 * 16 * 33 + 2 * 16 * 17 + (2 + 4) * 16  # a padded column each, four a row
    allowed = (
        "the tiles of the statement are shared, with BLOCK_M = BLOCK_N = 16 and d = 32; a thread "
        "has its columns of the gradient and at most a row of P"
    )
    expect_chip_memory(trace, shared=4 * tiles, local=4 * (2 * 2 + 16), allowed=allowed)


def test_each_score_once(exercise):
    """each score and each dP is computed by one thread"""
    done = simt.trace(*prepare(exercise, random_head(32, 48, 32), 16, 16)[0]).flops.by_kind
    got, needed = done.get("fma", 0) + done.get("mul", 0), 4 * 32 * 48 * 32
    assert got <= 1.3 * needed, (
        f"4 products of N N d multiplications are {needed}, the meter shows {got}: thread "
        "(ty, tx) computes element (ty, tx) alone, the others read it from shared memory"
    )


def test_finite_differences(exercise):
    """moving one number of k or v changes the loss as dk and dv say"""
    head = random_head(5, 6, 3, causal=True, seed=2)
    launch, outputs = prepare(exercise, head, 4, 4)
    simt.run(*launch)
    step = 1e-5
    for name in "kv":
        x = getattr(head, name).astype(np.float64)
        for n, d in np.ndindex(x.shape):
            moved = np.zeros_like(x)
            moved[n, d] = step
            slope = (head.loss(**{name: x + moved}) - head.loss(**{name: x - moved})) / (2 * step)
            got = outputs[f"d{name}"][0][n, d]
            assert abs(got - slope) <= 1e-4, (
                f"d{name}[{n}, {d}] is {got:.6g}, but sum(dout * out) changes by {slope:.6g} per "
                f"unit of {name}[{n}, {d}]"
            )


def test_sum_rules(exercise):
    """the columns of dv sum to those of dout: the weights of a row sum to 1"""
    head = random_head(20, 28, 8)
    launch, outputs = prepare(exercise, head)
    simt.run(*launch)
    got = outputs["dv"][0].sum(axis=0, dtype=np.float64)
    want = head.dout.sum(axis=0, dtype=np.float64)
    column = int(np.argmax(np.abs(got - want)))
    assert (np.abs(got - want) <= 1e-4).all(), (
        f"column {column}: dv sums to {got[column]:.6g}, dout to {want[column]:.6g}. P must be "
        "exp(score - lse), which sums to 1 over the keys"
    )


@pytest.mark.parametrize("seqlen_q, seqlen_k, BLOCK_M, BLOCK_N", [(32, 32, 8, 8), (37, 19, 4, 16)])
def test_traffic(exercise, seqlen_q, seqlen_k, BLOCK_M, BLOCK_N):
    """HBM traffic is the formula, element for element"""
    head = random_head(seqlen_q, seqlen_k, 12)
    launch, _ = prepare(exercise, head, BLOCK_M, BLOCK_N)
    T_c = math.ceil(seqlen_k / BLOCK_N)
    once = (head.k.size, "seqlen_k * head_dim")
    turns = (head.q.size * T_c, "seqlen_q * head_dim * ceil(seqlen_k / BLOCK_N)")
    rows = (seqlen_q * T_c, "seqlen_q * ceil(seqlen_k / BLOCK_N)")
    loads = {"k": once, "v": once, "q": turns, "dout": turns, "lse": rows, "delta": rows}
    wanted = {(name, "loads"): x for name, x in loads.items()}
    expect_traffic(simt.trace(*launch), wanted | gradients(head))


def gradients(head):
    """The traffic of dk and dv."""
    stored = head.k.size, "seqlen_k * head_dim"
    wanted = {(name, "stores"): stored for name in ("dk", "dv")}
    return wanted | {(name, "loads"): (0, "it is only written") for name in ("dk", "dv")}


@pytest.mark.parametrize("seqlen_q, seqlen_k, BLOCK_M, BLOCK_N", [
    (32, 32, 8, 8), (19, 37, 4, 16), (37, 19, 8, 4), (30, 30, 16, 8),
])  # fmt: skip
def test_skipped_tiles(exercise, seqlen_q, seqlen_k, BLOCK_M, BLOCK_N):
    """causal: tiles of queries that see no key of the n-tile are never loaded, the others whole"""
    head = random_head(seqlen_q, seqlen_k, 12, causal=True)
    launch, _ = prepare(exercise, head, BLOCK_M, BLOCK_N)
    rows = 0
    for n_start in range(0, seqlen_k, BLOCK_N):
        first_m = max(0, n_start + seqlen_q - seqlen_k)
        rows += max(0, seqlen_q - first_m // BLOCK_M * BLOCK_M)
    per_live_tile = (rows * 12, "head_dim * rows of all live tiles")
    numbers, once = (rows, "rows of all live tiles"), (head.k.size, "seqlen_k * head_dim")
    loads = {"q": per_live_tile, "dout": per_live_tile, "lse": numbers, "delta": numbers}
    wanted = {(name, "loads"): x for name, x in (loads | {"k": once, "v": once}).items()}
    expect_traffic(simt.trace(*launch), wanted | gradients(head))


def test_inputs_and_edges(exercise):
    """the inputs stay as they are, and nothing is written beside dk and dv"""
    for causal in (False, True):
        head = random_head(11, 18, 8, causal=causal)
        expect_clean(*prepare(exercise, head), "dout q k v lse delta")


@BOTH
def test_compiles_for_a_gpu(exercise, causal):
    """compiles for a GPU, without float64"""
    launch, _ = prepare(exercise, random_head(4, 4, 64, causal=causal), 16, 16)
    simt.run(*launch)  # a stub says here that it is not written
    kernel, _, _, *args = launch
    gpu_ready(kernel, args)
