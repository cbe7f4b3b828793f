"""Parts of mla_decode_mma and flash_decode_columns: the warps of a thread block divide columns.

A tile has 16 or 32 keys for 16 rows of queries, and out has up to 512 columns: too many for the
registers of one warp. `mla_decode_mma` says how 8 warps divide S and out. Tiles lie in shared
memory in panels of 64 columns, swizzled as ldmatrix reads them.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from numba import cuda, int32, uint32, uint64

from fa_numba.constants import ONE, ZERO
from fa_numba.on_cuda_cores.decode_problem import make_page_of
from fa_numba.ptx.cp_async import cp_async_16
from fa_numba.ptx.layouts import PANEL_COLS, ROW_BYTES
from fa_numba.ptx.ldmatrix import ldmatrix_x4, ldmatrix_x4_trans
from fa_numba.ptx.statement import global_address
from fa_numba.ptx.vectors import load_global_b32, load_shared_x4, store_shared_x4
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.decoding import BATCH, N_END, UNIT, N
from fa_numba.tensor_core.fragments import log_sum_exp, over_quad_sum
from fa_numba.tiling.block_sizes import ceil_div

WARPS, ROWS = 8, 16
THREADS = 32 * WARPS
CHUNK_BYTES = 16  # of a lane's copy, and of its part of 8 keys' scores
SCORE_BYTES = THREADS * CHUNK_BYTES  # parts of S of a tile


class Tiling(NamedTuple):
    """Keys of a tile, 16 or 32, and stages of the ring."""

    block_n: int
    stages: int


def tile_bytes(COLS, BLOCK_N):
    """Shared memory of a tile with rows of COLS 16-bit numbers."""
    return ceil_div(COLS, PANEL_COLS) * BLOCK_N * ROW_BYTES


class Columns(NamedTuple):
    """The work of a warp that has some columns of a product.

    Attributes
    ----------
    LANES : int
        Lanes that copy a row of a tile.
    Q_SHAPE, OUT_SHAPE, S_SHAPE : tuple of int
        Shapes of q_reg, acc and s.
    copy_row(tile, source, row, first)
        Start to copy every LANES-th 16 bytes of a row of the cache, from number `first` on, to row
        `row` of a tile.
    load_queries(q_reg, q, b, rows, part, lane)
        Load Q of rows lane // 4 and lane // 4 + 8, in the columns of the warp's pairs.
    k_row_of(warp, lane)
        The part of Q's columns that the warp multiplies, and this lane's row for ldmatrix in K.
    multiply_keys(s_part, k, q_reg, tile, part)
        A warp's part of S, of 8 keys: two sums, whose products need not wait for each other.
    store_scores(scores, s_part, tid)
        Store this part.
    load_scores(s, x, scores, scale, lane)
        Load all of S, times `scale`: warp w has stored keys 8 (w % KEYS_8) on, of part w // KEYS_8.
    add_values(acc, v, p, i, tile, warp, lane)
        out += P V, for the warp's columns of V, in keys 16 i to 16 i + 15.
    store_rows(out_partial, lse_partial, acc, m_i, l_i, unit, rows, warp, lane)
        Store out in the warp's columns, and lse.
    """

    LANES: int
    Q_SHAPE: tuple
    OUT_SHAPE: tuple
    S_SHAPE: tuple
    copy_row: Callable
    load_queries: Callable
    k_row_of: Callable
    multiply_keys: Callable
    store_scores: Callable
    load_scores: Callable
    add_values: Callable
    store_rows: Callable


@functools.cache
def make_places(PAGE_SIZE):
    """(page_of, place_of): where a row of the tile at `ahead` (`decoding`) lies in the cache.

    page_of(ahead, row, table, sizes) is the page of its key, or of a contiguous cache, whose
    PAGE_SIZE is 0, the sequence; place_of(ahead, row, table) the place in it. The key of a row past
    the end is the last one.
    """
    PAGED, page_and_offset = PAGE_SIZE > 0, make_page_of(max(1, PAGE_SIZE))

    @cuda.jit(device=True, forceinline=True)
    def key_of(ahead, row):
        return min(ahead[N] + row, ahead[N_END] - 1)

    @cuda.jit(device=True, forceinline=True)
    def page_of(ahead, row, table, sizes):
        if PAGED and ahead[UNIT] < sizes.num_units:
            block_table, page_args = table
            page, _ = page_and_offset(key_of(ahead, row), page_args)
            return int32(block_table[uint64(ahead[BATCH]), uint64(page)])
        return ahead[BATCH]

    @cuda.jit(device=True, forceinline=True)
    def place_of(ahead, row, table):
        n = key_of(ahead, row)
        if PAGED:
            _, n = page_and_offset(n, table[1])
        return n

    return page_of, place_of


@functools.cache
def make_columns(V_DIM, K_DIM, DTYPE, BLOCK_N):
    """`Columns` for tiles of BLOCK_N keys, 16 or 32, of K_DIM columns, and V_DIM columns of out."""
    mma = forward.mma_of(DTYPE)
    PANEL_BYTES = BLOCK_N * ROW_BYTES  # 64 columns of a tile
    KEYS_8 = BLOCK_N // 8
    PARTS = WARPS // KEYS_8  # of the columns of Q: 2 or 4
    PAIRS = ceil_div(K_DIM, 32)  # of products: an ldmatrix
    STEPS = ceil_div(PAIRS, PARTS)  # of a warp: pairs part, part + PARTS, ...
    EVEN = PAIRS % PARTS == 0
    PART_BYTES = PARTS // 2 * PANEL_BYTES  # from a pair of a warp to its next
    COLS_16 = ceil_div(V_DIM, 16)
    GROUPS = ceil_div(COLS_16, WARPS)  # 16 columns of out each
    WHOLE = COLS_16 == GROUPS * WARPS
    LANES = 32 // (BLOCK_N // WARPS)
    PIECES = ceil_div(4 * PAIRS, LANES)  # of a lane: chunks of 16 bytes of its row
    ROW_CHUNKS = K_DIM // 8
    Q_SHAPE, OUT_SHAPE, S_SHAPE = (STEPS, 2, 4), (2 * GROUPS, 4), (KEYS_8, 4)

    @cuda.jit(device=True, forceinline=True)
    def copy_row(tile, source, row, first):
        source += uint64(CHUNK_BYTES * first)
        tile += (first >> 3) * PANEL_BYTES + row * ROW_BYTES
        tile += ((first ^ row) & 7) * CHUNK_BYTES
        for i in range(PIECES):
            chunk = first + LANES * i
            if LANES * (i + 1) <= ROW_CHUNKS or chunk < 4 * PAIRS:
                there = LANES * (i + 1) <= ROW_CHUNKS or chunk < ROW_CHUNKS
                num_bytes = CHUNK_BYTES if there else 0  # zeros past the end of a row
                to = tile + (LANES // 8) * i * PANEL_BYTES
                cp_async_16(to, source + uint64(CHUNK_BYTES * LANES * i), num_bytes)

    @cuda.jit(device=True, forceinline=True)
    def load_queries(q_reg, q, b, rows, part, lane):
        for j in range(STEPS):
            for i in range(2):
                for r in range(4):
                    q_reg[j, i, r] = uint32(0)
        for h in range(2):
            m, head = rows[h]
            if m < q.shape[1]:
                source = global_address(q[b, m, head]) + uint64(4 * (lane & 3))
                for j in range(STEPS):
                    for i in range(2):
                        for half in range(2):
                            col = 32 * (PARTS * j + part) + 16 * i + 8 * half
                            if K_DIM % (32 * PARTS) == 0 or col < K_DIM:
                                x = load_global_b32(source + uint64(2 * col))
                                q_reg[j, i, 2 * half + h] = x

    @cuda.jit(device=True, forceinline=True)
    def k_row_of(warp, lane):
        part, key = warp // KEYS_8, 8 * (warp % KEYS_8) + (lane & 7)
        chunk = (4 * (part & 1) + (lane >> 3)) ^ (lane & 7)
        return part, (part >> 1) * PANEL_BYTES + key * ROW_BYTES + chunk * CHUNK_BYTES

    @cuda.jit(device=True, forceinline=True)
    def multiply_keys(s_part, k, q_reg, tile, part):
        for i in range(2):
            for r in range(4):
                s_part[i, r] = ZERO
        for j in range(STEPS):
            if EVEN or j + 1 < STEPS or PARTS * j + part < PAIRS:
                ldmatrix_x4(k, tile + j * PART_BYTES)
                for i in range(2):
                    mma(s_part[i], q_reg[j, i], k[i])

    @cuda.jit(device=True, forceinline=True)
    def store_scores(scores, s_part, tid):
        for r in range(4):
            s_part[0, r] += s_part[1, r]
        store_shared_x4(scores + CHUNK_BYTES * tid, s_part[0])

    @cuda.jit(device=True, forceinline=True)
    def load_scores(s, x, scores, scale, lane):
        for j in range(KEYS_8):
            for part in range(PARTS):
                load_shared_x4(x, scores + CHUNK_BYTES * (32 * (KEYS_8 * part + j) + lane))
                for r in range(4):
                    s[j, r] = x[r] if part == 0 else s[j, r] + x[r]
            for r in range(4):
                s[j, r] *= scale

    @cuda.jit(device=True, forceinline=True)
    def add_values(acc, v, p, i, tile, warp, lane):
        for j in range(GROUPS):
            group = GROUPS * warp + j
            if WHOLE or group < COLS_16:
                row = tile + (group >> 2) * PANEL_BYTES + 16 * i * ROW_BYTES
                chunk = (2 * (group & 3) + (lane >> 4)) ^ (lane & 7)
                ldmatrix_x4_trans(v, row + (lane & 15) * ROW_BYTES + chunk * CHUNK_BYTES)
                for half in range(2):
                    mma(acc[2 * j + half], p, v[half])

    @cuda.jit(device=True, forceinline=True)
    def store_rows(out_partial, lse_partial, acc, m_i, l_i, unit, rows, warp, lane):
        for h in range(2):
            m, head = rows[h]
            l = over_quad_sum(l_i[h])
            inverse = ONE / l if l > ZERO else ZERO
            if m < lse_partial.shape[3]:
                for j in range(2 * GROUPS):
                    for c in range(2):
                        d = 8 * (2 * GROUPS * warp + j) + 2 * (lane & 3) + c
                        if (WHOLE and V_DIM % 16 == 0) or d < V_DIM:
                            x = acc[j, 2 * h + c] * inverse  # out <- out / l_i           line 12
                            out_partial[unit.split, unit.b, m, head, uint64(d)] = x
                if warp == 0 and lane & 3 == 0:  # lse <- m_i + log l_i                   line 13
                    lse_partial[unit.split, unit.b, head, m] = log_sum_exp(m_i[h], l, ONE)

    functions = load_queries, k_row_of, multiply_keys, store_scores, load_scores, add_values
    return Columns(LANES, Q_SHAPE, OUT_SHAPE, S_SHAPE, copy_row, *functions, store_rows)
