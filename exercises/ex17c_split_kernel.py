"""ex17c · The split kernel of Flash-Decoding

One query for each sequence, over a cache of many keys. The tiles of keys of a sequence are shared
out among num_splits thread blocks; each attends to its own and leaves a partial result, which
ex17d combines.

shapes    q (batch, num_heads, HEAD_DIM);  k_cache, v_cache (batch, max_len, num_kv_heads, HEAD_DIM)
          out_partial (num_splits, batch, num_heads, HEAD_DIM)
          lse_partial (num_splits, batch, num_heads). All float32.
          seq_lens (batch,) int32: how many keys each sequence has, 0 allowed. What the caches hold
          beyond may be anything, NaN too, and must not be loaded.
launch    kernel[(num_splits, num_kv_heads, batch), (BLOCK_N, GROUP_SIZE)](q, k_cache, v_cache,
          seq_lens, out_partial, lse_partial, softmax_scale).
          Packed: the GROUP_SIZE query heads that share a K/V head are the rows of one tile. Thread
          (ty, tx) computes the score of head kv_head * GROUP_SIZE + ty with key n_start + tx, and
          owns the columns tx, tx + BLOCK_N, ... of that head's row of out.
splits    a sequence has ceil(seq_len / BLOCK_N) tiles of BLOCK_N keys, the last one maybe
          part-filled. Each tile belongs to one split, and no split has more than
          ceil(tiles / num_splits) of them. Which, is yours to choose. With more splits than tiles
          some get none.
result    out_partial = softmax(softmax_scale q k^T) v and lse_partial = log(sum of exp(score)),
          natural logarithm, over the keys of the split alone; (0, -inf) for a split without keys
scores    any that float32 holds, -1e30 too: what stands for "no key" is -inf, no large number
shared    q, k, v, s tiles and one for p, at most. A padded column in each, or four floats per row
          besides, are allowed; acc, m_i and l_i are not there
HBM       loads   each key and value of a sequence once in all, whatever num_splits and GROUP_SIZE;
                  q at most once per split; each element by one thread
          stores  out_partial and lse_partial once; neither is loaded

About 45 lines, most of them those of ex07d. Write float32(0.0), not 0.0.
"""

import functools
import math

from numba import cuda, float32


@functools.cache
def make_kernel(HEAD_DIM, GROUP_SIZE, BLOCK_N):
    """The kernel for one head_dim, one group size and one tile size, compile-time constants."""
    NUM_COLS = math.ceil(HEAD_DIM / BLOCK_N)  # columns of out that a thread owns

    @cuda.jit
    def kernel(q, k_cache, v_cache, seq_lens, out_partial, lse_partial, softmax_scale):
        """Attention of one query per head to the keys of one split.

        grid     (num_splits, num_kv_heads, batch); threads (BLOCK_N, GROUP_SIZE)
        shared   q_tile (GROUP_SIZE, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM);
                 s_tile, p_tile (GROUP_SIZE, BLOCK_N)
        private  acc (NUM_COLS,); m_i, l_i, the same in all threads of a row
        HBM      k_cache, v_cache once; q, out_partial, lse_partial once per split
        paper    FlashAttention-2, Algorithm 1, over a part of the keys
        """
        # YOUR CODE HERE
        raise NotImplementedError("ex17c: kernel")

    return kernel


# Stub b03c9bd2 of solutions/ex17c_split_kernel.py: `fa-numba reset ex17c` brings it back.
