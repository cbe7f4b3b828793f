"""Chunks of tiles: what the float32 kernels compute with next is copied while they compute.

A thread that computes 8 × 8 numbers of a product needs eight numbers of each operand at each step
along the sum. Where both operands lie in shared memory with that direction as their rows, these are
four loads of 16 bytes, and few enough registers that those of the next step are loaded while this
one is computed. For Q Kᵀ that asks for Qᵀ and Kᵀ: `make_turn` writes them to HBM, once.

A tile need not be whole in shared memory, for it is summed over step by step: it comes in chunks of
a few steps, one after the other in a ring of stages, and the operands of several products share the
ring. Only what is read again and again keeps a place of its own.

A tile in shared memory is named as in `register_tiles`, by the index in floats at which it starts.
Imported only where cp.async is there: its PTX needs numba-cuda, and the CPU engine does not.
"""

import functools

import numpy as np
from numba import cuda, float32, int64, uint64
from numba.cuda import types
from numba.cuda.extending import intrinsic

from fa_numba import arrays
from fa_numba.analysis.block_sizes import ceil_div
from fa_numba.tensor_core.cp_async import cp_async_16
from fa_numba.tensor_core.ptx import shared_address, statement
from fa_numba.tensor_core.vectors import load_shared_x4

TURNED_ROWS, TURNED_COLUMNS, TURNING_WARPS = 64, 32, 8  # of a thread block of make_turn's kernel
TURNED_TILE = TURNED_ROWS, TURNED_COLUMNS + 1  # longer rows than need be: no bank conflicts


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
        shared    tile (TURNED_ROWS, TURNED_COLUMNS)
        private   –
        HBM       x and turned once
        paper     –
        budget    64 registers, 8448 bytes shared
        """
        tile = cuda.shared.array(TURNED_TILE, float32)
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        num_column_tiles = turned.shape[2] // TURNED_COLUMNS
        m_start = cuda.blockIdx.x // num_column_tiles * TURNED_ROWS
        d_start = cuda.blockIdx.x % num_column_tiles * TURNED_COLUMNS
        head, b = cuda.blockIdx.y, cuda.blockIdx.z
        d = d_start + lane
        for r in range(warp, TURNED_ROWS, TURNING_WARPS):
            inside = m_start + r < x.shape[1] and d < x.shape[3]
            tile[r, lane] = x[b, m_start + r, head, d] if inside else float32(0)
        cuda.syncthreads()  # the tile is complete
        for c in range(warp, TURNED_COLUMNS, TURNING_WARPS):
            for place in range(lane, TURNED_ROWS, 32):
                four = place // 4
                r = four % SIDE + four // SIDE * 4 * SIDE + place % 4 * SIDE
                turned[b, head, d_start + c, m_start + place] = tile[r, c]

    return turn_kernel


def turn(x, width, side):
    """x of shape (batch, seqlen, num_heads, head_dim) as (batch, num_heads, width, seqlen padded).

    `make_turn` says in which order; seqlen is padded to a multiple of 128.
    """
    batch, seqlen, num_heads, _ = x.shape
    padded = ceil_div(seqlen, 128) * 128
    turned = arrays.empty(x, (batch, num_heads, width, padded), np.float32)
    grid = (padded // TURNED_ROWS * (width // TURNED_COLUMNS), num_heads, batch)
    arrays.launch(make_turn(side), grid, (32 * TURNING_WARPS,), x, turned)
    return turned


@functools.cache
def make_copy(NUM_ROWS, ROW, COLUMNS, THREADS):
    """copy(tiles, start, address, stride, num_inside): NUM_ROWS rows of a matrix to a tile.

    The matrix begins at `address` and has a row each `stride` bytes, of COLUMNS numbers; those of
    the tile have ROW, the others being zeros, as are the rows from num_inside on.
    """
    PIECES = ROW // 4  # of 16 bytes, in a row
    AT_ONCE = THREADS // PIECES  # rows
    PADDED = COLUMNS < ROW

    @cuda.jit(device=True, forceinline=True)
    def copy(tiles, start, address, stride, num_inside):
        thread = int64(thread_index())
        r, piece = thread // PIECES, thread % PIECES
        source = address + uint64(r * stride + 16 * piece)
        to = shared_address(tiles) + 4 * start + 16 * thread
        for i in range(0, NUM_ROWS, AT_ONCE):
            there = r + i < num_inside and (not PADDED or 4 * piece < COLUMNS)
            cp_async_16(to + 4 * i * ROW, source + uint64(i * stride), 16 if there else 0)

    return copy


@functools.cache
def make_add_product(ROWS, COLS, THREADS_Y, THREADS_X, DEPTH, A_ROW, B_ROW):
    """add_product(c, tiles, a_start, b_start, ty, tx): C += Aᵀ B, summed over DEPTH rows of both.

    `register_tiles.make_product_of_columns` says which columns a thread owns. What the next step
    needs is loaded while this one is computed; that of the step after the last is loaded in vain,
    and the tiles must not end there.

    A multiplication takes one clock where at most two of its three operands come from the
    registers, one from those of even and one from those of odd numbers; the third has to be that
    of the one before, which is kept. So neighbours in time share an operand, also where a row of
    the thread's tile ends: every second one runs backwards. The compiler finds such numbers for
    the registers, but not for the first steps of a loop: so many are unrolled.
    """
    A_FOURS, B_FOURS, LAST = ROWS // 4, COLS // 4, ROWS - 1
    A_BYTES, B_BYTES = 4 * A_ROW, 4 * B_ROW
    A_SHAPE, B_SHAPE = (2, A_FOURS, 4), (2, B_FOURS, 4)

    # By PTX: as an array's element, what is loaded for the next turn is loaded in that turn.
    @cuda.jit(device=True, forceinline=True)
    def load(a, b, which, a_at, b_at):
        for i in range(A_FOURS):
            load_shared_x4(a[which, i], a_at + 16 * i * THREADS_Y)
        for j in range(B_FOURS):
            load_shared_x4(b[which, j], b_at + 16 * j * THREADS_X)

    @cuda.jit(device=True, forceinline=True)
    def step(c, a, b, which, a_at, b_at):
        load(a, b, 1 - which, a_at + A_BYTES, b_at + B_BYTES)
        for j in range(COLS):
            for n in range(ROWS):
                i = LAST - n if j % 2 else n
                x, y = a[which, i // 4, i % 4], b[which, j // 4, j % 4]
                c[i, j] = cuda.fma(x, y, c[i, j])

    @cuda.jit(device=True, forceinline=True)
    def two_steps(c, a, b, a_at, b_at):
        step(c, a, b, 0, a_at, b_at)
        step(c, a, b, 1, a_at + A_BYTES, b_at + B_BYTES)

    def twice(steps, COUNT):
        """A loop of so many steps would not be unrolled; functions are, where they are called."""
        A_HALF, B_HALF = COUNT // 2 * A_BYTES, COUNT // 2 * B_BYTES

        @cuda.jit(device=True, forceinline=True)
        def more_steps(c, a, b, a_at, b_at):
            steps(c, a, b, a_at, b_at)
            steps(c, a, b, a_at + A_HALF, b_at + B_HALF)

        return more_steps

    steps, STEPS = two_steps, 2
    while STEPS < UNROLLED:
        STEPS *= 2
        steps = twice(steps, STEPS)

    @cuda.jit(device=True, forceinline=True)
    def add_product(c, tiles, a_start, b_start, ty, tx):
        a = cuda.local.array(A_SHAPE, float32)
        b = cuda.local.array(B_SHAPE, float32)
        a_at = shared_address(tiles) + 4 * (a_start + 4 * ty)
        b_at = shared_address(tiles) + 4 * (b_start + 4 * tx)
        load(a, b, 0, a_at, b_at)
        for k in range(0, DEPTH, STEPS):
            steps(c, a, b, a_at + k * A_BYTES, b_at + k * B_BYTES)

    return add_product


UNROLLED = 8  # steps of a product in a turn of its loop
