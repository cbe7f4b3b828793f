"""ex25c · FlashAttention-2 over a list of tiles

ex07d with a list for each m-tile: only the n-tiles that it names are loaded and seen. That is how a
prompt attends to few blocks (NSA's selection, one head of it). Start from your own kernel:
`fa-numba reset ex25c --from ex07d`. Some five lines change.

shapes    q, out (seqlen_q, HEAD_DIM);  k, v (seqlen_k, HEAD_DIM);  lse (seqlen_q,), float32, of any
          length >= 1; lists (num_m_tiles, length) int32, length >= 1
launch    kernel[num_m_tiles, (BLOCK_N, BLOCK_M)](q, k, v, lists, out, lse, softmax_scale), with
          num_m_tiles = ceil(seqlen_q / BLOCK_M)
lists     the queries of m-tile i see the n-tiles in lists[i], keys BLOCK_N lists[i, j] and so on.
          In any order, none twice; -1 anywhere for none. A row of -1 alone sees no key: out = 0 and
          lse = -inf
mask      CAUSAL as in ex07d, on top of the lists: a tile of the list may be on the diagonal, or
          behind it
memory    the arrays of ex07d; HBM: q once; of k and v each n-tile in lists[i] at most once for
          m-tile i, and no other; an element of lists at most once for each thread
as before scores of -1e30, the last tiles part-filled, out and lse stored once

About 30 lines; five of them are new.
"""

import functools
import math

from numba import cuda, float32

from fa_numba.kernels.rows_of_out import make_row_functions


@functools.cache
def make_kernel(HEAD_DIM, BLOCK_M, BLOCK_N, CAUSAL):
    """The kernel for one head_dim, one pair of tile sizes and one mask, compile-time constants."""
    NUM_COLS = math.ceil(HEAD_DIM / BLOCK_N)  # columns of out that a thread owns
    add_tile, store = make_row_functions(HEAD_DIM, BLOCK_N)

    @cuda.jit
    def kernel(q, k, v, lists, out, lse, softmax_scale):
        """Attention of one head to the tiles of a list: a thread block owns BLOCK_M query rows.

        grid     (num_m_tiles,); threads (BLOCK_N, BLOCK_M), one per score of the tile
        shared   q_tile (BLOCK_M, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM);
                 s_tile, p_tile (BLOCK_M, BLOCK_N)
        private  acc (NUM_COLS,); m_i, l_i, the same in all threads of a row
        HBM      q, out, lse once; the tiles of k and v in lists[i] once for m-tile i
        paper    NSA, arXiv:2502.11089, section 3.4; FlashAttention-2, Algorithm 1
        """
        # YOUR CODE HERE
        raise NotImplementedError("ex25c: kernel")

    return kernel


# Stub 46254210 of solutions/ex25c_block_lists.py: `fa-numba reset ex25c` brings it back.
