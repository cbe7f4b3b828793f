"""Row softmax: x (num_rows, num_cols) float32 -> y, same shape.

naive    sum of e^x, then divide                    2 reads + 1 write, overflows   <- this file
safe     max, then sum, then divide                 3 reads + 1 write
online   max and sum in one pass, then divide       2 reads + 1 write

The formula of a textbook. The largest float32 is 3.4e38, or e^88.7: a row with a number above 88.7
sums to infinity, and inf / inf is NaN. This kernel is here to show that failure.
"""

import functools
import math

from numba import cuda, float32

from fa_numba import checks
from fa_numba.runtime import arrays

THREADS = 128  # per row; a power of two, for the tree


@functools.cache
def make_naive_softmax(THREADS):
    """The kernel for thread blocks of THREADS threads, a power of two."""

    @cuda.jit
    def naive_softmax_kernel(x, y):
        """A thread block owns a row; thread tid takes columns tid, tid + THREADS, ...

        grid      (num_rows,); threads (THREADS,)
        shared    partial (THREADS,): each thread's sum, then a tree of sums
        private   total
        HBM       x twice, y once
        paper     none: the definition
        budget    40 registers, 512 bytes shared (THREADS=128)
        """
        partial = cuda.shared.array(THREADS, float32)
        row, tid = cuda.blockIdx.x, cuda.threadIdx.x
        num_cols = x.shape[1]

        total = float32(0.0)
        for col in range(tid, num_cols, THREADS):
            total += math.exp(float32(x[row, col]))
        partial[tid] = total
        cuda.syncthreads()  # every thread's sum is there: the tree may start
        width = THREADS // 2
        while width > 0:
            if tid < width:
                partial[tid] += partial[tid + width]
            cuda.syncthreads()  # this level is complete: the next one reads it
            width //= 2

        total = partial[0]
        for col in range(tid, num_cols, THREADS):
            y[row, col] = math.exp(float32(x[row, col])) / total

    return naive_softmax_kernel


def naive_softmax(x):
    """Softmax of each row by the plain formula, which overflows for numbers above 88.

    Parameters
    ----------
    x : array of shape (num_rows, num_cols), float32, float16 or bfloat16

    Returns
    -------
    array of the shape, dtype and library of x
        NaN throughout a row whose sum of e^x exceeds float32; use `safe_softmax`.
    """
    checks.check_rows(x)
    y = arrays.empty(x, x.shape, x.dtype)
    arrays.launch(make_naive_softmax(THREADS), (x.shape[0],), (THREADS,), x, y)
    return y
