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
        # YOUR CODE HERE
        raise NotImplementedError("ex16c: kernel")

    return kernel


# Stub 9e9f2b2b of solutions/ex16c_decode_gqa.py: `fa-numba reset ex16c` brings it back.
