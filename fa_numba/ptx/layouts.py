"""Layouts, in NumPy: which lane holds which element, where a tile's elements are in shared memory.

The functions are models of the instructions, for tests and lessons; kernels need the constants
alone. The first functions return two integer arrays: row and column of what a lane, or a thread of
a warpgroup, holds in each register. `matrix[tuple(mma_a())]` is then all that 32 lanes hold of A.
`mma` and `ldmatrix` draw them, and so does `fa_numba.figures.fragments`.
"""

import numpy as np

WARP = 32
CHUNK_BYTES = 16  # read by ldmatrix and written by cp.async at once
CHUNKS = 8  # in a row of 128 bytes
ROW_BYTES = CHUNKS * CHUNK_BYTES  # of a panel, in which TMA and wgmma swizzle
PANEL_COLS = ROW_BYTES // 2  # 16-bit elements of a row; a tile is made of such panels
BANKS = 32  # of 4 bytes


def mma_a():
    """Elements of A (16, 16) in a warp's registers: `row, col` of [lane, register, half].

    Of shape (32, 4, 2); half 0 is the low 16 bits.
    """
    lane, register, half = np.ogrid[:WARP, :4, :2]
    row = lane // 4 + 8 * (register % 2)
    col = 2 * (lane % 4) + 8 * (register // 2) + half
    return np.broadcast_arrays(row, col)


def mma_b():
    """Elements of B (16, 8) in a warp's registers: `row, col` of [lane, register, half].

    Of shape (32, 2, 2).
    """
    lane, register, half = np.ogrid[:WARP, :2, :2]
    return np.broadcast_arrays(2 * (lane % 4) + 8 * register + half, lane // 4)


def mma_d():
    """Elements of D (16, 8) in a warp's registers: `row, col` of [lane, register].

    Of shape (32, 4).
    """
    lane, register = np.ogrid[:WARP, :4]
    return np.broadcast_arrays(lane // 4 + 8 * (register // 2), 2 * (lane % 4) + register % 2)


def wgmma_d(n):
    """Elements of D (64, n) in a warpgroup's registers: `row, col` of [thread, register].

    Of shape (128, n // 2): for each 8 columns of a warp's 16 rows the 4 registers of mma's D.
    """
    thread, register = np.ogrid[: 4 * WARP, : n // 2]
    row, col = (x[thread % WARP, register % 4] for x in mma_d())
    return np.broadcast_arrays(16 * (thread // WARP) + row, 8 * (register // 4) + col)


def wgmma_a(k):
    """Elements of A (64, k) in a warpgroup's registers: `row, col` of [thread, register, half].

    Of shape (128, k // 4, 2): for each 16 columns of a warp's 16 rows the 4 registers of mma's A.
    """
    thread, register, half = np.ogrid[: 4 * WARP, : k // 4, :2]
    row, col = (x[thread % WARP, register % 4, half] for x in mma_a())
    return np.broadcast_arrays(16 * (thread // WARP) + row, 16 * (register // 4) + col)


def ldmatrix(*, trans=False):
    """Elements of an 8×8 matrix in a lane's register after ldmatrix: `row, col` of [lane, half].

    Of shape (32, 2).
    """
    lane, half = np.ogrid[:WARP, :2]
    row, col = np.broadcast_arrays(lane // 4, 2 * (lane % 4) + half)
    return (col, row) if trans else (row, col)


def swizzle(row, chunk):
    """Index, 0 to 7, at which chunk `chunk` of 16 bytes is stored in its row of 128 bytes.

    The same chunk of eight rows is then in eight different groups of four banks: all 32 banks, each
    once. Unswizzled, all eight would be in the same four banks. TMA and wgmma call this the
    128-byte swizzle: bits 4–6 of an address, exclusive or its bits 7–9.
    """
    return chunk ^ (row % CHUNKS)


def tile_offset(row, col, num_rows, *, swizzled=True):
    """Byte offset of element [row, col] of 16 bits in a tile of `num_rows` rows.

    The tile consists of panels of 64 columns, one after the other; a panel has all rows, 128 bytes
    each.
    """
    panel, byte = col // 64, 2 * (col % 64)
    chunk = byte // CHUNK_BYTES
    if swizzled:
        chunk = swizzle(row, chunk)
    return (panel * num_rows + row) * ROW_BYTES + chunk * CHUNK_BYTES + byte % CHUNK_BYTES


def wavefronts(addresses, num_bytes):
    """Wavefronts of shared memory for accesses of `num_bytes` at these byte addresses.

    In a wavefront each of 32 banks serves 4 bytes. A warp's 16-byte accesses are served 8 lanes at
    a time, so pass those of 8 lanes.
    """
    words = np.unique(np.add.outer(np.asarray(addresses) // 4, np.arange(num_bytes // 4)))
    return int(np.bincount(words % BANKS).max())


def descriptor_fields(descriptor):
    """Fields of a wgmma descriptor: address, leading and stride offset in bytes; swizzle."""
    field = 16 * ((descriptor >> np.array([0, 16, 32])) & 0x3FFF)
    address, leading, stride = map(int, field)
    return {
        "address": address,
        "leading_bytes": leading,
        "stride_bytes": stride,
        "swizzle": descriptor >> 62,
    }
