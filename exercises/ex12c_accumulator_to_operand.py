"""ex12c · P is already where P V wants it

A warp has 16 rows of P in the registers that Q Kᵀ left it in, in the layout of D. P V wants them in
the layout of A (both are in ex12a). No lane has to ask another: what a lane needs, it has. Write
the second product of attention.

to_operand(a, p, k)   device function: fills a, the registers of the k-th A, which is the columns
                      16 k .. 16 k + 15 of P. p stays as it is
kernel(s, v, out)     out = s v, where a warp has 16 rows and 8 columns of out

p         a local array of one lane's P, float32: element 4 j + r is register d_r of product j, the
          columns 8 j .. 8 j + 7
a         a local array of 8 float16: element 2 r + h is half h of register a_r
launch    kernel[(ceil(columns / 32), rows / 16), (32, 4)], as in ex12a
arrays    s (rows, BLOCK_N) float32; v (BLOCK_N, columns) float16; out (rows, columns) float32. rows
          and BLOCK_N are multiples of 16, columns of 8
given     load_d(d, x, row, col), load_b(b, x, row, col), store_d(x, d, row, col) move the fragments
          of the 16 or 8 rows and columns that begin there; p is loaded already. mma_f16 as in ex12a
memory    no shared memory, no barrier. s is loaded once for each 8 columns of out, v once for each
          16 rows

4 lines, and 5 in the kernel.
"""

import functools

import numpy as np
from numba import cuda, float32

from fa_numba.ptx.warp_mma import load_b, load_d, mma_f16, store_d


@cuda.jit(device=True)
def to_operand(a, p, k):
    """Fill the registers of the k-th A from one lane's P."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12c: to_operand")


@functools.cache
def make_kernel(BLOCK_N):
    """The kernel for a tile of BLOCK_N keys, a compile-time constant."""
    LENGTH = BLOCK_N // 2  # of p: 4 numbers for each 8 columns

    @cuda.jit
    def kernel(s, v, out):
        """out = s v, a warp for each 16 rows and 8 columns."""
        p = cuda.local.array(LENGTH, float32)
        a = cuda.local.array(8, np.float16)
        b = cuda.local.array(4, np.float16)
        d = cuda.local.array(4, float32)
        row, col = 16 * cuda.blockIdx.y, 32 * cuda.blockIdx.x + 8 * cuda.threadIdx.y
        if col >= out.shape[1]:
            return  # the whole warp does
        for j in range(BLOCK_N // 8):  # as Q Kᵀ leaves it
            load_d(d, s, row, 8 * j)
            for r in range(4):
                p[4 * j + r] = d[r]
        # YOUR CODE HERE
        raise NotImplementedError("ex12c: kernel")

    return kernel


# Stub 821e21c7 of solutions/ex12c_accumulator_to_operand.py: `fa-numba reset ex12c` brings it back.
