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

### HINT 1: Write the loads first, with the threads sharing the work: row ty of a q tile is loaded
### HINT 1: by its BLOCK_N threads, which step through the columns from tx. A row or key beyond the
### HINT 1: end is 0 in the tile, and its score must be -inf, not 0.
### HINT 2: In the inner loop three kinds of data pass from thread to thread: the q tile (with k, v
### HINT 2: and the statistics), the scores, the p tile. Each needs a barrier between writing and
### HINT 2: reading. A fourth barrier lets everyone finish with v before the next one is loaded.
### HINT 2: Every thread must reach every barrier, also the ones whose row does not exist.
### HINT 3: Behind the barrier of s_tile each thread scans its row: `m_new = m_old[ty]`, then for
### HINT 3: each c `m_new = max(m_new, s_tile[ty, c])`. With it come the old sum under the new
### HINT 3: maximum, `l_alpha = math.exp(m_old[ty] - m_new) * l_old[ty]`, and
### HINT 3: `p_tile[ty, tx] = math.exp(s - m_new)`. Behind the next barrier l_new is l_alpha plus
### HINT 3: the sum of the row of p_tile, and each own column d of out becomes
### HINT 3: `(l_alpha * out[m_row, d] + acc) / l_new`, where acc is the sum over c of
### HINT 3: `p_tile[ty, c] * v_tile[c, d]`. Thread tx == 0 stores l_new and m_new.
### DEBRIEF: Count again what travels: out goes to HBM and back T_c times, and only because the
### DEBRIEF: K/V loop is the outer one. Swap the loops and out, l, m never leave the thread; that is
### DEBRIEF: lesson 07. It also frees the query tiles from each other, so that many thread blocks
### DEBRIEF: can share a head: here one does it all.


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
        ### BEGIN SOLUTION
        q_tile = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)
        k_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        s_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        p_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        l_old = cuda.shared.array(BLOCK_M, float32)
        m_old = cuda.shared.array(BLOCK_M, float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        seqlen_q, seqlen_k = q.shape[0], k.shape[0]

        for n_start in range(0, seqlen_k, BLOCK_N):
            for row in range(ty, BLOCK_N, BLOCK_M):
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    inside = n_start + row < seqlen_k
                    k_tile[row, d] = k[n_start + row, d] if inside else float32(0.0)
                    v_tile[row, d] = v[n_start + row, d] if inside else float32(0.0)

            for m_start in range(0, seqlen_q, BLOCK_M):
                m_row = m_start + ty
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    q_tile[ty, d] = q[m_row, d] if m_row < seqlen_q else float32(0.0)
                if tx == 0:
                    l_old[ty] = l[m_row] if m_row < seqlen_q else float32(0.0)
                    m_old[ty] = m[m_row] if m_row < seqlen_q else float32(-math.inf)
                cuda.syncthreads()  # q_tile, k_tile, v_tile, l_old, m_old are complete

                s = float32(-math.inf)  # a key beyond the end: exp gives 0
                if n_start + tx < seqlen_k:
                    s = float32(0.0)
                    for d in range(HEAD_DIM):
                        s += q_tile[ty, d] * k_tile[tx, d]
                    s *= softmax_scale  # S = scale Q K^T                       line 9
                s_tile[ty, tx] = s
                cuda.syncthreads()  # s_tile is complete: a row can be scanned

                m_new = m_old[ty]
                for c in range(BLOCK_N):
                    m_new = max(m_new, s_tile[ty, c])  # m_new <- max(m, rowmax(S))   line 11
                l_alpha = l_old[ty] * math.exp(m_old[ty] - m_new)  # the old sum, under the new max
                p_tile[ty, tx] = math.exp(s - m_new)
                cuda.syncthreads()  # p_tile is complete; l_old and m_old may be overwritten

                l_new = l_alpha
                for c in range(BLOCK_N):
                    l_new += p_tile[ty, c]  # l_new <- alpha l + rowsum(P)            line 11
                if m_row < seqlen_q:
                    for d in range(tx, HEAD_DIM, BLOCK_N):
                        acc = l_alpha * out[m_row, d]  # undo the last division
                        for c in range(BLOCK_N):
                            acc += p_tile[ty, c] * v_tile[c, d]
                        out[m_row, d] = acc / l_new  # O_i, divided in every tile     line 12
                    if tx == 0:
                        l[m_row] = l_new
                        m[m_row] = m_new  #                                           line 13
            cuda.syncthreads()  # every thread is done with v_tile: safe to overwrite
        ### END SOLUTION

    return kernel
