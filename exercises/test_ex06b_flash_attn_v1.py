"""Grader of ex06b: the FlashAttention-1 kernel."""

import math

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import (
    expect_close,
    expect_guard,
    expect_unchanged,
    guarded,
    large_scores,
    low_scores,
    ordered_scores,
    random_head,
    steep_scores,
)
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_stores_by, expect_traffic
from fa_numba.workbook.graders.mistakes import forward_mistakes


def prepare(exercise, head, BLOCK_M, BLOCK_N):
    """The kernel, its launch configuration and its arguments."""
    kernel = exercise.make_kernel(head.q.shape[1], BLOCK_M, BLOCK_N)
    seqlen_q = len(head.q)
    state = {
        "out": guarded(*head.q.shape, fill=0),
        "l": guarded(seqlen_q, fill=0),
        "m": guarded(seqlen_q, fill=-np.inf),
    }
    arrays = [array for array, _ in state.values()]
    return kernel, (BLOCK_N, BLOCK_M), [head.q, head.k, head.v, *arrays, head.scale], state


def check(exercise, head, BLOCK_M=8, BLOCK_N=8):
    """Run checked, compare out, l and m."""
    kernel, block, args, state = prepare(exercise, head, BLOCK_M, BLOCK_N)
    simt.run(kernel, 1, block, *args)
    answers, plain = ({"out": h.forward["out"], **statistics(h)} for h in (head, head.plain))
    for name, (got, _) in state.items():
        mistakes = forward_mistakes(head, BLOCK_M, BLOCK_N)
        expect_close(name, got, answers[name], plain[name], tile=BLOCK_M, mistakes=mistakes)


def statistics(head):
    m = head.scores.max(axis=1)
    return {"m": m, "l": np.exp(head.scores - m[:, None]).sum(axis=1)}


def test_one_tile(exercise):
    """one tile of queries, one tile of keys"""
    check(exercise, random_head(8, 8, 8))


def test_many_tiles(exercise):
    """several tiles both ways match float64"""
    check(exercise, random_head(24, 32, 16))


@pytest.mark.parametrize("BLOCK_M, BLOCK_N", [(8, 8), (4, 16), (16, 4), (5, 7), (1, 32), (32, 1)])
def test_tile_size(exercise, BLOCK_M, BLOCK_N):
    """tile size does not change the answer"""
    check(exercise, random_head(22, 30, 12), BLOCK_M, BLOCK_N)


def test_ragged_queries(exercise):
    """seqlen_q not divisible by the tile"""
    check(exercise, random_head(19, 16, 8))


def test_ragged_keys(exercise):
    """seqlen_k not divisible by the tile"""
    check(exercise, random_head(16, 19, 8))


def test_short(exercise):
    """shorter than one tile"""
    check(exercise, random_head(3, 5, 8))


@pytest.mark.parametrize("seqlen_q, seqlen_k", [(1, 1), (1, 37), (21, 1)])
def test_one_query_or_key(exercise, seqlen_q, seqlen_k):
    """one query, one key"""
    check(exercise, random_head(seqlen_q, seqlen_k, 8))


@pytest.mark.parametrize("head_dim", [1, 3, 33, 128])
def test_odd_head_dim(exercise, head_dim):
    """head_dim odd, smaller and larger than the thread block is wide"""
    check(exercise, random_head(11, 18, head_dim))


def test_ascending_scores(exercise):
    """a new maximum in every tile rescales what was summed before"""
    check(exercise, ordered_scores())


def test_large_scores(exercise):
    """stable at scores of 1e4 and -1e4"""
    check(exercise, large_scores())


@pytest.mark.parametrize("softmax_scale", [1.0, 0.05, 0.0, -0.3])
def test_softmax_scale(exercise, softmax_scale):
    """softmax_scale is honoured"""
    check(exercise, random_head(10, 20, 8, softmax_scale=softmax_scale))


def test_running_state(exercise):
    """out, l, m carry the state: a second launch with more keys continues the first"""
    head = random_head(13, 24, 8)
    kernel, block, (q, k, v, *rest), state = prepare(exercise, head, 8, 8)
    for part in (slice(0, 11), slice(11, None)):
        simt.run(kernel, 1, block, q, k[part], v[part], *rest)
    answers, plain = ({"out": h.forward["out"], **statistics(h)} for h in (head, head.plain))
    for name, (got, _) in state.items():
        expect_close(name, got, answers[name], plain[name], tile=8)


@pytest.mark.parametrize("lowest", [-2e4, -2e9, -2e30])
def test_low_scores(exercise, lowest):
    """scores far below 0, and a last tile that is not full: a missing key is -inf, not -1e9"""
    check(exercise, low_scores(lowest))


def test_steep_scores(exercise):
    """a key far below the maximum counts, where its value is large"""
    check(exercise, steep_scores(), 8, 4)


@pytest.mark.parametrize("seqlen_q, seqlen_k, BLOCK_M, BLOCK_N", [(32, 32, 8, 8), (19, 37, 4, 16)])
def test_traffic(exercise, seqlen_q, seqlen_k, BLOCK_M, BLOCK_N):
    """HBM traffic is the formula, element for element"""
    head = random_head(seqlen_q, seqlen_k, 12)
    kernel, block, args, _ = prepare(exercise, head, BLOCK_M, BLOCK_N)
    trace = simt.trace(kernel, 1, block, *args)
    T_c = math.ceil(seqlen_k / BLOCK_N)
    once = (head.k.size, "seqlen_k * head_dim")
    nothing = (0, "it is an input")
    turns = (head.q.size * T_c, "seqlen_q * head_dim * ceil(seqlen_k / BLOCK_N)")
    rows = (seqlen_q * T_c, "seqlen_q * ceil(seqlen_k / BLOCK_N)")
    expect_traffic(
        trace,
        {
            ("k", "loads"): once,
            ("v", "loads"): once,
            ("q", "loads"): turns,
            ("out", "loads"): turns,
            ("out", "stores"): turns,
            ("l", "loads"): rows,
            ("m", "loads"): rows,
            ("l", "stores"): rows,
            ("m", "stores"): rows,
            ("q", "stores"): nothing,
            ("k", "stores"): nothing,
            ("v", "stores"): nothing,
        },
        less_is_fine=True,
    )


def test_coalesced(exercise):
    """neighbouring threads touch neighbouring floats: 32 threads, 4 sectors"""
    head = random_head(8, 64, 64)
    kernel, block, args, _ = prepare(exercise, head, 4, 32)
    arrays = simt.trace(kernel, 1, block, *args).arrays
    for name in ("q", "k", "v", "out"):
        for what, sectors, moved in (
            ("loads", arrays[name].load_sectors, arrays[name].load_bytes),
            ("stores", arrays[name].store_sectors, arrays[name].store_bytes),
        ):
            assert 32 * sectors <= moved, (
                f"{what} of {name}: {moved} bytes took {sectors} sectors of 32 bytes. Let "
                "threadIdx.x run along a row"
            )


def test_chip_memory(exercise):
    """shared memory holds the tiles that the statement names, and nothing else"""
    for BLOCK_M, BLOCK_N, d in ((8, 8, 12), (4, 16, 5)):
        kernel, block, args, _ = prepare(exercise, random_head(9, 20, d), BLOCK_M, BLOCK_N)
        floats = (BLOCK_M + 2 * BLOCK_N) * (d + 1) + 2 * BLOCK_M * (BLOCK_N + 1) + 2 * BLOCK_M
        allowed = "tiles of q, k, v, s and p, their rows padded by one float at most, and l and m"
        trace = simt.trace(kernel, 1, block, *args)
        expect_chip_memory(trace, shared=4 * floats, local=4 * 2 * d, allowed=allowed)


def test_all_threads_work(exercise):
    """every thread owns columns of out"""
    kernel, block, args, _ = prepare(exercise, random_head(16, 16, 16), 8, 8)
    out = simt.trace(kernel, 1, block, *args).arrays["out"]
    why = "thread (ty, tx) owns the columns tx, tx + BLOCK_N, ... of row ty of out"
    expect_stores_by({"out": out}, threads=64, why=why)


@pytest.mark.parametrize("seqlen_q, seqlen_k", [(3, 289), (289, 3)])
def test_many_tiles_one_way(exercise, seqlen_q, seqlen_k):
    """more than 64 tiles of keys, or of queries"""
    check(exercise, random_head(seqlen_q, seqlen_k, 4), 2, 4)


def test_inputs_unchanged(exercise):
    """q, k and v stay as they are"""
    head = random_head(11, 18, 8)
    kernel, block, args, _ = prepare(exercise, head, 8, 8)
    before = {name: getattr(head, name).copy() for name in "qkv"}
    simt.run(kernel, 1, block, *args)
    expect_unchanged(before, {name: getattr(head, name) for name in "qkv"})


def test_nothing_written_outside(exercise):
    """nothing is written beside out, l and m"""
    head = random_head(11, 18, 8)
    kernel, block, args, state = prepare(exercise, head, 8, 8)
    simt.run(kernel, 1, block, *args)
    for name, (_, larger) in state.items():
        expect_guard(name, larger)


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without float64"""
    kernel, _, args, _ = prepare(exercise, random_head(4, 4, 64), 16, 16)
    gpu_ready(kernel, args)
