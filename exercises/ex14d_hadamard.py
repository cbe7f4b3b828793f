"""ex14d · A rotation that spreads outliers, in the kernel

Let H be the Hadamard matrix of size HEAD_DIM, a power of two: H = [1] for 1, and twice as large

    H  H
    H −H

H / √d is orthogonal and symmetric. With random signs s (each +1 or −1) the rotation of a row x is

    x diag(s) H / √d

It takes d log2 d additions, not d²: H is never written down. In the kernel a thread has a column.

launch   kernel[rows, HEAD_DIM](x, signs, y): a thread block for each row, a thread for each column
arrays   x, y (rows, HEAD_DIM) float32; signs (HEAD_DIM,) float32, +1 and −1
BACK     a compile-time bool. False: y is the rotation of x. True: y is what x is the rotation of
sizes    HEAD_DIM 1, 2, 4, ... 1024
HBM      x is loaded once, y is stored once
Budget   barriers   at most 2 log2 HEAD_DIM; par: none for the first five steps, which stay in a
                    warp: shuffles
         shared     a row: 4 HEAD_DIM bytes

In float32 throughout. About 13 lines.
"""

import functools
import math

from numba import cuda, float32

FULL_WARP = 0xFFFFFFFF


@functools.cache
def make_kernel(HEAD_DIM, BACK):
    """The kernel for one head_dim, there or back, compile-time constants."""

    @cuda.jit
    def kernel(x, signs, y):
        """A row's rotation: a thread block for each row, a thread for each column."""
        # YOUR CODE HERE
        raise NotImplementedError("ex14d: kernel")

    return kernel


# Stub 3f2bbfc4 of solutions/ex14d_hadamard.py: `fa-numba reset ex14d` brings it back.
