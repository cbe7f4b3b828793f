"""Row softmax: x (num_rows, num_cols) float32 -> y, same shape.

naive    sum of e^x, then divide                    2 reads + 1 write, overflows
safe     max, then sum, then divide                 3 reads + 1 write
online   max and sum in one pass, then divide       2 reads + 1 write   <- this file

A partial result is a pair (m, l): the maximum so far, and the sum of e^(x - m). Two of them merge,

    (m_a, l_a) ⊕ (m_b, l_b) = (m, l_a e^(m_a - m) + l_b e^(m_b - m))    with m = max(m_a, m_b),

in any order. So a thread merges its columns as it reads them, shuffles merge the threads of a warp,
and one barrier suffices to merge the warps; the trees of safe_softmax need one barrier per level.
The same ⊕ merges the key tiles of FlashAttention.

Paper: Milakov & Gimelshein 2018, arXiv:1805.02867, Algorithm 3 and section 3.1.
"""

import functools
import math

from numba import cuda, float32

from fa_numba import checks
from fa_numba.constants import FULL_WARP, NEG_INF, WARP_SIZE
from fa_numba.runtime import arrays

THREADS = 128  # per row; whole warps


@functools.cache
def make_online_softmax(THREADS):
    """The kernel for thread blocks of THREADS threads, a multiple of 32."""
    NUM_WARPS = THREADS // WARP_SIZE

    @cuda.jit
    def online_softmax_kernel(x, y):
        """A thread block owns a row; thread tid takes columns tid, tid + THREADS, ...

        grid      (num_rows,); threads (THREADS,)
        shared    m_warp, l_warp (NUM_WARPS,): each warp's partial result
        private   m_i, l_i
        HBM       x twice, y once
        paper     Online normalizer calculation for softmax, Algorithm 3
        budget    40 registers, 32 bytes shared (THREADS=128)
        """
        m_warp = cuda.shared.array(NUM_WARPS, float32)
        l_warp = cuda.shared.array(NUM_WARPS, float32)
        row, tid = cuda.blockIdx.x, cuda.threadIdx.x
        num_cols = x.shape[1]

        m_i = NEG_INF
        l_i = float32(0.0)
        for col in range(tid, num_cols, THREADS):  # (m, l) <- (m, l) ⊕ (x_j, 1)     lines 3-6
            x_j = float32(x[row, col])
            m_new = max(m_i, x_j)
            shift = float32(0.0) if m_new == NEG_INF else m_new  # -inf - -inf is NaN
            l_i = l_i * math.exp(m_i - shift) + math.exp(x_j - shift)
            m_i = m_new

        for step in range(5):  # after 16, 8, 4, 2, 1 each lane has merged with all 32
            m_other = cuda.shfl_xor_sync(FULL_WARP, m_i, 16 >> step)
            l_other = cuda.shfl_xor_sync(FULL_WARP, l_i, 16 >> step)
            m_new = max(m_i, m_other)
            shift = float32(0.0) if m_new == NEG_INF else m_new
            l_i = l_i * math.exp(m_i - shift) + l_other * math.exp(m_other - shift)
            m_i = m_new
        if tid % WARP_SIZE == 0:
            m_warp[tid // WARP_SIZE] = m_i
            l_warp[tid // WARP_SIZE] = l_i
        cuda.syncthreads()  # every warp's result is there: each thread merges them all

        m_i = NEG_INF
        for warp in range(NUM_WARPS):
            m_i = max(m_i, m_warp[warp])
        shift = float32(0.0) if m_i == NEG_INF else m_i
        l_i = float32(0.0)
        for warp in range(NUM_WARPS):
            l_i += l_warp[warp] * math.exp(m_warp[warp] - shift)

        for col in range(tid, num_cols, THREADS):  # y_j = e^(x_j - m) / l               line 8
            y[row, col] = math.exp(float32(x[row, col]) - m_i) / l_i

    return online_softmax_kernel


def online_softmax(x):
    """Softmax of each row; one pass finds the maximum and the sum.

    Parameters
    ----------
    x : array of shape (num_rows, num_cols), float32, float16 or bfloat16

    Returns
    -------
    array of the shape, dtype and library of x
        NaN for a row of −inf only.
    """
    checks.check_rows(x)
    y = arrays.empty(x, x.shape, x.dtype)
    arrays.launch(make_online_softmax(THREADS), (x.shape[0],), (THREADS,), x, y)
    return y
