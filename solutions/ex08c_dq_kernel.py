"""ex08c · The gradient of Q

dq is a sum over keys, so a thread block owns one m-tile of queries and walks the n-tiles of keys,
as the forward pass does. P comes back from lse, exact, tile by tile:

    P  = exp(softmax_scale * q k^T - lse)        0 where `sees` is False
    dP = dout v^T                                dS = P ∘ (dP - delta)
    dQ = softmax_scale * dS k (scaled at the end)

Begin with your ex08b: `fa-numba reset ex08c --from ex08b`. Its `weights` fits as it is. Change its
`accumulate`: a sum along a row of dS, in place of two down a column.

shapes     dout, q, dq (seqlen_q, HEAD_DIM);  k, v (seqlen_k, HEAD_DIM);  lse, delta (seqlen_q,).
           All float32, of any length >= 1
launch     kernel[num_m_tiles, (BLOCK_N, BLOCK_M)](dout, q, k, v, lse, delta, dq, softmax_scale),
           with num_m_tiles = ceil(seqlen_q / BLOCK_M)
weights    as in ex08b
accumulate adds a tile: dq_acc[i] is column tx + i BLOCK_N of row ty of dq, NUM_COLS of them at
           most; a column must be below HEAD_DIM
memory     the arrays that are there and no more. P needs no tile: no other thread wants it
"""

import functools
import math

from numba import cuda, float32

### KIND: fill a loop
### FROM: ex08b
### HINT 1: In accumulate everything about dv goes, and a row takes the place of a column: which
### HINT 1: index of ds_tile is the sum over, if dq belongs to query ty?
### HINT 2: Over the keys c of the tile: ds_tile[ty, c] times key c. The columns of a thread are now
### HINT 2: tx, tx + BLOCK_N, ...
### HINT 3: dq_acc[i] += ds_tile[ty, c] * k_tile[c, d] for c in range(BLOCK_N), with
### HINT 3: d = tx + i * BLOCK_N < HEAD_DIM.
### DEBRIEF: You now have a complete attention layer, forward and backward, that never stores an
### DEBRIEF: N x N matrix. Gradients of your own kernel may be checked by moving one number of q
### DEBRIEF: a little and watching the loss: the grader does just that.


@functools.cache
def make_kernel(HEAD_DIM, BLOCK_M, BLOCK_N, CAUSAL):
    """The kernel for one head_dim, one pair of tile sizes and one mask, compile-time constants."""
    NUM_COLS = math.ceil(HEAD_DIM / BLOCK_N)  # columns of dq that a thread owns

    @cuda.jit(device=True)
    def weights(q_tile, do_tile, k_tile, v_tile, lse, delta, sees, softmax_scale):
        """(p, ds) of this thread's pair: query ty and key tx of the tiles."""
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        ### BEGIN SOLUTION
        s = float32(0.0)
        dp = float32(0.0)
        for d in range(HEAD_DIM):
            s += q_tile[ty, d] * k_tile[tx, d]  # S = Q K^T                       line 10
            dp += do_tile[ty, d] * v_tile[tx, d]  # dP = dO V^T                   line 13
        p = math.exp(s * softmax_scale - lse) if sees else float32(0.0)  # P, exact   line 11
        return p, p * (dp - delta)  # dS = P (dP - delta)                         line 14
        ### END SOLUTION

    @cuda.jit(device=True)
    def accumulate(dq_acc, ds_tile, k_tile):
        """Add the tile's part of this thread's columns of dQ."""
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        ### BEGIN SOLUTION
        for i in range(NUM_COLS):
            d = tx + i * BLOCK_N
            if d < HEAD_DIM:
                for c in range(BLOCK_N):
                    dq_acc[i] += ds_tile[ty, c] * k_tile[c, d]  # dQ = dS K         line 15
        ### END SOLUTION

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
            sees = m < seqlen_q and n < seqlen_k and n <= last_n
            _, ds = weights(
                q_tile, do_tile, k_tile, v_tile, lse_tile[ty], delta_tile[ty], sees, softmax_scale
            )
            ds_tile[ty, tx] = ds
            cuda.syncthreads()  # ds_tile is complete: safe to read

            accumulate(dq_acc, ds_tile, k_tile)
            cuda.syncthreads()  # every thread is done with k_tile: safe to overwrite

        if m < seqlen_q:
            for i in range(NUM_COLS):
                d = tx + i * BLOCK_N
                if d < HEAD_DIM:
                    dq[m, d] = dq_acc[i] * softmax_scale

    return kernel
