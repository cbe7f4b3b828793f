"""FlashAttention's backward pass with mma.sync, for GPUs since Ampere. It has run on Hopper alone.

flash_attn_bwd_registers    a thread computes tiles in registers; S and dP once
flash_attn_bwd_mma          a warp multiplies tiles in registers; cp.async fetches  <- this file
flash_attn_bwd_persistent   a warpgroup multiplies tiles in shared memory; TMA fetches

A thread block owns 128 keys, each pair of its eight warps 32 of them, and walks the tiles of
queries. The bandwidth of shared memory limits a kernel of this size, so a fragment of Q or dout
should serve many rows. That is why a pair of warps shares its 32 keys and divides everything else:

    Sᵀ, dPᵀ    rows are keys; each warp computes half of the columns, the queries
    dK, dV     each warp computes half of the columns, over all queries: over its own queries with
               Pᵀ and dSᵀ in registers, in the layout of A in the products Pᵀ dout and dSᵀ Q; over
               the other warp's queries with Pᵀ and dSᵀ from shared memory
    dQ         dQ = dS K sums over the keys of all warps: each warp computes 32 × 32 of it and adds
               that to HBM in float32, atomically, in the order of the registers; with
               deterministic=True dQ has its own kernel

ldmatrix reads a tile by rows or, transposing each 8×8 matrix, by columns. Q and dout are read both
ways, dSᵀ and K by columns for dQ: nothing else is ever transposed.

A head_dim below 64, or between 64 and 128, is zero-padded to that.

The only option of a score that the kernels have is causal. A window, a softcap, ALiBi, a mask and a
score of the user's are functions of the tiles (`gradient_expressions`), and tiles in which nothing
is seen are not loaded.

On an H200 it was 1.01 to 1.07 times as fast as PyTorch's FlashAttention-2 at n = 512, and 1.04 to
1.14 times beyond: float16, head_dim 64 and 128, full and causal;
benchmarks/results/tensor_core_bwd.json.

Paper: FlashAttention-2, arXiv:2307.08691, Algorithm 2.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32, uint64

from fa_numba import checks
from fa_numba.constants import LOG2_E, ZERO
from fa_numba.expressions.functions import NO_EXPRESSIONS
from fa_numba.expressions.tiles import WHOLE
from fa_numba.kernels import masks
from fa_numba.ptx.barriers import named_barrier_sync
from fa_numba.ptx.convert import exp2
from fa_numba.ptx.cp_async import cp_async_16, cp_async_commit, cp_async_wait
from fa_numba.ptx.layouts import ROW_BYTES
from fa_numba.ptx.ldmatrix import ldmatrix_x4, ldmatrix_x4_trans
from fa_numba.ptx.statement import global_address
from fa_numba.ptx.vectors import atomic_add, atomic_add_x4, store_shared_b32
from fa_numba.runtime import arrays
from fa_numba.tensor_core import backward, forward
from fa_numba.tensor_core.backward import (
    NOTHING,
    padded,
    tile_and_head,
    tile_rows,
)
from fa_numba.tensor_core.dq_parts import DQ_BYTES
from fa_numba.tensor_core.expression_tiles import (
    ExpressionArgs,
    make_run_functions,
    make_tile_functions,
    runs_of,
)
from fa_numba.tensor_core.fragments import make_fragment_functions
from fa_numba.tensor_core.gradient_expressions import (
    SizesOfTile,
    WalkedQueries,
    find_run,
    make_expression_functions,
    next_of_run,
    number_of_tiles,
    runs_of_keys,
)
from fa_numba.tensor_core.gradient_fragments import (
    BLOCK_N,
    make_gradient_functions,
    make_store_gradient,
)
from fa_numba.tensor_core.shared_plan import LEAST_ALIGN, Region, SharedPlan
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.persistent_tiling import ROWS

THREADS = 256
ROWS_AT_ONCE = THREADS // 8  # eight threads copy a row of a panel; a multiple of 8: one swizzle
DQ_BLOCK_M, DQ_BLOCK_N = 128, 64  # of the kernel for dQ alone
RED_X4 = (9, 0)  # since this compute capability one instruction adds four numbers
STAGES = 2  # tiles of Q, and of dout: one is multiplied while the next one is in flight


class Layout(NamedTuple):
    """Regions of shared memory. `p` and `ds` are Pᵀ and dSᵀ: rows are keys, columns queries."""

    k: Region
    v: Region
    q: Region
    dout: Region
    ds: Region
    p: Region
    lse: Region
    delta: Region


@functools.cache
def make_plan(HEAD_DIM):
    """The `SharedPlan` of a thread block, with a `Layout`.

    Tiles begin at a whole row: an exclusive or then leads to the next 16 columns.
    """
    BLOCK_M, ROW = tile_rows(HEAD_DIM), 2 * padded(HEAD_DIM)
    plan = SharedPlan(align=ROW_BYTES)
    plan.layout = Layout(
        k=plan.tiles(1, BLOCK_N * ROW),
        v=plan.tiles(1, BLOCK_N * ROW),
        q=plan.tiles(STAGES, BLOCK_M * ROW),
        dout=plan.tiles(STAGES, BLOCK_M * ROW),
        ds=plan.tiles(1, 2 * BLOCK_M * BLOCK_N),
        p=plan.tiles(1, 2 * BLOCK_M * BLOCK_N),
        lse=plan.region(STAGES * 4 * BLOCK_M),
        delta=plan.region(STAGES * 4 * BLOCK_M),
    )
    return plan


def shared_bytes(HEAD_DIM):
    """Dynamic shared memory of a thread block."""
    return make_plan(HEAD_DIM).bytes


@functools.cache
def make_dq_plan(HEAD_DIM):
    """The `SharedPlan` of the kernel for dQ alone."""
    ROW = 2 * padded(HEAD_DIM)
    plan = SharedPlan(align=LEAST_ALIGN)
    plan.Q, plan.DOUT = plan.tiles(1, DQ_BLOCK_M * ROW), plan.tiles(1, DQ_BLOCK_M * ROW)
    plan.K, plan.V = plan.tiles(STAGES, DQ_BLOCK_N * ROW), plan.tiles(STAGES, DQ_BLOCK_N * ROW)
    return plan


def dq_shared_bytes(HEAD_DIM):
    """Dynamic shared memory of a thread block of the kernel for dQ alone."""
    return make_dq_plan(HEAD_DIM).bytes


@functools.cache
def make_copy_tile(HEAD_DIM):
    """copy_tile(tile, num_rows, source, row_stride, row, seqlen, chunk): start to copy a tile.

    This thread's part of it: a chunk of every 32nd row from `row` on. The caller commits.
    """
    NUM_PANELS, WHOLE_PANELS = padded(HEAD_DIM) // 64, HEAD_DIM % 64 == 0

    @cuda.jit(device=True, forceinline=True)
    def copy_tile(tile, num_rows, source, row_stride, row, seqlen, chunk):
        for panel in range(NUM_PANELS):
            inside = WHOLE_PANELS or 64 * panel + 8 * chunk < HEAD_DIM
            for i in range(num_rows // ROWS_AT_ONCE):
                r = i * ROWS_AT_ONCE
                destination = tile + (panel * num_rows + r) * ROW_BYTES
                num_bytes = 16 if inside and row + r < seqlen else 0
                offset = uint64((row + r) * row_stride + panel * ROW_BYTES + 16 * chunk)
                cp_async_16(destination, source + offset, num_bytes)

    return copy_tile


class Products(NamedTuple):
    """The products of a warp with matrices in shared memory, as ldmatrix reads them.

    Attributes
    ----------
    multiply_rows(d, a_rows, b_rows, lane)
        d = A Bᵀ, both with their rows along the sum of COLS: A 16 rows of a tile of BLOCK_N, B all
        BLOCK_M rows of a tile.
    multiply_registers(d, a, b_rows, lane)
        d += A B, A (16, BLOCK_M) in registers, B (BLOCK_M, COLS) with a row for each term.
    """

    multiply_rows: Callable
    multiply_registers: Callable


@functools.cache
def make_products(COLS, BLOCK_M, DTYPE):
    """`Products` for these compile-time constants."""
    M16, D16 = BLOCK_M // 16, COLS // 16
    mma = forward.mma_of(DTYPE)

    @cuda.jit(device=True, forceinline=True)
    def chunk_address(rows, num_rows, chunk, lane_chunk):
        """Address of chunk `chunk`, an even number, or of the next one, by lane_chunk."""
        return rows + (chunk >> 3) * num_rows * ROW_BYTES + (((chunk & 7) ^ lane_chunk) << 4)

    @cuda.jit(device=True, forceinline=True)
    def multiply_rows(d, a_rows, b_rows, lane):
        a = cuda.local.array(4, uint32)
        b = cuda.local.array((2, 2), uint32)
        a_row = a_rows + (lane & 15) * ROW_BYTES
        b_row = b_rows + ((lane & 7) + ((lane >> 4) << 3)) * ROW_BYTES
        a_chunk, b_chunk = (lane >> 4) ^ (lane & 7), ((lane >> 3) & 1) ^ (lane & 7)
        for j in range(BLOCK_M // 8):
            for r in range(4):
                d[j, r] = float32(0)
        for k in range(D16):
            ldmatrix_x4(a, chunk_address(a_row, BLOCK_N, 2 * k, a_chunk))
            for j in range(M16):
                rows = b_row + j * 16 * ROW_BYTES
                ldmatrix_x4(b, chunk_address(rows, BLOCK_M, 2 * k, b_chunk))
                mma(d[2 * j], a, b[0])
                mma(d[2 * j + 1], a, b[1])

    @cuda.jit(device=True, forceinline=True)
    def multiply_registers(d, a, b_rows, lane):
        b = cuda.local.array((2, 2), uint32)
        b_row = b_rows + (lane & 15) * ROW_BYTES
        lane_chunk = (lane >> 4) ^ (lane & 7)
        for k in range(M16):
            for j in range(D16):
                rows = b_row + k * 16 * ROW_BYTES
                ldmatrix_x4_trans(b, chunk_address(rows, BLOCK_M, 2 * j, lane_chunk))
                mma(d[2 * j], a[k], b[0])
                mma(d[2 * j + 1], a[k], b[1])

    return Products(multiply_rows, multiply_registers)


class PairProducts(NamedTuple):
    """The products of a warp that shares 32 keys with another: 32 rows of tiles of BLOCK_N.

    Addresses of rows are those of a tile's first panel of 64 columns.

    Attributes
    ----------
    multiply_rows(d, a_rows, b_rows, lane)
        d = A Bᵀ, both with their rows along the sum of COLS: A 32 rows of a tile of BLOCK_N, B half
        of the rows of a tile of BLOCK_M.
    multiply_registers(d, a, b_rows, b_chunk, lane)
        d += A B, A (32, BLOCK_M / 2) in registers; B BLOCK_M / 2 rows of a tile of BLOCK_M, and
        half of its columns, from chunk b_chunk on.
    multiply_shared(d, a_rows, a_chunk, b_rows, b_chunk, lane)
        The same with A in a tile of BLOCK_N rows, from chunk a_chunk on.
    multiply_columns(d, a_columns, a_chunk, b_columns, b_chunk, lane)
        d = Aᵀ B over BLOCK_N rows: 32 of the 64 columns of a panel each, from a chunk on.
    """

    multiply_rows: Callable
    multiply_registers: Callable
    multiply_shared: Callable
    multiply_columns: Callable


@functools.cache
def make_pair_products(COLS, BLOCK_M, DTYPE):
    """`PairProducts` for these compile-time constants."""
    M16, D16, HALF_D16 = BLOCK_M // 32, COLS // 16, COLS // 32
    A_PANEL, B_PANEL = BLOCK_N * ROW_BYTES, BLOCK_M * ROW_BYTES
    mma = forward.mma_of(DTYPE)

    @cuda.jit(device=True, forceinline=True)
    def address_of(rows, panel_bytes, chunk, lane):
        """Address of a chunk in this lane's row of 16; lanes from 16 on have the next chunk."""
        swizzled = ((chunk & 7) + (lane >> 4)) ^ (lane & 7)
        return rows + (chunk >> 3) * panel_bytes + (lane & 15) * ROW_BYTES + (swizzled << 4)

    @cuda.jit(device=True, forceinline=True)
    def multiply_rows(d, a_rows, b_rows, lane):
        a = cuda.local.array((2, 2, 4), uint32)  # alternating, so that loads may run ahead
        b = cuda.local.array((2, 2, 2), uint32)
        a_row = address_of(a_rows, A_PANEL, 0, lane)
        b_row = b_rows + ((lane & 7) + ((lane >> 4) << 3)) * ROW_BYTES
        b_row += (((lane >> 3) & 1) ^ (lane & 7)) << 4
        for i in range(2):
            for j in range(2 * M16):
                for r in range(4):
                    d[i, j, r] = float32(0)
        for k in range(D16):
            for i in range(2):
                at = (a_row ^ ((k & 3) << 5)) + (k >> 2) * A_PANEL + i * 16 * ROW_BYTES
                ldmatrix_x4(a[k & 1, i], at)
            for j in range(M16):
                at = (b_row ^ ((k & 3) << 5)) + (k >> 2) * B_PANEL + j * 16 * ROW_BYTES
                ldmatrix_x4(b[j & 1], at)
                for i in range(2):
                    mma(d[i, 2 * j], a[k & 1, i], b[j & 1, 0])
                    mma(d[i, 2 * j + 1], a[k & 1, i], b[j & 1, 1])

    @cuda.jit(device=True, forceinline=True)
    def multiply_registers(d, a, b_rows, b_chunk, lane):
        b = cuda.local.array((2, 2, 2), uint32)
        b_row = address_of(b_rows, B_PANEL, b_chunk, lane)
        for k in range(M16):
            for j in range(HALF_D16):
                ldmatrix_x4_trans(b[j & 1], (b_row ^ (j << 5)) + k * 16 * ROW_BYTES)
                for i in range(2):
                    mma(d[i, 2 * j], a[i, k], b[j & 1, 0])
                    mma(d[i, 2 * j + 1], a[i, k], b[j & 1, 1])

    @cuda.jit(device=True, forceinline=True)
    def multiply_shared(d, a_rows, a_chunk, b_rows, b_chunk, lane):
        a = cuda.local.array((2, 2, 4), uint32)
        b = cuda.local.array((2, 2, 2), uint32)
        a_row = address_of(a_rows, A_PANEL, a_chunk, lane)
        b_row = address_of(b_rows, B_PANEL, b_chunk, lane)
        for k in range(M16):
            for i in range(2):
                ldmatrix_x4(a[k & 1, i], (a_row ^ (k << 5)) + i * 16 * ROW_BYTES)
            for j in range(HALF_D16):
                ldmatrix_x4_trans(b[j & 1], (b_row ^ (j << 5)) + k * 16 * ROW_BYTES)
                for i in range(2):
                    mma(d[i, 2 * j], a[k & 1, i], b[j & 1, 0])
                    mma(d[i, 2 * j + 1], a[k & 1, i], b[j & 1, 1])

    @cuda.jit(device=True, forceinline=True)
    def multiply_columns(d, a_columns, a_chunk, b_columns, b_chunk, lane):
        a = cuda.local.array((2, 2, 4), uint32)
        b = cuda.local.array((2, 2, 2), uint32)
        a_row = a_columns + ((lane & 7) + ((lane >> 4) << 3)) * ROW_BYTES
        a_row += ((a_chunk + ((lane >> 3) & 1)) ^ (lane & 7)) << 4
        b_row = address_of(b_columns, 0, b_chunk, lane)
        for i in range(2):
            for j in range(4):
                for r in range(4):
                    d[i, j, r] = float32(0)
        for k in range(BLOCK_N // 16):
            for i in range(2):
                ldmatrix_x4_trans(a[k & 1, i], (a_row ^ (i << 5)) + k * 16 * ROW_BYTES)
            for j in range(2):
                ldmatrix_x4_trans(b[j & 1], (b_row ^ (j << 5)) + k * 16 * ROW_BYTES)
                for i in range(2):
                    mma(d[i, 2 * j], a[k & 1, i], b[j & 1, 0])
                    mma(d[i, 2 * j + 1], a[k & 1, i], b[j & 1, 1])

    return PairProducts(multiply_rows, multiply_registers, multiply_shared, multiply_columns)


@functools.cache
def make_flash_attn_bwd_mma(HEAD_DIM, CAUSAL, DTYPE, ADD_DQ=True, RED_X4=True, EXPRESSIONS=None):
    """The kernel for these compile-time constants: THREADS threads, `shared_bytes` of memory.

    HEAD_DIM is a multiple of 8, DTYPE "float16" or "bfloat16". Without ADD_DQ it computes dK and dV
    alone, and dq_sum may be any scalar. With RED_X4 an instruction adds four numbers of dQ.

    With EXPRESSIONS the mask and the score are the user's alone, CAUSAL is not read, runs is
    `gradient_expressions.Runs.of_keys` and args the tuple of their arguments. Otherwise both are
    empty.
    """
    EXPRESSED = EXPRESSIONS is not None
    plan = make_plan(HEAD_DIM)
    AT, shared_base = plan.layout, plan.shared_base
    BLOCK_M, COLS = tile_rows(HEAD_DIM), padded(HEAD_DIM)
    KV_PANEL = BLOCK_N * ROW_BYTES  # bytes of 64 columns
    Q_BYTES = AT.q.bytes // STAGES
    LSE_BYTES = BLOCK_M * 4  # of lse, and of delta
    DQ_ROWS = BLOCK_M // 32  # warps with the same columns of dQ: each has 32 rows and 32 columns
    LANE_STEP, DQ_STEP = (16, 512) if RED_X4 else (4, 128)  # bytes of dq_sum
    M_HALF, D_HALF = BLOCK_M // 2, COLS // 2  # a warp's queries of Sᵀ, its columns of dK and dV
    S_SHAPE, P_SHAPE = (2, M_HALF // 8, 4), (2, M_HALF // 16, 4)
    OUT_SHAPE, DQ_SHAPE = (2, D_HALF // 8, 4), (2, 4, 4)
    pack = forward.pack_of(DTYPE)
    by_rows, by_registers, by_shared, by_columns = make_pair_products(COLS, BLOCK_M, DTYPE)
    changes_gradients = EXPRESSED and EXPRESSIONS.changes_gradients
    gradients = make_gradient_functions(M_HALF, pack, changes_gradients)
    mask, exponentiate = gradients.mask, gradients.exponentiate
    expressed = make_expression_functions(M_HALF, EXPRESSIONS or NO_EXPRESSIONS, pack, True)
    judge, exponentiate_expressed = expressed.judge, expressed.exponentiate
    differentiate = gradients.differentiate
    store_gradient = make_store_gradient(HEAD_DIM, D_HALF, pack)
    first_query = masks.make_bounds_of_keys(CAUSAL, (-1, -1)).first_query
    copy_tile = make_copy_tile(HEAD_DIM)

    @cuda.jit(device=True, forceinline=True)
    def store_half(x, rows, first_chunk, lane):
        """A warp's 16 rows of Pᵀ or dSᵀ to shared memory, swizzled, from a chunk of a panel on."""
        g = lane >> 2
        start = rows + g * ROW_BYTES + ((lane & 3) << 2)
        for k in range(M_HALF // 16):
            for j in range(2):
                at = start + (((first_chunk + 2 * k + j) ^ g) << 4)
                for h in range(2):
                    store_shared_b32(at + h * 8 * ROW_BYTES, x[k, 2 * j + h])

    @cuda.jit(device=True, forceinline=True)
    def exponentiate_each(s, p, lse_rows, queries, n, sizes, scale, lane):
        """P of the user's score and mask. No loop: the compiler would not unroll it."""
        bits = cuda.local.array(2, uint32)
        judge(bits, queries, n, sizes, lane)
        exponentiate_expressed(s[0], p[0], lse_rows, bits, queries, n, sizes, scale, lane)
        judge(bits, queries, int32(n + 16), sizes, lane)
        more = bits, queries, int32(n + 16), sizes, scale, lane
        exponentiate_expressed(s[1], p[1], lse_rows, *more)

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def flash_attn_bwd_mma_kernel(
        dout, q, k, v, lse_2, delta, dq_sum, dk, dv, scale, softmax_scale, runs, args
    ):
        """A thread block owns BLOCK_N keys and walks the queries of every head that uses them.

        grid      `backward.grid_of_keys`; 256 threads, two warps have 32 keys
        shared    k_tile, v_tile (BLOCK_N, HEAD_DIM); q_tile, dout_tile (STAGES, BLOCK_M, HEAD_DIM);
                  ds_tile, p_tile (BLOCK_N, BLOCK_M), keys by queries; in panels of 64 columns,
                  swizzled; lse_rows, delta_rows (STAGES, BLOCK_M)
        private   s, dp (2, BLOCK_M / 16, 4), p, ds (2, BLOCK_M / 32, 4); dk_acc, dv_acc
                  (2, HEAD_DIM / 16, 4); dq (2, 4, 4), fragments
        HBM       K, V, dK, dV once; Q, dout, lse, delta, dQ's sums once per tile of keys
        paper     FlashAttention-2, Algorithm 2
        budget    255 registers, at most 40 bytes spilled; one thread block per SM
        """
        base = shared_base()
        k_tile, v_tile = base + AT.k.start, base + AT.v.start
        q_tile, dout_tile = base + AT.q.start, base + AT.dout.start
        ds_tile, p_tile = base + AT.ds.start, base + AT.p.start
        lse_rows, delta_rows = base + AT.lse.start, base + AT.delta.start

        s = cuda.local.array(S_SHAPE, float32)
        dp = cuda.local.array(S_SHAPE, float32)
        p = cuda.local.array(P_SHAPE, uint32)
        ds = cuda.local.array(P_SHAPE, uint32)
        dq = cuda.local.array(DQ_SHAPE, float32)
        dk_acc = cuda.local.array(OUT_SHAPE, float32)
        dv_acc = cuda.local.array(OUT_SHAPE, float32)

        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        seqlen_q, seqlen_k = q.shape[1], k.shape[1]
        n_tile, kv_head, b = tile_and_head((seqlen_k + BLOCK_N - 1) // BLOCK_N, k.shape[2])
        if b >= k.shape[0]:
            return
        n_start = n_tile * BLOCK_N
        group_size = q.shape[2] // k.shape[2]
        shift = seqlen_q - seqlen_k  # from a key's index to its index among the queries
        first_tile = first_query(n_start + shift) // BLOCK_M
        num_m_tiles = (seqlen_q + BLOCK_M - 1) // BLOCK_M
        half = warp >> 2  # 0 or 1: this warp's index in its pair
        n_warp = n_start + 32 * (warp & 3)
        n = n_warp + (lane >> 2)  # this lane's first key; the others 8, 16, 24 on
        warp_rows = 32 * (warp & 3) * ROW_BYTES
        m_rows, other_rows = half * M_HALF * ROW_BYTES, (half ^ 1) * M_HALF * ROW_BYTES
        m_chunk, other_chunk = half * (M_HALF // 8), (half ^ 1) * (M_HALF // 8)
        d_chunk = half * (D_HALF // 8)
        half_rows = warp_rows + (m_chunk >> 3) * KV_PANEL  # of Pᵀ and dSᵀ
        dq_row, dq_col = warp % DQ_ROWS, warp // DQ_ROWS  # this warp's part of dQ
        ds_columns = ds_tile + (dq_row >> 1) * KV_PANEL
        k_columns = k_tile + (dq_col >> 1) * KV_PANEL
        # In dq_sum, as `make_convert_dq` has it: panel, 8 columns, 16 rows, lane.
        dq_offset = ((dq_row >> 1) + (dq_col >> 1)) * DQ_BYTES
        dq_offset += 8192 * (dq_col & 1) + 2 * DQ_STEP * (dq_row & 1) + lane * LANE_STEP

        # This thread's copies: one chunk of 16 bytes in every 32nd row of each panel.
        row, chunk = tid >> 3, tid & 7
        to = row * ROW_BYTES + ((chunk ^ (row & 7)) << 4)
        key_row = n_start + row
        source = global_address(k[b, 0, kv_head])
        copy_tile(k_tile + to, BLOCK_N, source, k.strides[1], key_row, seqlen_k, chunk)
        source = global_address(v[b, 0, kv_head])
        copy_tile(v_tile + to, BLOCK_N, source, v.strides[1], key_row, seqlen_k, chunk)
        for i in range(2):
            for j in range(D_HALF // 8):
                for r in range(4):
                    dk_acc[i, j, r] = float32(0)
                    dv_acc[i, j, r] = float32(0)

        # One iteration more than tiles: it only copies the first one.
        head, m_tile, stage = kv_head * group_size, first_tile, 0
        next_head, next_tile = head, first_tile
        num_tiles = group_size * max(num_m_tiles - first_tile, 0)
        if EXPRESSED:
            sizes = SizesOfTile(int32(seqlen_k), int32(shift))
            of_keys, end_head = (runs, int32(b), int32(n_tile)), int32(head + group_size)
            num_tiles = number_of_tiles(*of_keys, int32(head), end_head)
            run, flags = find_run(*of_keys, int32(head), int32(0), end_head), int32(0)
            next_head, next_tile = run[0], run[2]
        for i_tile in range(num_tiles + 1):
            cp_async_wait(0)
            cuda.syncthreads()  # this stage is complete; all are done with the other, Pᵀ, dSᵀ
            if i_tile < num_tiles:
                m, next_stage = next_tile * BLOCK_M + row, stage ^ 1
                tile = q_tile + next_stage * Q_BYTES + to
                source = global_address(q[b, 0, next_head])
                copy_tile(tile, BLOCK_M, source, q.strides[1], m, seqlen_q, chunk)
                tile = dout_tile + next_stage * Q_BYTES + to
                source = global_address(dout[b, 0, next_head])
                copy_tile(tile, BLOCK_M, source, dout.strides[1], m, seqlen_q, chunk)
                if tid < BLOCK_M // 4:
                    at = uint64(next_tile * LSE_BYTES + 16 * tid)
                    to_row = next_stage * LSE_BYTES + 16 * tid
                    cp_async_16(lse_rows + to_row, global_address(lse_2[b, next_head]) + at, 16)
                    cp_async_16(delta_rows + to_row, global_address(delta[b, next_head]) + at, 16)
                cp_async_commit()
            if i_tile > 0:
                m_start = m_tile * BLOCK_M + half * M_HALF
                q_rows, dout_rows = q_tile + stage * Q_BYTES, dout_tile + stage * Q_BYTES
                of_rows = stage * LSE_BYTES + half * M_HALF * 4
                by_rows(s, k_tile + warp_rows, q_rows + m_rows, lane)  # Sᵀ = K Qᵀ     line 10
                if EXPRESSED:
                    queries = WalkedQueries(int32(m_start), flags, int32(b), int32(head), args)
                    of_tile = queries, int32(n), sizes, scale, lane
                    exponentiate_each(s, p, lse_rows + of_rows, *of_tile)
                else:
                    if n_warp + 32 > seqlen_k or first_query(n_warp + 31 + shift) > m_start:
                        for i in range(2):
                            for h in range(2):
                                key = n + 16 * i + 8 * h
                                first_seen = first_query(key + shift) - m_start
                                mask(s[i], h, first_seen if key < seqlen_k else M_HALF + 8, lane)
                    for i in range(2):
                        exponentiate(s[i], lse_rows + of_rows, scale, lane)  # P       line 11
                by_rows(dp, v_tile + warp_rows, dout_rows + m_rows, lane)  # dPᵀ = V doutᵀ  line 13
                for i in range(2):
                    rows = half_rows + i * 16 * ROW_BYTES
                    differentiate(s[i], dp[i], delta_rows + of_rows, p[i], ds[i], lane)  # line 14
                    store_half(p[i], p_tile + rows, m_chunk & 7, lane)
                    store_half(ds[i], ds_tile + rows, m_chunk & 7, lane)
                by_registers(dv_acc, p, dout_rows + m_rows, d_chunk, lane)  # dV += Pᵀ dout  line 12
                by_registers(dk_acc, ds, q_rows + m_rows, d_chunk, lane)  # dK += dSᵀ Q  line 16
                named_barrier_sync(1 + (warp & 3), 64)  # the pair's rows are complete
                rows, first = dout_rows + other_rows, other_chunk
                by_shared(dv_acc, p_tile + warp_rows, first, rows, d_chunk, lane)
                rows = q_rows + other_rows
                by_shared(dk_acc, ds_tile + warp_rows, first, rows, d_chunk, lane)
                if ADD_DQ:
                    cuda.syncthreads()  # ds_tile is complete: safe to read
                    first, k_first = 4 * (dq_row & 1), 4 * (dq_col & 1)
                    by_columns(dq, ds_columns, first, k_columns, k_first, lane)  # dQ  line 15
                    address = global_address(dq_sum[b, head, m_tile]) + uint64(dq_offset)
                    for i in range(2):
                        for j in range(4):
                            at = address + uint64(2048 * j + DQ_STEP * i)
                            if RED_X4:
                                atomic_add_x4(at, dq[i, j])
                            else:
                                for r in range(4):
                                    atomic_add(at + uint64(512 * r), dq[i, j, r])
            head, m_tile, stage = next_head, next_tile, stage ^ 1
            if EXPRESSED:
                run, flags = next_of_run(*of_keys, run, end_head)
                next_head, next_tile = run[0], run[2]
            else:
                next_tile += 1
                if next_tile == num_m_tiles:
                    next_head, next_tile = next_head + 1, first_tile

        for i in range(2):
            row, col = n + 16 * i, half * D_HALF
            store_gradient(dk_acc[i], dk, b, row, kv_head, col, lane, softmax_scale)
            store_gradient(dv_acc[i], dv, b, row, kv_head, col, lane, float32(1))

    return flash_attn_bwd_mma_kernel


@functools.cache
def make_dq_mma(HEAD_DIM, CAUSAL, DTYPE, EXPRESSIONS=None):
    """The kernel for dQ alone: no two thread blocks add to the same number. THREADS threads.

    `dq_shared_bytes` of shared memory; constants as for `make_flash_attn_bwd_mma`. With EXPRESSIONS
    runs is that of `expression_tiles.runs_of`.
    """
    EXPRESSED = EXPRESSIONS is not None
    CHANGES = EXPRESSED and EXPRESSIONS.changes_gradients
    plan = make_dq_plan(HEAD_DIM)
    Q, DOUT, K, V, shared_base = plan.Q, plan.DOUT, plan.K, plan.V, plan.shared_base
    COLS = padded(HEAD_DIM)
    KV_BYTES = K.bytes // STAGES
    S_SHAPE, DS_SHAPE = (DQ_BLOCK_N // 8, 4), (DQ_BLOCK_N // 16, 4)
    OUT_SHAPE = (COLS // 8, 4)
    pack = forward.pack_of(DTYPE)
    by_rows, by_registers = make_products(COLS, DQ_BLOCK_N, DTYPE)
    mask = make_fragment_functions(DQ_BLOCK_N, COLS, pack).mask
    tile_functions = make_tile_functions(DQ_BLOCK_N, EXPRESSIONS)
    exponent_scale_of, modify = tile_functions.exponent_scale_of, tile_functions.modify
    differentiate = tile_functions.differentiate
    class_of = make_run_functions(DQ_BLOCK_M).class_of
    store_gradient = make_store_gradient(HEAD_DIM, COLS, pack)
    end_key = masks.make_bounds(CAUSAL, (-1, -1)).end_key
    copy_tile = make_copy_tile(HEAD_DIM)

    @cuda.jit(device=True, forceinline=True)
    def express(s, dp, delta_i, EDGE, n_start, position, seqlen_k, lane, given):
        """The user's score and mask; where they change gradients dp becomes (dP − delta) dS/ds."""
        if CHANGES:
            differentiate(dp, s, delta_i, EDGE, n_start, position, seqlen_k, lane, given)
        modify(s, EDGE, n_start, position, seqlen_k, lane, given)

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def dq_mma_kernel(dout, q, k, v, lse_2, delta, dq, scale, softmax_scale, runs, args):
        """A thread block owns 128 query rows and walks the tiles of K and V.

        grid      (num_m_tiles, num_heads, batch); 256 threads, a warp has 16 rows
        shared    q_tile, dout_tile (128, HEAD_DIM); k_tile, v_tile (STAGES, DQ_BLOCK_N, HEAD_DIM),
                  in panels of 64 columns, swizzled
        private   s, dp (DQ_BLOCK_N / 8, 4), ds (DQ_BLOCK_N / 16, 4), acc (HEAD_DIM / 8, 4),
                  fragments; lse and delta of two rows
        HBM       Q, dout, lse, delta, dQ once; K and V once per tile of queries
        paper     FlashAttention, Algorithm 4, lines 11-21, dQ alone
        budget    255 registers, one thread block per SM
        """
        base = shared_base()
        q_tile, dout_tile = base + Q.start, base + DOUT.start
        k_tile, v_tile = base + K.start, base + V.start

        s = cuda.local.array(S_SHAPE, float32)
        dp = cuda.local.array(S_SHAPE, float32)
        ds = cuda.local.array(DS_SHAPE, uint32)
        acc = cuda.local.array(OUT_SHAPE, float32)
        lse_i = cuda.local.array(2, float32)
        delta_i = cuda.local.array(2, float32)

        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        head, b = cuda.blockIdx.y, cuda.blockIdx.z
        kv_head = head // (q.shape[2] // k.shape[2])
        seqlen_q, seqlen_k = q.shape[1], k.shape[1]
        # The last rows see the most keys under a causal mask: begun first, they do not end last.
        m_start = (cuda.gridDim.x - 1 - cuda.blockIdx.x) * DQ_BLOCK_M
        m = m_start + 16 * warp + (lane >> 2)  # this lane's first row; the second is m + 8
        position = m + seqlen_k - seqlen_q
        n_end = end_key(m_start + DQ_BLOCK_M - 1 + seqlen_k - seqlen_q, seqlen_k)
        warp_rows = 16 * warp * ROW_BYTES

        # This thread's copies: one chunk of 16 bytes in every 32nd row of each panel.
        row, chunk = tid >> 3, tid & 7
        to = row * ROW_BYTES + ((chunk ^ (row & 7)) << 4)
        m_row = m_start + row
        source = global_address(q[b, 0, head])
        copy_tile(q_tile + to, DQ_BLOCK_M, source, q.strides[1], m_row, seqlen_q, chunk)
        source = global_address(dout[b, 0, head])
        copy_tile(dout_tile + to, DQ_BLOCK_M, source, dout.strides[1], m_row, seqlen_q, chunk)
        k_source, v_source = global_address(k[b, 0, kv_head]), global_address(v[b, 0, kv_head])
        for j in range(COLS // 8):
            for r in range(4):
                acc[j, r] = float32(0)
        for h in range(2):
            inside = m + 8 * h < seqlen_q
            lse_i[h] = lse_2[b, head, m + 8 * h] if inside else NOTHING
            delta_i[h] = delta[b, head, m + 8 * h] if inside else float32(0)

        exponent_scale = scale  # P = exp2(s · exponent_scale − lse)
        if EXPRESSED:
            exponent_scale = exponent_scale_of(scale)
            given = ExpressionArgs(scale, 0, 0, True, int32(b), int32(head), args, runs[1:])
            of_queries = runs[0], int32(b), int32(m_start // DQ_BLOCK_M)
            here, end_head = int32(head), int32(head + 1)
            n_end = number_of_tiles(*of_queries, here, end_head) * DQ_BLOCK_N
            run, n_here, classes = find_run(*of_queries, here, int32(0), end_head), 0, int32(0)

        # One iteration more than tiles: it only copies the first one.
        for turn in range(-DQ_BLOCK_N, n_end, DQ_BLOCK_N):
            n_start, n_next = turn, turn + DQ_BLOCK_N
            if EXPRESSED:
                n_start, n_next = n_here, run[2] * DQ_BLOCK_N
            stage = (turn // DQ_BLOCK_N) & 1
            cp_async_wait(0)
            cuda.syncthreads()  # this stage is complete; everyone is done with the other
            n_row = n_next + row
            if turn + DQ_BLOCK_N < n_end:
                tile = to + (stage ^ 1) * KV_BYTES
                copy_tile(k_tile + tile, DQ_BLOCK_N, k_source, k.strides[1], n_row, seqlen_k, chunk)
                copy_tile(v_tile + tile, DQ_BLOCK_N, v_source, v.strides[1], n_row, seqlen_k, chunk)
                cp_async_commit()
            if turn >= 0:
                k_rows, v_rows = k_tile + stage * KV_BYTES, v_tile + stage * KV_BYTES
                by_rows(s, q_tile + warp_rows, k_rows, lane)  # S = Q Kᵀ              line 11
                if not EXPRESSED:
                    if n_start + DQ_BLOCK_N > end_key(position - (lane >> 2), seqlen_k):
                        for h in range(2):
                            mask(s, h, end_key(position + 8 * h, seqlen_k) - n_start, lane)
                by_rows(dp, dout_tile + warp_rows, v_rows, lane)  # dP = dout Vᵀ      line 17
                if EXPRESSED:
                    of_tile = n_start, position, seqlen_k, lane, given
                    if class_of(classes, 16 * warp // ROWS) == WHOLE:
                        express(s, dp, delta_i, False, *of_tile)
                    else:
                        express(s, dp, delta_i, True, *of_tile)
                for j in range(DQ_BLOCK_N // 8):
                    for h in range(2):
                        # P = exp(S - lse)                                             line 13
                        p0 = exp2(s[j, 2 * h] * exponent_scale - lse_i[h])
                        p1 = exp2(s[j, 2 * h + 1] * exponent_scale - lse_i[h])
                        ds0, ds1 = dp[j, 2 * h], dp[j, 2 * h + 1]
                        if CHANGES:  # the derivative of a hidden score may be infinite
                            ds0 = p0 * ds0 if p0 > ZERO else ZERO
                            ds1 = p1 * ds1 if p1 > ZERO else ZERO
                        else:  # dS = P ∘ (dP - delta)                                 line 20
                            ds0 = p0 * (ds0 - delta_i[h])
                            ds1 = p1 * (ds1 - delta_i[h])
                        ds[j // 2, 2 * (j & 1) + h] = pack(ds0, ds1)
                by_registers(acc, ds, k_rows, lane)  # dQ += dS K                      line 21
            if EXPRESSED:
                n_here, classes = n_next, run[4]
                run, _ = next_of_run(*of_queries, run, end_head)

        store_gradient(acc, dq, b, m, head, 0, lane, softmax_scale)

    return dq_mma_kernel


@arrays.replayed
@checks.takes(checks.SCORES)
def flash_attn_bwd_mma(dout, q, k, v, out, lse, *, deterministic=False, **options):
    """FlashAttention, backward, with mma.sync: float16 and bfloat16 on GPUs since Ampere.

    Parameters
    ----------
    dout, q, k, v, out, lse, softmax_scale, deterministic
        As for `flash_attn_bwd_persistent`.
    causal, window_size, softcap, alibi_slopes, mask, mask_args, score, score_args, sinks
        As for `flash_attn_v2`.

    Returns
    -------
    dq, dk, dv, dsinks : arrays
        As of `flash_attn_bwd_persistent`.
    """
    name, inputs = "flash_attn_bwd_mma", (dout, q, k, v, out, lse)
    scores, deterministic = backward.check(name, inputs, deterministic, only_causal=True, **options)
    given, causal, scale = scores.given, scores.mask.causal, scores.softmax_scale
    expressions = scores.expressions_if_any
    batch, seqlen_q, num_heads, head_dim = q.shape
    dtype, size, block = arrays.dtype_name(q), shared_bytes(head_dim), (THREADS,)
    checks.check_shared_bytes(name, q, size)
    (dq, dk, dv), rows, dq_sum, *dsinks = backward.prepare(
        *inputs, add_dq=not deterministic, sinks=scores.sinks_if_any
    )
    if 0 in (seqlen_q, k.shape[1]):
        expressions = None  # there is no tile
    scales = np.float32(scale * LOG2_E), scale

    runs = ()
    if expressions is not None:
        runs = runs_of_keys(q, k, given, tile_rows(head_dim), BLOCK_N, both=False).of_keys
    args = dout, q, k, v, *rows, dq_sum, dk, dv, *scales, runs, scores.expression_args
    quads = arrays.compute_capability(q) >= RED_X4
    kernel = make_flash_attn_bwd_mma(head_dim, causal, dtype, not deterministic, quads, expressions)
    arrays.launch(kernel, backward.grid_of_keys(q, k), block, *args, shared_bytes=size)

    if deterministic:
        if expressions is not None:
            runs = runs_of(scores, q, k, DQ_BLOCK_N, DQ_BLOCK_M // ROWS)[0]
        args = dout, q, k, v, *rows, dq, *scales, runs, scores.expression_args
        kernel, size = make_dq_mma(head_dim, causal, dtype, expressions), dq_shared_bytes(head_dim)
        grid = ceil_div(seqlen_q, DQ_BLOCK_M), num_heads, batch
        arrays.launch(kernel, grid, block, *args, shared_bytes=size)
    else:
        backward.convert(dq_sum, dq, scale, quads)
    return dq, dk, dv, *dsinks
