"""ex08c · The gradient of Q

dq is a sum over keys, so a thread block owns one m-tile of queries and walks the n-tiles of keys,
as the forward pass does (ex07d). P comes back from lse, exact, tile by tile:

    P  = exp(softmax_scale * q k^T - lse)        0 where the mask hides the key
    dP = dout v^T                                dS = P ∘ (dP - delta)
    dQ = softmax_scale * dS k

shapes    dout, q, dq (seqlen_q, HEAD_DIM);  k, v (seqlen_k, HEAD_DIM);  lse, delta (seqlen_q,).
          All float32.
launch    kernel[num_m_tiles, (BLOCK_N, BLOCK_M)](dout, q, k, v, lse, delta, dq, softmax_scale),
          with num_m_tiles = ceil(seqlen_q / BLOCK_M). Thread (ty, tx) computes element (ty, tx) of
          dS, then owns the columns tx, tx + BLOCK_N, ... of row ty of dq, NUM_COLS at most.
mask      as in ex07d: with CAUSAL query m sees the keys 0 .. m + seqlen_k - seqlen_q. A query that
          sees no key has lse = -inf and gets dq = 0. Dead tiles are skipped.
lengths   any, seqlen_q, seqlen_k, HEAD_DIM >= 1.
shared    tiles of q, dout, k, v, dS and one for P, and the tile's lse and delta, at most. A padded
          column in each tile, or four floats per row besides, are allowed; dq is not there
HBM       loads   q, dout, lse, delta once (not needed where an m-tile sees no key); of k and v each
                  live n-tile once per m-tile, whole (its rows below seqlen_k), each element by one
                  thread.
          stores  dq once. It is not loaded

About 40 lines. Write float32(0.0), not 0.0: a bare literal is float64 to Numba.
"""

import functools
import math

from numba import cuda, float32


@functools.cache
def make_kernel(HEAD_DIM, BLOCK_M, BLOCK_N, CAUSAL):
    """The kernel for one head_dim, one pair of tile sizes and one mask, compile-time constants."""
    NUM_COLS = math.ceil(HEAD_DIM / BLOCK_N)  # columns of dq that a thread owns

    @cuda.jit
    def kernel(dout, q, k, v, lse, delta, dq, softmax_scale):
        """dQ of one head: a thread block owns BLOCK_M queries and walks the K/V tiles.

        grid     (num_m_tiles,); threads (BLOCK_N, BLOCK_M), one per element of dS
        shared   q_tile, do_tile (BLOCK_M, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM);
                 ds_tile (BLOCK_M, BLOCK_N); lse_tile, delta_tile (BLOCK_M,)
        private  dq_acc (NUM_COLS,)
        HBM      q, dout, lse, delta, dq once; live tiles of k, v once per m-tile
        paper    FlashAttention-2, arXiv:2307.08691, Algorithm 2
        """
        # YOUR CODE HERE
        raise NotImplementedError("ex08c: kernel")

    return kernel


# Stub 43aed476 of solutions/ex08c_dq_kernel.py: `fa-numba reset ex08c` brings it back.
