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
        # YOUR CODE HERE
        raise NotImplementedError("ex18d: kernel")

    return kernel


# Stub 7c783a74 of solutions/ex18d_paged_decode.py: `fa-numba reset ex18d` brings it back.
