"""ex06c · Find the bug: a published FlashAttention-1 kernel

`make_published_kernel` below is a FlashAttention-1 kernel from a blog post, carried over from
Triton to Numba line by line. Its barriers are right, it never leaves its arrays, and it is wrong,
twice. Read it, find both bugs, and write the mended kernel in `make_kernel`: copy the body, then
change what has to change. One of the two bugs only shows at some lengths.

shapes    q, out (seqlen_q, HEAD_DIM);  k, v (seqlen_k, HEAD_DIM);  l, m (seqlen_q,). All float32.
start     the caller has set out = 0, l = 0, m = -inf.
launch    kernel[1, (BLOCK_N, BLOCK_M)](q, k, v, out, l, m): one head, one thread block; no scale
          among the arguments.
result    out = softmax(q k^T / sqrt(HEAD_DIM)) v for any seqlen_q, seqlen_k >= 1; l and m are the
          row's sum of exp(score - m) and its largest score. HBM traffic and shared memory as
          before. Any finite score counts, -2e30 as well; a key that does not exist counts nothing.

About 4 lines differ.
"""

import functools
import math

from numba import cuda, float32

### KIND: find the bug
### HINT 1: Try sizes. With head_dim = 1 and seqlen_k a multiple of BLOCK_N the kernel is right.
### HINT 1: Change one of the two, then the other.
### HINT 2: First bug: compare the line of s_ij with the formula at the top. Second bug: which value
### HINT 2: has s_ij for a key that does not exist, and which value does exp make of it?
### HINT 3: A missing key is loaded as 0, so its score is 0, a score like any other: it adds
### HINT 3: exp(0 - m) to l. Scores of keys n_start + tx >= seqlen_k must be -inf. And the scores
### HINT 3: lack the factor 1/sqrt(HEAD_DIM), a float32 constant of the factory.
### DEBRIEF: Padding with 0 is right for a sum, because 0 adds nothing. Softmax is not a sum: its
### DEBRIEF: neutral element is -inf. The bug hides wherever seqlen_k is a multiple of the tile, and
### DEBRIEF: that is where most people test. When all real scores are negative it is at its worst:
### DEBRIEF: the missing keys then take nearly all of the weight.


@functools.cache
def make_published_kernel(HEAD_DIM, BLOCK_M, BLOCK_N):
    """The kernel with the two bugs, to read and to run. Leave it as it is."""

    @cuda.jit
    def kernel(q, k, v, out, l, m):
        q_load = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)
        k_load = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        v_load = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        s_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        p_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        l_load = cuda.shared.array(BLOCK_M, float32)
        m_load = cuda.shared.array(BLOCK_M, float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        seqlen_q, seqlen_k = q.shape[0], k.shape[0]

        for n_start in range(0, seqlen_k, BLOCK_N):
            for row in range(ty, BLOCK_N, BLOCK_M):
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    k_mask = n_start + row < seqlen_k
                    k_load[row, d] = k[n_start + row, d] if k_mask else float32(0.0)
                    v_load[row, d] = v[n_start + row, d] if k_mask else float32(0.0)

            for m_start in range(0, seqlen_q, BLOCK_M):
                m_row = m_start + ty
                q_mask = m_row < seqlen_q
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    q_load[ty, d] = q[m_row, d] if q_mask else float32(0.0)
                if tx == 0:
                    l_load[ty] = l[m_row] if q_mask else float32(0.0)
                    m_load[ty] = m[m_row] if q_mask else float32(-math.inf)
                cuda.syncthreads()  # what was loaded is complete

                s_ij = float32(0.0)
                for d in range(HEAD_DIM):
                    s_ij += q_load[ty, d] * k_load[tx, d]
                s_tile[ty, tx] = s_ij
                cuda.syncthreads()  # s_tile is complete

                m_ij = s_tile[ty, 0]
                for c in range(1, BLOCK_N):
                    m_ij = max(m_ij, s_tile[ty, c])
                p_tile[ty, tx] = math.exp(s_ij - m_ij)
                m_old, l_old = m_load[ty], l_load[ty]
                cuda.syncthreads()  # p_tile is complete; l_load and m_load may be overwritten

                l_ij = float32(0.0)
                for c in range(BLOCK_N):
                    l_ij += p_tile[ty, c]
                m_new = max(m_old, m_ij)
                l_new = math.exp(m_old - m_new) * l_old + math.exp(m_ij - m_new) * l_ij
                if q_mask:
                    for d in range(tx, HEAD_DIM, BLOCK_N):
                        o_ij = float32(0.0)
                        for c in range(BLOCK_N):
                            o_ij += p_tile[ty, c] * v_load[c, d]
                        o_current = l_old * math.exp(m_old - m_new) * out[m_row, d]
                        out[m_row, d] = (o_current + math.exp(m_ij - m_new) * o_ij) / l_new
                    if tx == 0:
                        l[m_row] = l_new
                        m[m_row] = m_new
            cuda.syncthreads()  # every thread is done with v_load

    return kernel


@functools.cache
def make_kernel(HEAD_DIM, BLOCK_M, BLOCK_N):
    """The mended kernel."""
    softmax_scale = float32(1 / math.sqrt(HEAD_DIM))

    @cuda.jit
    def kernel(q, k, v, out, l, m):
        """FlashAttention-1 forward of one head, as published, with both bugs mended.

        grid     (1,); threads (BLOCK_N, BLOCK_M), one per score of the tile
        shared   q_load (BLOCK_M, HEAD_DIM); k_load, v_load (BLOCK_N, HEAD_DIM);
                 s_tile, p_tile (BLOCK_M, BLOCK_N); l_load, m_load (BLOCK_M,)
        HBM      k, v once; q, out, l, m once per K/V tile, the last three there and back
        paper    FlashAttention, arXiv:2205.14135, Algorithm 1
        """
        ### BEGIN SOLUTION
        q_load = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)
        k_load = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        v_load = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        s_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        p_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        l_load = cuda.shared.array(BLOCK_M, float32)
        m_load = cuda.shared.array(BLOCK_M, float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        seqlen_q, seqlen_k = q.shape[0], k.shape[0]

        for n_start in range(0, seqlen_k, BLOCK_N):
            for row in range(ty, BLOCK_N, BLOCK_M):
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    k_mask = n_start + row < seqlen_k
                    k_load[row, d] = k[n_start + row, d] if k_mask else float32(0.0)
                    v_load[row, d] = v[n_start + row, d] if k_mask else float32(0.0)

            for m_start in range(0, seqlen_q, BLOCK_M):
                m_row = m_start + ty
                q_mask = m_row < seqlen_q
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    q_load[ty, d] = q[m_row, d] if q_mask else float32(0.0)
                if tx == 0:
                    l_load[ty] = l[m_row] if q_mask else float32(0.0)
                    m_load[ty] = m[m_row] if q_mask else float32(-math.inf)
                cuda.syncthreads()  # what was loaded is complete

                s_ij = float32(0.0)
                for d in range(HEAD_DIM):
                    s_ij += q_load[ty, d] * k_load[tx, d]
                s_ij *= softmax_scale  # mended: the scale was missing
                if n_start + tx >= seqlen_k:
                    s_ij = float32(-math.inf)  # mended: a missing key has weight 0, not exp(0 - m)
                s_tile[ty, tx] = s_ij
                cuda.syncthreads()  # s_tile is complete

                m_ij = s_tile[ty, 0]
                for c in range(1, BLOCK_N):
                    m_ij = max(m_ij, s_tile[ty, c])
                p_tile[ty, tx] = math.exp(s_ij - m_ij)
                m_old, l_old = m_load[ty], l_load[ty]
                cuda.syncthreads()  # p_tile is complete; l_load and m_load may be overwritten

                l_ij = float32(0.0)
                for c in range(BLOCK_N):
                    l_ij += p_tile[ty, c]
                m_new = max(m_old, m_ij)
                l_new = math.exp(m_old - m_new) * l_old + math.exp(m_ij - m_new) * l_ij
                if q_mask:
                    for d in range(tx, HEAD_DIM, BLOCK_N):
                        o_ij = float32(0.0)
                        for c in range(BLOCK_N):
                            o_ij += p_tile[ty, c] * v_load[c, d]
                        o_current = l_old * math.exp(m_old - m_new) * out[m_row, d]
                        out[m_row, d] = (o_current + math.exp(m_ij - m_new) * o_ij) / l_new
                    if tx == 0:
                        l[m_row] = l_new
                        m[m_row] = m_new
            cuda.syncthreads()  # every thread is done with v_load
        ### END SOLUTION

    return kernel
