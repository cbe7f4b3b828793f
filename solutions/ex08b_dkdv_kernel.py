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

### HINT 1: Turn ex07d around: k and v are loaded before the loop, q, dout, lse and delta in it.
### HINT 1: There is no running maximum: lse already holds all that softmax needs.
### HINT 2: Two dot products give s and dp in the thread that needs both; p and ds go to shared
### HINT 2: memory, because dv and dk sum over the rows of a column. Three barriers: tiles complete,
### HINT 2: p and ds complete, all done before the next load. Set p = 0 for hidden pairs by
### HINT 2: testing, not by exp: exp(s - (-inf)) is inf.
### HINT 3: dv_acc[i] += p_tile[r, tx] * do_tile[r, d] over the rows r, with d = ty + i * BLOCK_M;
### HINT 3: dk_acc[i] the same with ds_tile and q_tile, times softmax_scale at the end. With CAUSAL
### HINT 3: the first query that sees key n_start is n_start - (seqlen_k - seqlen_q): the loop
### HINT 3: starts at max(0, that) // BLOCK_M * BLOCK_M.
### DEBRIEF: The two products of the forward pass became five: S again, dP, dV, dK and (in ex08c)
### DEBRIEF: dQ. That is 2.5 times the arithmetic. With two kernels S and dP are computed twice, so
### DEBRIEF: ours does 3.5 times; the paper's single kernel adds up dQ in HBM with atomics instead,
### DEBRIEF: and gets another rounding on every run.


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
        ### BEGIN SOLUTION
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

            s = float32(0.0)
            dp = float32(0.0)
            for d in range(HEAD_DIM):
                s += q_tile[ty, d] * k_tile[tx, d]  # S = Q K^T                   line 10
                dp += do_tile[ty, d] * v_tile[tx, d]  # dP = dO V^T               line 13
            p = float32(0.0)
            if m < seqlen_q and n < seqlen_k and m >= first_m:
                p = math.exp(s * softmax_scale - lse_tile[ty])  # P, exact        line 11
            p_tile[ty, tx] = p
            ds_tile[ty, tx] = p * (dp - delta_tile[ty])  # dS = P (dP - delta)    line 14
            cuda.syncthreads()  # p_tile, ds_tile are complete: safe to read

            for i in range(NUM_COLS):
                d = ty + i * BLOCK_M
                if d < HEAD_DIM:
                    for row in range(BLOCK_M):
                        dv_acc[i] += p_tile[row, tx] * do_tile[row, d]  # dV = P^T dO   line 12
                        dk_acc[i] += ds_tile[row, tx] * q_tile[row, d]  # dK = dS^T Q   line 16
            cuda.syncthreads()  # every thread is done with the tiles: safe to overwrite

        if n < seqlen_k:
            for i in range(NUM_COLS):
                d = ty + i * BLOCK_M
                if d < HEAD_DIM:
                    dk[n, d] = dk_acc[i] * softmax_scale
                    dv[n, d] = dv_acc[i]
        ### END SOLUTION

    return kernel
