"""ex17c · The split kernel of Flash-Decoding

ex16c with the tiles of a sequence shared out among num_splits thread blocks. Each attends to its
own keys and leaves a partial result, which ex17d combines. Start from your own kernel: `fa-numba
reset ex17c --from ex16c`. Seven lines are new or change.

shapes    q, k_cache, v_cache, seq_lens as in ex16c
          out_partial (num_splits, batch, num_heads, HEAD_DIM), float32
          lse_partial (num_splits, batch, num_heads), float32
launch    kernel[(num_splits, num_kv_heads, batch), (BLOCK_N, GROUP_SIZE)](q, k_cache, v_cache,
          seq_lens, out_partial, lse_partial, softmax_scale)
splits    a sequence has ceil(seq_len / BLOCK_N) tiles of BLOCK_N keys, the last one maybe
          part-filled. Each tile belongs to one split, and no split has more than
          ceil(tiles / num_splits) of them. Which, is yours to choose. With more splits than tiles
          some get none
result    out_partial = softmax(softmax_scale q k^T) v and lse_partial = log(sum of exp(score)),
          natural logarithm, over the keys of the split alone; (0, -inf) for a split without keys
as before shared and private memory, add_tile, store, scores of -1e30, NaN beyond seq_lens
HBM       loads   each key and value of a sequence once in all, whatever num_splits and GROUP_SIZE;
                  q at most once per split; each element by one thread
          stores  out_partial and lse_partial once; neither is loaded
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
    def kernel(q, k_cache, v_cache, seq_lens, out_partial, lse_partial, softmax_scale):
        """Attention of one query per head to the keys of one split.

        grid     (num_splits, num_kv_heads, batch); threads (BLOCK_N, BLOCK_M)
        shared   q_tile (BLOCK_M, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM);
                 s_tile, p_tile (BLOCK_M, BLOCK_N)
        private  acc (NUM_COLS,); m_i, l_i, the same in all threads of a row
        HBM      k_cache, v_cache once; q, out_partial, lse_partial once per split
        paper    FlashAttention-2, Algorithm 1, over a part of the keys
        """
        # YOUR CODE HERE
        raise NotImplementedError("ex17c: kernel")

    return kernel


# Stub fb2d90cd of solutions/ex17c_split_kernel.py: `fa-numba reset ex17c` brings it back.
