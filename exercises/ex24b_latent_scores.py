"""ex24b · Scores from a latent and a rotated key

The absorbed queries of all heads meet the tokens of one sequence: s[h, n] = softmax_scale *
q[h] . [latent[n] ; k_rope[n]]. A thread block owns BLOCK_M heads and BLOCK_N tokens. Here the two
parts of a token lie in two arrays; in shared memory they become one row. A warp owns a head: lane
tx holds the columns tx, tx + 32, ... of its query in q_row, and of every key it takes the same
columns.

Write the two device functions; the kernel around them is given.

load_tile  row r of k_tile becomes [latent[n_start + r] ; k_rope[n_start + r]], for the rows that
           exist: token n_start + r < seqlen. All 32 * BLOCK_M threads load
score      softmax_scale * (q_row . row r of k_tile): a part of the sum in each lane, then the sum
           of all 32, in every lane; any sign of softmax_scale

shapes     q (num_heads, LATENT_DIM + ROPE_DIM); latent (seqlen, LATENT_DIM);
           k_rope (seqlen, ROPE_DIM); s (num_heads, seqlen); all float32, any sizes >= 1
launch     kernel[(ceil(seqlen / BLOCK_N), ceil(num_heads / BLOCK_M)), (32, BLOCK_M)](q, latent,
           k_rope, s, softmax_scale)
HBM        each number of latent and k_rope once in a thread block, in whole warps along a row
shared     k_tile (BLOCK_N, LATENT_DIM + ROPE_DIM), each number of a row read once for each head;
           lanes add by cuda.shfl_xor_sync
barriers   the one that is given

About 6 and 7 lines. A lane may have no column of the last 32: test it.
"""

import functools
import math

from numba import cuda, float32

FULL_MASK = 0xFFFFFFFF


@functools.cache
def make_kernel(LATENT_DIM, ROPE_DIM, BLOCK_M, BLOCK_N):
    """The kernel for these sizes, compile-time constants."""
    ROW_DIM = LATENT_DIM + ROPE_DIM
    ROW_COLS = math.ceil(ROW_DIM / 32)  # columns of a row that a lane owns

    @cuda.jit(device=True)
    def load_tile(k_tile, latent, k_rope, n_start):
        """Bring the tokens from n_start on into the rows of k_tile."""
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        # YOUR CODE HERE
        raise NotImplementedError("ex24b: load_tile")

    @cuda.jit(device=True)
    def score(q_row, k_tile, r, softmax_scale):
        """The scaled product of this warp's query and row r, in every lane."""
        tx = cuda.threadIdx.x
        # YOUR CODE HERE
        raise NotImplementedError("ex24b: score")

    @cuda.jit
    def kernel(q, latent, k_rope, s, softmax_scale):
        """Scores of BLOCK_M heads and BLOCK_N tokens.

        grid     (ceil(seqlen / BLOCK_N), ceil(num_heads / BLOCK_M)); threads (32, BLOCK_M)
        shared   k_tile (BLOCK_N, ROW_DIM)
        private  q_row (ROW_COLS,)
        HBM      latent, k_rope once per tile of heads, q once per tile of tokens; s once
        paper    DeepSeek-V2, arXiv:2405.04434, section 2.1
        """
        k_tile = cuda.shared.array((BLOCK_N, ROW_DIM), float32)
        q_row = cuda.local.array(ROW_COLS, float32)
        tx = cuda.threadIdx.x
        n_start = cuda.blockIdx.x * BLOCK_N
        head = cuda.blockIdx.y * BLOCK_M + cuda.threadIdx.y  # this warp's
        for c in range(ROW_COLS):
            d = tx + 32 * c
            q_row[c] = q[head, d] if head < q.shape[0] and d < ROW_DIM else float32(0.0)

        load_tile(k_tile, latent, k_rope, n_start)
        cuda.syncthreads()  # k_tile is complete: safe to read
        if head < q.shape[0]:
            for r in range(min(BLOCK_N, latent.shape[0] - n_start)):
                x = score(q_row, k_tile, r, softmax_scale)
                if tx == r % 32:
                    s[head, n_start + r] = x

    return kernel


# Stub 991e45ff of solutions/ex24b_latent_scores.py: `fa-numba reset ex24b` brings it back.
