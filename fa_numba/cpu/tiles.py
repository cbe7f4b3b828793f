"""Tiles in a CPU's caches: how rows become a tile, and the product of two tiles.

A tile is part of a flat float32 array, the workspace of one thread. Its rows are copied from q, k
or v, whatever their dtype and strides, so that all that follows reads float32 side by side. A copy
costs one load and one store for every LANES numbers, the two products that read the tile
2 · BLOCK_M / LANES multiply-adds: some 3 %.

All five products of attention are one function. C = A B takes A number by number and B vector by
vector: rows of C lie across registers, its columns along them. A may be read by rows or by columns
(a_row, a_step), and so is never transposed.

BLOCK_M = BLOCK_N = 64: a tile of scores is 16 KB, half of the panel of Q beside it 8 KB at
head_dim 64, and both stay in an L1 cache of 32 or 48 KB while K and V go by; the tiles of K and V,
16 KB each, come from L2. A row of a tile is ROW numbers long, 33 cache lines: an odd number, so
that the rows do not fall into the same few sets of the cache.
"""

import numpy as np

from fa_numba.constants import ZERO
from fa_numba.cpu import vectors
from fa_numba.cpu.vectors import (
    COLUMNS,
    E4M3,
    FLOAT16,
    FLOAT32,
    LANES,
    ROWS,
    inner,
    load,
    rank_one_update,
    store,
)

BLOCK_M = 128  # queries
BLOCK_N = 64  # keys
MAX_HEAD_DIM = 512
LONGEST_SUM = MAX_HEAD_DIM // 2  # terms that are added one after the other
ROW = MAX_HEAD_DIM + 16  # numbers from one row of a tile to the next
WIDTH = COLUMNS * LANES  # numbers in a row of accumulators
CACHE_LINE = 64  # bytes


@inner(forceinline=True)
def round_up(x, multiple):
    return (x + multiple - 1) // multiple * multiple


@inner(forceinline=True)
def aligned(workspace):
    """Index of the first number that begins a cache line."""
    return (-vectors.address_of(workspace) % CACHE_LINE) // 4


@inner
def pack(address, row_bytes, num_rows, rows, kind, head_dim, width, tile, start):
    """Copy rows to a tile, as float32, with zeros to its right and below.

    Parameters
    ----------
    address, row_bytes : int
        Of the first row, and from one row to the next.
    num_rows, rows : int
        That there are, and that are written.
    kind : FLOAT32, FLOAT16, BFLOAT16 or E4M3
    head_dim, width : int
        Numbers in a row that there are, and that are written.
    tile, start : float32 array, int
    """
    whole = head_dim // LANES * LANES
    for r in range(num_rows):
        source, to = address + r * row_bytes, start + r * ROW
        if kind == FLOAT32:
            for d in range(0, whole, LANES):
                store(tile, to + d, vectors.read_float32(source + 4 * d))
        elif kind == FLOAT16:
            for d in range(0, whole, LANES):
                store(tile, to + d, vectors.read_float16(source + 2 * d))
        elif kind == E4M3:
            for d in range(0, whole, LANES):
                store(tile, to + d, vectors.read_e4m3(source + d))
        else:
            for d in range(0, whole, LANES):
                store(tile, to + d, vectors.read_bfloat16(source + 2 * d))
        if whole < width:
            pack_tail(source, kind, whole, head_dim, width, tile, to)
    for r in range(num_rows, rows):
        for d in range(width):
            tile[start + r * ROW + d] = ZERO


@inner
def pack_tail(source, kind, whole, head_dim, width, tile, to):
    """Copy the numbers after the last whole vector of a row, then fill with zeros."""
    for d in range(whole, head_dim):
        if kind == FLOAT32:
            tile[to + d] = vectors.read_one_float32(source + 4 * d)
        elif kind == FLOAT16:
            tile[to + d] = vectors.read_one_float16(source + 2 * d)
        elif kind == E4M3:
            tile[to + d] = vectors.read_one_e4m3(source + d)
        else:
            tile[to + d] = vectors.read_one_bfloat16(source + 2 * d)
    for d in range(head_dim, width):
        tile[to + d] = ZERO


@inner
def pack_keys(x, b, head, n, num_keys, first, table, page_size, kind, head_dim, width, w, start):
    """Keys n to n + num_keys − 1 of a sequence, or their values, to a tile.

    Parameters
    ----------
    x : (address, batch_bytes, row_bytes, head_bytes)
        K or V; of a paged cache the bytes of a page, a token and a head.
    b, head, n, num_keys : int
    first : int
        The sequence's first key among the rows of x.
    table, page_size : int32 array of shape (batch, max_pages), int
        As for `forward.forward`.
    kind, head_dim, width : int
        As for `pack`.
    w, start : float32 array, int
        Where the tile begins.
    """
    address, batch_bytes, row_bytes, head_bytes = x
    rows = round_up(num_keys, ROWS)
    address += head * head_bytes
    if page_size == 0:
        address += b * batch_bytes + (first + n) * row_bytes
        pack(address, row_bytes, num_keys, rows, kind, head_dim, width, w, start)
        return
    done = 0
    while done < num_keys:
        slot = (n + done) % page_size
        page = np.int64(table[b, (n + done) // page_size])
        part = min(page_size - slot, num_keys - done)
        padded = part if done + part < num_keys else rows - done
        source = address + page * batch_bytes + slot * row_bytes
        to = start + done * ROW
        pack(source, row_bytes, part, padded, kind, head_dim, width, w, to)
        done += part


@inner
def unpack(tile, start, row, num_rows, kind, head_dim, address, row_bytes):
    """Round rows that are `row` numbers apart to a dtype, and write them to an address."""
    whole = head_dim // LANES * LANES
    for r in range(num_rows):
        source, to = start + r * row, address + r * row_bytes
        if kind == FLOAT32:
            for d in range(0, whole, LANES):
                vectors.write_float32(to + 4 * d, load(tile, source + d))
            for d in range(whole, head_dim):
                vectors.write_one_float32(to + 4 * d, tile[source + d])
        elif kind == FLOAT16:
            for d in range(0, whole, LANES):
                vectors.write_float16(to + 2 * d, load(tile, source + d))
            for d in range(whole, head_dim):
                vectors.write_one_float16(to + 2 * d, tile[source + d])
        else:
            for d in range(0, whole, LANES):
                vectors.write_bfloat16(to + 2 * d, load(tile, source + d))
            for d in range(whole, head_dim):
                vectors.write_one_bfloat16(to + 2 * d, tile[source + d])


@inner
def transpose(x, x_start, x_row, rows, columns, y, y_start, y_row):
    """y = xᵀ; rows and columns are multiples of LANES."""
    for i in range(0, rows, LANES):
        for j in range(0, columns, LANES):
            source, to = x_start + i * x_row + j, y_start + j * y_row + i
            vectors.transpose(x, source, x_row, y, to, y_row)


@inner(forceinline=True)
def product(acc, a, a_start, a_row, a_step, b, b_start, b_step, depth):
    """Add ROWS x WIDTH numbers of A B to accumulators, in registers.

    Parameters
    ----------
    acc : tuple of vectors
        From `vectors.zeros`.
    a, a_start, a_row, a_step : flat float32 array, int, int, int
        Number (i, k) of A is a[a_start + i · a_row + k · a_step].
    b, b_start, b_step : flat float32 array, int, int
        Row k of B begins at b[b_start + k · b_step].
    depth : int
        Columns of A and rows of B.
    """
    for k in range(depth):
        acc = rank_one_update(acc, a, a_start + k * a_step, a_row, b, b_start + k * b_step)
    return acc
