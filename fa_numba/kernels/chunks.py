"""Chunks of tiles: what the float32 kernels compute with next is copied while they compute.

A thread that computes 8 × 8 numbers of a product needs eight numbers of each operand at each step
along the sum. Where an operand lies in shared memory with its columns as rows, these are two loads
of 16 bytes, and those of the next step are loaded while this one is computed. The other operand may
lie as it does in HBM: then a load has four steps of one number. Q Kᵀ takes Qᵀ, which a thread block
turns once, and K or, where `register_tiling.turns_keys` says so, Kᵀ; the backward pass takes Kᵀ and
Vᵀ, and Q and dout as they lie. What is turned `turn` writes to HBM, once.

A tile need not be whole in shared memory, for it is summed over step by step: it comes in chunks of
a few steps, one after the other in a ring of stages, and the operands of several products share the
ring. Only what is read again and again keeps a place of its own.

A tile in shared memory is named as in `register_tiles`, by the index in floats at which it starts.
Imported only where cp.async is there: its PTX needs numba-cuda, and the CPU engine does not.
"""

import functools

import numpy as np
from numba import cuda, float32, int64, uint32, uint64
from numba.cuda import types
from numba.cuda.extending import intrinsic

from fa_numba import arrays
from fa_numba.analysis.block_sizes import ceil_div
from fa_numba.tensor_core.cp_async import cp_async_16
from fa_numba.tensor_core.ptx import global_address, shared_address, statement
from fa_numba.tensor_core.vectors import load_global_x4, load_shared_x4, store_global_x4

TURNED_ROWS, TURNED_COLUMNS, TURNING_WARPS = 128, 32, 8  # of a thread block of make_turn
TURNED_TILE = TURNED_COLUMNS, TURNED_ROWS + 4  # longer rows than need be: no bank conflicts
TURNED_PIECES = TURNED_COLUMNS // 8, 4  # of 16 bytes, that a thread loads


@intrinsic
def thread_index(typingctx):
    """threadIdx.x, read anew each time.

    What follows from the other one alone, the compiler computes once, before all loops: here the
    addresses of all chunks of a thread, for which there are no registers.
    """
    return statement("mov.u32 <result>, %tid.x;", result=types.uint32)


@functools.cache
def make_turn(SIDE):
    """A kernel: turned[b, head, d, place of m] = x[b, m, head, d], and zeros around it.

    Of each 4 · SIDE rows of x those that a thread of the attention kernel owns, every SIDE-th, are
    neighbours in a row of turned; with SIDE = 1 their order stays.
    """

    @cuda.jit(launch_bounds=(32 * TURNING_WARPS,))
    def turn_kernel(x, turned):
        """A thread block turns TURNED_ROWS rows and TURNED_COLUMNS columns of a head.

        grid      (num_tiles of rows · of columns, num_heads, batch); threads (256,)
        shared    tile (TURNED_COLUMNS, TURNED_ROWS)
        private   pieces (4, 4), four (4,)
        HBM       x and turned once
        paper     –
        budget    32 registers, 16896 bytes shared
        """
        tile = cuda.shared.array(TURNED_TILE, float32)
        pieces = cuda.local.array(TURNED_PIECES, float32)
        four = cuda.local.array(4, float32)
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        num_column_tiles = turned.shape[2] // TURNED_COLUMNS
        m_start = cuda.blockIdx.x // num_column_tiles * TURNED_ROWS
        d_start = cuda.blockIdx.x % num_column_tiles * TURNED_COLUMNS
        head, b = cuda.blockIdx.y, cuda.blockIdx.z
        # As in make_load_turned: no bank conflicts.
        row, column = 16 * warp + (lane >> 1), 4 * (lane & 1)
        m, d = m_start + row, d_start + column
        address = global_address(x[b, 0, head]) + uint64(m * x.strides[1] + 4 * d)
        for j in range(TURNED_COLUMNS // 8):  # first the loads: they are on the way together
            if m < x.shape[1] and d + 8 * j < x.shape[3]:
                load_global_x4(pieces[j], address + uint64(32 * j))
            else:
                for y in range(4):
                    pieces[j, y] = float32(0)
        for j in range(TURNED_COLUMNS // 8):
            for y in range(4):
                tile[uint64(column + 8 * j + y), uint64(row)] = pieces[j, y]
        cuda.syncthreads()  # the tile is complete
        r = lane % SIDE + lane // SIDE * 4 * SIDE
        address = global_address(turned[b, head, d_start]) + uint64(4 * (m_start + 4 * lane))
        for c in range(warp, TURNED_COLUMNS, TURNING_WARPS):
            for y in range(4):
                four[y] = tile[uint64(c), uint64(r + y * SIDE)]
            store_global_x4(address + uint64(c * turned.strides[2]), four)

    return turn_kernel


def turn(x, width, side=1):
    """x of shape (batch, seqlen, num_heads, head_dim) as (batch, num_heads, width, seqlen padded).

    `make_turn` says in which order; seqlen is padded to a multiple of TURNED_ROWS.
    """
    batch, seqlen, num_heads, _ = x.shape
    num_row_tiles = ceil_div(seqlen, TURNED_ROWS)
    turned = arrays.empty(x, (batch, num_heads, width, num_row_tiles * TURNED_ROWS), np.float32)
    grid = (num_row_tiles * (width // TURNED_COLUMNS), num_heads, batch)
    arrays.launch(make_turn(side), grid, (32 * TURNING_WARPS,), x, turned)
    return turned


@functools.cache
def make_copy(NUM_ROWS, COLUMNS, ROW, THREADS):
    """copy(tiles, start, address, stride, num_rows, num_columns): a part of a matrix to a tile.

    NUM_ROWS rows of COLUMNS numbers; the matrix has a row each `stride` bytes from `address` on,
    the tile one each ROW numbers. Of those num_rows and num_columns are copied, the rest are zeros.
    """
    PIECES = COLUMNS // 4  # of 16 bytes, in a row
    AT_ONCE = THREADS // PIECES  # rows

    @cuda.jit(device=True, forceinline=True)
    def copy(tiles, start, address, stride, num_rows, num_columns):
        thread = int64(thread_index())
        r, piece = thread // PIECES, thread % PIECES
        source = address + uint64(r * stride + 16 * piece)
        to = shared_address(tiles) + 4 * (start + r * ROW + 4 * piece)
        for i in range(0, NUM_ROWS, AT_ONCE):
            there = r + i < num_rows and 4 * piece < num_columns
            cp_async_16(to + 4 * i * ROW, source + uint64(i * stride), 16 if there else 0)

    return copy


@functools.cache
def make_load_turned(HEAD_DIM, WIDTH, NUM_ROWS, ROW, WARPS):
    """load(tiles, start, x, b, first, head, end, factor): rows of x, times factor, as columns.

    NUM_ROWS rows of a head from `first` on: zeros from row `end` on, and in the columns from
    HEAD_DIM to WIDTH. ROW is the length of a row of the tile, 4 more than a multiple of 32: then
    16 lanes that store neighbours and 16 that store four rows below them meet in no bank.
    """
    PIECES, PASSES = WIDTH // 8, NUM_ROWS // (16 * WARPS)
    SHAPE = PASSES, PIECES, 4
    PADDED = HEAD_DIM < WIDTH

    @cuda.jit(device=True)
    def load(tiles, start, x, b, first, head, end, factor):
        some = cuda.local.array(SHAPE, float32)
        warp, lane = cuda.threadIdx.x >> 5, cuda.threadIdx.x & 31
        row, column = 16 * warp + (lane >> 1), 4 * (lane & 1)
        for i in range(PASSES):  # first the loads: they are on the way together
            m = first + row + 16 * WARPS * i
            address = global_address(x[b, 0, head]) + uint64(m * x.strides[1] + 4 * column)
            for j in range(PIECES):
                if m < end and (not PADDED or 8 * j + column < HEAD_DIM):
                    load_global_x4(some[i, j], address + uint64(32 * j))
                else:
                    for y in range(4):
                        some[i, j, y] = float32(0.0)
        for i in range(PASSES):
            for j in range(PIECES):
                for y in range(4):
                    at = start + (8 * j + column + y) * ROW + row + 16 * WARPS * i
                    tiles[uint64(at)] = some[i, j, y] * factor

    return load


@functools.cache
def make_add_product(ROWS, COLS, THREADS_Y, THREADS_X, DEPTH, A_ROW, B_ROW, LEFT_OUT=0):
    """add_product(c, tiles, a_start, b_start, ty, tx): C += Aᵀ B, summed over DEPTH rows of both.

    `register_tiles.make_product_of_columns` says which columns a thread owns. What the next step
    needs is loaded while this one is computed; that of the step after the last is loaded in vain,
    and the tiles must not end there.

    A multiplication takes one clock where at most two of its three operands come from the
    registers, one from those of even and one from those of odd numbers; the third has to be that
    of the one before, which is kept. So neighbours in time share an operand, also where a row of
    the thread's tile ends: every second one runs backwards. The compiler finds such numbers for
    the registers, but not for the first steps of a loop: so many steps are unrolled that a turn has
    512 multiplications.

    The first half of the thread's rows of c is left out in the last LEFT_OUT columns.
    """
    A_FOURS, B_FOURS, LAST = ROWS // 4, COLS // 4, ROWS - 1
    A_BYTES, B_BYTES = 4 * A_ROW, 4 * B_ROW
    A_SHAPE, B_SHAPE = (2, A_FOURS, 4), (2, B_FOURS, 4)
    KEPT = COLS - LEFT_OUT  # columns
    FIRST_FOUR = 0 if KEPT else A_FOURS // 2

    # By PTX: as an array's element, what is loaded for the next turn is loaded in that turn.
    @cuda.jit(device=True, forceinline=True)
    def load(a, b, which, a_at, b_at):
        for i in range(FIRST_FOUR, A_FOURS):
            load_shared_x4(a[which, i], a_at + 16 * i * THREADS_Y)
        for j in range(B_FOURS):
            load_shared_x4(b[which, j], b_at + 16 * j * THREADS_X)

    @cuda.jit(device=True, forceinline=True)
    def step(c, a, b, which, a_at, b_at):
        load(a, b, 1 - which, a_at + A_BYTES, b_at + B_BYTES)
        for j in range(COLS):
            for n in range(ROWS):
                i = LAST - n if j % 2 else n
                if j < KEPT or i >= ROWS // 2:
                    x, y = a[which, i // 4, i % 4], b[which, j // 4, j % 4]
                    c[i, j] = cuda.fma(x, y, c[i, j])

    @cuda.jit(device=True, forceinline=True)
    def two_steps(c, a, b, a_at, b_at):
        step(c, a, b, 0, a_at, b_at)
        step(c, a, b, 1, a_at + A_BYTES, b_at + B_BYTES)

    def twice(steps, COUNT):
        """A loop of so many steps would not be unrolled; functions are, where they are called."""
        A_FURTHER, B_FURTHER = COUNT * A_BYTES, COUNT * B_BYTES

        @cuda.jit(device=True, forceinline=True)
        def more_steps(c, a, b, a_at, b_at):
            steps(c, a, b, a_at, b_at)
            steps(c, a, b, a_at + A_FURTHER, b_at + B_FURTHER)

        return more_steps

    steps, STEPS = two_steps, 2
    while STEPS * ROWS * COLS < 512:
        steps, STEPS = twice(steps, STEPS), 2 * STEPS

    @cuda.jit(device=True, forceinline=True)
    def add_product(c, tiles, a_start, b_start, ty, tx):
        a = cuda.local.array(A_SHAPE, float32)
        b = cuda.local.array(B_SHAPE, float32)
        a_at = uint32(shared_address(tiles) + 4 * (a_start + 4 * ty))
        b_at = uint32(shared_address(tiles) + 4 * (b_start + 4 * tx))
        load(a, b, 0, a_at, b_at)
        a_end = uint32(a_at + DEPTH * A_BYTES)
        while a_at != a_end:  # a range would be counted in 64 bits
            steps(c, a, b, a_at, b_at)
            a_at = uint32(a_at + STEPS * A_BYTES)
            b_at = uint32(b_at + STEPS * B_BYTES)

    return add_product


@functools.cache
def make_add_product_by_rows(ROWS, COLS, THREADS_Y, THREADS_X, DEPTH, A_ROW, B_ROW):
    """add_product(c, tiles, a_start, b_start, ty, tx): C += Aᵀ Bᵀ, summed over DEPTH columns of B.

    `make_add_product` where B lies as in HBM: a thread owns rows tx, tx + THREADS_X, ... of it. It
    has four steps of each, and loads a row's next four when it has used the last. More than these
    four steps are not unrolled: with eight more operands come from one register bank.
    """
    A_FOURS, LAST = ROWS // 4, ROWS - 1
    A_BYTES, B_BYTES, ROWS_BYTES = 4 * A_ROW, 4, 4 * B_ROW * THREADS_X
    A_SHAPE, B_SHAPE = (2, A_FOURS, 4), (COLS, 4)

    @cuda.jit(device=True, forceinline=True)
    def load(a, which, a_at):
        for i in range(A_FOURS):
            load_shared_x4(a[which, i], a_at + 16 * i * THREADS_Y)

    def make_step(X):
        WHICH, NEXT = X % 2, 1 - X % 2

        @cuda.jit(device=True, forceinline=True)
        def step(c, a, b, a_at, b_at):
            load(a, NEXT, a_at + (X + 1) * A_BYTES)
            for j in range(COLS):
                for n in range(ROWS):
                    i = LAST - n if j % 2 else n
                    c[i, j] = cuda.fma(a[WHICH, i // 4, i % 4], b[j, X], c[i, j])
                if X == 3:
                    load_shared_x4(b[j], b_at + 16 + j * ROWS_BYTES)

        return step

    step_0, step_1, step_2, step_3 = map(make_step, range(4))

    @cuda.jit(device=True, forceinline=True)
    def four_steps(c, a, b, a_at, b_at):
        step_0(c, a, b, a_at, b_at)
        step_1(c, a, b, a_at, b_at)
        step_2(c, a, b, a_at, b_at)
        step_3(c, a, b, a_at, b_at)

    @cuda.jit(device=True, forceinline=True)
    def add_product(c, tiles, a_start, b_start, ty, tx):
        a = cuda.local.array(A_SHAPE, float32)
        b = cuda.local.array(B_SHAPE, float32)
        a_at = shared_address(tiles) + 4 * (a_start + 4 * ty)
        b_at = shared_address(tiles) + 4 * (b_start + tx * B_ROW)
        load(a, 0, a_at)
        for j in range(COLS):
            load_shared_x4(b[j], b_at + j * ROWS_BYTES)
        for k in range(0, DEPTH, 4):
            four_steps(c, a, b, a_at + k * A_BYTES, b_at + k * B_BYTES)

    return add_product
