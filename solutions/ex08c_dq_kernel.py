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

### HINT 1: The frame of ex07d without its statistics, and the two dot products of ex08b.
### HINT 2: Only ds goes to shared memory. Three barriers in the loop: tiles complete, ds complete,
### HINT 2: all done before k_tile is overwritten. Thread tx == 0 loads lse and delta of a row, and
### HINT 2: all read them: the first barrier covers them too.
### HINT 3: dq_acc[i] += ds_tile[ty, c] * k_tile[c, d] over the keys c of the tile, with
### HINT 3: d = tx + i * BLOCK_N; softmax_scale multiplies once, at the end. The loop bound is the
### HINT 3: n_stop of ex07d.
### DEBRIEF: You now have a complete attention layer, forward and backward, that never stores an
### DEBRIEF: N x N matrix. Gradients of your own kernel may be checked by moving one number of q
### DEBRIEF: a little and watching the loss: the grader does just that.


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
        ### BEGIN SOLUTION
        q_tile = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)
        do_tile = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)
        k_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        ds_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        lse_tile = cuda.shared.array(BLOCK_M, float32)
        delta_tile = cuda.shared.array(BLOCK_M, float32)
        dq_acc = cuda.local.array(NUM_COLS, float32)  # dq[m, tx::BLOCK_N], not yet scaled
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        seqlen_q, seqlen_k = q.shape[0], k.shape[0]
        m_start = cuda.blockIdx.x * BLOCK_M
        m = m_start + ty  # this thread's query
        last_n = m + seqlen_k - seqlen_q if CAUSAL else seqlen_k - 1  # the last key it sees
        n_stop = seqlen_k
        if CAUSAL:  # no query of the tile sees key n_stop or any after it
            n_stop = min(m_start + BLOCK_M, seqlen_q) + seqlen_k - seqlen_q

        for d in range(tx, HEAD_DIM, BLOCK_N):
            q_tile[ty, d] = q[m, d] if m < seqlen_q else float32(0.0)
            do_tile[ty, d] = dout[m, d] if m < seqlen_q else float32(0.0)
        if tx == 0:
            lse_tile[ty] = lse[m] if m < seqlen_q else float32(0.0)
            delta_tile[ty] = delta[m] if m < seqlen_q else float32(0.0)
        for i in range(NUM_COLS):
            dq_acc[i] = float32(0.0)

        for n_start in range(0, n_stop, BLOCK_N):
            for row in range(ty, BLOCK_N, BLOCK_M):
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    inside = n_start + row < seqlen_k
                    k_tile[row, d] = k[n_start + row, d] if inside else float32(0.0)
                    v_tile[row, d] = v[n_start + row, d] if inside else float32(0.0)
            cuda.syncthreads()  # all tiles are complete: safe to read

            n = n_start + tx
            s = float32(0.0)
            dp = float32(0.0)
            for d in range(HEAD_DIM):
                s += q_tile[ty, d] * k_tile[tx, d]  # S = Q K^T                   line 10
                dp += do_tile[ty, d] * v_tile[tx, d]  # dP = dO V^T               line 13
            p = float32(0.0)
            if m < seqlen_q and n < seqlen_k and n <= last_n:
                p = math.exp(s * softmax_scale - lse_tile[ty])  # P, exact        line 11
            ds_tile[ty, tx] = p * (dp - delta_tile[ty])  # dS = P (dP - delta)    line 14
            cuda.syncthreads()  # ds_tile is complete: safe to read

            for i in range(NUM_COLS):
                d = tx + i * BLOCK_N
                if d < HEAD_DIM:
                    for c in range(BLOCK_N):
                        dq_acc[i] += ds_tile[ty, c] * k_tile[c, d]  # dQ = dS K   line 15
            cuda.syncthreads()  # every thread is done with k_tile: safe to overwrite

        if m < seqlen_q:
            for i in range(NUM_COLS):
                d = tx + i * BLOCK_N
                if d < HEAD_DIM:
                    dq[m, d] = dq_acc[i] * softmax_scale
        ### END SOLUTION

    return kernel
