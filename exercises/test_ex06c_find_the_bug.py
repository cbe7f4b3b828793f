"""Grader of ex06c: the published FlashAttention-1 kernel, mended."""

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
    random_head,
    steep_scores,
)
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_traffic
from fa_numba.workbook.graders.mistakes import forward_mistakes


def launch(make, head, BLOCK_M, BLOCK_N, how=simt.run):
    """Run a kernel; return out, l, m with their guards, and what `how` returned."""
    kernel = make(head.q.shape[1], BLOCK_M, BLOCK_N)
    seqlen_q = len(head.q)
    state = {
        "out": guarded(*head.q.shape, fill=0),
        "l": guarded(seqlen_q, fill=0),
        "m": guarded(seqlen_q, fill=-np.inf),
    }
    arrays = [array for array, _ in state.values()]
    result = how(kernel, 1, (BLOCK_N, BLOCK_M), head.q, head.k, head.v, *arrays)
    return state, result


def check(exercise, head, BLOCK_M=8, BLOCK_N=8):
    """Run the mended kernel, compare out."""
    compare(exercise.make_kernel, head, BLOCK_M, BLOCK_N)


def compare(make, head, BLOCK_M=8, BLOCK_N=8):
    state, _ = launch(make, head, BLOCK_M, BLOCK_N)
    answers = [head.forward["out"], head.plain.forward["out"]]
    mistakes = forward_mistakes(head, BLOCK_M, BLOCK_N)
    expect_close("out", state["out"][0], *answers, tile=BLOCK_M, mistakes=mistakes)


def test_without_either_bug(exercise):
    """head_dim = 1 and full tiles: the mended kernel is right, as the published one was"""
    check(exercise, random_head(16, 24, 1))
    compare(exercise.make_published_kernel, random_head(16, 24, 1))


def test_scale(exercise):
    """scores are scaled by 1/sqrt(head_dim)"""
    check(exercise, random_head(16, 24, 16))


def test_ragged_keys(exercise):
    """a key that does not exist has no weight (head_dim = 1, seqlen_k not divisible)"""
    check(exercise, random_head(16, 21, 1))


def test_both(exercise):
    """both at once, at head_dim 16 and 128"""
    check(exercise, random_head(16, 21, 16))
    check(exercise, random_head(16, 21, 128))


def test_negative_scores(exercise):
    """all scores far below 0: missing keys must not take the weight"""
    head = random_head(8, 13, 8)
    head.q[:], head.k[:] = -np.abs(head.q) - 7, np.abs(head.k) + 7  # exp(score) is 0 in float32
    check(exercise, head)


@pytest.mark.parametrize("lowest", [-2e4, -2e9, -2e30])
def test_low_scores(exercise, lowest):
    """scores far below 0, and a last tile that is not full: a missing key is -inf, not -1e9"""
    check(exercise, scaled_by_a_half(low_scores(lowest)))


def test_steep_scores(exercise):
    """a key far below the maximum counts, where its value is large"""
    check(exercise, scaled_by_a_half(steep_scores()), 8, 4)


def test_many_tiles(exercise):
    """more than 64 tiles of keys, and of queries"""
    check(exercise, random_head(3, 289, 4), 4, 4)
    check(exercise, random_head(289, 3, 4), 4, 4)


def test_short(exercise):
    """fewer keys than a tile"""
    for seqlen_k in (1, 3):
        check(exercise, random_head(5, seqlen_k, 8))


def test_ragged_queries(exercise):
    """seqlen_q not divisible by the tile"""
    check(exercise, random_head(13, 24, 8))


@pytest.mark.parametrize("BLOCK_M, BLOCK_N", [(4, 16), (16, 4), (5, 7), (16, 1), (1, 16)])
def test_tile_size(exercise, BLOCK_M, BLOCK_N):
    """tile size does not change the answer"""
    check(exercise, random_head(21, 26, 12), BLOCK_M, BLOCK_N)


def test_large_scores(exercise):
    """stable at scores of 1e4 and -1e4"""
    check(exercise, scaled_by_a_half(large_scores()))


def scaled_by_a_half(head):
    """The same scores and values at head_dim 4, where 1/sqrt(head_dim) = 1/2 is exact."""
    same = random_head(len(head.q), len(head.k), 4)
    same.q[:], same.k[:], same.v[:] = 2 * head.q[:, :4], head.k[:, :4], head.v[:, :4]
    return same


def test_statistics(exercise):
    """l and m count the keys that exist, and no others"""
    head = random_head(9, 21, 8)
    state, _ = launch(exercise.make_kernel, head, 8, 8)
    for name in ("l", "m"):
        answers = [statistics(h)[name] for h in (head, head.plain)]
        expect_close(name, state[name][0], *answers, tile=8)


def statistics(head):
    m = head.scores.max(axis=1)
    return {"m": m, "l": np.exp(head.scores - m[:, None]).sum(axis=1)}


def test_traffic(exercise):
    """HBM traffic is what it was"""
    head = random_head(19, 37, 12)
    _, trace = launch(exercise.make_kernel, head, 8, 8, how=simt.trace)
    T_c = math.ceil(37 / 8)
    once = (head.k.size, "seqlen_k * head_dim")
    turns = (head.q.size * T_c, "seqlen_q * head_dim * ceil(seqlen_k / BLOCK_N)")
    rows = (len(head.q) * T_c, "seqlen_q * ceil(seqlen_k / BLOCK_N)")
    nothing = (0, "it is an input")
    wanted = {("k", "loads"): once, ("v", "loads"): once, ("q", "loads"): turns}
    wanted |= {("out", "loads"): turns, ("out", "stores"): turns}
    wanted |= {(name, kind): rows for name in "lm" for kind in ("loads", "stores")}
    wanted |= {(name, "stores"): nothing for name in "qkv"}
    expect_traffic(trace, wanted, less_is_fine=True)


def test_chip_memory(exercise):
    """shared memory is what it was"""
    head = random_head(9, 20, 12)
    _, trace = launch(exercise.make_kernel, head, 8, 8, how=simt.trace)
    floats = (8 + 2 * 8) * (12 + 1) + 2 * 8 * (8 + 1) + 2 * 8
    allowed = "the tiles and two short arrays of the published kernel, rows padded by one at most"
    expect_chip_memory(trace, shared=4 * floats, local=4 * 2 * 12, allowed=allowed)


def test_inputs_unchanged(exercise):
    """q, k and v stay as they are"""
    head = random_head(11, 18, 8)
    before = {name: getattr(head, name).copy() for name in "qkv"}
    launch(exercise.make_kernel, head, 8, 8)
    expect_unchanged(before, {name: getattr(head, name) for name in "qkv"})


def test_published_kernel_is_as_it_was(exercise):
    """the published kernel still has both bugs: mend the other one"""
    check(exercise, random_head(16, 21, 16))  # what is not written yet says so here
    for head in (random_head(16, 24, 16), random_head(16, 21, 1)):
        state, _ = launch(exercise.make_published_kernel, head, 8, 8)
        error = np.abs(state["out"][0] - head.forward["out"]).max()
        assert error > 1e-3, "make_published_kernel is to stay as it is: write into make_kernel"


def test_nothing_written_outside(exercise):
    """nothing is written beside out, l and m"""
    state, _ = launch(exercise.make_kernel, random_head(11, 18, 8), 8, 8)
    for name, (_, larger) in state.items():
        expect_guard(name, larger)


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without float64"""
    x, row = np.zeros((4, 64), np.float32), np.zeros(4, np.float32)
    gpu_ready(exercise.make_kernel(64, 16, 16), (x, x, x, x, row, row))
