"""Grader of ex08c: the gradient of Q."""

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
    """The kernel, its grid, thread block and arguments, and dq with its guard."""
    kernel = exercise.make_kernel(head.q.shape[1], BLOCK_M, BLOCK_N, head.causal)
    dq, larger = guarded(*head.q.shape)
    lse, delta = (x.astype(np.float32) for x in (head.forward["lse"], head.backward["delta"]))
    arrays = [head.dout, head.q, head.k, head.v, lse, delta, dq]
    grid = math.ceil(len(head.q) / BLOCK_M)
    return (kernel, grid, (BLOCK_N, BLOCK_M), *arrays, head.scale), dq, larger


def check(exercise, head, BLOCK_M=8, BLOCK_N=8):
    """Run checked, compare dq."""
    launch, dq, _ = prepare(exercise, head, BLOCK_M, BLOCK_N)
    simt.run(*launch)
    want, plain = head.backward["dq"], head.plain.backward["dq"]
    mistakes = backward_mistakes(head, BLOCK_M, BLOCK_N)
    expect_close("dq", dq, want, plain, tile=BLOCK_M, factor=3, mistakes=mistakes)


@pytest.mark.parametrize("behaviour", HEADS)
def test_head(exercise, behaviour):
    check(exercise, HEADS[behaviour]())


def test_rows_that_see_no_key(exercise):
    """rows that see no key get dq = 0"""
    check(exercise, random_head(29, 13, 8, causal=True))
    check(exercise, random_head(22, 9, 8, causal=True))  # rows 8 to 12 share a tile with row 13


@BOTH
@pytest.mark.parametrize("BLOCK_M, BLOCK_N", TILE_SIZES)
def test_tile_size(exercise, BLOCK_M, BLOCK_N, causal):
    """tile size does not change the answer"""
    check(exercise, random_head(22, 27, 12, causal=causal), BLOCK_M, BLOCK_N)


def test_one_visible_key(exercise):
    """a query that sees one key has dq = 0: its weight is 1, whatever q is"""
    head = random_head(12, 12, 8, causal=True)
    launch, dq, _ = prepare(exercise, head, 4, 4)
    simt.run(*launch)
    assert (np.abs(dq[0]) <= 1e-6).all(), (
        f"query 0 sees key 0 alone, so p = 1 and dp = delta: dq[0] must be 0, got {dq[0]}"
    )


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
    expect_chip_memory(trace, shared=4 * tiles, local=4 * (2 + 16), allowed=allowed)


def test_each_score_once(exercise):
    """each score and each dP is computed by one thread"""
    done = simt.trace(*prepare(exercise, random_head(32, 48, 32), 16, 16)[0]).flops.by_kind
    got, needed = done.get("fma", 0) + done.get("mul", 0), 3 * 32 * 48 * 32
    assert got <= 1.3 * needed, (
        f"3 products of N N d multiplications are {needed}, the meter shows {got}: thread "
        "(ty, tx) computes element (ty, tx) alone, the others read it from shared memory"
    )


def test_finite_differences(exercise):
    """moving one number of q changes the loss as dq says"""
    head = random_head(6, 5, 3, causal=True, seed=2)
    launch, dq, _ = prepare(exercise, head, 4, 4)
    simt.run(*launch)
    step, q = 1e-5, head.q.astype(np.float64)
    for m, d in np.ndindex(q.shape):
        moved = np.zeros_like(q)
        moved[m, d] = step
        slope = (head.loss(q=q + moved) - head.loss(q=q - moved)) / (2 * step)
        assert abs(dq[m, d] - slope) <= 1e-4, (
            f"dq[{m}, {d}] is {dq[m, d]:.6g}, but sum(dout * out) changes by {slope:.6g} per unit "
            f"of q[{m}, {d}]"
        )


@pytest.mark.parametrize("seqlen_q, seqlen_k, BLOCK_M, BLOCK_N", [(32, 32, 8, 8), (19, 37, 4, 16)])
def test_traffic(exercise, seqlen_q, seqlen_k, BLOCK_M, BLOCK_N):
    """HBM traffic is the formula, element for element"""
    head = random_head(seqlen_q, seqlen_k, 12)
    launch, _, _ = prepare(exercise, head, BLOCK_M, BLOCK_N)
    once = (head.q.size, "seqlen_q * head_dim")
    rows = (seqlen_q, "seqlen_q")
    turns = (
        head.k.size * math.ceil(seqlen_q / BLOCK_M),
        "seqlen_k * head_dim * ceil(seqlen_q / BLOCK_M)",
    )
    loads = {"q": once, "dout": once, "lse": rows, "delta": rows, "k": turns, "v": turns}
    wanted = {(name, "loads"): x for name, x in loads.items()}
    wanted |= {("dq", "stores"): once, ("dq", "loads"): (0, "dq is only written")}
    expect_traffic(simt.trace(*launch), wanted)


@pytest.mark.parametrize("seqlen_q, seqlen_k, BLOCK_M, BLOCK_N", [
    (32, 32, 8, 8), (19, 37, 4, 16), (37, 19, 8, 4), (30, 30, 8, 16),
])  # fmt: skip
def test_skipped_tiles(exercise, seqlen_q, seqlen_k, BLOCK_M, BLOCK_N):
    """causal: tiles that no query of the m-tile sees are never loaded, the others whole"""
    head = random_head(seqlen_q, seqlen_k, 12, causal=True)
    launch, _, _ = prepare(exercise, head, BLOCK_M, BLOCK_N)
    rows = 0
    for m_start in range(0, seqlen_q, BLOCK_M):
        keys = min(m_start + BLOCK_M, seqlen_q) + seqlen_k - seqlen_q
        rows += min(max(0, math.ceil(keys / BLOCK_N)) * BLOCK_N, seqlen_k)
    per_live_tile = (rows * 12, "head_dim * rows of all live tiles")
    wanted = {("k", "loads"): per_live_tile, ("v", "loads"): per_live_tile}
    wanted |= {("dq", "stores"): (head.q.size, "seqlen_q * head_dim")}
    wanted |= {("dq", "loads"): (0, "dq is only written")}
    trace = simt.trace(*launch)
    expect_traffic(trace, wanted)
    sizes = {"q": head.q.size, "dout": head.q.size, "lse": seqlen_q, "delta": seqlen_q}
    for name, once in sizes.items():
        got = trace.arrays[name].loads
        assert got <= once, f"{name}: once is {once} loads, the meter shows {got}"


def test_inputs_and_edges(exercise):
    """the inputs stay as they are, and nothing is written beside dq"""
    for causal in (False, True):
        launch, *dq = prepare(exercise, random_head(11, 18, 8, causal=causal))
        expect_clean(launch, {"dq": dq}, "dout q k v lse delta")


@BOTH
def test_compiles_for_a_gpu(exercise, causal):
    """compiles for a GPU, without float64"""
    launch, *_ = prepare(exercise, random_head(4, 4, 64, causal=causal), 16, 16)
    simt.run(*launch)  # a stub says here that it is not written
    kernel, _, _, *args = launch
    gpu_ready(kernel, args)
