"""Quantises Q, K and V to e4m3: a scale for each tile, a Hadamard rotation, wgmma's memory layout.

A tile of `rows` tokens of a head is divided by its scale, largest absolute value / 448, and
rounded. It is stored byte for byte as wgmma reads it from shared memory (`wgmma.byte_offset`), its
rows along the sum:

    Q, K   the sum is over head_dim:  rows of head_dim bytes
    V      the sum is over the keys:  transposed, head_dim rows of `rows` bytes, and one of ones

In Q and K an outlier would leave few bits for all other numbers. With `hadamard` both are
multiplied by the same orthogonal matrix, random signs times a Hadamard matrix: Q Kᵀ does not
change, and an outlier becomes head_dim small numbers. The Hadamard matrix of 2n columns is
[[H, H], [H, −H]], with H that of n columns. The tensor cores multiply each chunk of 16 columns by
the matrix of 16. One lane then has the same column of all chunks, and computes the remaining sums
and differences (a butterfly): no data moves between lanes.

Q Kᵀ does not depend on the order of the columns: Q and K keep them in the lanes' order
(`rotation`). The 16 keys of a chunk of V are in the order of a product's result in a lane's
registers (`slot_key`), so P is an operand without a permutation.

Paper: Shah et al. 2024, FlashAttention-3, arXiv:2407.08608, section 3.3.
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, uint32, uint64

from fa_numba.constants import FULL_WARP
from fa_numba.ptx import mbarrier, wgmma
from fa_numba.ptx.convert import pack_e4m3x4
from fa_numba.ptx.layouts import ROW_BYTES
from fa_numba.ptx.ldmatrix import ldmatrix_x4
from fa_numba.ptx.mbarrier import fence_mbarrier_init, mbarrier_arrive_expect_tx, mbarrier_init
from fa_numba.ptx.statement import global_address, shared_address
from fa_numba.ptx.tma import make_load_tile
from fa_numba.ptx.vectors import load_shared_b32, store_global_x4, unpack_bf16x2, unpack_f16x2
from fa_numba.runtime import arrays
from fa_numba.runtime.tensor_maps import tensor_map
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.shared_plan import SharedPlan
from fa_numba.tiling.block_sizes import ceil_div

E4M3_MAX = np.float32(448)
LEAST = np.float32(2.0**-20)  # lower bound of a tile's largest: a tile of zeros has a scale, too
CHUNK = 16  # bytes along the sum; columns of a row that the tensor cores multiply at once
ROWS = 16  # of Q or K, of a warp
STAGES = 3  # tiles in flight or in use
BLOCKS_PER_SM = 2
SUM_ROWS = 8  # after head_dim rows of V: one of ones, and zeros, as N is a multiple of 8
ONES = np.uint32(0x38383838)  # four times 1 in e4m3
# Random: bit i flips the sign of column i of every chunk; of chunk i.
COLUMN_SIGNS, CHUNK_SIGNS = 0b0110_1001_1101_0010, 0b0110_0101_1000_1101


def slot_key(slot):
    """Key, 0 to 15 in a chunk, that slot `slot` of V holds."""
    lane, i, c = slot >> 2, slot >> 1 & 1, slot & 1  # lane of a quad; which 8 columns; which of 2
    return 8 * i + 2 * lane + c


device_slot_key = cuda.jit(device=True, forceinline=True)(slot_key)


def width_of(columns):
    """The widest panel of which a tile with this many columns has a whole number."""
    return next(width for width in wgmma.SWIZZLES if columns % width == 0)


byte_offset = cuda.jit(device=True, forceinline=True)(wgmma.byte_offset)


@functools.cache
def make_plan(HEAD_DIM, BLOCK_N):
    """Dynamic shared memory of a thread block: a `SharedPlan`."""
    plan = SharedPlan()
    plan.X = plan.tiles(STAGES, 2 * HEAD_DIM * BLOCK_N)
    return plan


def shared_bytes(HEAD_DIM, BLOCK_N):
    """Dynamic shared memory that a thread block asks for."""
    return make_plan(HEAD_DIM, BLOCK_N).bytes


def threads_of(BLOCK_N):
    """Threads of a thread block."""
    return BLOCK_N // ROWS * 32


class Rotation(NamedTuple):
    """Device functions of `make_rotate`."""

    matrix_of: Any
    rotate: Any


@functools.cache
def _make_butterfly(STEP, LENGTH):
    """butterfly(x): sums and differences of elements at a distance of STEP."""

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def butterfly(x):
        for pair in range(LENGTH // 2):
            i = pair // STEP * 2 * STEP + pair % STEP
            low, high = x[i], x[i + STEP]
            x[i], x[i + STEP] = low + high, low - high

    return butterfly


@functools.cache
def make_rotate(HEAD_DIM, BLOCK_N, HADAMARD, DTYPE):
    """Functions that multiply rows of Q and K by `rotation`, without its factor 1 / √head_dim.

    Returns
    -------
    Rotation
        matrix_of(b, lane)
            Sets b, of shape (2, 2), to the matrix of a chunk, as B of two products.
        rotate(y, b, x_tile, row, lane)
            Rotates a warp's rows, from `row` on: y[8 j + 4 t + 2 h + c] is column
            8 t + 2 (lane % 4) + c of chunk j, in row lane // 4 + 8 h.
    """
    CHUNKS, PANEL_BYTES = HEAD_DIM // CHUNK, BLOCK_N * ROW_BYTES
    ONE = 0x3F80 if DTYPE == "bfloat16" else 0x3C00
    multiply = forward.mma_of(DTYPE)
    butterfly_8, butterfly_16, butterfly_32 = (
        _make_butterfly(step, HEAD_DIM // 2) for step in (8, 16, 32)
    )

    @cuda.jit(device=True, forceinline=True)
    def matrix_of(b, lane):
        for t in range(2):
            for i in range(2):
                b[t, i] = uint32(0)
                for c in range(2):
                    k, n = uint32(8 * i + 2 * (lane & 3) + c), uint32(8 * t + (lane >> 2))
                    element = uint32(ONE) if HADAMARD or k == n else uint32(0)
                    if HADAMARD:
                        flipped = uint32(cuda.popc(k & n)) ^ uint32(COLUMN_SIGNS) >> k
                        element |= (flipped & uint32(1)) << uint32(15)
                    b[t, i] |= element << uint32(16 * c)

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def rotate(y, b, x_tile, row, lane):
        a_fragment = cuda.local.array(4, uint32)
        b_fragment = cuda.local.array(2, uint32)
        d_fragment = cuda.local.array(4, float32)
        row += lane & 15
        x_row = x_tile + row * ROW_BYTES
        for j in range(CHUNKS):
            eight = 2 * j + (lane >> 4)  # columns
            ldmatrix_x4(a_fragment, x_row + (eight >> 3) * PANEL_BYTES + ((eight ^ row) & 7) * 16)
            for t in range(2):
                for i in range(2):
                    b_fragment[i] = b[t, i]
                for i in range(4):
                    d_fragment[i] = float32(0)
                multiply(d_fragment, a_fragment, b_fragment)
                for i in range(4):
                    flipped = HADAMARD and CHUNK_SIGNS >> j & 1
                    y[8 * j + 4 * t + i] = -d_fragment[i] if flipped else d_fragment[i]
        if HADAMARD:  # across chunks
            butterfly_8(y)
            butterfly_16(y)
            if CHUNKS > 4:
                butterfly_32(y)

    return Rotation(matrix_of, rotate)


@functools.cache
def make_quantize(HEAD_DIM, Q_ROWS, BLOCK_N, HADAMARD, DTYPE):
    """The kernel for Q, K and V; `threads_of` threads, `make_plan` of shared memory.

    HEAD_DIM is 64 or 128, BLOCK_N 128. The tiles of Q for BLOCK_N rows are stored one after the
    other, like one tile of K.
    """
    THREADS = threads_of(BLOCK_N)
    WARPS, Q_WARPS, Q_TILES = THREADS // 32, Q_ROWS // ROWS, BLOCK_N // Q_ROWS
    VALUES, PANELS = HEAD_DIM // 2, HEAD_DIM // 64  # numbers of a thread; panels of 64 columns
    V_ROWS = HEAD_DIM + SUM_ROWS
    QK_WIDTH, V_WIDTH = width_of(HEAD_DIM), width_of(BLOCK_N)
    X_BYTES, PANEL_BYTES = 2 * HEAD_DIM * BLOCK_N, BLOCK_N * ROW_BYTES
    NORM = np.float32(HEAD_DIM**-0.5 if HADAMARD else 1)
    plan = make_plan(HEAD_DIM, BLOCK_N)
    X, shared_base = plan.X, plan.shared_base
    unpack = unpack_bf16x2 if DTYPE == "bfloat16" else unpack_f16x2
    load_tile = make_load_tile(PANELS)
    matrix_of, rotate = make_rotate(HEAD_DIM, BLOCK_N, HADAMARD, DTYPE)
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def read_columns(y, x_tile, chunk, pair):
        """Read two neighbouring columns of 16 keys in each panel."""
        two = cuda.local.array(2, float32)
        for panel in range(PANELS):
            column = x_tile + panel * PANEL_BYTES + (pair & 3) * 4
            for slot in range(CHUNK):
                key = device_slot_key(slot)
                row = column + (chunk * CHUNK + key) * ROW_BYTES
                unpack(two, load_shared_b32(row + (((pair >> 2) ^ key) & 7) * 16))
                for c in range(2):
                    y[32 * panel + 16 * c + slot] = two[c]

    @cuda.jit(device=True, forceinline=True)
    def tile_of(unit, num_heads, per_head):
        """Tile, head and batch of a unit: units next to each other are neighbours in memory."""
        row_unit = unit // num_heads
        return uint32(row_unit % per_head), uint32(unit % num_heads), uint32(row_unit // per_head)

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, BLOCKS_PER_SM))
    def quantize_kernel(
        q_map, k_map, v_map, q_tiles, k_tiles, v_tiles, q_scales, k_scales, v_scales,
        q_least, k_least, v_least,
    ):  # fmt: skip
        """A persistent thread block loops over tiles of BLOCK_N rows; TMA loads the next ones.

        grid      (3, thread blocks): x = 0 for Q, 1 for K, 2 for V
        shared    x_tile (STAGES, BLOCK_N, HEAD_DIM) in 16 bits, as TMA writes it; of_warps: their
                  largest numbers; a barrier for each stage
        private   y: Q and K in the layout of `rotate`, V as 16 keys of PANELS pairs of columns
        HBM       Q, K, V once, their tiles once
        """
        y = cuda.local.array(VALUES, float32)
        b_matrix = cuda.local.array((2, 2), uint32)
        words = cuda.local.array(4, uint32)
        of_warps = cuda.shared.array((2, WARPS), float32)
        full = shared_address(cuda.shared.array(STAGES, uint64))
        x_tiles = shared_base() + X.start
        tid = uint32(cuda.threadIdx.x)
        warp, lane = tid >> 5, tid & 31
        # For V, neighbouring lanes have two chunks of a row of its tile: 32 bytes.
        chunk, pair = (tid >> 6) * 2 + (tid & 1), (tid >> 1) & 31
        of_q, of_v = cuda.blockIdx.x == 0, cuda.blockIdx.x == 2
        x_map, least = q_map if of_q else v_map if of_v else k_map, k_least
        num_heads, num_tiles = uint32(k_scales.shape[1]), uint32(k_scales.shape[2])
        per_head = num_tiles  # units of BLOCK_N rows
        if of_q:
            least = q_least
            num_heads, num_tiles = uint32(q_scales.shape[1]), uint32(q_scales.shape[2])
            per_head = uint32((num_tiles + Q_TILES - 1) // Q_TILES)
        if of_v:
            least = v_least
        end = uint32(per_head * num_heads * q_scales.shape[0])
        this, num_blocks = uint32(cuda.blockIdx.y), uint32(cuda.gridDim.y)
        matrix_of(b_matrix, lane)

        if tid == 0:
            for stage in range(STAGES):
                mbarrier_init(full + stage * mbarrier.BYTES, 1)
            fence_mbarrier_init()
            for stage in range(STAGES):
                unit = uint32(this + stage * num_blocks)
                if unit < end:
                    tile, head, b = tile_of(unit, num_heads, per_head)
                    barrier = full + stage * mbarrier.BYTES
                    mbarrier_arrive_expect_tx(barrier, X_BYTES)
                    x_tile = x_tiles + stage * X_BYTES
                    load_tile(x_tile, BLOCK_N, x_map, tile * BLOCK_N, head, b, barrier)
        cuda.syncthreads()  # the barriers are made: safe to wait on
        step = uint32(0)
        for unit in range(this, end, num_blocks):
            stage, phase = step % STAGES, step // STAGES & 1
            x_tile, barrier = x_tiles + stage * X_BYTES, full + stage * mbarrier.BYTES
            wait(barrier, phase)
            if of_v:
                read_columns(y, x_tile, chunk, pair)
            else:
                rotate(y, b_matrix, x_tile, warp * ROWS, lane)
            largest = float32(0)
            for i in range(VALUES):
                largest = max(largest, abs(y[i]))
            for lanes in (16, 8, 4, 2, 1):
                largest = max(largest, cuda.shfl_xor_sync(FULL_WARP, largest, lanes))
            if lane == 0:
                of_warps[step & 1, warp] = largest
            cuda.syncthreads()  # the tile is read: safe to overwrite; the maxima: safe to read
            next_unit = uint32(unit + STAGES * num_blocks)
            if tid == 0 and next_unit < end:
                tile, head, b = tile_of(next_unit, num_heads, per_head)
                mbarrier_arrive_expect_tx(barrier, X_BYTES)
                load_tile(x_tile, BLOCK_N, x_map, tile * BLOCK_N, head, b, barrier)
            for other in range(WARPS):
                if not of_q or other // Q_WARPS == warp // Q_WARPS:
                    largest = max(largest, of_warps[step & 1, uint32(other)])
            step = uint32(step + 1)
            largest = max(largest, least)
            inverse = E4M3_MAX / largest

            tile, head, b = tile_of(uint32(unit), num_heads, per_head)
            if of_v:
                address = global_address(v_tiles[b, head, tile])
                if tid == 0:
                    v_scales[b, head, tile] = largest / E4M3_MAX
                for i in range(2 * PANELS):  # columns
                    for j in range(4):
                        at = 16 * i + 4 * j
                        words[j] = pack_e4m3x4(
                            y[at] * inverse,
                            y[at + 1] * inverse,
                            y[at + 2] * inverse,
                            y[at + 3] * inverse,
                        )
                    column = (i >> 1) * 64 + 2 * pair + (i & 1)
                    offset = byte_offset(column, CHUNK * chunk, V_ROWS, V_WIDTH)
                    store_global_x4(address + uint64(offset), words)
                if pair < SUM_ROWS:
                    for j in range(4):
                        words[j] = ONES if pair == 0 else uint32(0)
                    offset = byte_offset(HEAD_DIM + pair, CHUNK * chunk, V_ROWS, V_WIDTH)
                    store_global_x4(address + uint64(offset), words)
            else:
                if of_q:
                    address = global_address(q_tiles[b, head, tile * Q_TILES])
                    tile = uint32(tile * Q_TILES + warp // Q_WARPS)
                    if warp % Q_WARPS == 0 and lane == 0 and tile < num_tiles:
                        q_scales[b, head, tile] = largest * NORM / E4M3_MAX
                else:
                    address = global_address(k_tiles[b, head, tile])
                    if tid == 0:
                        k_scales[b, head, tile] = largest * NORM / E4M3_MAX
                for h in range(2):
                    row = warp * ROWS + (lane >> 2) + 8 * h
                    for i in range(PANELS):
                        for j in range(4):
                            at = 8 * (4 * i + j) + 2 * h
                            words[j] = pack_e4m3x4(
                                y[at] * inverse,
                                y[at + 1] * inverse,
                                y[at + 4] * inverse,
                                y[at + 5] * inverse,
                            )
                        offset = byte_offset(row, CHUNK * (4 * i + (lane & 3)), BLOCK_N, QK_WIDTH)
                        if tile < num_tiles:
                            store_global_x4(address + uint64(offset), words)

    return quantize_kernel


@dataclass(frozen=True)
class Quantized:
    """Q, K or V in e4m3.

    Attributes
    ----------
    tiles : array of shape (batch, num_heads, num_tiles, bytes of a tile), uint8
    scales : array of shape (batch, num_heads, num_tiles), float32
    shape : (batch, seqlen, num_heads, head_dim)
        Shape of the original array.
    rows : int
        Tokens in a tile.
    """

    tiles: object
    scales: object
    shape: tuple
    rows: int


def quantize(q, k, v, q_rows, block_n, *, hadamard=True, multiple=1, least=(LEAST, LEAST, LEAST)):
    """Quantise Q, K and V to e4m3; V is transposed.

    Parameters
    ----------
    q, k, v : GPU arrays of shape (batch, seqlen, num_heads, head_dim), float16 or bfloat16
        head_dim is 64 or 128.
    q_rows, block_n : int
        Rows in a tile of Q, and in a tile of K or V; each tile has one scale.
    hadamard : bool, default=True
        Multiply each row of Q and K by `rotation` first.
    multiple : int, default=1
        The number of tiles of Q is rounded up to a multiple of it; tiles without a row are 0.
    least : three floats, default=2⁻²⁰ each
        Lower bounds, for Q, K and V, of the largest number from which a tile's scale is computed.
        The largest number of all tiles makes all scales equal. With `hadamard`, those of Q and K
        are compared with √head_dim times the rotated rows.

    Returns
    -------
    q8, k8, v8 : Quantized
    """
    head_dim, num_sms = q.shape[3], arrays.num_sms(q)
    q8 = _room(q, q_rows, head_dim, multiple)
    k8, v8 = _room(k, block_n, head_dim), _room(v, block_n, head_dim + SUM_ROWS)
    kernel = make_quantize(head_dim, q_rows, block_n, hadamard, arrays.dtype_name(q))
    units = ceil_div(q8.scales.shape[2], block_n // q_rows) * q.shape[2]
    units = max(units, k8.scales.shape[2] * k.shape[2])
    grid = (3, min(units * q.shape[0], 2 * BLOCKS_PER_SM * num_sms))
    maps = (tensor_map(x, block_n) for x in (q, k, v))
    made = (q8.tiles, k8.tiles, v8.tiles, q8.scales, k8.scales, v8.scales)
    size = shared_bytes(head_dim, block_n)
    arrays.launch(
        kernel, grid, (threads_of(block_n),), *maps, *made, *map(np.float32, least),
        shared_bytes=size,
    )  # fmt: skip
    return q8, k8, v8


def _room(x, rows, columns, multiple=1):
    """An uninitialised `Quantized` for x."""
    batch, seqlen, num_heads, _ = x.shape
    num_tiles = ceil_div(ceil_div(seqlen, rows), multiple) * multiple
    tiles = arrays.empty(x, (batch, num_heads, num_tiles, rows * columns), np.uint8)
    scales = arrays.empty(x, (batch, num_heads, num_tiles))
    return Quantized(tiles, scales, tuple(x.shape), rows)


def rotation(head_dim, hadamard=True):
    """The matrix by which `quantize` multiplies rows of Q and K, its columns in the kernel's order.

    Returns
    -------
    array of shape (head_dim, head_dim), float64
        Orthogonal.
    """
    matrix = np.eye(head_dim)
    if hadamard:
        column = np.arange(head_dim)
        signs = COLUMN_SIGNS >> column % CHUNK ^ CHUNK_SIGNS >> column // CHUNK
        common = np.bitwise_count(column[:, None] & column)
        matrix = (1 - 2.0 * (signs[:, None] + common & 1)) / np.sqrt(head_dim)
    i, lane, j, t, c = np.ogrid[: head_dim // 64, :4, :4, :2, :2]
    return matrix[:, (CHUNK * (4 * i + j) + 8 * t + 2 * lane + c).ravel()]
