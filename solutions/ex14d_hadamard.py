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

### KIND: beat a budget
### HINT 1: For d = 2 the row (a, b) becomes (a + b, a − b). For d = 4 do that with the neighbours
### HINT 1: 0, 1 and 2, 3 first. What is left to do with the two pairs?
### HINT 2: In the step h = 1, 2, 4, ... thread tx meets thread tx ^ h. The one whose bit h is 0
### HINT 2: keeps the sum; the other one keeps the difference, the partner's number minus its own.
### HINT 3: row[tx] = value; barrier; other = row[tx ^ h]; barrier; value = value + other if tx & h
### HINT 3: == 0 else other - value. At the end times 1 / √d. Rotation: the signs before the loop;
### HINT 3: back: H is its own inverse, so the signs after it. Par: for h < 32 other =
### HINT 3: cuda.shfl_xor_sync(FULL_WARP, value, h).
### DEBRIEF: Q and K rotated by the same signs give the same scores: (Q M)(K M)ᵀ = Q M Mᵀ Kᵀ = Q Kᵀ.
### DEBRIEF: In 8 bits they do not: a score that one large product made had all of that product's
### DEBRIEF: rounding error; as a sum of d products of like size it has an average. The signs matter
### DEBRIEF: where the numbers have a pattern: H alone maps a constant row onto a single outlier.
### DEBRIEF: And the exchange of tx with tx ^ h is lesson 03's butterfly, an FFT's, and that of a
### DEBRIEF: sum over a warp.


@functools.cache
def make_kernel(HEAD_DIM, BACK):
    """The kernel for one head_dim, there or back, compile-time constants."""

    @cuda.jit
    def kernel(x, signs, y):
        """A row's rotation: a thread block for each row, a thread for each column."""
        ### BEGIN SOLUTION
        row = cuda.shared.array(HEAD_DIM, float32)
        tx, m = cuda.threadIdx.x, cuda.blockIdx.x
        value = x[m, tx]
        if not BACK:
            value *= signs[tx]
        h = 1
        while h < HEAD_DIM:
            if h < 32 <= HEAD_DIM:
                other = cuda.shfl_xor_sync(FULL_WARP, value, h)
            else:
                row[tx] = value
                cuda.syncthreads()  # row is complete: safe to read
                other = row[tx ^ h]
                cuda.syncthreads()  # every partner has read: safe to overwrite
            value = value + other if tx & h == 0 else other - value
            h *= 2
        value *= float32(1.0 / math.sqrt(HEAD_DIM))
        if BACK:
            value *= signs[tx]
        y[m, tx] = value
        ### END SOLUTION

    return kernel
