"""Grader of ex07d: the FlashAttention-2 kernel."""

import math

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import (
    HEADS,
    TILE_SIZES,
    UNWRITTEN,
    expect_clean,
    expect_close,
    guarded,
    negative_scores,
    ordered_scores,
    random_head,
    scored_head,
    weightless_value,
)
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_products, expect_traffic
from fa_numba.workbook.graders.mistakes import forward_mistakes

BOTH = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def prepare(exercise, head, BLOCK_M=8, BLOCK_N=8):
    """The kernel, its grid, thread block and arguments, and the outputs with their guards."""
    kernel = exercise.make_kernel(head.q.shape[1], BLOCK_M, BLOCK_N, head.causal)
    outputs = {"out": guarded(*head.q.shape), "lse": guarded(len(head.q))}
    arrays = [array for array, _ in outputs.values()]
    args = [head.q, head.k, head.v, *arrays, head.scale]
    return (kernel, math.ceil(len(head.q) / BLOCK_M), (BLOCK_N, BLOCK_M), *args), outputs


def check(exercise, head, BLOCK_M=8, BLOCK_N=8):
    """Run checked, compare out and lse."""
    launch, outputs = prepare(exercise, head, BLOCK_M, BLOCK_N)
    simt.run(*launch)
    for name, (got, _) in outputs.items():
        want, plain = head.forward[name], head.plain.forward[name]
        mistakes = forward_mistakes(head, BLOCK_M, BLOCK_N)
        expect_close(name, got, want, plain, tile=BLOCK_M, mistakes=mistakes)


@pytest.mark.parametrize("behaviour", HEADS)
def test_head(exercise, behaviour):
    check(exercise, HEADS[behaviour]())


def test_rows_that_see_no_key(exercise):
    """rows that see no key are 0, their lse is -inf, in dead tiles and in live ones"""
    check(exercise, random_head(29, 13, 8, causal=True))
    check(exercise, random_head(22, 9, 8, causal=True))  # rows 8 to 12 share a tile with row 13


@BOTH
@pytest.mark.parametrize("BLOCK_M, BLOCK_N", TILE_SIZES)
def test_tile_size(exercise, BLOCK_M, BLOCK_N, causal):
    """tile size does not change the answer"""
    check(exercise, random_head(22, 27, 12, causal=causal), BLOCK_M, BLOCK_N)


def test_ascending_scores(exercise):
    """a new maximum in every tile rescales what was summed before"""
    check(exercise, ordered_scores())


def test_hidden_keys_and_the_maximum(exercise):
    """causal: a hidden key takes no part in the maximum, however large its score"""
    check(exercise, scored_head(200.0 * np.arange(21), seqlen_q=21, causal=True))


@BOTH
@pytest.mark.parametrize("size", [3e4, 2e9, 2e30])
def test_negative_scores(exercise, size, causal):
    """scores far below 0, where a finite number in place of -inf would be the largest"""
    check(exercise, negative_scores(size, causal=causal))


def test_rows_that_see_no_key_beside_negative_scores(exercise):
    """scores far below 0, in a tile with rows that see no key"""
    check(exercise, negative_scores(2e30, 22, 9, causal=True))


@BOTH
def test_weightless_value(exercise, causal):
    """exp of -120 is 0: a key that far below the maximum adds nothing, however large its value"""
    check(exercise, weightless_value(causal=causal))


def test_long(exercise):
    """300 tiles of keys, and 75 tiles of queries"""
    check(exercise, random_head(2, 1201, 2), 2, 4)
    check(exercise, random_head(300, 5, 3, causal=True), 4, 8)


def test_lse(exercise):
    """exp(score - lse) sums to 1 in every row"""
    head = random_head(20, 28, 8, causal=True)
    launch, outputs = prepare(exercise, head)
    simt.run(*launch)
    lse = outputs["lse"][0].astype(np.float64)
    sums = np.exp(head.scores - lse[:, None]).sum(axis=1)
    row = int(np.argmax(~(np.abs(sums - 1) <= 1e-5)))
    assert np.all(np.abs(sums - 1) <= 1e-5), (
        f"query {row}: exp(score - lse) sums to {sums[row]:.6g}, so lse is off by "
        f"{math.log(sums[row]):.4g}: lse = m_i + log(l_i), the natural logarithm"
        if sums[row] > 0 and lse[row] != UNWRITTEN
        else f"query {row}: lse is {lse[row]:.6g}, must be {head.forward['lse'][row]:.6g}"
    )


@pytest.mark.parametrize("seqlen_q, seqlen_k, BLOCK_M, BLOCK_N", [(32, 32, 8, 8), (19, 37, 4, 16)])
def test_traffic(exercise, seqlen_q, seqlen_k, BLOCK_M, BLOCK_N):
    """HBM traffic is the formula, element for element"""
    head = random_head(seqlen_q, seqlen_k, 12)
    launch, _ = prepare(exercise, head, BLOCK_M, BLOCK_N)
    per_m_tile = (
        head.k.size * math.ceil(seqlen_q / BLOCK_M),
        "seqlen_k * head_dim * ceil(seqlen_q / BLOCK_M)",
    )
    once = (head.q.size, "seqlen_q * head_dim")
    expect_traffic(
        simt.trace(*launch),
        {
            ("q", "loads"): once,
            ("k", "loads"): per_m_tile,
            ("v", "loads"): per_m_tile,
            ("out", "loads"): (0, "out stays on the chip until the end"),
            ("lse", "loads"): (0, "lse is written at the end, and never read"),
            ("out", "stores"): once,
            ("lse", "stores"): (seqlen_q, "seqlen_q"),
        },
    )


@pytest.mark.parametrize("seqlen_q, seqlen_k, BLOCK_M, BLOCK_N", [
    (32, 32, 8, 8), (19, 37, 4, 16), (37, 19, 8, 4), (30, 30, 8, 16),
])  # fmt: skip
def test_skipped_tiles(exercise, seqlen_q, seqlen_k, BLOCK_M, BLOCK_N):
    """causal: tiles that no query of the m-tile sees are never loaded, the others whole"""
    head = random_head(seqlen_q, seqlen_k, 12, causal=True)
    launch, _ = prepare(exercise, head, BLOCK_M, BLOCK_N)
    rows = 0
    for m_start in range(0, seqlen_q, BLOCK_M):
        keys = min(m_start + BLOCK_M, seqlen_q) + seqlen_k - seqlen_q
        rows += min(max(0, math.ceil(keys / BLOCK_N)) * BLOCK_N, seqlen_k)
    per_live_tile = (rows * 12, "head_dim * rows of all live tiles")
    trace = simt.trace(*launch)
    expect_traffic(
        trace,
        {
            ("k", "loads"): per_live_tile,
            ("v", "loads"): per_live_tile,
            ("out", "loads"): (0, "out stays on the chip until the end"),
            ("lse", "loads"): (0, "lse is written at the end, and never read"),
            ("out", "stores"): (head.q.size, "seqlen_q * head_dim"),
            ("lse", "stores"): (seqlen_q, "seqlen_q"),
        },
    )
    got = trace.arrays["q"].loads
    assert got <= head.q.size, f"q: once is {head.q.size} loads, the meter shows {got}"


def test_memory(exercise):
    """shared memory: five tiles; a thread keeps its columns of out, and no more"""
    head = random_head(32, 48, 32)
    launch, _ = prepare(exercise, head, 16, 16)
    trace = simt.trace(*launch)
    tiles = 16 * 33 + 2 * 16 * 33 + 2 * 16 * 17 + 4 * 16  # a padded column each, four a row
    allowed = (
        "tiles of q, k, v, s and p are shared, with BLOCK_M = BLOCK_N = 16 and d = 32; a thread "
        "has its 2 columns of acc and at most a row of p"
    )
    expect_chip_memory(trace, shared=4 * tiles, local=4 * (2 + 16), allowed=allowed)


def test_each_score_once(exercise):
    """each score is computed by one thread"""
    launch, _ = prepare(exercise, random_head(32, 48, 32), 16, 16)
    trace = simt.trace(*launch)
    how = "(ty, tx) computes score (ty, tx) alone, and the others read it from shared memory"
    expect_products(trace, 2 * 32 * 48 * 32, "S = q k^T and P v are", how)


def test_blind_to_the_future(exercise):
    """causal: a key in a dead tile may hold anything, NaN included"""
    head = random_head(16, 20, 8, causal=True)
    head.k[-1], head.v[-1] = np.nan, np.nan  # the last query alone sees the last key
    launch, outputs = prepare(exercise, head, 4, 4)
    simt.run(*launch)
    others = outputs["out"][0][:-4]  # m-tiles without the last query
    bad = np.flatnonzero(~np.isfinite(others).all(axis=1))
    assert not len(bad), (
        f"query {bad[0]} is NaN: no query of its m-tile sees key {len(head.k) - 1}, so the tile of "
        "that key must not be loaded for it"
    )


def test_inputs_and_edges(exercise):
    """q, k and v stay as they are, and nothing is written beside out and lse"""
    for causal in (False, True):
        head = random_head(11, 18, 8, causal=causal)
        expect_clean(*prepare(exercise, head), "q k v")


@BOTH
def test_compiles_for_a_gpu(exercise, causal):
    """compiles for a GPU, without float64"""
    launch, _ = prepare(exercise, random_head(4, 4, 64, causal=causal), 16, 16)
    simt.run(*launch)  # a stub says here that it is not written
    kernel, _, _, *args = launch
    gpu_ready(kernel, args)
