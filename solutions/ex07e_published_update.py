"""ex07e · Find the bug: two sources, one line each

`make_published_kernel` walks tiles of TILE keys as FlashAttention-2 does, a thread for each row. It
leaves its state after each tile in m_after, l_after and acc_after. m and l are right. The update of
acc has two bugs, each printed in a published text. Look at the history of a row (the lesson draws
it), find both, and write `make_kernel`: copy the body, then mend it. Two places change.

Launch   grid (ceil(rows / 32),), thread block (32,): thread `row` of the grid owns a row
Arrays   s (rows, seqlen_k) scores, v (seqlen_k, HEAD_DIM), out (rows, HEAD_DIM); seqlen_k is a
         multiple of TILE. All float32
History  after tile t: m_after[row, t], l_after[row, t], acc_after[row, t, :]. acc is not divided,
         as in FlashAttention-2: it is the sum of exp(s - m) v over the keys so far
Result   out = softmax(s) v
"""

import functools
import math

from numba import cuda, float32

TILE = 4  # keys of a tile

### KIND: find the bug
### HINT 1: acc and l obey one rule: l is acc for v = 1. So with all values 1 the columns of
### HINT 1: acc_after must equal l_after, in every tile. Where do they part first?
### HINT 2: They part in tile 0 already, where acc is 1: something divides it. And where the
### HINT 2: maximum grows, l shrinks before the tile is added. What does acc do there?
### HINT 3: acc[d] *= alpha in place of acc[d] /= alpha, also in tile 0, where alpha is 0 and acc
### HINT 3: too. And no division of acc by l_i but the one behind the loop.
### DEBRIEF: The inverse is the misprint of line 10 that one source copies: with descending scores
### DEBRIEF: alpha is 1, and the kernel with it is right. The division in each tile is that of
### DEBRIEF: FlashAttention-1, which multiplies by l again before it adds. Without that the first
### DEBRIEF: tiles count too little. The history of one row, with v = 1, shows both.


@functools.cache
def make_published_kernel(HEAD_DIM):
    """The kernel with the two bugs, to read and to run. Leave it as it is."""

    @cuda.jit
    def published_kernel(s, v, out, m_after, l_after, acc_after):
        row = cuda.grid(1)
        if row < s.shape[0]:
            acc = cuda.local.array(HEAD_DIM, float32)
            m_i = float32(-math.inf)
            l_i = float32(0.0)
            for d in range(HEAD_DIM):
                acc[d] = float32(0.0)
            for t in range(s.shape[1] // TILE):
                m_new = m_i
                for c in range(TILE):
                    m_new = max(m_new, s[row, t * TILE + c])
                alpha = math.exp(m_i - m_new)
                m_i = m_new
                l_i *= alpha
                for d in range(HEAD_DIM):
                    if t > 0:
                        acc[d] /= alpha
                for c in range(TILE):
                    p = math.exp(s[row, t * TILE + c] - m_i)
                    l_i += p
                    for d in range(HEAD_DIM):
                        acc[d] += p * v[t * TILE + c, d]
                m_after[row, t] = m_i
                l_after[row, t] = l_i
                for d in range(HEAD_DIM):
                    acc[d] /= l_i
                    acc_after[row, t, d] = acc[d]
            for d in range(HEAD_DIM):
                out[row, d] = acc[d] / l_i

    return published_kernel


@functools.cache
def make_kernel(HEAD_DIM):
    """The mended kernel."""

    @cuda.jit
    def kernel(s, v, out, m_after, l_after, acc_after):
        ### BEGIN SOLUTION
        row = cuda.grid(1)
        if row < s.shape[0]:
            acc = cuda.local.array(HEAD_DIM, float32)
            m_i = float32(-math.inf)
            l_i = float32(0.0)
            for d in range(HEAD_DIM):
                acc[d] = float32(0.0)
            for t in range(s.shape[1] // TILE):
                m_new = m_i
                for c in range(TILE):
                    m_new = max(m_new, s[row, t * TILE + c])
                alpha = math.exp(m_i - m_new)
                m_i = m_new
                l_i *= alpha
                for d in range(HEAD_DIM):
                    acc[d] *= alpha
                for c in range(TILE):
                    p = math.exp(s[row, t * TILE + c] - m_i)
                    l_i += p
                    for d in range(HEAD_DIM):
                        acc[d] += p * v[t * TILE + c, d]
                m_after[row, t] = m_i
                l_after[row, t] = l_i
                for d in range(HEAD_DIM):
                    acc_after[row, t, d] = acc[d]
            for d in range(HEAD_DIM):
                out[row, d] = acc[d] / l_i
        ### END SOLUTION

    return kernel
