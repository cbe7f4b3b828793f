"""ex08b · The gradients of K and V

A thread block owns one n-tile of keys and walks the m-tiles of queries: dk and dv are sums over
queries. Loads, barriers, bounds and the final store are given. Fill in `weights`, the P and dS of
one pair, and `accumulate`, the two sums over the rows of a tile.

    P  = exp(softmax_scale * q k^T - lse)        0 where `sees` is False
    dP = dout v^T                                dS = P ∘ (dP - delta)
    dV = P^T dout                                dK = softmax_scale * dS^T q (scaled at the end)

shapes     dout, q (seqlen_q, HEAD_DIM);  k, v, dk, dv (seqlen_k, HEAD_DIM);
           lse, delta (seqlen_q,). All float32, of any length >= 1
launch     kernel[num_n_tiles, (BLOCK_N, BLOCK_M)](dout, q, k, v, lse, delta, dk, dv,
           softmax_scale), with num_n_tiles = ceil(seqlen_k / BLOCK_N)
weights    returns (p, ds) of query ty and key tx of the tiles. sees is False for a pair that is
           masked or does not exist; lse may be -inf there, as a query may see no key
accumulate adds a tile: dv_acc[i] and dk_acc[i] are column ty + i BLOCK_M of row tx of dv and dk,
           NUM_COLS of them at most; a column must be below HEAD_DIM
memory     the arrays that are there

About 6 lines each. Write float32(0.0), not 0.0: to Numba that is float64.
"""

import functools
import math

from numba import cuda, float32


@functools.cache
def make_kernel(HEAD_DIM, BLOCK_M, BLOCK_N, CAUSAL):
    """The kernel for one head_dim, one pair of tile sizes and one mask, compile-time constants."""
    NUM_COLS = math.ceil(HEAD_DIM / BLOCK_M)  # columns of dk and dv that a thread owns

    @cuda.jit(device=True)
    def weights(q_tile, do_tile, k_tile, v_tile, lse, delta, sees, softmax_scale):
        """(p, ds) of this thread's pair: query ty and key tx of the tiles."""
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        # YOUR CODE HERE
        raise NotImplementedError("ex08b: weights")

    @cuda.jit(device=True)
    def accumulate(dk_acc, dv_acc, p_tile, ds_tile, q_tile, do_tile):
        """Add the tile's part of this thread's columns of dK and dV."""
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        # YOUR CODE HERE
        raise NotImplementedError("ex08b: accumulate")

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
        q_tile = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)
        do_tile = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)
        k_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        p_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        ds_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        lse_tile = cuda.shared.array(BLOCK_M, float32)
        delta_tile = cuda.shared.array(BLOCK_M, float32)
        dk_acc = cuda.local.array(NUM_COLS, float32)  # dk[n, ty::BLOCK_M], not yet scaled
        dv_acc = cuda.local.array(NUM_COLS, float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        seqlen_q, seqlen_k = q.shape[0], k.shape[0]
        n_start = cuda.blockIdx.x * BLOCK_N
        n = n_start + tx  # this thread's key
        first_m = n + seqlen_q - seqlen_k if CAUSAL else 0  # the first query that sees it
        m_begin = 0
        if CAUSAL:  # no query of an earlier tile sees a key of this one
            m_begin = max(0, n_start + seqlen_q - seqlen_k) // BLOCK_M * BLOCK_M

        for d in range(ty, HEAD_DIM, BLOCK_M):
            k_tile[tx, d] = k[n, d] if n < seqlen_k else float32(0.0)
            v_tile[tx, d] = v[n, d] if n < seqlen_k else float32(0.0)
        for i in range(NUM_COLS):
            dk_acc[i] = float32(0.0)
            dv_acc[i] = float32(0.0)

        for m_start in range(m_begin, seqlen_q, BLOCK_M):
            m = m_start + ty
            for d in range(tx, HEAD_DIM, BLOCK_N):
                q_tile[ty, d] = q[m, d] if m < seqlen_q else float32(0.0)
                do_tile[ty, d] = dout[m, d] if m < seqlen_q else float32(0.0)
            if tx == 0:
                lse_tile[ty] = lse[m] if m < seqlen_q else float32(0.0)
                delta_tile[ty] = delta[m] if m < seqlen_q else float32(0.0)
            cuda.syncthreads()  # all tiles are complete: safe to read

            sees = m < seqlen_q and n < seqlen_k and m >= first_m
            p, ds = weights(
                q_tile, do_tile, k_tile, v_tile, lse_tile[ty], delta_tile[ty], sees, softmax_scale
            )
            p_tile[ty, tx] = p
            ds_tile[ty, tx] = ds
            cuda.syncthreads()  # p_tile, ds_tile are complete: safe to read

            accumulate(dk_acc, dv_acc, p_tile, ds_tile, q_tile, do_tile)
            cuda.syncthreads()  # every thread is done with the tiles: safe to overwrite

        if n < seqlen_k:
            for i in range(NUM_COLS):
                d = ty + i * BLOCK_M
                if d < HEAD_DIM:
                    dk[n, d] = dk_acc[i] * softmax_scale
                    dv[n, d] = dv_acc[i]

    return kernel


# Stub 0f2650ed of solutions/ex08b_dkdv_kernel.py: `fa-numba reset ex08b` brings it back.
