"""Q, K and V in e4m3: a scale for each tile, outliers spread over a row, wgmma's order in memory.

A tile of `rows` tokens of a head is divided by its scale, largest absolute value / 448, and
rounded. It is kept byte for byte as wgmma takes it from shared memory (`wgmma.byte_offset`), its
rows along the sum:

    Q, K   the sum is over head_dim:  rows of head_dim bytes
    V      the sum is over the keys:  transposed, head_dim rows of `rows` bytes, and one of ones

In Q and K an outlier would leave few bits to all others. With `hadamard` both are multiplied by the
same orthogonal matrix, random signs and a Hadamard matrix: Q Kᵀ stays as it is, and an outlier
becomes head_dim small numbers. The Hadamard matrix of 2n columns is [[H, H], [H, −H]] of that for
n, so a row takes log2 head_dim steps of sums and differences, no products.

The 16 keys of a chunk of V are in the order in which a product's result has its columns in a lane's
registers (`slot_key`), so that P is an operand as it lies.

Paper: Shah et al. 2024, FlashAttention-3, arXiv:2407.08608, section 3.3.
"""

import functools
from dataclasses import dataclass

import numpy as np
from numba import cuda, float32, uint32, uint64

from fa_numba import arrays
from fa_numba.analysis.block_sizes import ceil_div
from fa_numba.tensor_core import wgmma
from fa_numba.tensor_core.convert import load_global_b32, pack_e4m3x4, store_global_b128
from fa_numba.tensor_core.ptx import global_address
from fa_numba.tensor_core.vectors import load_global_x4, unpack_bf16x2, unpack_f16x2

FULL_WARP = 0xFFFFFFFF
E4M3_MAX = np.float32(448)
LEAST = np.float32(2.0**-20)  # of a tile's largest: a tile of zeros has a scale, too
VALUES = 32  # of a thread
CHUNK = 16  # bytes along the sum
SUM_ROWS = 8  # beyond head_dim in a tile of V: a row of ones, and 0, for N is a multiple of 8
ONES = np.uint32(0x38383838)  # four times 1


def slot_key(slot):
    """Key, of the 16 of a chunk, that slot `slot` of V holds."""
    lane, i, c = slot >> 2, slot >> 1 & 1, slot & 1  # lane of a quad; 8 columns on; one column on
    return 8 * i + 2 * lane + c


def sign_bits(lane):
    """32 random-looking bits: a 1 turns the sign of a column that this lane holds."""
    x = (lane + 1) * 0x9E3779B9 & 0xFFFFFFFF
    x = (x ^ (x >> 15)) * 0x85EBCA6B & 0xFFFFFFFF
    return x ^ (x >> 13)


device_slot_key, device_sign_bits = (
    cuda.jit(device=True, forceinline=True)(function) for function in (slot_key, sign_bits)
)


def width_of(columns):
    """Of the blocks of a tile with so many columns: the widest that it is whole ones of."""
    return next(width for width in wgmma.SWIZZLES if columns % width == 0)


byte_offset = cuda.jit(device=True, forceinline=True)(wgmma.byte_offset)


def threads_of(HEAD_DIM, ROWS):
    """Threads of a thread block, which has a tile."""
    return HEAD_DIM * ROWS // VALUES


@functools.cache
def _parts(DTYPE, THREADS):
    """Device functions that both kernels use."""
    unpack = unpack_bf16x2 if DTYPE == "bfloat16" else unpack_f16x2
    WARPS = THREADS // 32

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def scale_of(x, scales, b, head, tile, least, norm):
        """The tile's scale, stored, times `norm`; what x must be multiplied with."""
        of_warps = cuda.shared.array(WARPS, float32)
        tid = cuda.threadIdx.x
        largest = float32(0)
        for i in range(VALUES):
            largest = max(largest, abs(x[i]))
        for step in (16, 8, 4, 2, 1):
            largest = max(largest, cuda.shfl_xor_sync(FULL_WARP, largest, step))
        if tid & 31 == 0:
            of_warps[tid >> 5] = largest
        cuda.syncthreads()  # all warps' maxima are written: safe to read
        for warp in range(WARPS):
            largest = max(largest, of_warps[uint32(warp)])
        largest = max(largest, least)
        if tid == 0:
            scales[b, head, tile] = largest * norm / E4M3_MAX
        return E4M3_MAX / largest

    return unpack, scale_of


@functools.cache
def _make_butterfly(STEP):
    """butterfly(x): sums and differences of elements that are STEP apart."""

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def butterfly(x):
        for pair in range(VALUES // 2):
            i = pair // STEP * 2 * STEP + pair % STEP
            low, high = x[i], x[i + STEP]
            x[i], x[i + STEP] = low + high, low - high

    return butterfly


@functools.cache
def make_quantize_rows(HEAD_DIM, ROWS, HADAMARD, DTYPE):
    """The kernel for Q and K; HEAD_DIM 64, 128 or 256, `threads_of` threads."""
    THREADS = threads_of(HEAD_DIM, ROWS)
    LANES = HEAD_DIM // VALUES  # to a row: 2, 4 or 8
    WIDTH = width_of(HEAD_DIM)
    NORM = np.float32(HEAD_DIM**-0.5 if HADAMARD else 1)
    unpack, scale_of = _parts(DTYPE, THREADS)
    butterfly_1, butterfly_2, butterfly_4, butterfly_8, butterfly_16 = (
        _make_butterfly(step) for step in (1, 2, 4, 8, 16)
    )

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def quantize_rows_kernel(x, tiles, scales, least):
        """A thread block quantises a tile of rows; LANES neighbouring lanes have a row.

        grid      (num_tiles, num_heads, batch)
        private   32 columns of a row: of the chunks of 16, lane and LANES + lane
        HBM       x once, tiles once
        """
        y = cuda.local.array(VALUES, float32)
        words = cuda.local.array(4, uint32)
        pair = cuda.local.array(2, float32)
        tile, head, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        row, lane = cuda.threadIdx.x // LANES, cuda.threadIdx.x % LANES
        n = tile * ROWS + row
        signs = uint32(device_sign_bits(lane))
        if n < x.shape[1]:
            address = global_address(x[b, n, head]) + uint64(2 * CHUNK * lane)
            for i in range(4):
                offset = (i >> 1) * (2 * CHUNK * LANES) + (i & 1) * 16
                load_global_x4(words, address + uint64(offset))
                for j in range(4):
                    word = words[j]
                    if HADAMARD:
                        word ^= (signs << uint32(4 * i + j)) & uint32(0x80008000)
                    unpack(pair, word)
                    y[8 * i + 2 * j] = pair[0]
                    y[8 * i + 2 * j + 1] = pair[1]
        else:
            for i in range(VALUES):
                y[i] = float32(0)
        if HADAMARD:
            butterfly_1(y)
            butterfly_2(y)
            butterfly_4(y)
            butterfly_8(y)
            butterfly_16(y)
            step = 1
            while step < LANES:
                for i in range(VALUES):
                    other = cuda.shfl_xor_sync(FULL_WARP, y[i], step)
                    y[i] = other - y[i] if lane & step else y[i] + other
                step *= 2
        inverse = scale_of(y, scales, b, head, tile, least, NORM)
        address = global_address(tiles[b, head, tile])
        for i in range(2):
            for j in range(4):
                at = 16 * i + 4 * j
                words[j] = pack_e4m3x4(
                    y[at] * inverse,
                    y[at + 1] * inverse,
                    y[at + 2] * inverse,
                    y[at + 3] * inverse,
                )
            column = CHUNK * (lane + i * LANES)
            store_global_b128(address + uint64(byte_offset(row, column, ROWS, WIDTH)), words)

    return quantize_rows_kernel


@functools.cache
def make_quantize_columns(HEAD_DIM, ROWS, DTYPE):
    """The kernel for V; HEAD_DIM a multiple of 64, `threads_of` threads."""
    THREADS = threads_of(HEAD_DIM, ROWS)
    PAIRS, V_ROWS, WIDTH = HEAD_DIM // 2, HEAD_DIM + SUM_ROWS, width_of(ROWS)
    unpack, scale_of = _parts(DTYPE, THREADS)

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def quantize_columns_kernel(x, tiles, scales, least):
        """A thread block quantises and transposes a tile; a thread has 16 keys of two columns.

        grid      (num_tiles, num_heads, batch)
        private   x of 16 keys, of a column and of its neighbour
        HBM       x once, tiles once
        """
        y = cuda.local.array(VALUES, float32)
        words = cuda.local.array(4, uint32)
        pair = cuda.local.array(2, float32)
        tile, head, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        chunk, of_columns = cuda.threadIdx.x // PAIRS, cuda.threadIdx.x % PAIRS
        first, seqlen = tile * ROWS + chunk * CHUNK, x.shape[1]
        address = global_address(x[b, 0, head]) + uint64(4 * of_columns)
        for slot in range(CHUNK):
            n = first + device_slot_key(slot)
            # All 16 loads are on their way at once: none waits for a branch.
            word = load_global_b32(address + uint64(min(n, seqlen - 1) * x.strides[1]))
            unpack(pair, word if n < seqlen else uint32(0))
            y[slot], y[CHUNK + slot] = pair[0], pair[1]
        inverse = scale_of(y, scales, b, head, tile, least, float32(1))
        address = global_address(tiles[b, head, tile])
        for i in range(2):
            for j in range(4):
                at = 16 * i + 4 * j
                words[j] = pack_e4m3x4(
                    y[at] * inverse,
                    y[at + 1] * inverse,
                    y[at + 2] * inverse,
                    y[at + 3] * inverse,
                )
            offset = byte_offset(2 * of_columns + i, CHUNK * chunk, V_ROWS, WIDTH)
            store_global_b128(address + uint64(offset), words)
        if of_columns < SUM_ROWS:
            for j in range(4):
                words[j] = ONES if of_columns == 0 else uint32(0)
            offset = byte_offset(HEAD_DIM + of_columns, CHUNK * chunk, V_ROWS, WIDTH)
            store_global_b128(address + uint64(offset), words)

    return quantize_columns_kernel


@dataclass(frozen=True)
class Quantized:
    """Q, K or V in e4m3.

    Attributes
    ----------
    tiles : array of shape (batch, num_heads, num_tiles, bytes of a tile), uint8
    scales : array of shape (batch, num_heads, num_tiles), float32
    shape : (batch, seqlen, num_heads, head_dim)
        Of what was quantised.
    rows : int
        Tokens of a tile.
    """

    tiles: object
    scales: object
    shape: tuple
    rows: int


def quantize_rows(x, rows, *, hadamard=True, multiple=1, least=LEAST):
    """Q or K in e4m3.

    Parameters
    ----------
    x : GPU array of shape (batch, seqlen, num_heads, head_dim), float16 or bfloat16
    rows : int
        Of a tile, which has a scale.
    hadamard : bool, default=True
        Multiply each row by `rotation` first.
    multiple : int, default=1
        The number of tiles is a multiple of it; those that no row reaches are 0.
    least : float, default=2⁻²⁰
        A tile gets the scale that is right for this where all its numbers are smaller: the largest
        of all tiles makes one scale of all scales. With `hadamard`, of √head_dim times the rows.

    Returns
    -------
    Quantized
    """
    kernel = make_quantize_rows(x.shape[3], rows, hadamard, arrays.dtype_name(x))
    return _quantize(kernel, x, rows, x.shape[3] * rows, multiple, least)


def quantize_columns(x, rows, *, least=LEAST):
    """V in e4m3, transposed; as `quantize_rows`."""
    kernel = make_quantize_columns(x.shape[3], rows, arrays.dtype_name(x))
    return _quantize(kernel, x, rows, (x.shape[3] + SUM_ROWS) * rows, 1, least)


def _quantize(kernel, x, rows, tile_bytes, multiple, least):
    batch, seqlen, num_heads, head_dim = x.shape
    num_tiles = ceil_div(ceil_div(seqlen, rows), multiple) * multiple
    tiles = arrays.empty(x, (batch, num_heads, num_tiles, tile_bytes), np.uint8)
    scales = arrays.empty(x, (batch, num_heads, num_tiles))
    grid, threads = (num_tiles, num_heads, batch), (threads_of(head_dim, rows),)
    arrays.launch(kernel, grid, threads, x, tiles, scales, np.float32(least))
    return Quantized(tiles, scales, tuple(x.shape), rows)


def rotation(head_dim):
    """The orthogonal matrix of `hadamard`, in NumPy.

    Returns
    -------
    array of shape (head_dim, head_dim), float64
    """
    matrix = np.ones((1, 1))
    while len(matrix) < head_dim:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    signs = np.empty(head_dim)
    lanes = head_dim // VALUES
    for lane in range(lanes):
        bits = sign_bits(lane)
        for i, j, half in np.ndindex(4, 4, 2):
            column = CHUNK * (lane + lanes * (i >> 1)) + 8 * (i & 1) + 2 * j + half
            signs[column] = 1 - 2 * (bits << (4 * i + j) >> (31 if half else 15) & 1)
    return signs[:, None] * matrix / np.sqrt(head_dim)
