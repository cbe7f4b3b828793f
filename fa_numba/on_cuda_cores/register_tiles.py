"""Tiles in registers: what a thread of the fast float32 kernels does, as device functions.

Where a thread computes one score, each multiplication costs two loads from shared memory. A thread
that computes 8 × 8 scores loads 8 + 8 numbers for 64 multiplications: then the arithmetic is the
limit, and not shared memory. Three things make its loads cheap:

- Four neighbours of a row are one load of 16 bytes. The compiler makes it one, but only where it
  sees that no index is negative: every index is made unsigned as a whole.
- Rows that the threads of a warp read side by side lie in different banks: a row is longer than it
  need be.
- Threads i and i ^ 1 of a warp share a column of the thread block's threads, i and i ^ 2 a row. A
  load of 16 bytes serves two quarters of a warp at once where one of the two pairs wants the same.

All tiles of a thread block are parts of one array, `tiles`, in dynamic shared memory, because only
that may exceed 48 KiB. A tile is named by the index at which it starts.
"""

import functools

from numba import cuda, float32, uint64

from fa_numba.constants import FULL_WARP, WARP_SIZE

ROWS_AT_ONCE, LOADS_AT_ONCE = 8, 32  # from HBM, that a warp and a thread have on the way


@functools.cache
def make_place(THREADS_X):
    """place(thread): (tx, ty), where THREADS_X threads stand side by side; 8 or 16."""
    SHIFT = THREADS_X.bit_length()  # log2(2 · THREADS_X)

    @cuda.jit(device=True)
    def place(thread):
        return (thread >> 1) & (THREADS_X - 1), ((thread >> SHIFT) << 1) + (thread & 1)

    return place


@functools.cache
def make_row_reductions(THREADS_X):
    """row_max(x) and row_sum(x): of x in all the threads of this thread's row."""
    SHIFT = THREADS_X.bit_length() - 1

    @cuda.jit(device=True)
    def row_max(x):
        for bit in range(SHIFT):  # place: tx are the lane's bits from bit 1 on
            x = max(x, cuda.shfl_xor_sync(FULL_WARP, x, 2 << bit))
        return x

    @cuda.jit(device=True)
    def row_sum(x):
        for bit in range(SHIFT):
            x += cuda.shfl_xor_sync(FULL_WARP, x, 2 << bit)
        return x

    return row_max, row_sum


@functools.cache
def make_load(HEAD_DIM, WIDTH, NUM_ROWS, ROW, WARPS):
    """load(tiles, start, x, b, first, head, end, factor): rows of x, times factor, into a tile.

    NUM_ROWS rows of a head from `first` on: zeros from row `end` on, and in the columns from
    HEAD_DIM to WIDTH. ROW is the length of a row of the tile. A warp loads whole rows.
    """
    PIECES = WIDTH // WARP_SIZE
    ROWS_OF_WARP = NUM_ROWS // WARPS
    FITTING = 1 << (LOADS_AT_ONCE // PIECES).bit_length() - 1  # a power of two, as all the others
    BATCH = min(FITTING, ROWS_AT_ONCE, ROWS_OF_WARP)
    REGISTERS = BATCH * PIECES

    @cuda.jit(device=True)
    def load(tiles, start, x, b, first, head, end, factor):
        some = cuda.local.array(REGISTERS, float32)
        warp, lane = cuda.threadIdx.x >> 5, cuda.threadIdx.x & 31
        for r_first in range(warp, NUM_ROWS, WARPS * BATCH):
            # First the loads of a batch, then its stores: the loads are on the way together.
            whole = first + NUM_ROWS <= end  # asked once: then no load of the batch is a branch
            for i in range(BATCH):
                m = first + r_first + i * WARPS
                for j in range(PIECES):
                    d = lane + WARP_SIZE * j
                    some[i * PIECES + j] = float32(0.0)
                    if whole and d < HEAD_DIM:
                        some[i * PIECES + j] = float32(
                            x[uint64(b), uint64(m), uint64(head), uint64(d)]
                        )
            if not whole:
                for i in range(BATCH):
                    m = first + r_first + i * WARPS
                    for j in range(PIECES):
                        d = lane + WARP_SIZE * j
                        if m < end and d < HEAD_DIM:
                            some[i * PIECES + j] = float32(
                                x[uint64(b), uint64(m), uint64(head), uint64(d)]
                            )
            for i in range(BATCH):
                r = r_first + i * WARPS
                for j in range(PIECES):
                    d = lane + WARP_SIZE * j
                    tiles[uint64(start + r * ROW + d)] = some[i * PIECES + j] * factor

    return load


@functools.cache
def make_product_of_rows(ROWS, COLS, THREADS_Y, THREADS_X, DEPTH, A_ROW, B_ROW):
    """add_abt(c, tiles, a_start, b_start, ty, tx): C += A Bᵀ, the dot products of rows.

    c[i, j] is that of row ty + i · THREADS_Y of A with row tx + j · THREADS_X of B.
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

    c[i, j] belongs to row ty + i · THREADS_Y of A; of the columns of B a thread owns four
    neighbours at a time, the first four from 4 tx on, the next 4 · THREADS_X further on.
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

    c[i, j] is that of the columns of A and B of which a thread owns four neighbours at a time, the
    first four from 4 ty and from 4 tx on.
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
