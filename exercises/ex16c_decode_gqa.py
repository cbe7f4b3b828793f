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
        # YOUR CODE HERE
        raise NotImplementedError("ex16c: kernel")

    return kernel


# Stub 3cc68601 of solutions/ex16c_decode_gqa.py: `fa-numba reset ex16c` brings it back.
