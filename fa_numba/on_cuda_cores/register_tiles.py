"""Register tiles: loads, products and reductions of the float32 kernels, as device functions.

A thread that computes one score needs two loads from shared memory for each multiplication. A
thread that computes 8 × 8 scores loads 8 + 8 numbers for 64 multiplications: arithmetic is then the
limit, not shared memory. Three rules make the loads cheap:

- Four neighbours of a row are one 16-byte load. The compiler merges the four loads only if it can
  prove that no index is negative, so every index is converted to unsigned as a whole.
- The rows that the threads of a warp read at the same time lie in different banks, because rows in
  shared memory are padded.
- The threads of a thread block form a grid: threads i and i ^ 1 of a warp are in one column of it,
  i and i ^ 2 in one row. One 16-byte load serves two quarters of a warp if one of the two pairs
  reads the same address.

All tiles of a thread block are parts of one array, `tiles`, in dynamic shared memory, because only
dynamic shared memory may exceed 48 KiB. A tile is given by the index of its first number.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, uint64

from fa_numba.constants import FULL_WARP, WARP_SIZE

ROWS_IN_FLIGHT = 8  # rows that a warp loads from HBM at a time
LOADS_IN_FLIGHT = 32  # loads from HBM that a thread has in flight


@functools.cache
def make_tx_ty(THREADS_X):
    """tx_ty(thread): the thread's column and row in a grid with THREADS_X columns; 8 or 16."""
    SHIFT = THREADS_X.bit_length()  # log2(2 · THREADS_X)

    @cuda.jit(device=True)
    def tx_ty(thread):
        return (thread >> 1) & (THREADS_X - 1), ((thread >> SHIFT) << 1) + (thread & 1)

    return tx_ty


class RowReductions(NamedTuple):
    """Device functions that reduce x over all threads of this thread's row.

    Attributes
    ----------
    row_max : row_max(x)
    row_sum : row_sum(x)
    """

    row_max: Any
    row_sum: Any


@functools.cache
def make_row_reductions(THREADS_X):
    """The `RowReductions` of rows of THREADS_X threads."""
    SHIFT = THREADS_X.bit_length() - 1

    @cuda.jit(device=True)
    def row_max(x):
        for bit in range(SHIFT):  # tx_ty: tx is in the lane's bits from bit 1 on
            x = max(x, cuda.shfl_xor_sync(FULL_WARP, x, 2 << bit))
        return x

    @cuda.jit(device=True)
    def row_sum(x):
        for bit in range(SHIFT):
            x += cuda.shfl_xor_sync(FULL_WARP, x, 2 << bit)
        return x

    return RowReductions(row_max, row_sum)


@functools.cache
def make_load(HEAD_DIM, WIDTH, NUM_ROWS, ROW, WARPS):
    """load(tiles, start, x, b, first, head, end, factor): rows of x, times factor, into a tile.

    Loads NUM_ROWS rows of a head, from row `first` on. The tile is zero-padded: in rows from `end`
    on, and in columns from HEAD_DIM to WIDTH. ROW is the length of a row of the tile. A warp loads
    whole rows.
    """
    PIECES = WIDTH // WARP_SIZE
    ROWS_OF_WARP = NUM_ROWS // WARPS
    FITTING = 1 << (LOADS_IN_FLIGHT // PIECES).bit_length() - 1  # a power of two, like the others
    BATCH = min(FITTING, ROWS_IN_FLIGHT, ROWS_OF_WARP)
    REGISTERS = BATCH * PIECES

    @cuda.jit(device=True)
    def load(tiles, start, x, b, first, head, end, factor):
        batch = cuda.local.array(REGISTERS, float32)
        warp, lane = cuda.threadIdx.x >> 5, cuda.threadIdx.x & 31
        for r_first in range(warp, NUM_ROWS, WARPS * BATCH):
            # First all loads of a batch, then its stores: the loads are in flight together.
            whole = first + NUM_ROWS <= end  # tested once, so that no load is behind a branch
            for i in range(BATCH):
                m = first + r_first + i * WARPS
                for j in range(PIECES):
                    d = lane + WARP_SIZE * j
                    batch[i * PIECES + j] = float32(0.0)
                    if whole and d < HEAD_DIM:
                        batch[i * PIECES + j] = float32(
                            x[uint64(b), uint64(m), uint64(head), uint64(d)]
                        )
            if not whole:
                for i in range(BATCH):
                    m = first + r_first + i * WARPS
                    for j in range(PIECES):
                        d = lane + WARP_SIZE * j
                        if m < end and d < HEAD_DIM:
                            batch[i * PIECES + j] = float32(
                                x[uint64(b), uint64(m), uint64(head), uint64(d)]
                            )
            for i in range(BATCH):
                r = r_first + i * WARPS
                for j in range(PIECES):
                    d = lane + WARP_SIZE * j
                    tiles[uint64(start + r * ROW + d)] = batch[i * PIECES + j] * factor

    return load


@functools.cache
def make_product_of_rows(ROWS, COLS, THREADS_Y, THREADS_X, DEPTH, A_ROW, B_ROW):
    """add_abt(c, tiles, a_start, b_start, ty, tx): C += A Bᵀ, the dot products of rows.

    c[i, j] is the product of row ty + i · THREADS_Y of A with row tx + j · THREADS_X of B.
    """

    @cuda.jit(device=True)
    def add_abt(c, tiles, a_start, b_start, ty, tx):
        a = cuda.local.array((ROWS, 4), float32)
        b = cuda.local.array(4, float32)
        for d in range(0, DEPTH, 4):
            for i in range(ROWS):
                for x in range(4):
                    a[i, x] = tiles[uint64(a_start + (ty + i * THREADS_Y) * A_ROW + d + x)]
            for j in range(COLS):
                for x in range(4):
                    b[x] = tiles[uint64(b_start + (tx + j * THREADS_X) * B_ROW + d + x)]
                for x in range(4):
                    for i in range(ROWS):
                        c[i, j] += a[i, x] * b[x]

    return add_abt


@functools.cache
def make_product(ROWS, COLS, THREADS_Y, THREADS_X, DEPTH, A_ROW, B_ROW):
    """add_ab(c, tiles, a_start, b_start, ty, tx): C += A B.

    c[i, j] belongs to row ty + i · THREADS_Y of A. A thread owns groups of four neighbours
    among the columns of B: the first group is at 4 tx, the next one 4 · THREADS_X later.
    """

    @cuda.jit(device=True)
    def add_ab(c, tiles, a_start, b_start, ty, tx):
        a = cuda.local.array((ROWS, 4), float32)
        b = cuda.local.array(4, float32)
        for k in range(0, DEPTH, 4):
            for i in range(ROWS):
                for x in range(4):
                    a[i, x] = tiles[uint64(a_start + (ty + i * THREADS_Y) * A_ROW + k + x)]
            for x in range(4):
                for j in range(0, COLS, 4):
                    for y in range(4):
                        d = 4 * tx + j * THREADS_X + y
                        b[y] = tiles[uint64(b_start + (k + x) * B_ROW + d)]
                    for i in range(ROWS):
                        for y in range(4):
                            c[i, j + y] += a[i, x] * b[y]

    return add_ab


@functools.cache
def make_product_of_columns(ROWS, COLS, THREADS_Y, THREADS_X, DEPTH, A_ROW, B_ROW):
    """add_atb(c, tiles, a_start, b_start, ty, tx): C += Aᵀ B, the dot products of columns.

    A thread owns groups of four neighbours among the columns of A and of B: the first groups are at
    column 4 ty of A and column 4 tx of B. c[i, j] is the product of the thread's i-th column of A
    with its j-th column of B.
    """

    @cuda.jit(device=True)
    def add_atb(c, tiles, a_start, b_start, ty, tx):
        a = cuda.local.array(ROWS, float32)
        b = cuda.local.array(4, float32)
        for k in range(DEPTH):
            for i in range(0, ROWS, 4):
                for x in range(4):
                    m = 4 * ty + i * THREADS_Y + x
                    a[i + x] = tiles[uint64(a_start + k * A_ROW + m)]
            for j in range(0, COLS, 4):
                for y in range(4):
                    d = 4 * tx + j * THREADS_X + y
                    b[y] = tiles[uint64(b_start + k * B_ROW + d)]
                for i in range(ROWS):
                    for y in range(4):
                        c[i, j + y] += a[i] * b[y]

    return add_atb
