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
        # YOUR CODE HERE
        raise NotImplementedError("ex07e: kernel")

    return kernel


# Stub ab984f1a of solutions/ex07e_published_update.py: `fa-numba reset ex07e` brings it back.
