"""The k largest softmax values of each row, in one pass over it.

safe softmax, then top-k     max, sum, divide; then look for the largest   4 reads + 1 write
online softmax, then top-k   one pass fewer                                3 reads + 1 write
softmax_topk                 max, sum and the k largest in one pass        1 read   <- this file

Softmax keeps the order of a row, so its k largest values belong to the k largest x. One pass finds
these x and the sum, and only they are divided by the sum: the row is read once and never written.
This is the last step of a language model that samples its next token.

Each thread keeps a sorted list of the k best of its columns. Then the thread block runs k rounds;
in each round the best first entry of all lists wins and leaves its list.

Paper: Milakov & Gimelshein 2018, arXiv:1805.02867, Algorithm 4.
"""

import functools
import math

import numpy as np
from numba import cuda, float32, int32

from fa_numba import checks
from fa_numba.constants import FULL_WARP, NEG_INF, WARP_SIZE
from fa_numba.runtime import arrays

NO_COLUMN = np.int32(2**31 - 1)  # column of an empty list entry: ranks after every column
THREADS = 128  # per row; whole warps


@cuda.jit(device=True, inline="always")
def ranks_before(x_a, col_a, x_b, col_b):
    """The order of the result: larger x first, for equal x the smaller column first."""
    return x_a > x_b or (x_a == x_b and col_a < col_b)


@functools.cache
def make_softmax_topk(THREADS, K):
    """The kernel for thread blocks of THREADS threads, a multiple of 32, and the K largest."""
    NUM_WARPS = THREADS // WARP_SIZE

    @cuda.jit
    def softmax_topk_kernel(x, values, columns):
        """A thread block owns a row; thread tid takes columns tid, tid + THREADS, ...

        grid      (num_rows,); threads (THREADS,)
        shared    m_warp, l_warp (NUM_WARPS,): each warp's partial result;
                  x_warp, col_warp (NUM_WARPS,): its candidate in a round
        private   m_i, l_i; x_best, col_best (K,): the K best of this thread's columns, in order
        HBM       x, values, columns once
        paper     Online normalizer calculation for softmax, Algorithm 4
        budget    40 registers, 64 bytes shared (THREADS=128, K=5)
        """
        m_warp = cuda.shared.array(NUM_WARPS, float32)
        l_warp = cuda.shared.array(NUM_WARPS, float32)
        x_warp = cuda.shared.array(NUM_WARPS, float32)
        col_warp = cuda.shared.array(NUM_WARPS, int32)
        x_best = cuda.local.array(K, float32)
        col_best = cuda.local.array(K, int32)
        row, tid = cuda.blockIdx.x, cuda.threadIdx.x
        num_cols = x.shape[1]

        for i in range(K):
            x_best[i] = NEG_INF
            col_best[i] = NO_COLUMN
        m_i = NEG_INF
        l_i = float32(0.0)
        for col in range(tid, num_cols, THREADS):
            x_j = float32(x[row, col])
            m_new = max(m_i, x_j)  # (m, l) <- (m, l) ⊕ (x_j, 1)                    lines 6-7
            shift = float32(0.0) if m_new == NEG_INF else m_new  # -inf - -inf is NaN
            l_i = l_i * math.exp(m_i - shift) + math.exp(x_j - shift)
            m_i = m_new

            key = x_j if x_j == x_j else NEG_INF  # NaN ranks as -inf
            if ranks_before(key, int32(col), x_best[K - 1], col_best[K - 1]):
                x_best[K - 1] = key  # replaces the last entry                         lines 8-9
                col_best[K - 1] = int32(col)
                for i in range(K - 1, 0, -1):  # and moves up to its rank           lines 10-15
                    x_a, col_a, x_b, col_b = x_best[i - 1], col_best[i - 1], x_best[i], col_best[i]
                    if ranks_before(x_b, col_b, x_a, col_a):
                        x_best[i - 1], col_best[i - 1] = x_b, col_b
                        x_best[i], col_best[i] = x_a, col_a

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

        for rank in range(K):
            x_win = x_best[0]
            col_win = col_best[0]
            for step in range(5):
                x_other = cuda.shfl_xor_sync(FULL_WARP, x_win, 16 >> step)
                col_other = cuda.shfl_xor_sync(FULL_WARP, col_win, 16 >> step)
                if ranks_before(x_other, col_other, x_win, col_win):
                    x_win = x_other
                    col_win = col_other
            if tid % WARP_SIZE == 0:
                x_warp[tid // WARP_SIZE] = x_win
                col_warp[tid // WARP_SIZE] = col_win
            cuda.syncthreads()  # every warp's candidate is there
            for warp in range(NUM_WARPS):
                if ranks_before(x_warp[warp], col_warp[warp], x_win, col_win):
                    x_win = x_warp[warp]
                    col_win = col_warp[warp]
            cuda.syncthreads()  # everyone knows the winner: the next round may overwrite

            if col_best[0] == col_win:  # this thread's list: its other entries move up
                for i in range(K - 1):
                    x_best[i] = x_best[i + 1]
                    col_best[i] = col_best[i + 1]
                values[row, rank] = math.exp(x_win - m_i) / l_i  # e^(x - m) / l    lines 17-19
                columns[row, rank] = col_win

    return softmax_topk_kernel


def softmax_topk(x, k):
    """The k largest values of each row's softmax, and their columns, largest first.

    Parameters
    ----------
    x : array of shape (num_rows, num_cols), float32, float16 or bfloat16
    k : int
        From 1 to num_cols, at most 32: each thread keeps k candidates in registers.

    Returns
    -------
    values : array of shape (num_rows, k), dtype and library of x
        NaN for a row that contains a NaN, and for a row of −inf only.
    columns : array of shape (num_rows, k), int32
        For equal x the smaller column comes first. A NaN ranks as −inf, so that these are always k
        different columns of x.
    """
    checks.check_rows(x)
    num_rows, num_cols = x.shape
    k = checks.check_top_k(k, num_cols)
    values = arrays.empty(x, (num_rows, k), x.dtype)
    columns = arrays.empty(x, (num_rows, k), np.int32)
    kernel = make_softmax_topk(THREADS, k)
    arrays.launch(kernel, (num_rows,), (THREADS,), x, values, columns)
    return values, columns
