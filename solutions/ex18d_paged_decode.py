"""ex18d · Paged decode: the split kernel follows the table

ex17c with its keys and values in pages. No dense copy is made: the load of a tile looks up the page
of each key. Start from your own kernel: `fa-numba reset ex18d --from ex17c`. Some six lines change.

shapes    q (batch, num_heads, HEAD_DIM), seq_lens (batch,) int32: as in ex17c
          k_cache, v_cache (num_pages, PAGE_SIZE, num_kv_heads, HEAD_DIM) float32
          block_table (batch, max_pages) int32: page of the tokens i PAGE_SIZE ... of a sequence in
          column i, -1 where there is none
          out_partial (num_splits, batch, num_heads, HEAD_DIM), float32
          lse_partial (num_splits, batch, num_heads), float32
launch    kernel[(num_splits, num_kv_heads, batch), (BLOCK_N, GROUP_SIZE)](q, k_cache, v_cache,
          block_table, seq_lens, out_partial, lse_partial, softmax_scale)
splits    as in ex17c: tiles of BLOCK_N keys, shared out evenly; (0, -inf) for a split without keys
pages     PAGE_SIZE is a compile-time constant, any number >= 1. A tile may cross several pages, and
          a page may hold several tiles. NaN where no token lives
HBM       loads   each key and value of a sequence once in all, empty slots never; q at most once
                  per split. A thread looks up the page of a key at most once per tile
          stores  out_partial and lse_partial once; neither is loaded
"""

import functools
import math

from numba import cuda, float32

from fa_numba.kernels.rows_of_out import make_row_functions

### KIND: write
### FROM: ex17c
### HINT 1: Only the load changes. In ex17c row `row` of a tile is key n_start + row, at k_cache[b,
### HINT 1: n_start + row, ...]. Where is it now?
### HINT 2: The page belongs to the key, not to the tile (ex18c): look it up in the loop over rows,
### HINT 2: before the loop over d, and only for a key that exists.
### HINT 3: key = n_start + row; inside = key < seqlen_k; page = block_table[b, key // PAGE_SIZE] if
### HINT 3: inside else 0; offset = key % PAGE_SIZE; k_tile[row, d] = k_cache[page, offset, kv_head,
### HINT 3: d] if inside else float32(0).
### DEBRIEF: This is PagedAttention. The keys and values are moved once; a lookup and a dense copy
### DEBRIEF: would move them three times, and store the padding besides. Page size and tile are
### DEBRIEF: independent: kernels that demand a page of a multiple of the tile save the lookups of a
### DEBRIEF: tile, not bytes. vLLM gives its kernel the page size as a constant, as you did, so that
### DEBRIEF: // and % become a shift and an and where it is a power of two.


@functools.cache
def make_kernel(HEAD_DIM, GROUP_SIZE, BLOCK_N, PAGE_SIZE):
    """The kernel for one head_dim, group, tile and page size, compile-time constants."""
    BLOCK_M = GROUP_SIZE  # the rows of a tile are the query heads of a group
    NUM_COLS = math.ceil(HEAD_DIM / BLOCK_N)  # columns of out that a thread owns
    add_tile, store = make_row_functions(HEAD_DIM, BLOCK_N)

    @cuda.jit
    def kernel(q, k_cache, v_cache, block_table, seq_lens, out_partial, lse_partial, softmax_scale):
        """Attention of one query per head to the keys of one split, in their pages.

        grid     (num_splits, num_kv_heads, batch); threads (BLOCK_N, BLOCK_M)
        shared   q_tile (BLOCK_M, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM);
                 s_tile, p_tile (BLOCK_M, BLOCK_N)
        private  acc (NUM_COLS,); m_i, l_i, the same in all threads of a row
        HBM      k_cache, v_cache once; q, out_partial, lse_partial once per split
        paper    FlashAttention-2, Algorithm 1, over a part of the keys
        """
        ### BEGIN SOLUTION
        q_tile = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)
        k_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        s_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        p_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        acc = cuda.local.array(NUM_COLS, float32)  # a row of out, not yet divided by l_i
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        split, kv_head, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        head = kv_head * GROUP_SIZE + ty  # this thread's row
        seqlen_k = seq_lens[b]
        num_splits = cuda.gridDim.x
        num_n_tiles = (seqlen_k + BLOCK_N - 1) // BLOCK_N
        n_first = split * num_n_tiles // num_splits * BLOCK_N
        n_stop = (split + 1) * num_n_tiles // num_splits * BLOCK_N

        for d in range(tx, HEAD_DIM, BLOCK_N):
            q_tile[ty, d] = q[b, head, d]
        m_i = float32(-math.inf)
        l_i = float32(0.0)
        for i in range(NUM_COLS):
            acc[i] = float32(0.0)

        for n_start in range(n_first, n_stop, BLOCK_N):
            for row in range(ty, BLOCK_N, BLOCK_M):
                key = n_start + row
                inside = key < seqlen_k
                page = block_table[b, key // PAGE_SIZE] if inside else 0
                offset = key % PAGE_SIZE
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    k_tile[row, d] = k_cache[page, offset, kv_head, d] if inside else float32(0)
                    v_tile[row, d] = v_cache[page, offset, kv_head, d] if inside else float32(0)
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

        store(head, acc, m_i, l_i, out_partial[split, b], lse_partial[split, b])
        ### END SOLUTION

    return kernel
