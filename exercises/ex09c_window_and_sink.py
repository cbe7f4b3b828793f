"""ex09c · A window and a sink in your own kernel

Your ex07d with two changes: a query sees the last WINDOW keys, and each row has a sink, as in
gpt-oss. Start from your own kernel: `fa-numba reset ex09c --from ex07d`. About seven lines are new
or change.

shapes    q, out (seqlen_q, HEAD_DIM);  k, v (seqlen_k, HEAD_DIM);  lse (seqlen_q,). All float32,
          of any length >= 1
launch    kernel[num_m_tiles, (BLOCK_N, BLOCK_M)](q, k, v, out, lse, softmax_scale, sink), with
          num_m_tiles = ceil(seqlen_q / BLOCK_M)
window    WINDOW is a compile-time int >= 1: with p = m + seqlen_k - seqlen_q, query m sees the keys
          max(0, p - WINDOW + 1) .. p
sink      a float32: a further score of every row, whose value is a row of zeros. It is neither
          scaled nor hidden: weights = softmax of the row's scores and the sink, the sink's weight
          multiplies the zeros, and lse is the log of the sum with exp(sink) in it. A row that
          sees no key has out = 0 and lse = sink
scores    any that float32 holds, -1e30 too; sinks of 1e4 and -1e4
as before shared and private memory, add_tile, store
HBM       q once; of k and v each n-tile in which a query of the m-tile sees a key, once per m-tile,
          from its first key on; other tiles never. The n-tiles begin at multiples of BLOCK_N
"""

import functools
import math

from numba import cuda, float32

from fa_numba.kernels.rows_of_out import make_row_functions


@functools.cache
def make_kernel(HEAD_DIM, BLOCK_M, BLOCK_N, WINDOW):
    """The kernel for one head_dim, tile sizes and window, compile-time constants."""
    NUM_COLS = math.ceil(HEAD_DIM / BLOCK_N)  # columns of out that a thread owns
    add_tile, store = make_row_functions(HEAD_DIM, BLOCK_N)

    @cuda.jit(device=True)
    def bounds(m, m_start, seqlen_q, seqlen_k):
        """(first_n, last_n, n_first, n_stop): the first and the last key that query m sees.

        The loop of the m-tile that begins at m_start begins at key n_first, and ends before n_stop.
        """
        # YOUR CODE HERE
        raise NotImplementedError("ex09c: bounds")

    @cuda.jit
    def kernel(q, k, v, out, lse, softmax_scale, sink):
        """FlashAttention-2 forward of one head: a thread block owns BLOCK_M query rows.

        grid     (num_m_tiles,); threads (BLOCK_N, BLOCK_M), one per score of the tile
        shared   q_tile (BLOCK_M, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM);
                 s_tile, p_tile (BLOCK_M, BLOCK_N)
        private  acc (NUM_COLS,); m_i, l_i, the same in all threads of a row
        HBM      q, out, lse once; live tiles of k and v once per m-tile
        paper    FlashAttention-2, arXiv:2307.08691, Algorithm 1
        """
        # YOUR CODE HERE
        raise NotImplementedError("ex09c: kernel")

    return kernel


# Stub 9ba2e9e6 of solutions/ex09c_window_and_sink.py: `fa-numba reset ex09c` brings it back.
