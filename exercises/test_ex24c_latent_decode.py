"""Grader of ex24c: absorbed decoding, values are the first columns of keys."""

import numpy as np
import pytest

from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.latent import make_latent, run, with_scores
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_traffic
from fa_numba.workbook.graders.tiles import expect_float32


def test_one_tile(exercise):
    """one tile of tokens"""
    run(exercise, make_latent([8], 4, 64, 32))


def test_many_tiles(exercise):
    """several tiles of tokens, 300 in all"""
    run(exercise, make_latent([300], 2, 5, 3))


@pytest.mark.parametrize("seqlen", [1, 7, 9, 17])
def test_length(exercise, seqlen):
    """a last tile that is not full; nothing is read past the last token"""
    run(exercise, make_latent([seqlen]))


def test_batch(exercise):
    """several sequences of different lengths; one is empty"""
    run(exercise, make_latent([13, 0, 1, 22]))
    run(exercise, make_latent([1 + b % 3 for b in range(70)], 1, 3, 2))


@pytest.mark.parametrize("num_heads", [1, 3, 9, 40])
def test_heads(exercise, num_heads):
    """heads that are no whole tiles: warps without a head load, too, and store nothing"""
    run(exercise, make_latent([11, 5], num_heads))


@pytest.mark.parametrize("latent_dim, rope_dim", [(1, 0), (1, 40), (31, 2), (64, 16), (300, 5)])
def test_columns(exercise, latent_dim, rope_dim):
    """columns that are no whole warps, in values and in keys"""
    run(exercise, make_latent([11], 3, latent_dim, rope_dim))


@pytest.mark.parametrize("BLOCK_M, BLOCK_N", [(1, 1), (1, 40), (16, 3), (2, 16), (16, 33)])
def test_tile_size(exercise, BLOCK_M, BLOCK_N):
    """tile size does not change the answer"""
    run(exercise, make_latent([41, 8], 5, 20, 6), BLOCK_M, BLOCK_N)


def test_ascending(exercise):
    """a new maximum at every token rescales what was summed before; none after the first; and 0"""
    for scores in (np.linspace(-10, 9.5, 40), np.linspace(9.5, -10, 40), np.linspace(-9, 0, 19)):
        run(exercise, with_scores(scores.round(1)))


@pytest.mark.parametrize("size", [3e4, 2e30])
def test_low_scores(exercise, size):
    """scores far below 0, where a finite number in place of -inf would be the largest"""
    run(exercise, with_scores(-size * (1 + np.arange(21) % 3 / 4)))


def test_traffic(exercise):
    """each number of the cache is loaded once for BLOCK_M heads, values included"""
    trace = run(exercise, make_latent([21, 0, 9], 8))
    expect_traffic(trace, {
        ("latent_cache", "loads"): (2 * 30 * 49, "sum(seq_lens) * ROW_DIM, for 2 tiles of heads"),
        ("q", "loads"): (3 * 8 * 49, "batch * num_heads * ROW_DIM"),
        ("out", "stores"): (3 * 8 * 40, "batch * num_heads * LATENT_DIM"),
        ("out", "loads"): (0, "a result"), ("lse", "loads"): (0, "a result"),
    })  # fmt: skip


def test_coalesced(exercise):
    """a warp loads neighbouring columns of a row: 4 sectors for 32 floats"""
    got = run(exercise, make_latent([16], 4, 64, 32)).arrays["latent_cache"].load_sectors
    assert got <= 16 * 3 * 4, (
        f"{16 * 3 * 4} sectors of 32 bytes hold the rows, and {got} were loaded: the lanes of a "
        "warp load neighbouring columns of one row"
    )


def test_shared_once(exercise):
    """each number of a row is read from shared memory once: for score and value together"""
    trace = run(exercise, make_latent([24], 4, 64, 32))
    got, most = sum(x.loads for x in trace.shared.values()), 4 * 24 * 96
    assert got <= most, (
        f"num_heads * seq_len * ROW_DIM = {most} reads of k_tile are enough, the meter shows {got}"
        ": after the score a lane has its columns of the value in k_row"
    )


def test_memory(exercise):
    """shared memory: k_tile alone; two barriers for a tile"""
    trace = run(exercise, make_latent([24], 4))
    allowed = "k_tile is shared; q_row, k_row and acc are given"
    expect_chip_memory(trace, shared=4 * 8 * 50, local=4 * 6, allowed=allowed)
    assert trace.barriers <= 2 * 3, (
        f"two barriers protect a tile, the meter shows {trace.barriers / 3:g}"
    )


def test_each_score_once(exercise):
    """each product is computed once"""
    done = run(exercise, make_latent([24], 4, 64, 32)).flops.by_kind
    got, needed = done.get("fma", 0) + done.get("mul", 0), 4 * 24 * (96 + 2 * 64 + 2 * 32)
    assert got <= 1.2 * needed, (
        f"a token costs ROW_DIM multiplications for its score, 2 LATENT_DIM for out, and in each "
        f"lane one each for scale and l_i: {needed} in all; the meter shows {got}"
    )


def test_float32(exercise):
    """computes in float32"""
    expect_float32(run(exercise, make_latent([9])))


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without float64"""
    x, lens = np.zeros((2, 8, 80), np.float32), np.ones(2, np.int32)
    kernel = exercise.make_kernel(64, 80, 4, 8)
    gpu_ready(kernel, (x, x, lens, x[..., :64].copy(), x[..., 0].copy(), np.float32(1)))
