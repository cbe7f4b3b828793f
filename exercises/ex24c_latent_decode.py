"""ex24c · Latent decode: the value is the first columns of the key

The whole decoding step of one token, absorbed: for each sequence b and head h, out[b, h] = sum over
tokens n of p[n] c_n, where p is the softmax of the scaled scores of ex24b, and c_n the first
LATENT_DIM columns of the cache's row n. A thread block owns BLOCK_M heads of a sequence and walks
its tiles of BLOCK_N tokens; a warp owns a head, and lane tx the columns tx, tx + 32, ... of q, of
every row, and of out.

Tiles are loaded and read as in ex24b. A lane keeps its columns of a row in k_row: after the score
it has its columns of the value, too. The online softmax goes token by token, as in lesson 03, with
a vector beside the sum.

shapes    q (batch, num_heads, ROW_DIM); latent_cache (batch, max_len, ROW_DIM);
          seq_lens (batch,) int32, from 0 to max_len; out (batch, num_heads, LATENT_DIM);
          lse (batch, num_heads); ROW_DIM >= LATENT_DIM >= 1. float32 but for seq_lens
launch    kernel[(ceil(num_heads / BLOCK_M), batch), (32, BLOCK_M)](q, latent_cache, seq_lens, out,
          lse, softmax_scale)
HBM       rows past seq_lens[b] hold NaN and are not loaded; each number of the others once in a
          thread block
shared    k_tile (BLOCK_N, ROW_DIM) and nothing else. Each number of k_tile is read once for each
          head, for score and value together: HBM once, shared memory once
results   out and lse by `store(head, acc, m_i, l_i, out[b], lse[b])` after the loop: it divides,
          tests the head, and leaves (0, -inf) for an empty sequence

About 23 lines, the loop over tiles and the store. Write float32(0.0), not 0.0.
"""

import functools
import math

from numba import cuda, float32

FULL_MASK = 0xFFFFFFFF


@functools.cache
def make_kernel(LATENT_DIM, ROW_DIM, BLOCK_M, BLOCK_N):
    """The kernel for these sizes, compile-time constants."""
    ROW_COLS = math.ceil(ROW_DIM / 32)  # columns of a row that a lane owns
    OUT_COLS = math.ceil(LATENT_DIM / 32)  # the first of them are columns of the value

    @cuda.jit(device=True)
    def store(head, acc, m_i, l_i, out, lse):
        """Divide acc by l_i, store this lane's columns of out[head], and lse."""
        tx = cuda.threadIdx.x
        if head < out.shape[0]:
            for c in range(OUT_COLS):
                d = tx + 32 * c
                if d < LATENT_DIM:
                    out[head, d] = acc[c] / l_i if l_i > 0 else float32(0.0)
            if tx == 0:
                lse[head] = m_i + math.log(l_i) if l_i > 0 else float32(-math.inf)

    @cuda.jit
    def kernel(q, latent_cache, seq_lens, out, lse, softmax_scale):
        """Attention of one query of BLOCK_M heads to the latents of a sequence.

        grid     (ceil(num_heads / BLOCK_M), batch); threads (32, BLOCK_M)
        shared   k_tile (BLOCK_N, ROW_DIM)
        private  q_row, k_row (ROW_COLS,), acc (OUT_COLS,); m_i, l_i, the same in all lanes
        HBM      latent_cache once per tile of heads; q, out, lse once
        paper    DeepSeek-V2, arXiv:2405.04434, section 2.1
        """
        k_tile = cuda.shared.array((BLOCK_N, ROW_DIM), float32)
        q_row = cuda.local.array(ROW_COLS, float32)
        k_row = cuda.local.array(ROW_COLS, float32)  # one row; its first columns are the value
        acc = cuda.local.array(OUT_COLS, float32)  # a row of out, not yet divided by l_i
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        b = cuda.blockIdx.y
        head = cuda.blockIdx.x * BLOCK_M + ty  # this warp's; without a head it computes in vain
        seqlen_k = seq_lens[b]
        for c in range(ROW_COLS):
            d = tx + 32 * c
            q_row[c] = q[b, head, d] if head < q.shape[1] and d < ROW_DIM else float32(0.0)
            k_row[c] = float32(0.0)
        for c in range(OUT_COLS):
            acc[c] = float32(0.0)
        m_i = float32(-math.inf)
        l_i = float32(0.0)

        # YOUR CODE HERE
        raise NotImplementedError("ex24c: kernel")

    return kernel


# Stub 86d131ae of solutions/ex24c_latent_decode.py: `fa-numba reset ex24c` brings it back.
