"""Grader of ex24b: scores of absorbed queries, a row of two parts."""

import numpy as np
import pytest

from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import UNWRITTEN, expect_close
from fa_numba.workbook.graders.kernels import launched
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_traffic
from fa_numba.workbook.graders.tiles import expect_float32


def stored(parts, distances, BLOCK_N, down=False):
    """The scores that the lanes store, from the part of each, by shuffles of these distances."""
    for step in distances:
        others = [min(i + step, 31) if i + step < 32 else i for i in range(32)]
        others = others if down else [i ^ step for i in range(32)]
        parts = [x + parts[i] for x, i in zip(parts, others, strict=True)]
    token = np.arange(parts[0].shape[1])
    return np.stack(parts)[token % BLOCK_N % 32, :, token].T


def check(exercise, num_heads, seqlen, latent_dim, rope_dim, BLOCK_M=4, BLOCK_N=8, scale=0.25):
    """Run checked, compare with float64; the trace."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((num_heads, latent_dim + rope_dim), np.float32)
    latent, k_rope = (
        rng.standard_normal((seqlen, columns), np.float32) for columns in (latent_dim, rope_dim)
    )
    kernel = exercise.make_kernel(latent_dim, rope_dim, BLOCK_M, BLOCK_N)
    grid = -(-seqlen // BLOCK_N), -(-num_heads // BLOCK_M)
    s = np.full((num_heads, seqlen), UNWRITTEN)
    got, trace = launched(
        kernel, grid, (32, BLOCK_M), ("s",), q=q, latent=latent, k_rope=k_rope, s=s,
        softmax_scale=np.float32(scale),
    )  # fmt: skip

    def scores(of_latent=1, of_rope=1, dtype=np.float64):
        x, c, k_r = (y.astype(dtype) for y in (q, latent, k_rope))
        parts = of_latent * (x[:, :latent_dim] @ c.T), of_rope * (x[:, latent_dim:] @ k_r.T)
        return dtype(scale) * sum(parts)

    mistakes = [
        ("The rotated key takes part in the score.", {"s": scores(of_rope=0)}),
        ("The latent takes part in the score.", {"s": scores(of_latent=0)}),
        ("softmax_scale is missing.", {"s": scores() / (scale or 1)}),
        ("The sum of the 32 lanes is counted 32 times.", {"s": 32 * scores()}),
    ]
    row, lane = np.concatenate([latent, k_rope], axis=1), np.arange(latent_dim + rope_dim) % 32
    of_lane = [scale * q[:, lane == i] @ row[:, lane == i].T.astype(np.float64) for i in range(32)]
    for sentence, distances in (
        ("Half of the lanes are missing: the first distance is 16.", (8, 4, 2, 1)),
        ("Half of the lanes are missing: the last distance is 1.", (16, 8, 4, 2)),
        ("This is the sum of one lane: the 32 lanes must add up, by shuffles.", ()),
    ):
        mistakes.append((sentence, {"s": stored(of_lane, distances, BLOCK_N)}))
    down = stored(of_lane, (16, 8, 4, 2, 1), BLOCK_N, down=True)
    mistakes.append(("Only lane 0 has the whole sum: shfl_xor_sync gives it to all.", {"s": down}))
    want, plain = scores(), scores(dtype=np.float32)
    expect_close("s", got["s"], want, plain, tile=BLOCK_M, rows="head", mistakes=mistakes)
    return trace


def test_whole_warps(exercise):
    """columns of both parts in whole warps"""
    check(exercise, 4, 8, 64, 32)


@pytest.mark.parametrize("latent_dim, rope_dim", [(1, 1), (31, 2), (33, 30), (5, 64), (100, 3)])
def test_columns(exercise, latent_dim, rope_dim):
    """columns that are no whole warps, fewer and more than 32, in each part"""
    check(exercise, 3, 11, latent_dim, rope_dim)


@pytest.mark.parametrize("seqlen", [1, 7, 8, 9, 30])
def test_length(exercise, seqlen):
    """a last tile that is not full; nothing is read past the last token"""
    check(exercise, 5, seqlen, 20, 6)


@pytest.mark.parametrize("num_heads", [1, 3, 4, 9])
def test_heads(exercise, num_heads):
    """heads that are no whole tiles: warps without a head load, too"""
    check(exercise, num_heads, 13, 20, 6)


@pytest.mark.parametrize("BLOCK_M, BLOCK_N", [(1, 1), (1, 40), (16, 3), (2, 16), (16, 33)])
def test_tile_size(exercise, BLOCK_M, BLOCK_N):
    """tile size does not change the answer"""
    check(exercise, 5, 41, 20, 6, BLOCK_M, BLOCK_N)


def test_many(exercise):
    """300 tokens, 300 columns, 40 heads"""
    check(exercise, 2, 300, 3, 2)
    check(exercise, 2, 5, 300, 270)
    check(exercise, 40, 5, 3, 2)


@pytest.mark.parametrize("scale", [-1.5, 0.0])
def test_scale(exercise, scale):
    """softmax_scale of any sign: the product is not scaled before"""
    check(exercise, 3, 9, 20, 6, scale=scale)


def test_traffic(exercise):
    """each number of a token is loaded once for BLOCK_M heads, each score stored once"""
    trace = check(exercise, 8, 21, 40, 9)
    each = "seqlen * columns, for each of 2 tiles of heads"
    expect_traffic(trace, {
        ("latent", "loads"): (2 * 21 * 40, each), ("k_rope", "loads"): (2 * 21 * 9, each),
        ("s", "stores"): (8 * 21, "num_heads * seqlen"), ("s", "loads"): (0, "a result"),
    })  # fmt: skip


def test_coalesced(exercise):
    """a warp loads neighbouring columns of a row: 4 sectors for 32 floats"""
    trace = check(exercise, 4, 8, 64, 32)
    for name, most in (("latent", 8 * 2 * 4), ("k_rope", 8 * 4)):
        got = trace.arrays[name].load_sectors
        assert got <= most, (
            f"{name}: {most} sectors of 32 bytes hold its rows, and {got} were loaded: the lanes "
            "of a warp load neighbouring columns of one row"
        )


def test_shared_once(exercise):
    """each number of a row is read from shared memory once for each head"""
    trace = check(exercise, 4, 8, 40, 9)
    got, most = sum(x.loads for x in trace.shared.values()), 4 * 8 * 49
    assert got <= most, (
        f"num_heads * seqlen * columns = {most} reads of k_tile are enough, the meter shows {got}: "
        "a lane reads its own columns, and lanes add by shuffles"
    )


def test_memory(exercise):
    """no memory on the chip but what was given, no barrier more"""
    trace = check(exercise, 4, 16, 40, 9)
    allowed = "k_tile and q_row are given"
    expect_chip_memory(trace, shared=4 * 8 * 49, local=4 * 2, allowed=allowed)
    assert trace.barriers == 2, (
        f"a tile has one barrier, which is given; the meter shows {trace.barriers / 2:g}"
    )


def test_float32(exercise):
    """computes in float32"""
    expect_float32(check(exercise, 4, 8, 40, 9))


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without float64"""
    check(exercise, 4, 8, 64, 16)  # a function that is not written yet says so here
    x = np.zeros((8, 64), np.float32)
    kernel = exercise.make_kernel(64, 16, 4, 8)
    gpu_ready(kernel, (np.zeros((8, 80), np.float32), x, x[:, :16].copy(), x, np.float32(1)))
