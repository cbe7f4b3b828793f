"""ex16c · Decode with grouped heads: read the cache once

One new query per head, and a cache of keys and values for each sequence. The GROUP_SIZE query heads
that share a K/V head are the rows of one tile, so that the cache is read once for all of them.
Start from your own kernel: `fa-numba reset ex16c --from ex07d`. About ten of its lines change.

shapes    q, out (batch, num_heads, HEAD_DIM);  lse (batch, num_heads)
          k_cache, v_cache (batch, max_len, num_kv_heads, HEAD_DIM);  all float32
          seq_lens (batch,) int32: tokens of each sequence, the new one included; 0 .. max_len
launch    kernel[(num_kv_heads, batch), (BLOCK_N, GROUP_SIZE)](q, k_cache, v_cache, seq_lens, out,
          lse, softmax_scale). Thread (ty, tx): key tx of a tile, query head
          kv_head * GROUP_SIZE + ty
mask      none: the new token sees all seq_lens[b] keys. What the cache holds past them may be
          anything, NaN too, and is not loaded
empty     seq_lens[b] = 0: out is 0 and lse is -inf
shared    tiles of q, k, v, s, p, as in ex07d; acc, m_i and l_i are private
given     add_tile and store: ex07d's update of l_i and acc, and its end. out[b] is a view of the
          sequence's part of out, and a device function takes it as an array of two dimensions.
          Both are in fa_numba/kernels/rows_of_out.py
HBM       q loaded once; k_cache and v_cache, each: sum of seq_lens * num_kv_heads * HEAD_DIM; out
          and lse stored once, not loaded. Neighbouring threads load neighbouring columns
scores    any that float32 holds, -1e30 too: what stands for "no key" is -inf
result    out = softmax(softmax_scale q k^T) v;  lse = log(sum of exp(score)), natural logarithm
"""

import functools
import math

from numba import cuda, float32

from fa_numba.kernels.rows_of_out import make_row_functions

### KIND: write
### FROM: ex07d
### HINT 1: Nothing changes between the first barrier of a tile and its last, but for the test of
### HINT 1: the mask. What changes is above the loop, in the loads, and below the loop.
### HINT 2: kv_head, b = cuda.blockIdx.x, cuda.blockIdx.y; this row's head is ex16b's, with m = 0.
### HINT 2: seqlen_k is no shape any more: it is seq_lens[b]. Every row is a query, so no test of
### HINT 2: m < seqlen_q is left. CAUSAL is gone, with last_n and n_stop.
### HINT 3: q_tile[ty, d] = q[b, head, d]; k_tile[row, d] = k_cache[b, n_start + row, kv_head, d] if
### HINT 3: inside, and v_tile; a score is -inf if n >= seqlen_k. At the end store(head, acc, m_i,
### HINT 3: l_i, out[b], lse[b]). An empty sequence never enters the loop, and l_i > 0 tells.
### DEBRIEF: The FLOPs are GROUP_SIZE times those of one head, the bytes of the cache are those of
### DEBRIEF: one head, so the intensity is GROUP_SIZE times as high: where memory sets the pace, a
### DEBRIEF: group takes the time of one head. What is left: num_kv_heads * batch thread blocks are
### DEBRIEF: few for a GPU with 132 SMs. Lesson 17 cuts the keys as well.


@functools.cache
def make_kernel(HEAD_DIM, GROUP_SIZE, BLOCK_N):
    """The kernel for one head_dim, group size and tile size, compile-time constants."""
    BLOCK_M = GROUP_SIZE  # the rows of a tile are the query heads of a group
    NUM_COLS = math.ceil(HEAD_DIM / BLOCK_N)  # columns of out that a thread owns
    add_tile, store = make_row_functions(HEAD_DIM, BLOCK_N)

    @cuda.jit
    def kernel(q, k_cache, v_cache, seq_lens, out, lse, softmax_scale):
        """Attention of one new token: a thread block owns the query heads of one K/V head.

        grid     (num_kv_heads, batch); threads (BLOCK_N, BLOCK_M), one per score of the tile
        shared   q_tile (BLOCK_M, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM);
                 s_tile, p_tile (BLOCK_M, BLOCK_N)
        private  acc (NUM_COLS,); m_i, l_i, the same in all threads of a row
        HBM      q, out, lse once; the keys and values of each sequence once
        """
        ### BEGIN SOLUTION
        q_tile = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)
        k_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        s_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        p_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        acc = cuda.local.array(NUM_COLS, float32)  # out[b, head, tx::BLOCK_N], not yet divided
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
            for row in range(ty, BLOCK_N, BLOCK_M):
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    inside = n_start + row < seqlen_k
                    k_tile[row, d] = k_cache[b, n_start + row, kv_head, d] if inside else float32(0)
                    v_tile[row, d] = v_cache[b, n_start + row, kv_head, d] if inside else float32(0)
            cuda.syncthreads()  # q_tile, k_tile, v_tile are complete: safe to read

            n = n_start + tx  # this thread's key
            s = float32(0.0)
            for d in range(HEAD_DIM):
                s += q_tile[ty, d] * k_tile[tx, d]
            s *= softmax_scale
            if n >= seqlen_k:
                s = float32(-math.inf)  # a key that does not exist: exp gives 0
            s_tile[ty, tx] = s
            cuda.syncthreads()  # s_tile is complete: a row can be scanned

            m_new = m_i
            for c in range(BLOCK_N):
                m_new = max(m_new, s_tile[ty, c])
            m_safe = m_new if m_new > -math.inf else float32(0.0)  # -inf - (-inf) would be NaN
            alpha = math.exp(m_i - m_safe)  # rescales what was summed under the old max
            p_tile[ty, tx] = math.exp(s - m_safe)
            m_i = m_new
            cuda.syncthreads()  # p_tile is complete: safe to read

            l_i = add_tile(acc, l_i, alpha, p_tile, v_tile)
            cuda.syncthreads()  # every thread is done with v_tile: safe to overwrite

        store(head, acc, m_i, l_i, out[b], lse[b])
        ### END SOLUTION

    return kernel
