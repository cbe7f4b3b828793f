"""Online softmax of scores in registers that seldom rescales what was summed before.

Any m_i will do, as long as 2^(scale (s − m_i)) fits into 16 bits: out and l_i are divided by each
other in the end, and lse counts from m_i. So once m_i is one of the row's scores it may stay below
the row's maximum by up to LAZY powers of 2. That the maximum rises further is rare; in all other
tiles nothing is rescaled, and the four lanes that share a row need not know of each other's scores:
the warp votes.

Arrays are those of `fragments`, with M_TILES times 16 rows in front.
"""

import functools

import numpy as np
from numba import cuda, float32

from fa_numba.tensor_core.convert import exp2
from fa_numba.tensor_core.fragments import FULL_WARP, fragment_function, over_quad_max

LAZY = np.float32(8)  # P up to 256


@functools.cache
def make_lazy_softmax(M_TILES, BLOCK_N, OUT_COLS, OFFSET=False):
    """lazy_softmax(s, offset, m_i, l_i, acc, scale): the online softmax, and acc rescaled.

    s becomes P = 2^(scale s − scale m_i), and l_i takes it in; m_i, l_i and acc are brought to new
    maxima where a row of the warp needs it. With OFFSET the scores of row h of 16 rows i are
    s + offset[i, h]; without, offset is not looked at.
    """
    S8, OUT8 = BLOCK_N // 8, OUT_COLS // 8

    @fragment_function()
    def lazy_softmax(s, offset, m_i, l_i, acc, scale):
        largest = cuda.local.array((M_TILES, 2), float32)  # that this lane has seen
        alpha = cuda.local.array(2, float32)
        rise = float32(0)
        for i in range(M_TILES):
            for h in range(2):
                most = m_i[i, h] - offset[i, h] if OFFSET else m_i[i, h]
                for j in range(S8):
                    most = max(most, max(s[i, j, 2 * h], s[i, j, 2 * h + 1]))
                largest[i, h] = most + offset[i, h] if OFFSET else most
                rise = max(rise, largest[i, h] - m_i[i, h])
        if cuda.any_sync(FULL_WARP, rise * scale > LAZY):
            for i in range(M_TILES):
                for h in range(2):
                    m_new = over_quad_max(largest[i, h])
                    alpha[h] = exp2((m_i[i, h] - m_new) * scale)
                    m_i[i, h] = m_new
                    l_i[i, h] *= alpha[h]
                for j in range(OUT8):
                    for r in range(4):
                        acc[i, j, r] *= alpha[r >> 1]
        for i in range(M_TILES):
            for h in range(2):
                shift = (m_i[i, h] - offset[i, h] if OFFSET else m_i[i, h]) * scale
                l_ij = float32(0)
                for j in range(S8):
                    for c in range(2):
                        p = exp2(s[i, j, 2 * h + c] * scale - shift)  # one multiply-add, one exp2
                        s[i, j, 2 * h + c] = p
                        l_ij += p
                l_i[i, h] += l_ij

    return lazy_softmax
