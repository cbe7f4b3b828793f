"""ex06b · The FlashAttention-1 kernel

One head of attention, softmax(softmax_scale * q k^T) v, with no seqlen_q x seqlen_k matrix. The
outer loop walks the K/V tiles, the inner loop the Q tiles. out, l and m live in HBM and are read
and written back once per tile. Loads and dot products are given. Fill in the update of ex06a,
thread by thread, and the barriers that it needs.

shapes    q, out (seqlen_q, HEAD_DIM);  k, v (seqlen_k, HEAD_DIM);  l, m (seqlen_q,). All float32,
          of any length >= 1
launch    kernel[1, (BLOCK_N, BLOCK_M)](q, k, v, out, l, m, softmax_scale): one thread block
start     out = 0, l = 0, m = -inf, or what an earlier launch with other keys has left there
thread    (ty, tx) has the score s of query ty and key tx of the tile. It owns the columns tx,
          tx + BLOCK_N, ... of row ty of out; thread (ty, 0) stores l and m
shared    the arrays that are given, and no more: all threads of a row read its scores in s_tile,
          then its p = exp(s - m_new) in p_tile. Rows may be padded by one float
HBM       each tile's out, l and m are loaded once and stored once. Rows beyond seqlen_q are not
          stored, but their threads must reach every barrier

About 20 lines, three of them barriers. Write float32(0.0), not 0.0: to Numba that is float64.
"""

import functools
import math

from numba import cuda, float32


@functools.cache
def make_kernel(HEAD_DIM, BLOCK_M, BLOCK_N):
    """The kernel for one head_dim and one pair of tile sizes, compile-time constants."""

    @cuda.jit
    def kernel(q, k, v, out, l, m, softmax_scale):
        """FlashAttention-1 forward of one head: K/V tiles outside, Q tiles inside.

        grid     (1,); threads (BLOCK_N, BLOCK_M), one per score of the tile
        shared   q_tile (BLOCK_M, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM);
                 s_tile, p_tile (BLOCK_M, BLOCK_N); l_old, m_old (BLOCK_M,)
        HBM      k, v once; q, out, l, m once per K/V tile, the last three there and back
        paper    FlashAttention, arXiv:2205.14135, Algorithm 1
        """
        q_tile = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)
        k_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        s_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        p_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        l_old = cuda.shared.array(BLOCK_M, float32)
        m_old = cuda.shared.array(BLOCK_M, float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        seqlen_q, seqlen_k = q.shape[0], k.shape[0]

        for n_start in range(0, seqlen_k, BLOCK_N):
            for row in range(ty, BLOCK_N, BLOCK_M):
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    inside = n_start + row < seqlen_k
                    k_tile[row, d] = k[n_start + row, d] if inside else float32(0.0)
                    v_tile[row, d] = v[n_start + row, d] if inside else float32(0.0)

            for m_start in range(0, seqlen_q, BLOCK_M):
                m_row = m_start + ty
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    q_tile[ty, d] = q[m_row, d] if m_row < seqlen_q else float32(0.0)
                if tx == 0:
                    l_old[ty] = l[m_row] if m_row < seqlen_q else float32(0.0)
                    m_old[ty] = m[m_row] if m_row < seqlen_q else float32(-math.inf)
                cuda.syncthreads()  # q_tile, k_tile, v_tile, l_old, m_old are complete

                s = float32(-math.inf)  # a key beyond the end: exp gives 0
                if n_start + tx < seqlen_k:
                    s = float32(0.0)
                    for d in range(HEAD_DIM):
                        s += q_tile[ty, d] * k_tile[tx, d]
                    s *= softmax_scale  # S = scale Q K^T                       line 9
                # YOUR CODE HERE
                raise NotImplementedError("ex06b: kernel")

    return kernel


# Stub daaaed30 of solutions/ex06b_flash_attn_v1.py: `fa-numba reset ex06b` brings it back.
