"""ex17f · A prefix that many share: two levels, one merge, bytes counted

All requests of a batch begin with the same prefix. Its keys are the same for all, so a thread block
loads a tile of them once, for rows of many requests. The result is one more split of each request:
ex17c attends to the suffixes, and your ex17d merges both levels in one launch. Write the kernel for
the prefix. Start from your own: `fa-numba reset ex17f --from ex17c`. Some ten lines change.

shapes    q (batch, num_heads, HEAD_DIM);  k_prefix, v_prefix (prefix, num_kv_heads, HEAD_DIM);
          out_partial (num_splits, batch, num_heads, HEAD_DIM);  lse_partial (num_splits, batch,
          num_heads). All float32; num_heads = num_kv_heads * GROUP_SIZE
launch    kernel[(num_splits, num_kv_heads, ceil(batch * GROUP_SIZE / BLOCK_M)), (BLOCK_N, BLOCK_M)]
          (q, k_prefix, v_prefix, out_partial, lse_partial, softmax_scale)
rows      a K/V head has batch * GROUP_SIZE rows: the query heads of its group in all requests.
          A thread block has BLOCK_M of them, of several requests. Which, is yours to choose. The
          last thread block may have fewer
result    as in ex17c: softmax over the keys of the split alone, and its lse; (0, -inf) for a split
          without keys. Shares of the tiles as in ex17c
HBM       loads   each key and value of the prefix once for each BLOCK_M rows, rounded up; q at most
                  once per split
          stores  out_partial and lse_partial once; neither is loaded

bytes_moved(prefix, suffixes, num_heads, num_kv_heads, head_dim, num_splits, BLOCK_M)
    two ints, the bytes of a step of all requests: of K and V that your kernel loads for the prefix
    and ex17c for the suffixes, and of partial results that both store; num_splits counts the splits
    of both. prefix and suffixes (one of each request, a list) are numbers of keys. Predict; the
    meter counts

About 5 lines for bytes_moved.
"""

import functools
import math

from numba import cuda, float32

from fa_numba.kernels.rows_of_out import make_row_functions


def bytes_moved(prefix, suffixes, num_heads, num_kv_heads, head_dim, num_splits, BLOCK_M):
    """(bytes of K and V that are loaded, bytes of partial results that are stored)."""
    # YOUR CODE HERE
    raise NotImplementedError("ex17f: bytes_moved")


@functools.cache
def make_kernel(HEAD_DIM, GROUP_SIZE, BLOCK_M, BLOCK_N):
    """The kernel for one head_dim, group size and tile sizes, compile-time constants."""
    NUM_COLS = math.ceil(HEAD_DIM / BLOCK_N)  # columns of out that a thread owns
    add_tile, store = make_row_functions(HEAD_DIM, BLOCK_N)

    @cuda.jit
    def kernel(q, k_prefix, v_prefix, out_partial, lse_partial, softmax_scale):
        """Attention of rows of several requests to the keys of one split of the prefix.

        grid     (num_splits, num_kv_heads, tiles of BLOCK_M rows); threads (BLOCK_N, BLOCK_M)
        shared   q_tile (BLOCK_M, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM);
                 s_tile, p_tile (BLOCK_M, BLOCK_N)
        private  acc (NUM_COLS,); m_i, l_i, the same in all threads of a row
        HBM      k_prefix, v_prefix once per tile of rows; q, out_partial, lse_partial once per
                 split
        paper    FlashAttention-2, Algorithm 1, over a part of the keys
        """
        # YOUR CODE HERE
        raise NotImplementedError("ex17f: kernel")

    return kernel


# Stub 762ee297 of solutions/ex17f_shared_prefix.py: `fa-numba reset ex17f` brings it back.
