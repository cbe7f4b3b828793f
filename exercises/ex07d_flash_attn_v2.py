"""ex07d · The FlashAttention-2 kernel

A thread block owns one m-tile of queries and walks the K/V tiles; m_i, l_i and acc stay with the
threads. Loads, the dot product, and the functions add_tile (ex07b's) and store are given. Fill in
the bounds, the loop behind the score (hidden keys, maximum, P, barriers), and the call of store.

shapes    q, out (seqlen_q, HEAD_DIM);  k, v (seqlen_k, HEAD_DIM);  lse (seqlen_q,). All float32,
          of any length >= 1
launch    kernel[num_m_tiles, (BLOCK_N, BLOCK_M)](q, k, v, out, lse, softmax_scale), with
          num_m_tiles = ceil(seqlen_q / BLOCK_M)
thread    (ty, tx) has the score s of query ty and key tx of the tile, and the columns tx,
          tx + BLOCK_N, ... of row ty of out in acc
mask      CAUSAL is a compile-time bool: query m sees the keys 0 .. m + seqlen_k - seqlen_q (ex07a)
scores    any that float32 holds, -1e30 too; -inf for a key that is hidden or does not exist. A row
          may see no key at all: no NaN (`store` then writes out = 0 and lse = -inf)
memory    the arrays that are there; a padded column in each tile is allowed
HBM       q once; of k and v each live n-tile once per m-tile, dead tiles (ex07a) never

About 20 lines, three of them barriers. Write float32(0.0), not 0.0: to Numba that is float64.
"""

import functools
import math

from numba import cuda, float32


@functools.cache
def make_kernel(HEAD_DIM, BLOCK_M, BLOCK_N, CAUSAL):
    """The kernel for one head_dim, one pair of tile sizes and one mask, compile-time constants."""
    NUM_COLS = math.ceil(HEAD_DIM / BLOCK_N)  # columns of out that a thread owns

    @cuda.jit(device=True)
    def bounds(m, m_start, seqlen_q, seqlen_k):
        """(last_n, n_stop): the last key that query m sees, and the end of its m-tile's loop.

        No query of the m-tile that begins at m_start sees key n_stop or any after it.
        """
        # YOUR CODE HERE
        raise NotImplementedError("ex07d: bounds")

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
        """Divide acc by l_i, store this thread's columns of row m, and lse."""
        tx = cuda.threadIdx.x
        if m < out.shape[0]:
            for i in range(NUM_COLS):
                d = tx + i * BLOCK_N
                if d < HEAD_DIM:
                    out[m, d] = acc[i] / l_i if l_i > 0 else float32(0.0)  #     line 12
            if tx == 0:
                lse[m] = m_i + math.log(l_i) if l_i > 0 else float32(-math.inf)  # line 13

    @cuda.jit
    def kernel(q, k, v, out, lse, softmax_scale):
        """FlashAttention-2 forward of one head: a thread block owns BLOCK_M query rows.

        grid     (num_m_tiles,); threads (BLOCK_N, BLOCK_M), one per score of the tile
        shared   q_tile (BLOCK_M, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM);
                 s_tile, p_tile (BLOCK_M, BLOCK_N)
        private  acc (NUM_COLS,); m_i, l_i, the same in all threads of a row
        HBM      q, out, lse once; live tiles of k and v once per m-tile
        paper    FlashAttention-2, arXiv:2307.08691, Algorithm 1
        """
        q_tile = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)
        k_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        s_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        p_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        acc = cuda.local.array(NUM_COLS, float32)  # out[m, tx::BLOCK_N], not yet divided by l_i
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        seqlen_q, seqlen_k = q.shape[0], k.shape[0]
        m_start = cuda.blockIdx.x * BLOCK_M
        m = m_start + ty  # this thread's query
        last_n, n_stop = bounds(m, m_start, seqlen_q, seqlen_k)
        for d in range(tx, HEAD_DIM, BLOCK_N):
            q_tile[ty, d] = q[m, d] if m < seqlen_q else float32(0.0)
        m_i = float32(-math.inf)
        l_i = float32(0.0)
        for i in range(NUM_COLS):
            acc[i] = float32(0.0)

        for n_start in range(0, n_stop, BLOCK_N):
            for row in range(ty, BLOCK_N, BLOCK_M):
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    inside = n_start + row < seqlen_k
                    k_tile[row, d] = k[n_start + row, d] if inside else float32(0.0)
                    v_tile[row, d] = v[n_start + row, d] if inside else float32(0.0)
            cuda.syncthreads()  # q_tile, k_tile, v_tile are complete: safe to read
            n = n_start + tx  # this thread's key
            s = float32(0.0)
            for d in range(HEAD_DIM):
                s += q_tile[ty, d] * k_tile[tx, d]
            s *= softmax_scale  # S = scale Q K^T                                line 8
            # YOUR CODE HERE
            raise NotImplementedError("ex07d: kernel")

    return kernel


# Stub 4cecffbd of solutions/ex07d_flash_attn_v2.py: `fa-numba reset ex07d` brings it back.
