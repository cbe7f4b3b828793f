"""What masks and ALiBi do to scores in registers, on the CPU engine; the polynomial of softcap."""

import numpy as np
import pytest
from numba import cuda, float32

pytest.importorskip("numba.cuda.extending", reason="needs numba-cuda")

from fa_numba.tensor_core import fragments

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
    _, bend_tile = fragments.make_bend_tile(BLOCK_N, causal, window, 0.0, True)
    mask_tile = fragments.make_mask_tile(BLOCK_N, causal, window)
    SHAPE = (BLOCK_N // 8, 4)

    @cuda.jit
    def kernel(scores, n_start, first_position, seqlen_k, slope, scale, bent):
        s, offset = cuda.local.array(SHAPE, float32), cuda.local.array(2, float32)
        lane = cuda.threadIdx.x
        row, col, position = lane // 4, 2 * (lane % 4), first_position + lane // 4
        for j in range(BLOCK_N // 8):
            for h in range(2):
                for c in range(2):
                    s[j, 2 * h + c] = scores[row + 8 * h, 8 * j + col + c]
        bend_tile(s, offset, n_start, position, slope, scale, lane)
        mask_tile(s, n_start, position, seqlen_k, lane)
        for j in range(BLOCK_N // 8):
            for h in range(2):
                for c in range(2):
                    bent[row + 8 * h, 8 * j + col + c] = s[j, 2 * h + c] + offset[h]

    softmax_scale, slope = np.float32(0.125), np.float32(0.3)
    left, right = window[0], 0 if causal else window[1]
    for n_start, seqlen_k in ((0, 100), (64, 100), (64, 1000)):
        for first_position in (-40, -15, 0, 40, 48, 49, 63, 64, 112, 127, 128, 240):
            scores = rng.standard_normal((16, BLOCK_N)).astype(np.float32)
            bent = np.zeros_like(scores)
            numbers = n_start, first_position, seqlen_k, slope, softmax_scale * LOG2_E
            kernel[1, 32](scores, *numbers, bent)
            distance = first_position + np.arange(16)[:, None] - n_start - np.arange(BLOCK_N)
            seen = np.broadcast_to(n_start + np.arange(BLOCK_N) < seqlen_k, bent.shape)
            seen = seen & ((left < 0) | (distance <= left)) & ((right < 0) | (-distance <= right))
            want = scores - slope / softmax_scale * abs(distance)
            np.testing.assert_allclose(bent[seen], want[seen], rtol=1e-5, atol=1e-3)
            assert (bent[~seen] < fragments.NO_KEY).all()


def test_the_polynomial_is_tanh_where_it_is_taken():
    x = np.linspace(-fragments.SMALL, fragments.SMALL, 1000)
    t0, t1, t2 = map(float, fragments.TANH)
    polynomial = x * (t0 + x**2 * (t1 + x**2 * t2))
    assert (abs(polynomial - np.tanh(x)) <= 7e-6 * abs(x)).all()
