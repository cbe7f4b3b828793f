"""ex08b · The gradients of K and V

A thread block owns one n-tile of keys and walks the m-tiles of queries: the loop order of
FlashAttention-1, because dk and dv are sums over queries. P was never stored. It comes back tile by
tile from q, k and lse, already divided by its row sum:

    P  = exp(softmax_scale * q k^T - lse)        0 where the mask hides the key
    dP = dout v^T                                dS = P ∘ (dP - delta)
    dV = P^T dout                                dK = softmax_scale * dS^T q

shapes    dout, q (seqlen_q, HEAD_DIM);  k, v, dk, dv (seqlen_k, HEAD_DIM);
          lse, delta (seqlen_q,). All float32.
launch    kernel[num_n_tiles, (BLOCK_N, BLOCK_M)](dout, q, k, v, lse, delta, dk, dv, softmax_scale),
          with num_n_tiles = ceil(seqlen_k / BLOCK_N). Thread (ty, tx) computes element (ty, tx) of
          P and dS, then owns the columns ty, ty + BLOCK_M, ... of row tx of dk and dv,
          NUM_COLS of them at most.
mask      as in ex07d: with CAUSAL query m sees the keys 0 .. m + seqlen_k - seqlen_q. A query that
          sees no key has lse = -inf and adds nothing. Dead tiles are skipped.
lengths   any, seqlen_q, seqlen_k, HEAD_DIM >= 1
shared    tiles of q, dout, k, v, P and dS, and the tile's lse and delta, at most. A padded column
          in each tile, or four floats per row besides, are allowed; dk and dv are not there
HBM       loads   k and v once; of q, dout, lse and delta each live m-tile once per n-tile, whole
                  (its rows below seqlen_q), each element by one thread.
          stores  dk and dv once. Neither is loaded

About 45 lines. Write float32(0.0), not 0.0: a bare literal is float64 to Numba.
"""

import functools
import math

from numba import cuda, float32


@functools.cache
def make_kernel(HEAD_DIM, BLOCK_M, BLOCK_N, CAUSAL):
    """The kernel for one head_dim, one pair of tile sizes and one mask, compile-time constants."""
    NUM_COLS = math.ceil(HEAD_DIM / BLOCK_M)  # columns of dk and dv that a thread owns

    @cuda.jit
    def kernel(dout, q, k, v, lse, delta, dk, dv, softmax_scale):
        """dK and dV of one head: a thread block owns BLOCK_N keys and walks the Q tiles.

        grid     (num_n_tiles,); threads (BLOCK_N, BLOCK_M), one per element of P
        shared   q_tile, do_tile (BLOCK_M, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM);
                 p_tile, ds_tile (BLOCK_M, BLOCK_N); lse_tile, delta_tile (BLOCK_M,)
        private  dk_acc, dv_acc (NUM_COLS,)
        HBM      k, v, dk, dv once; live tiles of q, dout, lse, delta once per n-tile
        paper    FlashAttention-2, arXiv:2307.08691, Algorithm 2
        """
        # YOUR CODE HERE
        raise NotImplementedError("ex08b: kernel")

    return kernel


# Stub 999435fb of solutions/ex08b_dkdv_kernel.py: `fa-numba reset ex08b` brings it back.
