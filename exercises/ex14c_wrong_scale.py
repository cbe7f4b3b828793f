"""ex14c · Find the bug: whose scale?

`make_broken` below makes a kernel of attention in e4m3, tile by tile, with a scale for each tile of
K and of V. With one tile it is right, and with tensors whose scales are all alike. On real tensors
it is off by some per cent, in every row, without a NaN anywhere. There are two bugs of the same
kind.

Write `make_kernel`: copy make_broken and mend it. 3 lines differ.

launch    kernel[ceil(seqlen_q / 64), 64](q8, k8, k_scales, v8, v_scales, out, scale): a thread has
          a query. HEAD_DIM and BLOCK_N are compile-time constants
q8        (seqlen_q, HEAD_DIM) e4m3 numbers, stored as float32; scale is q8's one scale divided by
          sqrt(HEAD_DIM)
k8, v8    (seqlen_k, HEAD_DIM), a multiple of BLOCK_N keys
k_scales  (seqlen_k / BLOCK_N,) float32: k8 times its tile's scale is K. v_scales: the same of V
out       (seqlen_q, HEAD_DIM) float32: softmax(Q K^T / sqrt(HEAD_DIM)) V; P is rounded to e4m3 as
          before, and divided by the sum of the P that are not rounded

round_e4m3 and P_SCALE are given and have no bug.
"""

import functools
import math

from numba import cuda, float32

P_SCALE = 256.0  # brings P, at most 1, to the top of e4m3's range


@cuda.jit(device=True)
def round_e4m3(x):
    """The nearest e4m3 number; beyond the largest, the largest."""
    x = min(max(x, float32(-448.0)), float32(448.0))
    _, exponent = math.frexp(x)  # |x| = f 2^exponent, 1/2 <= f < 1
    step = math.ldexp(float32(1.0), max(exponent - 1, -6) - 3)
    to_even = float32(12582912.0)  # 1.5 2^23: what is added to it is rounded to an integer
    return (x / step + to_even - to_even) * step


@functools.cache
def make_broken(HEAD_DIM, BLOCK_N):
    """The kernel with the two bugs, to read and to run. Leave it as it is."""

    @cuda.jit
    def broken_kernel(q8, k8, k_scales, v8, v_scales, out, scale):
        s = cuda.local.array(BLOCK_N, float32)
        acc = cuda.local.array(HEAD_DIM, float32)
        m = cuda.grid(1)
        if m >= q8.shape[0]:
            return
        m_i, l_i = float32(-math.inf), float32(0.0)
        for d in range(HEAD_DIM):
            acc[d] = float32(0.0)
        num_tiles = k8.shape[0] // BLOCK_N
        for t in range(num_tiles):
            n_start = t * BLOCK_N
            m_new = m_i
            for c in range(BLOCK_N):
                dot = float32(0.0)
                for d in range(HEAD_DIM):
                    dot += q8[m, d] * k8[n_start + c, d]
                s[c] = dot * (scale * k_scales[0])
                m_new = max(m_new, s[c])
            alpha = math.exp(m_i - m_new)
            l_i *= alpha
            for d in range(HEAD_DIM):
                acc[d] *= alpha
            for c in range(BLOCK_N):
                p = math.exp(s[c] - m_new)
                l_i += p
                p8 = round_e4m3(float32(P_SCALE) * p) / float32(P_SCALE)
                for d in range(HEAD_DIM):
                    acc[d] += p8 * v8[n_start + c, d]
            m_i = m_new
        for d in range(HEAD_DIM):
            out[m, d] = acc[d] * v_scales[num_tiles - 1] / l_i

    return broken_kernel


@functools.cache
def make_kernel(HEAD_DIM, BLOCK_N):
    """Attention in e4m3 with a scale for each tile."""

    @cuda.jit
    def kernel(q8, k8, k_scales, v8, v_scales, out, scale):
        # YOUR CODE HERE
        raise NotImplementedError("ex14c: kernel")

    return kernel


# Stub 32ce3956 of solutions/ex14c_wrong_scale.py: `fa-numba reset ex14c` brings it back.
