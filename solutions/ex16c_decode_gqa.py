"""ex16c · Decode with grouped heads: read the cache once

One decoding step: each sequence has one new query per head, and a cache of keys and values. The
GROUP_SIZE query heads that share a K/V head all need the same keys. Alone each would read them
again; together they are the rows of one tile, and the cache is read once.

shapes    q, out (batch, num_heads, HEAD_DIM);  lse (batch, num_heads)
          k_cache, v_cache (batch, max_len, num_kv_heads, HEAD_DIM);  all float32
          seq_lens (batch,) int32: tokens of each sequence, the new one included; 0 .. max_len
heads     num_heads = num_kv_heads * GROUP_SIZE; query head h reads K/V head h // GROUP_SIZE.
          GROUP_SIZE = 1 is multi-head attention, num_kv_heads = 1 multi-query attention
launch    kernel[(num_kv_heads, batch), (BLOCK_N, GROUP_SIZE)](q, k_cache, v_cache, seq_lens, out,
          lse, softmax_scale): a thread block per K/V head and sequence. threadIdx.x = tx < BLOCK_N
          picks the key of a tile, threadIdx.y = ty < GROUP_SIZE the query head of the group
mask      none: the new token sees all seq_lens[b] keys. What the cache holds past them may be
          anything, NaN included, and is not loaded
empty     seq_lens[b] = 0: out is 0 and lse is -inf
shared    tiles of q, k, v, s and one for p, at most. A padded column in each, or four floats per
          row besides, are allowed; acc, m_i and l_i are not there
HBM       q loaded once (not needed where a sequence is empty); k_cache and v_cache, each: sum of
          seq_lens * num_kv_heads * HEAD_DIM; out and lse stored once, and not loaded. How often
          seq_lens is read does not count
access    neighbouring threads load neighbouring columns of a key
scores    any that float32 holds, -1e30 too: what stands for "no key" is -inf, no large number
result    out = softmax(softmax_scale q k^T) v;  lse = log(sum of exp(score)), the natural logarithm

About 45 lines, of which most are ex07d's. Write float32(0.0), not 0.0.
"""

import functools
import math

from numba import cuda, float32

### HINT 1: Start from your ex07d (without CAUSAL): its BLOCK_M rows were queries of one head, these
### GROUP_SIZE rows are heads of one query. The loop over tiles of keys does not change.
### HINT 2: kv_head, b = cuda.blockIdx.x, cuda.blockIdx.y; this row's head is kv_head * GROUP_SIZE +
### ty. No row is without a query, so no test of m < seqlen_q; keys need n < seq_lens[b].
### HINT 3: Per tile: k_tile[r, d] = k_cache[b, n_start + r, kv_head, d] if that key exists, else
### 0, and v; barrier; s = scale q k^T, or -inf where n >= seq_lens[b], into s_tile; barrier; new
### maximum, alpha, p_tile; barrier; l_i and acc; barrier. At the end out = acc / l_i,
### or 0 where there was no key, and lse = m_i + log(l_i), which is -inf there by itself.
### DEBRIEF: The FLOPs are GROUP_SIZE times those of one head, the bytes of the cache are those of
### one head, so the intensity is GROUP_SIZE times as high: where memory sets the pace, a group
### takes the time of one head. What is left: num_kv_heads * batch thread blocks are few for a GPU
### with 132 SMs. Lesson 17 cuts the keys as well.


@functools.cache
def make_kernel(HEAD_DIM, GROUP_SIZE, BLOCK_N):
    """The kernel for one head_dim, group size and tile size, compile-time constants."""
    NUM_COLS = math.ceil(HEAD_DIM / BLOCK_N)  # columns of out that a thread owns

    @cuda.jit
    def kernel(q, k_cache, v_cache, seq_lens, out, lse, softmax_scale):
        """Attention of one new token: a thread block owns the query heads of one K/V head.

        grid     (num_kv_heads, batch); threads (BLOCK_N, GROUP_SIZE), one per score of the tile
        shared   q_tile (GROUP_SIZE, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM);
                 s_tile, p_tile (GROUP_SIZE, BLOCK_N)
        private  acc (NUM_COLS,); m_i, l_i, the same in all threads of a row
        HBM      q, out, lse once; the keys and values of each sequence once
        """
        ### BEGIN SOLUTION
        q_tile = cuda.shared.array((GROUP_SIZE, HEAD_DIM), float32)
        k_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        s_tile = cuda.shared.array((GROUP_SIZE, BLOCK_N), float32)
        p_tile = cuda.shared.array((GROUP_SIZE, BLOCK_N), float32)
        acc = cuda.local.array(NUM_COLS, float32)  # out[head, tx::BLOCK_N], not yet divided
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        kv_head, b = cuda.blockIdx.x, cuda.blockIdx.y
        head = kv_head * GROUP_SIZE + ty  # this thread's row
        seqlen_k = seq_lens[b]

        for d in range(tx, HEAD_DIM, BLOCK_N):
            q_tile[ty, d] = q[b, head, d]
        m_i = float32(-math.inf)
        l_i = float32(0.0)
        for i in range(NUM_COLS):
            acc[i] = float32(0.0)

        for n_start in range(0, seqlen_k, BLOCK_N):
            for row in range(ty, BLOCK_N, GROUP_SIZE):
                inside = n_start + row < seqlen_k
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    k_tile[row, d] = k_cache[b, n_start + row, kv_head, d] if inside else float32(0)
                    v_tile[row, d] = v_cache[b, n_start + row, kv_head, d] if inside else float32(0)
            cuda.syncthreads()  # q_tile, k_tile, v_tile are complete: safe to read

            s = float32(-math.inf)  # a key that does not exist: exp gives 0
            if n_start + tx < seqlen_k:
                s = float32(0.0)
                for d in range(HEAD_DIM):
                    s += q_tile[ty, d] * k_tile[tx, d]
                s *= softmax_scale
            s_tile[ty, tx] = s
            cuda.syncthreads()  # s_tile is complete: a row can be scanned

            m_new = m_i
            for c in range(BLOCK_N):
                m_new = max(m_new, s_tile[ty, c])
            alpha = math.exp(m_i - m_new)  # m_new is finite: each tile has a key
            p_tile[ty, tx] = math.exp(s - m_new)
            m_i = m_new
            cuda.syncthreads()  # p_tile is complete: safe to read

            l_i *= alpha
            for c in range(BLOCK_N):
                l_i += p_tile[ty, c]
            for i in range(NUM_COLS):
                d = tx + i * BLOCK_N
                if d < HEAD_DIM:
                    acc[i] *= alpha
                    for c in range(BLOCK_N):
                        acc[i] += p_tile[ty, c] * v_tile[c, d]
            cuda.syncthreads()  # every thread is done with v_tile: safe to overwrite

        for i in range(NUM_COLS):
            d = tx + i * BLOCK_N
            if d < HEAD_DIM:
                out[b, head, d] = acc[i] / l_i if seqlen_k > 0 else float32(0.0)
        if tx == 0:
            lse[b, head] = m_i + math.log(l_i)  # -inf where there was no key
        ### END SOLUTION

    return kernel
