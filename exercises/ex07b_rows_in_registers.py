"""ex07b · The online update, with O in registers

FlashAttention-2 in the small: the scores are in HBM already, and there is no mask. Each thread
keeps its part of a row's state: the sum l_i, and NUM_COLS columns of out, not divided, in acc.
Fill in the update by one tile; the kernel around it is given.

Thread   (ty, tx) owns the columns tx, tx + BLOCK_N, tx + 2 BLOCK_N, ... of row ty: acc[i] is
         column tx + i BLOCK_N. All threads of a row hold the same l_i
add_tile multiplies acc and l_i by alpha, then adds the row of P times V to acc and the sum of the
         row of P to l_i. acc is changed in place; the new l_i is returned
p_tile   (BLOCK_M, BLOCK_N): P = exp(s - m_new) of the tile, complete
v_tile   (BLOCK_N, HEAD_DIM): the values of the tile's keys, complete
Lengths  multiples of the tiles here; HEAD_DIM is a multiple of BLOCK_N
Memory   no array but those that are there, no barrier, no HBM

About 8 lines.
"""

import functools
import math

from numba import cuda, float32


@functools.cache
def make_kernel(HEAD_DIM, BLOCK_M, BLOCK_N):
    NUM_COLS = HEAD_DIM // BLOCK_N  # columns of out that a thread owns

    @cuda.jit(device=True)
    def add_tile(acc, l_i, alpha, p_tile, v_tile):
        """Rescale acc and l_i by alpha, add a tile; return the new l_i."""
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        # YOUR CODE HERE
        raise NotImplementedError("ex07b: add_tile")

    @cuda.jit
    def kernel(s, v, out, lse):
        """out = softmax(s) v and lse; s (seqlen_q, seqlen_k) scores, v (seqlen_k, HEAD_DIM)."""
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        s_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        p_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        acc = cuda.local.array(NUM_COLS, float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        m = cuda.blockIdx.x * BLOCK_M + ty
        m_i = float32(-math.inf)
        l_i = float32(0.0)
        for i in range(NUM_COLS):
            acc[i] = float32(0.0)

        for n_start in range(0, s.shape[1], BLOCK_N):
            for row in range(ty, BLOCK_N, BLOCK_M):
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    v_tile[row, d] = v[n_start + row, d]
            s_tile[ty, tx] = s[m, n_start + tx]
            cuda.syncthreads()  # v_tile and s_tile are complete: safe to read
            m_new = m_i
            for c in range(BLOCK_N):
                m_new = max(m_new, s_tile[ty, c])
            alpha = math.exp(m_i - m_new)
            p_tile[ty, tx] = math.exp(s_tile[ty, tx] - m_new)
            m_i = m_new
            cuda.syncthreads()  # p_tile is complete: safe to read
            l_i = add_tile(acc, l_i, alpha, p_tile, v_tile)
            cuda.syncthreads()  # every thread is done with the tiles: safe to overwrite

        for i in range(NUM_COLS):
            out[m, tx + i * BLOCK_N] = acc[i] / l_i
        if tx == 0:
            lse[m] = m_i + math.log(l_i)

    return kernel


# Stub 7ce70273 of solutions/ex07b_rows_in_registers.py: `fa-numba reset ex07b` brings it back.
