"""Rows of out by a thread block of (BLOCK_N, BLOCK_M) threads: the end of a tile, and of the walk.

Exercises after ex07d are given these two functions of it. Thread (ty, tx) owns the columns tx,
tx + BLOCK_N, ... of row ty, and keeps them in acc, not yet divided by l_i.
"""

import functools
import math

from numba import cuda, float32

from fa_numba.constants import NEG_INF
from fa_numba.tiling.block_sizes import ceil_div


@functools.cache
def make_row_functions(HEAD_DIM, BLOCK_N):
    """(add_tile, store) for one head_dim and number of keys in a tile, compile-time constants."""
    NUM_COLS = ceil_div(HEAD_DIM, BLOCK_N)  # columns of out that a thread owns

    @cuda.jit(device=True)
    def add_tile(acc, l_i, alpha, p_tile, v_tile):
        """ex07b: rescale acc and l_i by alpha, add a tile; return the new l_i."""
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        l_i *= alpha
        for c in range(BLOCK_N):
            l_i += p_tile[ty, c]  # l_i <- alpha l_i + rowsum(P)                 line 9
        for i in range(NUM_COLS):
            d = tx + i * BLOCK_N
            if d < HEAD_DIM:
                acc[i] *= alpha
                for c in range(BLOCK_N):
                    acc[i] += p_tile[ty, c] * v_tile[c, d]  # O <- alpha O + P V  line 10
        return l_i

    @cuda.jit(device=True)
    def store(m, acc, m_i, l_i, out, lse):
        """Divide acc by l_i, store this thread's columns of row m of out, and lse."""
        tx = cuda.threadIdx.x
        if m < out.shape[0]:
            for i in range(NUM_COLS):
                d = tx + i * BLOCK_N
                if d < HEAD_DIM:
                    out[m, d] = acc[i] / l_i if l_i > 0 else float32(0.0)  #     line 12
            if tx == 0:
                lse[m] = m_i + math.log(l_i) if l_i > 0 else NEG_INF  #          line 13

    return add_tile, store
