"""Softmax, masks and stores of scores and out in registers, in the layout of a tensor core.

Scores and out are local arrays of shape (columns / 8, 4), the accumulator fragments of mma and
wgmma. Of each 8 columns a thread holds two neighbours, in two rows, h = 0 and 1, eight apart:

    x[j, 2 h + c]    row lane // 4 + 8 h, column 8 j + 2 (lane % 4) + c

So four lanes, a quad, hold a row, and a row's maximum needs two shuffles. mma and wgmma share this
layout, so the functions serve both. All loops have constant bounds: once they are unrolled, the
arrays are registers. Line numbers are those of FlashAttention-2, Algorithm 1, arXiv:2307.08691.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32, uint64

from fa_numba.constants import FULL_WARP, LN2, LOG2_E, NEG_INF
from fa_numba.expressions.functions import TANH
from fa_numba.on_cuda_cores import run_time_masks
from fa_numba.on_cuda_cores.run_time_masks import UNREAD
from fa_numba.ptx.barriers import fence_async_proxy
from fa_numba.ptx.convert import exp2
from fa_numba.ptx.layouts import PANEL_COLS, ROW_BYTES
from fa_numba.ptx.ldmatrix import stmatrix_x4
from fa_numba.ptx.statement import global_address
from fa_numba.ptx.tma import tma_store_4d, tma_store_commit, tma_store_wait_read
from fa_numba.ptx.vectors import store_global_b32

# A score far below any real one. −inf is no choice: under fastmath the compiler assumes that there
# is none.
MASKED = np.float32(-2e30)
NO_KEY = np.float32(-1e30)  # m_i before the first key: 2^(MASKED − NO_KEY) is 0
SMALL = np.float32(0.4)

fragment_function = functools.partial(cuda.jit, device=True, forceinline=True, fastmath=True)


class FragmentFunctions(NamedTuple):
    """Device functions of `make_fragment_functions`."""

    clear: Any
    mask: Any
    online_softmax: Any
    rescale: Any
    pack_p: Any


class ScoreMod(NamedTuple):
    """Device functions of `make_score_mod`."""

    exponent_scale_of: Any
    modify_scores: Any


class TileStores(NamedTuple):
    """Device functions of `make_store_tile`."""

    finish_rows: Any
    store_tile: Any


@fragment_function()
def over_quad_max(x):
    """Maximum over the four lanes that share a row."""
    x = max(x, cuda.shfl_xor_sync(FULL_WARP, x, 1))
    return max(x, cuda.shfl_xor_sync(FULL_WARP, x, 2))


@fragment_function()
def over_quad_sum(x):
    """Sum over the four lanes that share a row."""
    x += cuda.shfl_xor_sync(FULL_WARP, x, 1)
    return x + cuda.shfl_xor_sync(FULL_WARP, x, 2)


@functools.cache
def make_fragment_functions(BLOCK_N, OUT_COLS, pack):
    """Functions for scores of BLOCK_N columns, and an out of OUT_COLS.

    Returns
    -------
    FragmentFunctions
        clear(acc, m_i, l_i)
            Sets the state before the first key.
        mask(s, h, num_seen, lane)
            Row h sees the first `num_seen` columns; sets the others to MASKED.
        online_softmax(s, m_i, l_i, alpha, scale)
            Replaces s by P = 2^(scale s − scale m_i), and updates m_i and l_i. The factor `alpha`
            rescales older sums to the new m_i. l_i is this lane's part of the sum.
        rescale(acc, alpha)
            Multiplies row h of acc by alpha[h].
        pack_p(s, p)
            Packs P in 16 bits as A of the next product: p of shape (BLOCK_N / 16, 4).
    """
    S8, OUT8, P16 = BLOCK_N // 8, OUT_COLS // 8, BLOCK_N // 16

    @fragment_function()
    def clear(acc, m_i, l_i):
        for j in range(OUT8):
            for r in range(4):
                acc[j, r] = float32(0)
        for h in range(2):
            m_i[h] = NO_KEY
            l_i[h] = float32(0)

    @fragment_function()
    def mask(s, h, num_seen, lane):
        first_unseen = num_seen - 2 * (lane & 3)  # counted from this lane's first column
        for j in range(S8):
            for c in range(2):
                if 8 * j + c >= first_unseen:
                    s[j, 2 * h + c] = MASKED

    @fragment_function()
    def online_softmax(s, m_i, l_i, alpha, scale):
        for h in range(2):
            m_new = m_i[h]
            for j in range(S8):
                m_new = max(m_new, max(s[j, 2 * h], s[j, 2 * h + 1]))
            m_new = over_quad_max(m_new)
            alpha[h] = exp2((m_i[h] - m_new) * scale)
            m_i[h] = m_new
            shift = m_new * scale
            l_ij = float32(0)
            for j in range(S8):
                for c in range(2):
                    p = exp2(s[j, 2 * h + c] * scale - shift)  # one multiply-add, one exp2
                    s[j, 2 * h + c] = p
                    l_ij += p
            l_i[h] = alpha[h] * l_i[h] + l_ij

    @fragment_function()
    def rescale(acc, alpha):
        for j in range(OUT8):
            for h in range(2):
                for c in range(2):
                    acc[j, 2 * h + c] *= alpha[h]

    @fragment_function()
    def pack_p(s, p):
        for k in range(P16):
            for j in range(2):  # the left eight of 16 columns are the left half of A
                for h in range(2):
                    p[k, 2 * j + h] = pack(s[2 * k + j, 2 * h], s[2 * k + j, 2 * h + 1])

    return FragmentFunctions(clear, mask, online_softmax, rescale, pack_p)


@functools.cache
def make_mask_tile(BLOCK_N, CAUSAL, WINDOW):
    """mask_tile(s, n_start, position, seqlen_k, lane, mask_args): set unseen scores to MASKED.

    s is a warp's 16 rows of scores, whose first column is key n_start; `position` is the position
    of this lane's first row among the keys (`masks`). A tile that all rows of the warp see whole
    costs two comparisons. Bounds are int32: a 64-bit comparison takes two instructions.
    """
    S8 = BLOCK_N // 8
    LEFT = WINDOW[0] >= 0
    bounds = run_time_masks.make_bounds(CAUSAL, WINDOW)
    first_key, end_key = bounds.first_key, bounds.end_key

    @fragment_function()
    def mask_tile(s, n_start, position, seqlen_k, lane, mask_args=UNREAD):
        first_row = position - (lane >> 2)  # the warp's
        n_end = n_start + BLOCK_N
        if n_end > end_key(first_row, seqlen_k, mask_args):
            for h in range(2):
                end = end_key(position + 8 * h, seqlen_k, mask_args)
                end = int32(end - n_start - 2 * (lane & 3))
                for j in range(S8):
                    for c in range(2):
                        if 8 * j + c >= end:
                            s[j, 2 * h + c] = MASKED
        if LEFT and n_start < first_key(first_row + 15, mask_args):
            for h in range(2):
                first = first_key(position + 8 * h, mask_args)
                first = int32(first - n_start - 2 * (lane & 3))
                for j in range(S8):
                    for c in range(2):
                        if 8 * j + c < first:
                            s[j, 2 * h + c] = MASKED

    return mask_tile


@functools.cache
def make_score_mod(BLOCK_N, CAUSAL, WINDOW, SOFTCAP, ALIBI):
    """score_mod: softcap and ALiBi change the scores of a tile before they are masked.

    The tensor cores give s = q·k; scale = softmax_scale · log2 e is applied inside exp2. Softcap
    and ALiBi change s first, and then a different factor, exponent_scale, applies.

    Returns
    -------
    ScoreMod
        exponent_scale_of(scale, mask_args)
            Returns the scale of the softmax after score_mod: P = exp2((s − m_i) · exponent_scale).
        modify_scores(s, offset, n_start, position, slope, scale, lane, mask_args)
            Modifies a warp's 16 rows of scores, whose first column is key n_start. `position` is
            the position of this lane's first row among the keys (`masks`), `slope` the head's
            ALiBi slope. Afterwards the score in this lane's row h is (s + offset[h]) ·
            exponent_scale;
            without ALIBI offset is not written.
    """
    S8 = BLOCK_N // 8
    CAPPED = SOFTCAP > 0
    unit_of, angle_of, over_unit = run_time_masks.make_units(SOFTCAP)
    _, after = WINDOW
    ONE_SIDED = CAUSAL or after == 0  # no key beyond the position is seen
    cap_tile = make_cap_tile(BLOCK_N)

    @fragment_function()
    def exponent_scale_of(scale, mask_args=UNREAD):
        return unit_of(scale, mask_args)

    @fragment_function()
    def modify_scores(s, offset, n_start, position, slope, scale, lane, mask_args=UNREAD):
        if CAPPED:
            cap_tile(s, angle_of(scale, mask_args))
        if ALIBI:
            slope *= over_unit(LOG2_E, scale, mask_args)
            first = position - (lane >> 2) - n_start  # distance of the warp's first row
            if ONE_SIDED or first >= BLOCK_N - 1 or first + 15 <= 0:  # all keys on one side
                toward = slope if ONE_SIDED or first > 0 else -slope
                for h in range(2):
                    offset[h] = -toward * float32(position + 8 * h - n_start - 2 * (lane & 3))
                    for j in range(S8):
                        for c in range(2):  # fma: separate products would stay in registers
                            x = s[j, 2 * h + c]
                            s[j, 2 * h + c] = cuda.fma(toward, float32(8 * j + c), x)
            else:
                for h in range(2):
                    offset[h] = float32(0)
                    distance = float32(position + 8 * h - n_start - 2 * (lane & 3))
                    for j in range(S8):
                        for c in range(2):
                            s[j, 2 * h + c] -= slope * abs(distance - float32(8 * j + c))

    return ScoreMod(exponent_scale_of, modify_scores)


@functools.cache
def make_cap_tile(BLOCK_N):
    """cap_tile(s, scale): s <- tanh(scale s).

    A tanh takes two instructions of the special function unit, which already computes the
    exponentials. So a warp whose scores are all small (|scale s| <= SMALL) evaluates a polynomial,
    with a relative error of 6e-6; other warps compute 1 − 2 / (e^(2 x) + 1).
    """
    S8 = BLOCK_N // 8

    @fragment_function()
    def cap_tile(s, scale):
        largest = float32(0)
        for j in range(S8):
            for r in range(4):
                largest = max(largest, abs(s[j, r]))
        if cuda.all_sync(FULL_WARP, largest * scale <= SMALL):
            square = scale * scale
            t0 = TANH[0] * scale
            t1, t2 = TANH[1] * scale * square, TANH[2] * scale * square * square
            for j in range(S8):
                for r in range(4):
                    x = s[j, r] * s[j, r]
                    s[j, r] *= t0 + x * (t1 + x * t2)
        else:
            scale *= float32(2) * LOG2_E
            for j in range(S8):
                for r in range(4):
                    s[j, r] = float32(1) - float32(2) / (exp2(s[j, r] * scale) + float32(1))

    return cap_tile


@functools.cache
def make_store_row(HEAD_DIM, pack):
    """store_row(acc, h, inverse, row, lane): store acc's row h, times `inverse`, to a row in HBM.

    A quad stores 16 bytes, 8 columns of a row, at a time; HEAD_DIM is a multiple of 8.
    """

    @fragment_function()
    def store_row(acc, h, inverse, row, lane):
        address = global_address(row) + uint64((lane & 3) * 4)
        for j in range(HEAD_DIM // 8):
            two = pack(acc[j, 2 * h] * inverse, acc[j, 2 * h + 1] * inverse)
            store_global_b32(address + uint64(16 * j), two)

    return store_row


@functools.cache
def make_store_rows(HEAD_DIM, pack):
    """store_rows(acc, m_i, l_i, out, lse, b, m, head, lane, scale): store rows m and m + 8.

    HEAD_DIM is a multiple of 8.
    """
    store_row = make_store_row(HEAD_DIM, pack)

    @fragment_function()
    def store_rows(acc, m_i, l_i, out, lse, b, m, head, lane, scale):
        for h in range(2):
            l = over_quad_sum(l_i[h])
            inverse = float32(1) / l if l > float32(0) else float32(0)
            row = m + 8 * h
            if row < out.shape[1]:
                store_row(acc, h, inverse, out[b, row, head], lane)  # out <- out / l_i   line 12
                if lane & 3 == 0:  # lse <- m_i + log l_i, from powers of 2             line 13
                    lse[b, head, row] = log_sum_exp(m_i[h], l, scale)

    return store_rows


@functools.cache
def make_store_tile(HEAD_DIM, pack, FIRST_COL=0):
    """Functions that store a warp's 16 rows, from row m on, in two steps.

    acc has HEAD_DIM columns, which go to those from FIRST_COL on.

    Returns
    -------
    TileStores
        finish_rows(m_i, l_i, inverse, lse, b, head, m, lane, scale)
            Stores lse; sets `inverse` to 1 / l_i, by which acc must be multiplied.
        store_tile(acc, inverse, rows, out_map, m, seqlen_q, head, b, lane)
            Stores out by TMA, through shared memory at `rows`, the warp's part of a tile of 64
            rows. The copy is in flight when the function returns.
    """
    COLS16, PANELS = (HEAD_DIM + 15) // 16, (HEAD_DIM + 63) // 64
    PANEL_BYTES = 64 * ROW_BYTES

    @fragment_function()
    def finish_rows(m_i, l_i, inverse, lse, b, head, m, lane, scale):
        for h in range(2):
            l = over_quad_sum(l_i[h])
            inverse[h] = float32(1) / l if l > float32(0) else float32(0)
            row = m + (lane >> 2) + 8 * h
            if row < lse.shape[2] and lane & 3 == 0:  # lse <- m_i + log l_i              line 13
                lse[b, head, row] = log_sum_exp(m_i[h], l, scale)

    @fragment_function()
    def store_tile(acc, inverse, rows, out_map, m, seqlen_q, head, b, lane):
        fragment = cuda.local.array(4, uint32)
        if lane == 0:
            tma_store_wait_read(0)
        cuda.syncwarp()  # TMA has read the last rows: safe to overwrite
        # Lanes 0 to 15 address the left, 16 to 31 the right 8 of 16 columns: the order of A.
        lane_row = rows + (lane & 15) * ROW_BYTES
        for j in range(COLS16):  # out <- out / l_i                                     line 12
            for i in range(2):
                for h in range(2):
                    x, y = acc[2 * j + i, 2 * h], acc[2 * j + i, 2 * h + 1]
                    fragment[2 * i + h] = pack(x * inverse[h], y * inverse[h])
            chunk = ((2 * j & 7) + (lane >> 4)) ^ (lane & 7)
            stmatrix_x4(lane_row + j // 4 * PANEL_BYTES + (chunk << 4), fragment)
        fence_async_proxy()
        cuda.syncwarp()  # all rows are written: safe to copy
        if lane == 0:
            if m < seqlen_q:
                for panel in range(PANELS):
                    source = rows + panel * PANEL_BYTES
                    tma_store_4d(out_map, FIRST_COL + PANEL_COLS * panel, m, head, b, source)
            tma_store_commit()

    return TileStores(finish_rows, store_tile)


@functools.cache
def make_store_float32_rows(HEAD_DIM):
    """store_rows(acc, x, b, head, m, lane, upper, lower): a warp's 16 rows, in float32.

    acc goes to rows m to m + 15 of a head of x, a float32 array of shape (batch, seqlen, heads,
    HEAD_DIM), without a way through shared memory. The rows m to m + 7 are multiplied by `upper`,
    the others by `lower`. HEAD_DIM is a multiple of 8.
    """

    @fragment_function()
    def store_rows(acc, x, b, head, m, lane, upper, lower):
        for h in range(2):
            row = int32(m + (lane >> 2) + 8 * h)
            scale = upper if h == 0 else lower
            if row < x.shape[1]:
                row_of_x = x[b, row, head]
                col = uint64(2 * (lane & 3))
                for j in range(HEAD_DIM // 8):
                    for c in range(2):
                        row_of_x[col + uint64(8 * j + c)] = acc[j, 2 * h + c] * scale

    return store_rows


@functools.cache
def make_store_float32(HEAD_DIM):
    """The store_tile of `make_store_tile` for an out of float32, which takes out, not its map."""
    store_rows = make_store_float32_rows(HEAD_DIM)

    @fragment_function()
    def store_tile(acc, inverse, rows, out, m, seqlen_q, head, b, lane):
        store_rows(acc, out, b, head, m, lane, inverse[0], inverse[1])

    return store_tile


@fragment_function()
def log_sum_exp(m_i, l_i, scale):
    """The natural logarithm of l_i · 2^(scale m_i); −inf where l_i is 0."""
    if l_i > float32(0):
        return (m_i * scale + math.log2(l_i)) * LN2
    return NEG_INF
