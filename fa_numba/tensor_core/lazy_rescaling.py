"""Online softmax of scores in registers that seldom rescales what was summed before.

Any m_i will do, as long as 2^(scale (s − m_i)) fits into 16 bits: out and l_i are divided by each
other in the end, and lse counts from m_i. So once m_i is one of the row's scores it may stay below
the row's maximum by up to LAZY powers of 2. That the maximum rises further is rare; in all other
tiles nothing is rescaled, and the four lanes that share a row need not know of each other's scores:
the warp votes.

Arrays are those of `fragments`; for `make_lazy_softmax` with M_TILES times 16 rows in front.
"""

import functools

import numpy as np
from numba import cuda, float32

from fa_numba.constants import FULL_WARP, LOG2_E
from fa_numba.ptx.convert import exp2, max3_bits
from fa_numba.tensor_core.fragments import (
    MASKED,
    NO_KEY,
    SMALL,
    TANH,
    fragment_function,
    over_quad_max,
)

LAZY = np.float32(8)  # P up to 256
# A softcap from which on the polynomial of tanh will do for scores far below the maximum too: it
# falls faster than tanh, and what it is off, P is no more than 2e-4 off.
LEAST_CAP = 10
FADED = np.float32(40)  # powers of 2 below m_i, from which on P is no more than float32 rounds away


@cuda.jit(device=True, forceinline=True)  # without fastmath: NaN must not be at most anything
def at_most(x, limit):
    """x <= limit, where of an x below 0 the sign alone is known."""
    return limit >= float32(0) and x <= limit


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


@functools.cache
def make_largest(BLOCK_N):
    """The largest score of a lane's row h.

    Returns
    -------
    largest(s, h)
    largest_bits(s, h)
        The same in half the instructions, if it is not below 0; else something below 0.
    """
    S8 = BLOCK_N // 8

    @fragment_function()
    def largest(s, h):
        x = MASKED
        for j in range(S8):
            x = max(x, max(s[j, 2 * h], s[j, 2 * h + 1]))
        return x

    @fragment_function()
    def largest_bits(s, h):
        x, y = s[0, 2 * h], s[1, 2 * h]  # two, so that one need not wait for the other
        for j in range(0, S8, 2):
            x = max3_bits(x, s[j, 2 * h], s[j, 2 * h + 1])
            y = max3_bits(y, s[j + 1, 2 * h], s[j + 1, 2 * h + 1])
        return max3_bits(x, x, y)

    return largest, largest_bits


@functools.cache
def make_lazy_softmax_parts(BLOCK_N, SOFTCAP=0.0, ALIBI=False):
    """The online softmax of a warp's 16 rows in two parts, for a kernel whose P V still runs.

    The exponents take softcap in: tanh is monotone, so the maximum is taken of the scores as they
    are. Only with ALIBI too `make_bend_tile` has capped them before.

    Returns
    -------
    raise_maximum(s, offset, m_i, l_i, alpha, scale)
        Has m_i risen? Then l_i is brought to it, and acc must be, by alpha. And: are the scores
        small enough for the polynomial of `make_cap_tile`? Both are the same for the whole warp.
        With ALIBI the second says instead whether all of P is below 2^−FADED: such a tile
        may be left out.
    exponentiate(s, offset, m_i, l_i, small, scale)
        s becomes P = 2^(score − m_i), and l_i takes it in. With ALIBI the scores of this lane's
        row h are s + offset[h]; without, offset is not looked at.
    """
    S8 = BLOCK_N // 8
    CAPPED, UNIT, TWICE = SOFTCAP > 0, *np.float32([SOFTCAP * LOG2_E, 2 * SOFTCAP * LOG2_E])
    BENT = CAPPED and not ALIBI
    POLYNOMIAL = SOFTCAP >= LEAST_CAP
    largest, largest_bits = make_largest(BLOCK_N)

    @fragment_function()
    def unit_of(scale):
        return UNIT if CAPPED else scale

    @fragment_function()
    def lacking(x, scale):
        """How far tanh is below 1, half of it."""
        twice = scale / UNIT * (float32(2) * LOG2_E)
        return float32(1) / (exp2(x * twice) + float32(1))

    @fragment_function()
    def raise_maximum(s, offset, m_i, l_i, alpha, scale):
        top = cuda.local.array(2, float32)
        to_angle = scale / UNIT if BENT else float32(1)  # what tanh is taken of
        stays, known, faded = True, True, True
        for h in range(2):
            top[h] = largest_bits(s, h)
            known = known and top[h] >= float32(0)
            limit = (m_i[h] - offset[h] if ALIBI else m_i[h]) + LAZY / unit_of(scale)
            if BENT and POLYNOMIAL:
                limit = min(limit, SMALL) if m_i[h] >= float32(0) else MASKED
            if ALIBI:
                faded = faded and at_most(top[h], limit - (LAZY + FADED) / unit_of(scale))
            stays = stays and max(top[h], float32(0)) * to_angle <= limit  # tanh x is at most x
        if cuda.all_sync(FULL_WARP, stays):
            return False, cuda.all_sync(FULL_WARP, faded) if ALIBI else POLYNOMIAL
        if not cuda.all_sync(FULL_WARP, known):
            for h in range(2):
                top[h] = largest(s, h)
        small = True
        for h in range(2):
            x = over_quad_max(top[h] + offset[h] if ALIBI else top[h])
            if BENT:
                small = small and x * to_angle <= SMALL
                x = float32(1) - float32(2) * lacking(x, scale) if x > NO_KEY else NO_KEY
            m_new = max(m_i[h], x)
            small = small and m_new >= float32(0)
            alpha[h] = exp2((m_i[h] - m_new) * unit_of(scale))
            m_i[h] = m_new
            l_i[h] *= alpha[h]
        if BENT and POLYNOMIAL:
            return True, cuda.all_sync(FULL_WARP, small)
        return True, False

    def make_powers(exponent):
        """All of s by one formula: a branch for each score would cost more than the formula."""

        @fragment_function()
        def powers(s, l_i, shift, factors):
            for h in range(2):
                l_ij = float32(0)
                for j in range(S8):
                    for c in range(2):
                        p = exp2(exponent(s[j, 2 * h + c], shift[h], factors))
                        s[j, 2 * h + c] = p
                        l_ij += p
                l_i[h] += l_ij

        return powers

    @make_powers
    @fragment_function()
    def straight(x, shift, factors):
        return x * factors[0] - shift  # one multiply-add

    @make_powers
    @fragment_function()
    def by_polynomial(x, shift, factors):
        t0, t1, t2 = factors
        square = x * x
        return x * (t0 + square * (t1 + square * t2)) - shift

    @make_powers
    @fragment_function()
    def by_tanh(x, shift, factors):
        return -TWICE * lacking(x, factors[0]) - shift if x > NO_KEY else MASKED

    @fragment_function()
    def exponentiate(s, offset, m_i, l_i, small, scale):
        shift = cuda.local.array(2, float32)
        for h in range(2):
            shift[h] = (m_i[h] - offset[h] if ALIBI else m_i[h]) * unit_of(scale)
        if not BENT:
            straight(s, l_i, shift, (unit_of(scale),))
        elif small:
            square = (scale / UNIT) * (scale / UNIT)
            factors = TANH[0] * scale, TANH[1] * scale * square, TANH[2] * scale * square * square
            by_polynomial(s, l_i, shift, factors)
        else:
            for h in range(2):
                shift[h] -= UNIT  # of 1, which tanh lacks something of
            by_tanh(s, l_i, shift, (scale,))

    return raise_maximum, exponentiate
