"""ex07d · The FlashAttention-2 kernel

The loops change places. A thread block owns one m-tile of queries and walks the K/V tiles; its
running maximum m_i, sum l_i and output acc stay with the threads, and out is divided by l_i once,
at the end. The m-tiles no longer need each other, so each gets a thread block of its own.

shapes    q, out (seqlen_q, HEAD_DIM);  k, v (seqlen_k, HEAD_DIM);  lse (seqlen_q,). All float32.
launch    kernel[num_m_tiles, (BLOCK_N, BLOCK_M)](q, k, v, out, lse, softmax_scale), with
          num_m_tiles = ceil(seqlen_q / BLOCK_M). threadIdx.x = tx < BLOCK_N picks the key,
          threadIdx.y = ty < BLOCK_M the query: thread (ty, tx) computes score (ty, tx) of the tile
          and owns the columns tx, tx + BLOCK_N, ... of row ty of out, NUM_COLS of them at most.
mask      CAUSAL is a compile-time bool: query m sees the keys 0 .. m + seqlen_k - seqlen_q
          (bottom-right aligned, ex07a).
lengths   any, seqlen_q, seqlen_k, HEAD_DIM >= 1. With CAUSAL and seqlen_q > seqlen_k the first rows
          see no key: their out is 0 and their lse is -inf.
scores    any that float32 holds, -1e30 too: what stands for "no key" is -inf, no large number
shared    four tiles, q, k, v, s, and one for p, at most. A padded column in each, or four floats
          per row besides, are allowed; acc, m_i and l_i are not there
HBM       loads   q once (not needed where an m-tile sees no key); of k and v each live n-tile once
                  per m-tile, whole (its rows below seqlen_k), and dead tiles (ex07a) never. Each
                  element is loaded by one thread. With N queries and keys and no mask that is
                  N d + 2 N d ceil(N / BLOCK_M)
          stores  out and lse once: N d + N. Neither is loaded
result    out = softmax(softmax_scale q k^T) v;  lse = log(sum of exp(score) over the keys seen),
          the natural logarithm

About 45 lines. Write float32(0.0), not 0.0: a bare literal is float64 to Numba.
"""

import functools
import math

from numba import cuda, float32

### HINT 1: Start from ex06b. The inner loop and its statistics in HBM go; blockIdx.x chooses
### HINT 1: the m-tile; acc, m_i and l_i are set before the loop. Get CAUSAL=False right first.
### HINT 2: Per K/V tile: load it, barrier, scores, barrier, new maximum, alpha and p, barrier,
### HINT 2: l_i and acc, barrier. alpha = exp(m_i - m_new) multiplies l_i and all of acc.
### HINT 2: For CAUSAL the loop ends before key n_stop: what the last query of the m-tile sees. The
### HINT 2: single scores still need their test.
### HINT 3: acc = cuda.local.array(NUM_COLS, float32), and thread (ty, tx) keeps column
### HINT 3: d = tx + i * BLOCK_N in acc[i]. A row that has seen no key has m_new = -inf, and
### HINT 3: exp(-inf - (-inf)) is NaN: use m_safe = m_new if m_new > -inf else 0 in both exps.
### HINT 3: n_stop = min(m_start + BLOCK_M, seqlen_q) + seqlen_k - seqlen_q if CAUSAL else seqlen_k.
### HINT 3: At the end out = acc / l_i and lse = m_i + log(l_i), unless l_i == 0.
### DEBRIEF: out, l and m used to go to HBM and back for every K/V tile; now out and lse are written
### DEBRIEF: once. What grows instead: K and V are read once per m-tile. Larger BLOCK_M, fewer
### DEBRIEF: re-reads: that is what the shared memory is for. And one number per row, lse, is enough
### DEBRIEF: for the backward pass to make P again, exactly (lesson 08).


@functools.cache
def make_kernel(HEAD_DIM, BLOCK_M, BLOCK_N, CAUSAL):
    """The kernel for one head_dim, one pair of tile sizes and one mask, compile-time constants."""
    NUM_COLS = math.ceil(HEAD_DIM / BLOCK_N)  # columns of out that a thread owns

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
        ### BEGIN SOLUTION
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
        last_n = m + seqlen_k - seqlen_q if CAUSAL else seqlen_k - 1  # the last key it may see
        n_stop = seqlen_k
        if CAUSAL:  # no query of the tile sees key n_stop or any after it
            n_stop = min(m_start + BLOCK_M, seqlen_q) + seqlen_k - seqlen_q

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

            n = n_start + tx
            s = float32(-math.inf)  # a key that is hidden or does not exist: exp gives 0
            if n < seqlen_k and n <= last_n:
                s = float32(0.0)
                for d in range(HEAD_DIM):
                    s += q_tile[ty, d] * k_tile[tx, d]
                s *= softmax_scale  # S = scale Q K^T                            line 8
            s_tile[ty, tx] = s
            cuda.syncthreads()  # s_tile is complete: a row can be scanned

            m_new = m_i
            for c in range(BLOCK_N):
                m_new = max(m_new, s_tile[ty, c])  # m_i <- max(m_i, rowmax(S))  line 9
            m_safe = m_new if m_new > -math.inf else float32(0.0)  # -inf - (-inf) would be NaN
            alpha = math.exp(m_i - m_safe)  # rescales what was summed under the old max
            p_tile[ty, tx] = math.exp(s - m_safe)  # P = exp(S - m_i)            line 9
            m_i = m_new
            cuda.syncthreads()  # p_tile is complete: safe to read

            l_i *= alpha
            for c in range(BLOCK_N):
                l_i += p_tile[ty, c]  # l_i <- alpha l_i + rowsum(P)             line 9
            for i in range(NUM_COLS):
                d = tx + i * BLOCK_N
                if d < HEAD_DIM:
                    acc[i] *= alpha
                    for c in range(BLOCK_N):
                        acc[i] += p_tile[ty, c] * v_tile[c, d]  # O <- alpha O + P V   line 10
            cuda.syncthreads()  # every thread is done with v_tile: safe to overwrite

        if m < seqlen_q:
            for i in range(NUM_COLS):
                d = tx + i * BLOCK_N
                if d < HEAD_DIM:
                    out[m, d] = acc[i] / l_i if l_i > 0 else float32(0.0)  #     line 12
            if tx == 0:
                lse[m] = m_i + math.log(l_i) if l_i > 0 else float32(-math.inf)  # line 13
        ### END SOLUTION

    return kernel
