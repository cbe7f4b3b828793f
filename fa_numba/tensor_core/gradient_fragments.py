"""Scores and gradients in registers: from Sᵀ and dPᵀ to P and dS, and gradients to HBM.

Arrays are those of `fragments`. Rows are keys and columns are BLOCK_M queries. Lines are those of
Algorithm 2 of FlashAttention-2, arXiv:2307.08691.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32, uint64

from fa_numba.constants import LOG2_E, ONE
from fa_numba.on_cuda_cores import run_time_masks
from fa_numba.on_cuda_cores.run_time_masks import UNREAD
from fa_numba.ptx.barriers import fence_async_proxy
from fa_numba.ptx.convert import exp2
from fa_numba.ptx.halves import low_bits
from fa_numba.ptx.layouts import PANEL_COLS, ROW_BYTES
from fa_numba.ptx.ldmatrix import stmatrix_x4
from fa_numba.ptx.statement import global_address, opaque
from fa_numba.ptx.tma import tma_store_4d, tma_store_commit
from fa_numba.ptx.vectors import load_shared_x2, store_global_b32
from fa_numba.tensor_core.fragments import (
    MASKED,
    fragment_function,
    make_cap_tile,
    make_store_float32_rows,
)

BLOCK_N = 128  # keys of a tile
CAPPED_MASKED = np.float32(-1e15)  # replaces MASKED where the square of a score must be a float32


class GradientFunctions(NamedTuple):
    """Functions for Sᵀ and dPᵀ.

    Attributes
    ----------
    mask(s, h, first_seen, lane)
        Hide the queries before column `first_seen` from the key of row h.
    exponentiate(s, lse_rows, scale, lane)
        s becomes P = 2^(scale s − lse), with lse to the base 2.
    differentiate(s, dp, delta_rows, p, ds, lane)
        Compute dS = P ∘ (dP − delta), and pack P and dS to 16 bits, as A of the next products. With
        CAPPED p is input, and s is P times the derivative of a capped score.
    store_ds(ds, rows, lane)
        Store 16 rows of dSᵀ, those of a warp, to shared memory, in the swizzle.
    """

    mask: Callable
    exponentiate: Callable
    differentiate: Callable
    store_ds: Callable


@functools.cache
def make_gradient_functions(BLOCK_M, pack, CAPPED=False):
    """`GradientFunctions` for scores of BLOCK_M columns."""
    M8, M16 = BLOCK_M // 8, BLOCK_M // 16
    PANEL_BYTES = BLOCK_N * ROW_BYTES  # of 64 queries
    HIDDEN = CAPPED_MASKED if CAPPED else MASKED

    @fragment_function()
    def mask(s, h, first_seen, lane):
        first = first_seen - 2 * (lane & 3)  # counted from this lane's first column
        for j in range(M8):
            for c in range(2):
                if 8 * j + c < first:
                    s[j, 2 * h + c] = HIDDEN

    @fragment_function()
    def exponentiate(s, lse_rows, scale, lane):
        lse = cuda.local.array(2, float32)
        for j in range(M8):
            load_shared_x2(lse, lse_rows + (lane & 3) * 8 + 32 * j)
            for h in range(2):
                for c in range(2):
                    s[j, 2 * h + c] = exp2(s[j, 2 * h + c] * scale - lse[c])

    @fragment_function()
    def differentiate(s, dp, delta_rows, p, ds, lane):
        delta = cuda.local.array(2, float32)
        for k in range(M16):
            for j in range(2):
                load_shared_x2(delta, delta_rows + (lane & 3) * 8 + 64 * k + 32 * j)
                for h in range(2):
                    p0, p1 = s[2 * k + j, 2 * h], s[2 * k + j, 2 * h + 1]
                    dp0, dp1 = dp[2 * k + j, 2 * h], dp[2 * k + j, 2 * h + 1]
                    if not CAPPED:
                        p[k, 2 * j + h] = pack(p0, p1)
                    ds[k, 2 * j + h] = pack(p0 * (dp0 - delta[0]), p1 * (dp1 - delta[1]))

    @fragment_function()
    def store_ds(ds, rows, lane):
        lane_row = rows + (lane & 15) * ROW_BYTES
        for k in range(M16):
            chunk = ((2 * k & 7) + (lane >> 4)) ^ (lane & 7)
            stmatrix_x4(lane_row + k // 4 * PANEL_BYTES + (chunk << 4), ds[k])

    return GradientFunctions(mask, exponentiate, differentiate, store_ds)


@functools.cache
def make_differentiate_packed(BLOCK_M, pack, unpack):
    """differentiate_packed(p, dp, delta_rows, ds, lane): dS = P ∘ (dP − delta), P in 16 bits."""

    @fragment_function()
    def differentiate_packed(p, dp, delta_rows, ds, lane):
        delta = cuda.local.array(2, float32)
        two = cuda.local.array(2, float32)
        for k in range(BLOCK_M // 16):
            for j in range(2):
                load_shared_x2(delta, delta_rows + (lane & 3) * 8 + 64 * k + 32 * j)
                for h in range(2):
                    unpack(two, p[k, 2 * j + h])
                    dp0, dp1 = dp[2 * k + j, 2 * h], dp[2 * k + j, 2 * h + 1]
                    x, y = two[0] * (dp0 - delta[0]), two[1] * (dp1 - delta[1])
                    ds[k, 2 * j + h] = pack(x, y)

    return differentiate_packed


class ScoreFunctions(NamedTuple):
    """Functions for Sᵀ with softcap, ALiBi and any mask.

    `position` is the index of this lane's first key among the queries (`masks`); the second key is
    eight further on. The columns begin at query m_start.

    Attributes
    ----------
    unit_of(scale, mask_args)
        Factor from s, after `cap`, to a power of 2.
    cap(s, scale, mask_args)
        Apply the softcap.
    mask_tile(s, m_start, position, seqlen_q, lane, mask_args)
        Set to MASKED the scores of queries that do not see the key, or that do not exist.
    exponentiate(s, p, lse_rows, m_start, position, slope, unit, lane)
        s becomes P = 2^(unit s − lse − slope' · distance), with lse to the base 2. With a softcap p
        becomes P in 16 bits, as A of a product, and s becomes P times the derivative of a capped
        score.
    """

    unit_of: Callable
    cap: Callable
    mask_tile: Callable
    exponentiate: Callable


@fragment_function()
def bits_before(limit):
    """Of the columns 0, 1, 8, 9, 16, 17, ..., one bit each, those below the limit, up to 32."""
    return low_bits(uint32(max(int32((limit >> 3) * 2 + min(limit & 7, 2)), int32(0))))


@functools.cache
def make_select(BLOCK_M):
    """select(s, h, first, end, hidden): row h keeps the columns from first to end, at most 128.

    A bit for each column, in the order of their tests: one instruction tests seven of them. Opaque:
    else the compiler would make comparisons of them again.
    """
    M8 = BLOCK_M // 8

    @fragment_function()
    def select(s, h, first, end, hidden):
        bits = uint32(opaque(bits_before(end) & ~bits_before(first)))
        for j in range(M8):
            for c in range(2):
                keep = bits & uint32(1 << (2 * j + c)) != uint32(0)
                s[j, 2 * h + c] = s[j, 2 * h + c] if keep else hidden

    return select


@functools.cache
def make_score_functions(BLOCK_M, CAUSAL, WINDOW, SOFTCAP, ALIBI, pack, BITS=False):
    """`ScoreFunctions` for scores of BLOCK_M columns: `fragments`' with a key for each row.

    With BITS the mask is a bit for each column; not with a left window.
    """
    M8 = BLOCK_M // 8
    CAPPED, HIDDEN = (True, CAPPED_MASKED) if SOFTCAP > 0 else (False, MASKED)
    left, right = WINDOW
    LEFT, ONE_SIDED = left >= 0, CAUSAL or right == 0
    bounds = run_time_masks.make_bounds_of_keys(CAUSAL, WINDOW)
    first_query, end_query = bounds.first_query, bounds.end_query
    mask, select = make_gradient_functions(BLOCK_M, pack, CAPPED).mask, make_select(BLOCK_M)
    cap_tile = make_cap_tile(BLOCK_M)
    units = run_time_masks.make_units(SOFTCAP)
    unit, angle_of = units.unit_of, units.angle_of

    @fragment_function()
    def unit_of(scale, mask_args=UNREAD):
        return unit(scale, mask_args)

    @fragment_function()
    def cap(s, scale, mask_args=UNREAD):
        if CAPPED:
            cap_tile(s, angle_of(scale, mask_args))

    @fragment_function()
    def mask_tile(s, m_start, position, seqlen_q, lane, mask_args=UNREAD):
        first_row = position - (lane >> 2)  # of the warp
        if BITS:
            if first_row + 16 > seqlen_q or first_query(first_row + 15, mask_args) > m_start:
                origin = int32(m_start + 2 * (lane & 3))
                for h in range(2):
                    row = position + 8 * h
                    first = int32(int32(first_query(row, mask_args)) - origin)
                    first = first if row < seqlen_q else int32(BLOCK_M + 8)
                    select(s, h, first, int32(BLOCK_M + 8), HIDDEN)
            return
        if first_row + 16 > seqlen_q or first_query(first_row + 15, mask_args) > m_start:
            for h in range(2):
                row = position + 8 * h
                first_seen = first_query(row, mask_args) - m_start
                mask(s, h, first_seen if row < seqlen_q else BLOCK_M + 8, lane)
        if LEFT and m_start + BLOCK_M > end_query(first_row, seqlen_q, mask_args):
            for h in range(2):
                end = end_query(position + 8 * h, seqlen_q, mask_args)
                end = end - m_start - 2 * (lane & 3)
                for j in range(M8):
                    for c in range(2):
                        if 8 * j + c >= end:
                            s[j, 2 * h + c] = HIDDEN

    @fragment_function()
    def exponentiate(s, p, lse_rows, m_start, position, slope, unit, lane):
        shift = cuda.local.array(2, float32)
        e = cuda.local.array(2, float32)
        first = m_start + 2 * (lane & 3) - position  # distance of this lane's first score
        for j in range(M8):
            load_shared_x2(shift, lse_rows + (lane & 3) * 8 + 32 * j)
            for h in range(2):
                for c in range(2):
                    x = s[j, 2 * h + c]
                    if ALIBI:
                        distance = float32(first - 8 * h) + float32(8 * j + c)
                        distance = distance if ONE_SIDED else abs(distance)
                        e[c] = exp2(x * unit - (shift[c] + slope * LOG2_E * distance))
                    else:
                        e[c] = exp2(x * unit - shift[c])
                    s[j, 2 * h + c] = e[c] * (ONE - x * x) if CAPPED else e[c]
                if CAPPED:
                    p[j // 2, 2 * (j & 1) + h] = pack(e[0], e[1])

    return ScoreFunctions(unit_of, cap, mask_tile, exponentiate)


@functools.cache
def make_store_gradient(HEAD_DIM, COLS, pack):
    """store_gradient(acc, x, b, row, head, first_col, lane, scale): rows `row` and `row` + 8 of x.

    acc, of COLS columns, times scale is stored to the columns of x from first_col on.
    """

    @fragment_function()
    def store_gradient(acc, x, b, row, head, first_col, lane, scale):
        for h in range(2):
            r = row + 8 * h
            if r < x.shape[1]:
                address = global_address(x[b, r, head]) + uint64(2 * first_col + 4 * (lane & 3))
                for j in range(COLS // 8):
                    if first_col + 8 * j < HEAD_DIM:
                        two = pack(acc[j, 2 * h] * scale, acc[j, 2 * h + 1] * scale)
                        store_global_b32(address + uint64(16 * j), two)

    return store_gradient


@functools.cache
def make_store_float32(HEAD_DIM):
    """The store_tile of `make_store_tile` for float32: it takes the array, not its map."""
    store_rows = make_store_float32_rows(HEAD_DIM)

    @fragment_function()
    def store_tile(acc, rows, x, n, seqlen_k, head, b, lane, scale):
        store_rows(acc, x, b, head, n, lane, scale, scale)

    return store_tile


@functools.cache
def make_store_tile(COLS, pack, FIRST_COL=0):
    """store_tile(acc, rows, x_map, n, seqlen_k, head, b, lane, scale): 16 rows of a warp, by TMA.

    Columns FIRST_COL to COLS − 1 of acc, times scale, go to rows n to n + 15 of the map's array,
    through shared memory at `rows`, the warp's part of a tile of BLOCK_N rows. The copy is in
    flight when the function returns.
    """
    PANEL_BYTES = BLOCK_N * ROW_BYTES

    @fragment_function()
    def store_tile(acc, rows, x_map, n, seqlen_k, head, b, lane, scale):
        fragment = cuda.local.array(4, uint32)
        lane_row = rows + (lane & 15) * ROW_BYTES
        for j in range(FIRST_COL // 16, COLS // 16):
            for i in range(2):
                for h in range(2):
                    x, y = acc[2 * j + i, 2 * h], acc[2 * j + i, 2 * h + 1]
                    fragment[2 * i + h] = pack(x * scale, y * scale)
            chunk = ((2 * j & 7) + (lane >> 4)) ^ (lane & 7)
            stmatrix_x4(
                lane_row + (j // 4 - FIRST_COL // 64) * PANEL_BYTES + (chunk << 4), fragment
            )
        fence_async_proxy()
        cuda.syncwarp()  # all rows are written: safe to copy
        if lane == 0:
            if n < seqlen_k:
                for panel in range((COLS - FIRST_COL + 63) // 64):
                    source = rows + panel * PANEL_BYTES
                    tma_store_4d(x_map, FIRST_COL + PANEL_COLS * panel, n, head, b, source)
            tma_store_commit()

    return store_tile
