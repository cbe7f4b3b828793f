"""Masks, softcap and ALiBi on scores in registers, on the CPU engine."""

import math

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32

from fa_numba.ptx import layouts
from fa_numba.tensor_core import alibi, fragments, lazy_rescaling

BLOCK_N = 64
LOG2_E = np.float32(np.log2(np.e))


@pytest.mark.parametrize(
    "causal, window",
    [
        (False, (-1, -1)),
        (True, (-1, -1)),
        (False, (20, 30)),
        (True, (25, -1)),
        (False, (-1, 0)),
        (False, (0, 5)),
    ],
)
def test_scores_of_a_warp(rng, causal, window):
    modify_scores = fragments.make_score_mod(BLOCK_N, causal, window, 0.0, True).modify_scores
    mask_tile = fragments.make_mask_tile(BLOCK_N, causal, window)
    SHAPE = (BLOCK_N // 8, 4)

    @cuda.jit
    def kernel(scores, n_start, first_position, seqlen_k, slope, scale, modified):
        s, offset = cuda.local.array(SHAPE, float32), cuda.local.array(2, float32)
        lane = cuda.threadIdx.x
        row, col, position = lane // 4, 2 * (lane % 4), first_position + lane // 4
        for j in range(BLOCK_N // 8):
            for h in range(2):
                for c in range(2):
                    s[j, 2 * h + c] = scores[row + 8 * h, 8 * j + col + c]
        modify_scores(s, offset, n_start, position, slope, scale, lane)
        mask_tile(s, n_start, position, seqlen_k, lane)
        for j in range(BLOCK_N // 8):
            for h in range(2):
                for c in range(2):
                    modified[row + 8 * h, 8 * j + col + c] = s[j, 2 * h + c] + offset[h]

    softmax_scale, slope = np.float32(0.125), np.float32(0.3)
    left, right = window[0], 0 if causal else window[1]
    for n_start, seqlen_k in ((0, 100), (64, 100), (64, 1000)):
        for first_position in (-40, -15, 0, 40, 48, 49, 63, 64, 112, 127, 128, 240):
            scores = rng.standard_normal((16, BLOCK_N)).astype(np.float32)
            modified = np.zeros_like(scores)
            numbers = n_start, first_position, seqlen_k, slope, softmax_scale * LOG2_E
            kernel[1, 32](scores, *numbers, modified)
            distance = first_position + np.arange(16)[:, None] - n_start - np.arange(BLOCK_N)
            seen = np.broadcast_to(n_start + np.arange(BLOCK_N) < seqlen_k, modified.shape)
            seen = seen & ((left < 0) | (distance <= left)) & ((right < 0) | (-distance <= right))
            want = scores - slope / softmax_scale * abs(distance)
            np.testing.assert_allclose(modified[seen], want[seen], rtol=1e-5, atol=1e-3)
            assert (modified[~seen] < fragments.NO_KEY).all()


@pytest.mark.parametrize("block_n", [80, 112, 128])
def test_a_product_of_bfloat16_is_alibis_line(rng, block_n):
    """The work of `write_ramp`, `slope_pieces` and wgmma, in NumPy."""
    word = np.arange(alibi.ramp_bytes(block_n) // 4)
    chunk, pair = np.divmod(word, alibi.CHUNK // 4)
    column = 8 * (chunk // alibi.PIECES) + 2 * pair
    memory = np.stack([column, column + 1], -1).ravel().astype(ml_dtypes.bfloat16)

    fields = layouts.descriptor_fields(alibi.RAMP_BITS)
    k, n = np.ogrid[:16, :block_n]  # unswizzled: 8 columns of a row, then those of the next row
    at = n // 8 * fields["stride_bytes"] + k // 8 * fields["leading_bytes"] + k % 8 * alibi.CHUNK
    assert fields["swizzle"] == 0 and at.max() + alibi.CHUNK == alibi.ramp_bytes(block_n)
    ramp = memory[at // 2 + n % 8].astype(np.float64)
    assert np.isfinite(ramp).all() and (ramp[: alibi.PIECES] == np.arange(block_n)).all()

    slopes = rng.standard_normal(1000) * 10.0 ** rng.uniform(-20, 20, 1000)
    slopes = slopes.astype(np.float32)
    remainder, pieces = slopes, np.zeros((1000, 16))
    for i in range(alibi.PIECES):
        pieces[:, i] = remainder.astype(ml_dtypes.bfloat16)
        remainder = remainder - pieces[:, i].astype(np.float32)
    assert (remainder == 0).all()
    want = slopes.astype(np.float64)[:, None] * np.arange(block_n)
    np.testing.assert_array_equal(pieces @ ramp, want)


def test_the_polynomial_is_tanh_in_its_range():
    x = np.linspace(-fragments.SMALL, fragments.SMALL, 1000)
    t0, t1, t2 = map(float, fragments.TANH)
    polynomial = x * (t0 + x**2 * (t1 + x**2 * t2))
    assert (abs(polynomial - np.tanh(x)) <= 7e-6 * abs(x)).all()

    # Farther below a maximum of 0 or more, at the least softcap for which it is used.
    x = np.linspace(-30, 0, 10000)
    polynomial = x * (t0 + x**2 * (t1 + x**2 * t2))
    cap = lazy_rescaling.LEAST_CAP
    assert (abs(np.exp(cap * polynomial) - np.exp(cap * np.tanh(x))) <= 2e-4).all()


@cuda.jit(device=True)
def exp2(x):
    return float32(math.exp2(x)) if x > float32(-126) else float32(0)


@cuda.jit(device=True)
def max3_bits(x, y, z):
    largest = max(x, max(y, z))
    return largest if largest >= float32(0) else min(x, min(y, z))


@pytest.mark.parametrize(
    "softcap, slope, spread, mean, first_position",
    [
        (0.0, 0.0, 1.0, 0.0, 300),
        (0.0, 0.0, 30.0, 0.0, 300),  # the maximum rises by more than there is room for
        (0.0, 0.0, 1.0, -7.0, 2),  # below 0; rows that see three keys, and tiles without a seen key
        (30.0, 0.0, 1.0, 0.0, 300),
        (50.0, 0.0, 4.0, 0.0, 300),
        (30.0, 0.0, 30.0, 0.0, 300),  # beyond the range of the polynomial
        (30.0, 0.0, 1.0, -7.0, 2),
        (10.0, 0.0, 3.0, -1.0, 300),
        (1.5, 0.0, 4.0, 0.0, 300),
        (0.0, 0.3, 1.0, 0.0, 300),
        (0.0, 9.0, 1.0, 0.0, 300),
        (0.0, -0.2, 1.0, 0.0, 300),
        (0.0, -0.5, 1.0, 0.0, 300),  # the last tile is negligible
        (20.0, 0.8, 1.0, 0.0, 200),
    ],
)
def test_softmax_steps(rng, monkeypatch, softcap, slope, spread, mean, first_position):
    monkeypatch.setattr(lazy_rescaling, "exp2", exp2)
    monkeypatch.setattr(lazy_rescaling, "max3_bits", max3_bits)
    monkeypatch.setattr(fragments, "exp2", exp2)
    TILES, SHAPE, ALIBI = 3, (BLOCK_N // 8, 4), slope != 0
    NO_KEY = fragments.NO_KEY
    steps = lazy_rescaling.make_softmax_steps.__wrapped__(BLOCK_N, softcap, ALIBI)
    raise_maximum, exponentiate = steps
    score_mod = fragments.make_score_mod.__wrapped__(BLOCK_N, True, (-1, -1), softcap, ALIBI)
    exponent_scale_of, modify_scores = score_mod.exponent_scale_of, score_mod.modify_scores
    mask_tile = fragments.make_mask_tile(BLOCK_N, True, (-1, -1))

    @cuda.jit
    def kernel(scores, first_position, seqlen_k, slope, scale, p, m, l, num_negligible):
        s, offset = cuda.local.array(SHAPE, float32), cuda.local.array(2, float32)
        m_i, l_i = cuda.local.array(2, float32), cuda.local.array(2, float32)
        alpha = cuda.local.array(2, float32)
        lane = cuda.threadIdx.x
        row, col, position = lane // 4, 2 * (lane % 4), first_position + lane // 4
        for h in range(2):
            m_i[h], l_i[h] = NO_KEY, float32(0)
        for tile in range(TILES):
            n_start = BLOCK_N * tile
            for j in range(BLOCK_N // 8):
                for h in range(2):
                    for c in range(2):
                        s[j, 2 * h + c] = scores[row + 8 * h, n_start + 8 * j + col + c]
            if ALIBI:
                modify_scores(s, offset, n_start, position, slope, scale, lane)
            mask_tile(s, n_start, position, seqlen_k, lane)
            risen, small = raise_maximum(s, offset, m_i, l_i, alpha, scale)
            if ALIBI and small:
                num_negligible[lane] += 1
                for j in range(BLOCK_N // 8):
                    for r in range(4):
                        s[j, r] = float32(0)
            else:
                exponentiate(s, offset, m_i, l_i, small, scale)
            for h in range(2):
                for j in range(BLOCK_N // 8):
                    for c in range(2):
                        if risen:
                            for earlier in range(tile):
                                n = BLOCK_N * earlier + 8 * j + col + c
                                p[row + 8 * h, n] *= alpha[h]
                        p[row + 8 * h, n_start + 8 * j + col + c] = s[j, 2 * h + c]
        for h in range(2):
            m[row + 8 * h] = m_i[h] * exponent_scale_of(scale)
            l[row + 8 * h, lane % 4] = l_i[h]

    softmax_scale, seqlen_k = np.float32(0.125), BLOCK_N * TILES - 30
    first_position = min(first_position, seqlen_k)
    scores = rng.normal(mean, spread, (16, BLOCK_N * TILES)) / softmax_scale
    scores = scores.astype(np.float32)
    p, m, l = (np.zeros(shape, np.float32) for shape in (scores.shape, 16, (16, 4)))
    num_negligible = np.zeros(32, np.int32)
    numbers = first_position, seqlen_k, np.float32(slope), softmax_scale * LOG2_E
    kernel[1, 32](scores, *numbers, p, m, l, num_negligible)
    assert ((num_negligible > 0) == (slope == -0.5)).all()
    n = np.arange(BLOCK_N * TILES)
    distance = first_position + np.arange(16)[:, None] - n
    want = scores * float(softmax_scale)
    want = softcap * np.tanh(want / softcap) if softcap else want
    want = np.where((distance >= 0) & (n < seqlen_k), want - slope * abs(distance), -np.inf)
    lse = np.log(np.exp(want - want.max(1, keepdims=True)).sum(1)) + want.max(1)
    np.testing.assert_allclose(p / l.sum(1)[:, None], np.exp(want - lse[:, None]), atol=3e-5)
    np.testing.assert_allclose(m / LOG2_E + np.log(l.sum(1)), lse, rtol=1e-5, atol=1e-4)
    assert p.max() < 2.0 ** (lazy_rescaling.LAZY + 1)  # room in 16 bits
