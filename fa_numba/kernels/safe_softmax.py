"""Row softmax: x (num_rows, num_cols) float32 -> y, same shape.

naive    sum of e^x, then divide                    2 reads + 1 write, overflows
safe     max, then sum, then divide                 3 reads + 1 write   <- this file
online   max and sum in one pass, then divide       2 reads + 1 write

Subtracting the row's maximum does not change the quotient, and no exponent is above 0. Finding the
maximum costs one more pass over x.

Paper: Milakov & Gimelshein 2018, arXiv:1805.02867, Algorithm 2.
"""

import functools
import math

from numba import cuda, float32

from fa_numba import checks
from fa_numba.constants import NEG_INF
from fa_numba.runtime import arrays

THREADS = 128  # per row; a power of two, for the tree


@functools.cache
def make_safe_softmax(THREADS):
    """The kernel for thread blocks of THREADS threads, a power of two."""

    @cuda.jit
    def safe_softmax_kernel(x, y):
        """A thread block owns a row; thread tid takes columns tid, tid + THREADS, ...

        grid      (num_rows,); threads (THREADS,)
        shared    partial (THREADS,): each thread's maximum, then its sum, combined by a tree
        private   row_max, row_sum
        HBM       x three times, y once
        paper     Online normalizer calculation for softmax, Algorithm 2
        budget    48 registers, 512 bytes shared (THREADS=128)
        """
        partial = cuda.shared.array(THREADS, float32)
        row, tid = cuda.blockIdx.x, cuda.threadIdx.x
        num_cols = x.shape[1]

        row_max = NEG_INF  # m = max_j x_j                                        lines 1-4
        for col in range(tid, num_cols, THREADS):
            row_max = max(row_max, float32(x[row, col]))
        partial[tid] = row_max
        cuda.syncthreads()  # every thread's maximum is there: the tree may start
        width = THREADS // 2
        while width > 0:
            if tid < width:
                partial[tid] = max(partial[tid], partial[tid + width])
            cuda.syncthreads()  # this level is complete: the next one reads it
            width //= 2
        row_max = partial[0]
        cuda.syncthreads()  # everyone has the maximum: partial may be overwritten

        row_sum = float32(0.0)  # d = sum_j e^(x_j - m)                           lines 5-8
        for col in range(tid, num_cols, THREADS):
            row_sum += math.exp(float32(x[row, col]) - row_max)
        partial[tid] = row_sum
        cuda.syncthreads()  # every thread's sum is there: the tree may start
        width = THREADS // 2
        while width > 0:
            if tid < width:
                partial[tid] += partial[tid + width]
            cuda.syncthreads()  # this level is complete: the next one reads it
            width //= 2
        row_sum = partial[0]

        for col in range(tid, num_cols, THREADS):  # y_j = e^(x_j - m) / d       lines 9-11
            y[row, col] = math.exp(float32(x[row, col]) - row_max) / row_sum

    return safe_softmax_kernel


def safe_softmax(x):
    """Softmax of each row in three passes; no number is too large.

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
    arrays.launch(make_safe_softmax(THREADS), (x.shape[0],), (THREADS,), x, y)
    return y
