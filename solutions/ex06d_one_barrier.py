"""ex06d · One barrier for each tile

`two_barriers` computes out = softmax(s) v for many rows of scores and one tile of keys. For each
tile of rows it shares the scores, then the weights, and waits at two barriers. Write `kernel`, the
same with one barrier for each tile. Copy two_barriers, and change what must change.

Arrays   s (rows, BLOCK_N), v (BLOCK_N, HEAD_DIM), out (rows, HEAD_DIM), float32; rows >= 1
Launch   grid (1,), thread block (BLOCK_N, BLOCK_M)
Budget   ceil(rows / BLOCK_M) barriers, which is par: one for each tile of rows
Shared   at most the bytes that two_barriers has: one tile of v and two of scores
HBM      s, v and out as before: each element is loaded or stored once
price    more exponentials are allowed

A barrier that is missing is reported as a race, with both lines. About 6 lines change.
"""

import functools
import math

from numba import cuda, float32

### KIND: beat a budget
### HINT 1: Why is there a second barrier? Threads read weights that others wrote. A thread that has
### HINT 1: the scores and the maximum of a row can compute the weights itself.
### HINT 2: Without p_tile the second barrier is gone, but now somebody may still read s_tile when
### HINT 2: somebody else stores the next tile's scores in it. There is room for two tiles of
### HINT 2: scores.
### HINT 3: s_tile = cuda.shared.array((2, BLOCK_M, BLOCK_N), float32), and tile number t uses
### HINT 3: s_tile[t % 2]: a thread that stores tile t + 2 has passed the barrier of tile t + 1, and
### HINT 3: all threads came to that barrier after they had read tile t. Both sums take
### HINT 3: math.exp(s_tile[t % 2, ty, c] - m_row).
### DEBRIEF: Two tiles that take turns are double buffering: whoever writes the one disturbs nobody
### DEBRIEF: who reads the other. The price is BLOCK_N times as many exponentials or more, because
### DEBRIEF: each thread of a row computes the whole row. An SM makes 16 of them in a cycle, so 256
### DEBRIEF: threads with 16 each take 256 cycles for the row sums alone; a barrier costs some tens
### DEBRIEF: of cycles. You met the budget, and made a bad trade: count what you pay with.


@functools.cache
def make_two_barriers(HEAD_DIM, BLOCK_M, BLOCK_N):
    """The kernel with two barriers for each tile. Leave it as it is."""

    @cuda.jit
    def kernel(s, v, out):
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        s_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        p_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        for row in range(ty, BLOCK_N, BLOCK_M):
            for d in range(tx, HEAD_DIM, BLOCK_N):
                v_tile[row, d] = v[row, d]
        for m_start in range(0, s.shape[0], BLOCK_M):
            m = m_start + ty
            s_tile[ty, tx] = s[m, tx] if m < s.shape[0] else float32(0.0)
            cuda.syncthreads()  # v_tile and s_tile are complete: safe to read

            m_row = s_tile[ty, 0]
            for c in range(1, BLOCK_N):
                m_row = max(m_row, s_tile[ty, c])
            p_tile[ty, tx] = math.exp(s_tile[ty, tx] - m_row)
            cuda.syncthreads()  # p_tile is complete; s_tile may be overwritten

            l_row = float32(0.0)
            for c in range(BLOCK_N):
                l_row += p_tile[ty, c]
            if m < s.shape[0]:
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    acc = float32(0.0)
                    for c in range(BLOCK_N):
                        acc += p_tile[ty, c] * v_tile[c, d]
                    out[m, d] = acc / l_row

    return kernel


@functools.cache
def make_kernel(HEAD_DIM, BLOCK_M, BLOCK_N):
    """The kernel with one barrier for each tile."""

    @cuda.jit
    def kernel(s, v, out):
        """out = softmax(s) v: tiles of BLOCK_M rows, one after the other."""
        ### BEGIN SOLUTION
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        s_tile = cuda.shared.array((2, BLOCK_M, BLOCK_N), float32)  # of this tile and of the next
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        for row in range(ty, BLOCK_N, BLOCK_M):
            for d in range(tx, HEAD_DIM, BLOCK_N):
                v_tile[row, d] = v[row, d]
        for m_start in range(0, s.shape[0], BLOCK_M):
            m = m_start + ty
            now = s_tile[m_start // BLOCK_M % 2]
            now[ty, tx] = s[m, tx] if m < s.shape[0] else float32(0.0)
            cuda.syncthreads()  # complete: safe to read; nobody reads the other one any more

            m_row = now[ty, 0]
            for c in range(1, BLOCK_N):
                m_row = max(m_row, now[ty, c])
            l_row = float32(0.0)
            for c in range(BLOCK_N):
                l_row += math.exp(now[ty, c] - m_row)
            if m < s.shape[0]:
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    acc = float32(0.0)
                    for c in range(BLOCK_N):
                        acc += math.exp(now[ty, c] - m_row) * v_tile[c, d]
                    out[m, d] = acc / l_row
        ### END SOLUTION

    return kernel
