"""Tiles of float32 in shared memory, multiplied by warps as three products of TF32.

A tile consists of panels of 32 columns, one after the other; a panel has all rows, 128 bytes each,
with its chunks of 16 bytes swizzled (`layouts.swizzle`). Shared memory holds plain float32: a warp
splits each number after loading it. A sum may run in any order, so no tile is ever transposed:

    A Bᵀ   ldmatrix reads the rows of both
    P B    P is in registers, as the result of a product: a lane has its columns 2 k and 2 k + 1,
           k = lane % 4, and uses them as its terms k and k + 4. Of the two rows of B it loads four
           neighbours at once, which belong to four products. So in the result
           x[i, 4 panel + j, 2 h + c] is column 32 panel + 8 (lane % 4) + 4 c + j.

Matrices in registers are local arrays (M_TILES, columns / 8, 4) as in `fragments`, 16 rows each.
A tensor core truncates its sums. So every sum on it is short and begins at 0; a rounded addition
then adds it to the total.
"""

import functools

from numba import cuda, float32, uint32, uint64

from fa_numba.constants import ZERO
from fa_numba.ptx.cp_async import cp_async_16
from fa_numba.ptx.layouts import ROW_BYTES
from fa_numba.ptx.ldmatrix import ldmatrix_x4
from fa_numba.ptx.statement import global_address
from fa_numba.ptx.tf32 import HALF, mma_m16n8k8_tf32x3, split_tf32, unknown_half
from fa_numba.ptx.vectors import load_shared_x4, store_global_x4
from fa_numba.tiling.block_sizes import ceil_div

LOOP_PANELS = 4  # the most panels that `make_add_product` loops over


def num_panels(head_dim):
    """Panels of a tile, zero-padded from head_dim on."""
    return ceil_div(head_dim, 32)


@functools.cache
def make_copy_tile(HEAD_DIM, THREADS):
    """copy_tile(tile, num_rows, x, b, first, head): start a copy of a head's rows from `first` on.

    Rows beyond x's end are zero-padded. The caller commits the copies.
    """
    NUM_PANELS, WHOLE_PANELS = num_panels(HEAD_DIM), HEAD_DIM % 32 == 0
    ROWS_AT_ONCE = THREADS // 8  # eight threads copy a row of a panel; a multiple of 8: one swizzle

    @cuda.jit(device=True, forceinline=True)
    def copy_tile(tile, num_rows, x, b, first, head):
        row, chunk = cuda.threadIdx.x >> 3, cuda.threadIdx.x & 7
        m, to = first + row, tile + row * ROW_BYTES + ((chunk ^ (row & 7)) << 4)
        source = global_address(x[b, 0, head]) + uint64(m * x.strides[1] + 16 * chunk)
        for panel in range(NUM_PANELS):
            inside = WHOLE_PANELS or 32 * panel + 4 * chunk < HEAD_DIM
            for i in range(num_rows // ROWS_AT_ONCE):
                r = i * ROWS_AT_ONCE
                destination = to + (panel * num_rows + r) * ROW_BYTES
                num_bytes = 16 if inside and m + r < x.shape[1] else 0
                offset = uint64(r * x.strides[1] + panel * ROW_BYTES)
                cp_async_16(destination, source + offset, num_bytes)

    return copy_tile


@cuda.jit(device=True, forceinline=True)
def chunk_address(rows, num_rows, chunk, lane_chunk):
    """Address of chunk `chunk` in rows, or of a later one if the swizzled lane_chunk says so."""
    return rows + (chunk >> 3) * num_rows * ROW_BYTES + (((chunk & 7) ^ lane_chunk) << 4)


@functools.cache
def make_multiply_rows(HEAD_DIM, M_TILES, A_ROWS, B_ROWS):
    """multiply_rows(s, a, b, lane): S = A Bᵀ.

    A is rows of a tile of A_ROWS, the first at address a; B all rows of a tile of B_ROWS.
    """
    DEPTH16, B8 = 2 * num_panels(HEAD_DIM), B_ROWS // 8
    A_SHAPE = (M_TILES, 2, 4)

    @cuda.jit(device=True, forceinline=True)
    def multiply_rows(s, a, b, lane):
        x = cuda.local.array(4, uint32)
        a_big = cuda.local.array(A_SHAPE, uint32)
        a_small = cuda.local.array(A_SHAPE, uint32)
        b_big = cuda.local.array(4, uint32)
        b_small = cuda.local.array(4, uint32)
        part = cuda.local.array(4, float32)
        a_row, b_row = a + (lane & 15) * ROW_BYTES, b + (lane & 7) * ROW_BYTES
        a_chunk, b_chunk = (lane >> 4) ^ (lane & 7), (lane >> 3) ^ (lane & 7)
        for i in range(M_TILES):
            for j in range(B8):
                for r in range(4):
                    s[i, j, r] = ZERO
        for d in range(DEPTH16):  # 16 columns, two products' worth
            for i in range(M_TILES):
                for half in range(2):
                    rows = a_row + i * 16 * ROW_BYTES
                    ldmatrix_x4(x, chunk_address(rows, A_ROWS, 4 * d + 2 * half, a_chunk))
                    split_tf32(a_big[i, half], a_small[i, half], x, HALF, 4)
            for j in range(B8):
                ldmatrix_x4(x, chunk_address(b_row + j * 8 * ROW_BYTES, B_ROWS, 4 * d, b_chunk))
                split_tf32(b_big, b_small, x, HALF, 4)
                for i in range(M_TILES):
                    for r in range(4):
                        part[r] = ZERO
                    for half in range(2):
                        b0, b1 = 2 * half, 2 * half + 1
                        mma_m16n8k8_tf32x3(
                            part, a_big[i, half], a_small[i, half], b_big[b0], b_big[b1],
                            b_small[b0], b_small[b1],
                        )  # fmt: skip
                    for r in range(4):
                        s[i, j, r] += part[r]

    return multiply_rows


@cuda.jit(device=True, forceinline=True)
def two_rows(panel, lane):
    """Addresses of this lane's two rows of a panel, its terms k and k + 4."""
    row, column = 2 * (lane & 3), lane >> 2
    even = panel + row * ROW_BYTES + ((column ^ row) << 4)
    odd = panel + (row + 1) * ROW_BYTES + ((column ^ (row + 1)) << 4)
    return even, odd


@functools.cache
def make_add_product(HEAD_DIM, M_TILES, B_ROWS, ROWS_AT_ONCE, PANELS_AT_ONCE, FIRST=0):
    """add_product(x, p, b, half_at, lane): X += P B, P in registers, B a tile of B_ROWS rows.

    B begins at address b. The tensor core sums over ROWS_AT_ONCE of its rows. P is split once for
    PANELS_AT_ONCE panels of B; half_at is the address of HALF in shared memory. FIRST is the first
    panel, of B and of X.
    """
    NUM_PANELS, STEPS = num_panels(HEAD_DIM), ROWS_AT_ONCE // 8
    PANELS_AT_ONCE = min(PANELS_AT_ONCE, NUM_PANELS - FIRST)
    # libNVVM does not unroll a loop over more panels: then x would be in local memory.
    LAST = NUM_PANELS if NUM_PANELS <= LOOP_PANELS else FIRST + PANELS_AT_ONCE
    PART8 = 4 * PANELS_AT_ONCE
    P_SHAPE, PART_SHAPE = (M_TILES, 4), (M_TILES, PART8, 4)
    AGAIN = PANELS_AT_ONCE < NUM_PANELS

    @cuda.jit(device=True, forceinline=True)
    def add_product(x, p, b, half_at, lane):
        four = cuda.local.array(4, float32)
        p_big = cuda.local.array(P_SHAPE, uint32)
        p_small = cuda.local.array(P_SHAPE, uint32)
        even_big = cuda.local.array(4, uint32)
        even_small = cuda.local.array(4, uint32)
        odd_big = cuda.local.array(4, uint32)
        odd_small = cuda.local.array(4, uint32)
        part = cuda.local.array(PART_SHAPE, float32)
        even, odd = two_rows(b, lane)
        for first in range(FIRST, LAST, PANELS_AT_ONCE):
            cuda.syncwarp()  # keeps loads from moving up: there are no registers for them
            half = unknown_half(half_at) if AGAIN else uint32(HALF)
            for k_first in range(0, B_ROWS // 8, STEPS):
                for i in range(M_TILES):
                    for j in range(PART8):
                        for r in range(4):
                            part[i, j, r] = ZERO
                for step in range(STEPS):
                    k = k_first + step
                    for i in range(M_TILES):
                        for c in range(2):
                            for h in range(2):
                                four[2 * c + h] = p[i, k, 2 * h + c]
                        split_tf32(p_big[i], p_small[i], four, half, 4)
                    for panel in range(PANELS_AT_ONCE):
                        offset = ((first + panel) * B_ROWS + 8 * k) * ROW_BYTES
                        load_shared_x4(four, even + offset)
                        split_tf32(even_big, even_small, four, HALF, 4)
                        load_shared_x4(four, odd + offset)
                        split_tf32(odd_big, odd_small, four, HALF, 4)
                        for j in range(4):
                            for i in range(M_TILES):
                                mma_m16n8k8_tf32x3(
                                    part[i, 4 * panel + j], p_big[i], p_small[i], even_big[j],
                                    odd_big[j], even_small[j], odd_small[j],
                                )  # fmt: skip
                for i in range(M_TILES):
                    for j in range(PART8):
                        for r in range(4):
                            x[i, 4 * first + j, r] += part[i, j, r]

    if LAST == NUM_PANELS:
        return add_product
    sizes = HEAD_DIM, M_TILES, B_ROWS, ROWS_AT_ONCE, PANELS_AT_ONCE
    add_next_panels = make_add_product(*sizes, LAST)

    @cuda.jit(device=True, forceinline=True)
    def add_product_of_all_panels(x, p, b, half_at, lane):
        add_product(x, p, b, half_at, lane)
        add_next_panels(x, p, b, half_at, lane)

    return add_product_of_all_panels


@functools.cache
def make_store_row(HEAD_DIM):
    """store_row(x, i, h, y, b, m, head, lane, factor): y[b, m, head] = factor · row h of x[i].

    x has the layout of `make_add_product`; each lane stores 32 bytes of a panel.
    """
    NUM_PANELS, WHOLE_PANELS = num_panels(HEAD_DIM), HEAD_DIM % 32 == 0

    @cuda.jit(device=True, forceinline=True)
    def store_row(x, i, h, y, b, m, head, lane, factor):
        four = cuda.local.array(4, float32)
        address = global_address(y[b, m, head])
        for panel in range(NUM_PANELS):
            for c in range(2):
                d = 32 * panel + 8 * (lane & 3) + 4 * c
                for j in range(4):
                    four[j] = x[i, 4 * panel + j, 2 * h + c] * factor
                if WHOLE_PANELS or d < HEAD_DIM:
                    store_global_x4(address + uint64(4 * d), four)

    return store_row
