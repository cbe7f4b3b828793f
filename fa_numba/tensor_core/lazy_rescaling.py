"""Lazy rescaling: an online softmax in registers that seldom rescales the sums of older tiles.

The online softmax is right for any m_i for which 2^(scale (s − m_i)) fits into 16 bits: out is
divided by l_i in the end, and lse is computed from m_i. So m_i may stay below the row's maximum by
up to LAZY powers of 2. The maximum seldom rises further. In all other tiles nothing is rescaled,
and the four lanes of a row need not exchange their maxima: the warp votes.

Arrays are those of `fragments`; `make_lazy_rescaling` has an axis of M_TILES times 16 rows in
front.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32

from fa_numba.constants import FULL_WARP, LOG2_E
from fa_numba.on_cuda_cores.run_time_masks import UNREAD, make_units
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
# The least softcap for which the polynomial of tanh also serves scores far below the maximum: there
# it falls faster than tanh, and the error of P is at most 2e-4.
LEAST_CAP = 10
NEGLIGIBLE = np.float32(40)  # powers of 2 below m_i: such a P is lost when float32 rounds the sum


class SoftmaxSteps(NamedTuple):
    """Device functions of `make_softmax_steps`."""

    raise_maximum: Any
    exponentiate: Any


class LargestScore(NamedTuple):
    """Device functions of `make_largest`."""

    largest: Any
    largest_bits: Any


@cuda.jit(device=True, forceinline=True)  # without fastmath: NaN must not be at most anything
def at_most(x, limit):
    """x <= limit; if x is below 0, only its sign is known."""
    return limit >= float32(0) and x <= limit


@functools.cache
def make_lazy_rescaling(M_TILES, BLOCK_N, OUT_COLS, OFFSET=False):
    """lazy_softmax(s, offset, m_i, l_i, acc, scale): the online softmax, acc's rescaling included.

    Replaces s by P = 2^(scale s − scale m_i) and adds P to l_i. If a row of the warp needs it,
    m_i rises, and l_i and acc are rescaled. With OFFSET the scores of row h of 16 rows i are
    s + offset[i, h]; without, offset is not read.
    """
    S8, OUT8 = BLOCK_N // 8, OUT_COLS // 8

    @fragment_function()
    def lazy_softmax(s, offset, m_i, l_i, acc, scale):
        largest = cuda.local.array((M_TILES, 2), float32)  # of this lane's scores
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
    """Functions for the largest score of a lane's row h.

    Returns
    -------
    LargestScore
        largest(s, h)
        largest_bits(s, h)
            The same in half the instructions if it is at least 0; otherwise some number below 0.
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
        x, y = s[0, 2 * h], s[1, 2 * h]  # two independent chains
        for j in range(0, S8, 2):
            x = max3_bits(x, s[j, 2 * h], s[j, 2 * h + 1])
            y = max3_bits(y, s[j + 1, 2 * h], s[j + 1, 2 * h + 1])
        return max3_bits(x, x, y)

    return LargestScore(largest, largest_bits)


@functools.cache
def make_softmax_steps(BLOCK_N, SOFTCAP=0.0, ALIBI=False):
    """The online softmax of a warp's 16 rows in two steps, for a kernel whose P V still runs.

    Softcap is applied inside the exponent: tanh is monotone, so the maximum is that of the uncapped
    scores. With ALIBI, `fragments.make_score_mod` has capped the scores already.

    Returns
    -------
    SoftmaxSteps
        raise_maximum(s, offset, m_i, l_i, alpha, scale, mask_args)
            Returns two flags, equal in the whole warp. The first: m_i has risen. Then l_i is
            rescaled to it, and the caller must multiply acc by alpha. The second: the scores are
            small enough for the polynomial of `fragments.make_cap_tile`. With ALIBI it says
            instead that all of P is below 2^−NEGLIGIBLE: the tile may be skipped.
        exponentiate(s, offset, m_i, l_i, small, scale, mask_args)
            Replaces s by P = 2^(score − m_i) and adds P to l_i. With ALIBI the scores of this
            lane's row h are s + offset[h]; without, offset is not read.
    """
    S8 = BLOCK_N // 8
    CAP_HERE = SOFTCAP > 0 and not ALIBI  # in the exponent
    POLYNOMIAL = SOFTCAP >= LEAST_CAP
    largest, largest_bits = make_largest(BLOCK_N)

    unit_of, angle_of, over_unit = make_units(SOFTCAP)

    @fragment_function()
    def below_one(x, angle):
        """(1 − tanh) / 2 of angle · x."""
        twice = angle * (float32(2) * LOG2_E)
        return float32(1) / (exp2(x * twice) + float32(1))

    @fragment_function()
    def raise_maximum(s, offset, m_i, l_i, alpha, scale, mask_args=UNREAD):
        top = cuda.local.array(2, float32)
        # the argument of tanh for s = 1
        to_angle = angle_of(scale, mask_args) if CAP_HERE else float32(1)
        unchanged, known, negligible = True, True, True
        for h in range(2):
            top[h] = largest_bits(s, h)
            known = known and top[h] >= float32(0)
            lazy = over_unit(LAZY, scale, mask_args)
            limit = (m_i[h] - offset[h] if ALIBI else m_i[h]) + lazy
            if CAP_HERE and POLYNOMIAL:
                limit = min(limit, SMALL) if m_i[h] >= float32(0) else MASKED
            if ALIBI:
                most = limit - over_unit(LAZY + NEGLIGIBLE, scale, mask_args)
                negligible = negligible and at_most(top[h], most)
            # tanh x is at most x
            unchanged = unchanged and max(top[h], float32(0)) * to_angle <= limit
        if cuda.all_sync(FULL_WARP, unchanged):
            return False, cuda.all_sync(FULL_WARP, negligible) if ALIBI else POLYNOMIAL
        if not cuda.all_sync(FULL_WARP, known):
            for h in range(2):
                top[h] = largest(s, h)
        small = True
        for h in range(2):
            x = over_quad_max(top[h] + offset[h] if ALIBI else top[h])
            if CAP_HERE:
                small = small and x * to_angle <= SMALL
                x = float32(1) - float32(2) * below_one(x, to_angle) if x > NO_KEY else NO_KEY
            m_new = max(m_i[h], x)
            small = small and m_new >= float32(0)
            alpha[h] = exp2((m_i[h] - m_new) * unit_of(scale, mask_args))
            m_i[h] = m_new
            l_i[h] *= alpha[h]
        if CAP_HERE and POLYNOMIAL:
            return True, cuda.all_sync(FULL_WARP, small)
        return True, False

    def make_powers(exponent):
        """Make the function that replaces each score by 2^exponent(score) and adds it to l_i.

        One formula serves all scores: a branch for each would cost more than the formula.
        """

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
        angle, unit = factors
        return float32(-2) * unit * below_one(x, angle) - shift if x > NO_KEY else MASKED

    @fragment_function()
    def exponentiate(s, offset, m_i, l_i, small, scale, mask_args=UNREAD):
        shift = cuda.local.array(2, float32)
        unit = unit_of(scale, mask_args)
        for h in range(2):
            shift[h] = (m_i[h] - offset[h] if ALIBI else m_i[h]) * unit
        if not CAP_HERE:
            straight(s, l_i, shift, (unit,))
        elif small:
            square = angle_of(scale, mask_args) * angle_of(scale, mask_args)
            factors = TANH[0] * scale, TANH[1] * scale * square, TANH[2] * scale * square * square
            by_polynomial(s, l_i, shift, factors)
        else:
            for h in range(2):
                shift[h] -= unit  # tanh = 1 − 2 · below_one
            by_tanh(s, l_i, shift, (angle_of(scale, mask_args), unit))

    return SoftmaxSteps(raise_maximum, exponentiate)
