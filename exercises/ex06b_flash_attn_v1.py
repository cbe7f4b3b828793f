"""ex06b · The FlashAttention-1 kernel

One head of attention, softmax(softmax_scale * q k^T) v, without the seqlen_q x seqlen_k matrix
ever existing: the outer loop walks the K/V tiles, the inner loop the Q tiles, and out, l and m
live in HBM, read and written back once per tile.

shapes    q, out (seqlen_q, HEAD_DIM);  k, v (seqlen_k, HEAD_DIM);  l, m (seqlen_q,). All float32.
start     the caller has set out = 0, l = 0, m = -inf (Algorithm 1, line 2), or an earlier launch
          with other keys has left its state there: go on from what out, l and m hold. No mask.
launch    kernel[1, (BLOCK_N, BLOCK_M)](q, k, v, out, l, m, softmax_scale): one thread block does
          the whole head. threadIdx.x = tx < BLOCK_N picks the key, threadIdx.y = ty < BLOCK_M the
          query: thread (ty, tx) computes score (ty, tx) of the tile and afterwards owns the
          columns tx, tx + BLOCK_N, ... of row ty of out.
lengths   any: the last tile of q and of k may be ragged. seqlen_q, seqlen_k, HEAD_DIM >= 1.
scores    any finite number counts, -2e30 as well; a key that does not exist counts nothing.
shared    four tiles, q, k, v, s, one for p = exp(s - rowmax), and two short arrays for l and m;
          rows of a tile may be padded by one float. A thread has at most 2 * HEAD_DIM floats in
          local arrays. So nothing, in HBM or on the chip, grows with seqlen_q or seqlen_k.
HBM       with T_c = ceil(seqlen_k / BLOCK_N), each thread block
          loads   k and v once; q, out, l, m T_c times
          stores  out, l, m T_c times.
          Each of these elements is loaded by one thread; the others find it in shared memory.
          Neighbouring threads (tx) touch neighbouring floats.
result    out is attention; l and m are the row's sum of exp(score - m) and its largest score.

About 45 lines. Write float32(0.0), not 0.0: a bare literal is float64 to Numba.
"""

import functools
import math

from numba import cuda, float32


@functools.cache
def make_kernel(HEAD_DIM, BLOCK_M, BLOCK_N):
    """The kernel for one head_dim and one pair of tile sizes, compile-time constants."""

    @cuda.jit
    def kernel(q, k, v, out, l, m, softmax_scale):
        """FlashAttention-1 forward of one head: K/V tiles outside, Q tiles inside.

        grid     (1,); threads (BLOCK_N, BLOCK_M), one per score of the tile
        shared   q_tile (BLOCK_M, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM);
                 s_tile, p_tile (BLOCK_M, BLOCK_N); l_old, m_old (BLOCK_M,)
        HBM      k, v once; q, out, l, m once per K/V tile, the last three there and back
        paper    FlashAttention, arXiv:2205.14135, Algorithm 1
        """
        # YOUR CODE HERE
        raise NotImplementedError("ex06b: kernel")

    return kernel


# Stub 6193df3d of solutions/ex06b_flash_attn_v1.py: `fa-numba reset ex06b` brings it back.
