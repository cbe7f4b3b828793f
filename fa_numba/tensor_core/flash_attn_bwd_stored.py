"""Attention's backward pass on Hopper, head_dim 264 to 512: P and dS are stored, in parts.

flash_attn_bwd_wide     head_dim 136 to 256: dV, dK and dQ stay in registers
flash_attn_bwd_stored   head_dim 264 to 512: P and dS go through HBM        <- this file

dK and dV of 64 keys with head_dim 512 take all registers of an SM, so a kernel that keeps them, and
never stores P, must compute S and dP anew for each of the gradients: eight products instead of
five. But with head_dim 512 a score costs 5120 FLOPs and, stored, some 16 bytes of traffic, and an
H200 computes 150 FLOPs in the time of a byte. So here two kernels take turns:

    scores      S = Q Kᵀ    P = exp(S − lse)    dP = dout Vᵀ    dS = P ∘ (dP − delta)
    gradients   dQ = dS K   dK = dSᵀ Q          dV = Pᵀ dout

P and dS are not stored for all queries: WORKSPACE_BYTES hold them, of some heads or of some queries
of a head. Then the two kernels compute the next part (`parts_of`). So memory does not grow with
n². Where a head of K and V has several parts, float32 sums of dK and dV wait in HBM between them.

All sums are in a fixed order, without atomic additions: the same bits in every run.

Both kernels have a thread that loads and two warpgroups that multiply. With head_dim 512:

                    scores                              gradients
    tile            128 queries × 128 keys              128 rows × 256 columns; up to head_dim 384
                                                        all columns
    a stage         64 columns of Q and K, then of      64 keys (or queries) of dS or P, and of K,
                    dout and V                          Q or dout
    shared memory   6 stages of 32 KiB, P or dS 32      4 stages of 48 KiB
    registers       S, dP 64 each, P 32, of 240         128 of a gradient, of 240
    wgmma reads     96 bytes in a cycle, of 128         80
    TMA writes      64                                  48
    L2              a byte for 64 FLOPs                 a byte for 87

TMA loads rows of 128 bytes, which L2 has in lines of 128. Rows that begin elsewhere, as those of
head_dim 264 do, are copied first to rows of a multiple of 128 bytes (`padded_rows`).

Papers: FlashAttention-2, arXiv:2307.08691, Algorithm 2, whose lines are named below; Rabe and
Staats 2021, arXiv:2112.05682, Self-attention does not need O(n²) memory, computes it in parts.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32, uint64

from fa_numba import checks
from fa_numba.constants import LOG2_E, ONE, ZERO
from fa_numba.on_cuda_cores import run_time_masks
from fa_numba.on_cuda_cores.run_time_masks import MaskArgs
from fa_numba.ptx import mbarrier
from fa_numba.ptx.barriers import fence_async_proxy, setmaxnreg_dec, setmaxnreg_inc
from fa_numba.ptx.convert import exp2
from fa_numba.ptx.layouts import PANEL_COLS, ROW_BYTES
from fa_numba.ptx.ldmatrix import stmatrix_x4
from fa_numba.ptx.mbarrier import fence_mbarrier_init, mbarrier_arrive_expect_tx
from fa_numba.ptx.statement import global_address
from fa_numba.ptx.tma import tma_load_4d, tma_store_4d, tma_store_commit, tma_store_wait_read
from fa_numba.ptx.vectors import load_global_x4, store_global_x4
from fa_numba.ptx.wgmma import (
    descriptor,
    descriptor_bits,
    hold,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
    wgmma_wait_group,
)
from fa_numba.runtime import arrays
from fa_numba.runtime.tensor_maps import tensor_map
from fa_numba.tensor_core import backward, forward
from fa_numba.tensor_core.backward import NOTHING
from fa_numba.tensor_core.fragments import fragment_function, make_cap_tile, make_mask_tile
from fa_numba.tensor_core.gradient_fragments import make_store_gradient
from fa_numba.tensor_core.key_tiles import make_query_tiles
from fa_numba.tensor_core.mainloop import make_tiles_of
from fa_numba.tensor_core.padded_rows import pad_rows
from fa_numba.tensor_core.shared_plan import SharedPlan, init_rings, make_ring_functions
from fa_numba.tiling.block_sizes import ceil_div

WORKSPACE_BYTES = 1 << 29  # of P and dS together
ROWS = 128  # queries or keys of a tile: two squares
SQUARE = 64  # P and dS are stored in squares of 64 queries and 64 keys, one after the other
THREADS = 384  # warpgroups: one that loads, two that multiply
CONSUMER_WARPS = 8
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 24, 240
BARRIER = mbarrier.BYTES
PANEL_BYTES = SQUARE * ROW_BYTES  # a square; 64 columns of 64 rows
SHARED_BYTES = 232448  # that a thread block of a Hopper GPU can have
ONE_TILE = 384  # columns of a gradient that one thread block has; of more it has half
MOST_TILES = 16  # of keys, which a thread block of scores takes one after the other
BLOCKS_PER_SM = 4  # of scores, if there are as many tiles
DQ, DK, DV = 0, 1, 2


class Part(NamedTuple):
    """Queries whose P and dS are in the workspace at the same time.

    Attributes
    ----------
    first_head, num_heads : int
        Heads of queries, those of all sequences counted on.
    first_m, num_m : int
        Tiles of queries of each of them.
    begins, ends : bool
        No part before, or after, has the same heads of K and V.
    """

    first_head: int
    num_heads: int
    first_m: int
    num_m: int
    begins: bool = True
    ends: bool = True


def parts_of(num_heads, group_size, num_m, num_n, num_bytes):
    """The `Part`s of a call.

    Parameters
    ----------
    num_heads : int
        Heads of queries in all sequences.
    group_size : int
        Heads of queries for a head of K and V.
    num_m, num_n : int
        Tiles of queries and of keys.
    num_bytes : int
        Of the workspace, if a single tile of queries does not need more.

    Returns
    -------
    list of Part
    """
    of_tile = num_n * ROWS * ROWS * 4  # P and dS of a tile of queries
    most = max(1, num_bytes // of_tile)  # tiles of queries
    at_once = most // num_m  # heads
    if at_once >= group_size:
        at_once = at_once // group_size * group_size
        firsts = range(0, num_heads, at_once)
        return [Part(h, min(at_once, num_heads - h), 0, num_m) for h in firsts]
    parts = []
    for group in range(0, num_heads, group_size):
        if at_once >= 1:
            of_group = [
                Part(group + h, min(at_once, group_size - h), 0, num_m)
                for h in range(0, group_size, at_once)
            ]
        else:
            of_group = [
                Part(group + h, 1, m, min(most, num_m - m))
                for h in range(group_size)
                for m in range(0, num_m, most)
            ]
        last = len(of_group) - 1
        parts += [x._replace(begins=i == 0, ends=i == last) for i, x in enumerate(of_group)]
    return parts


class Columns(NamedTuple):
    """Columns of a thread block of gradients, in one or two products; `tiles` of them have all."""

    tiles: int
    left: int
    right: int


def columns_of(head_dim):
    """The `Columns` of a head_dim: all in one tile, if its sums fit in registers."""
    if head_dim <= ONE_TILE:
        left = ONE_TILE // 2
        return Columns(1, left, 16 * ceil_div(head_dim - left, 16))
    return Columns(2, 16 * ceil_div(head_dim, 32), 0)


def fill(plan, stage_bytes):
    """Give a plan a ring of as many stages as fit in shared memory."""
    stages = (SHARED_BYTES - plan.bytes) // (stage_bytes + 2 * BARRIER)
    plan.RING = plan.ring(stages)
    plan.TILES = plan.tiles(stages, stage_bytes)
    return plan


@functools.cache
def make_scores_plan():
    """The `SharedPlan` of a thread block of scores."""
    plan = SharedPlan()
    plan.P = plan.tiles(1, 4 * PANEL_BYTES)  # P, then dS, until TMA has copied them
    return fill(plan, 4 * PANEL_BYTES)


@functools.cache
def make_gradients_plan(HEAD_DIM):
    """The `SharedPlan` of a thread block of gradients."""
    _, left, right = columns_of(HEAD_DIM)
    return fill(SharedPlan(), (2 + ceil_div(left + right, PANEL_COLS)) * PANEL_BYTES)


def shared_bytes(head_dim):
    """Dynamic shared memory of a thread block, the larger one."""
    return max(make_scores_plan().bytes, make_gradients_plan(head_dim).bytes)


@functools.cache
def make_scores(HEAD_DIM, CAUSAL, DTYPE, WINDOW=(-1, -1), SOFTCAP=0.0):
    """The kernel that stores P and dS for these compile-time constants; see `make_scores_plan`.

    HEAD_DIM is a multiple of 8, from 264 on; DTYPE "float16" or "bfloat16". WINDOW and SOFTCAP may
    be AT_RUN_TIME (`run_time_masks`).
    """
    CAPPED = SOFTCAP > 0
    PIECES = ceil_div(HEAD_DIM, PANEL_COLS)
    LAST_COLS = 16 * ceil_div(HEAD_DIM - (PIECES - 1) * PANEL_COLS, 16)
    plan = make_scores_plan()
    P, RING, TILES, shared_base = plan.P, plan.RING, plan.TILES, plan.shared_base
    STAGE_BYTES, B_OFFSET = 4 * PANEL_BYTES, 2 * PANEL_BYTES
    BY_ROWS = descriptor_bits()
    S_SHAPE, P_SHAPE, S_LENGTH = (ROWS // 8, 4), (ROWS // 16, 4), ROWS // 2
    pack = forward.pack_of(DTYPE)
    units = run_time_masks.make_units(SOFTCAP)
    unit_of, angle_of, cap_tile = units.unit_of, units.angle_of, make_cap_tile(ROWS)
    mask_tile = make_mask_tile(ROWS, CAUSAL, WINDOW)
    tiles_of = make_tiles_of(ROWS, CAUSAL, WINDOW)
    next_stage, wait_for, release = make_ring_functions(RING)
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def load_pieces(base, a_map, b_map, m_start, n_start, head, kv_head, b, stage, parity):
        """Load Q and K, or dout and V; returns the next stage."""
        for piece in range(PIECES):
            full = base + RING.full + stage * BARRIER
            tile = base + TILES.start + stage * STAGE_BYTES
            wait(base + RING.empty + stage * BARRIER, parity)
            mbarrier_arrive_expect_tx(full, STAGE_BYTES)
            col = piece * PANEL_COLS
            tma_load_4d(tile, a_map, col, m_start, head, b, full)
            tma_load_4d(tile + B_OFFSET, b_map, col, n_start, kv_head, b, full)
            stage, parity = next_stage(stage, parity)
        return stage, parity

    @cuda.jit(device=True, forceinline=True)
    def produce(base, q_map, k_map, v_map, dout_map, m_start, first, end, head, kv_head, b):
        stage, parity = uint32(0), uint32(1)  # "empty" of a new ring has parity 1
        n_tile = first
        while n_tile < end:
            at = m_start, int32(n_tile * ROWS), head, kv_head, b
            stage, parity = load_pieces(base, q_map, k_map, *at, stage, parity)
            stage, parity = load_pieces(base, dout_map, v_map, *at, stage, parity)
            n_tile = int32(n_tile + 1)

    def make_start(multiply, COLS):
        @cuda.jit(device=True, forceinline=True)
        def start(acc, base, stage, parity, rows):
            """Multiply a piece: 64 rows of A, at byte `rows`, and all rows of B."""
            tile = uint32(base + TILES.start + stage * STAGE_BYTES)
            a, b = descriptor(BY_ROWS, uint32(tile + rows)), descriptor(BY_ROWS, tile + B_OFFSET)
            wait_for(base, stage, parity)
            wgmma_fence()
            multiply(ROWS, COLS, acc, a, b)
            wgmma_commit()

        return start

    start_first = make_start(forward.wgmma_of(DTYPE).shared, PANEL_COLS)  # overwrites acc
    start_next = make_start(forward.wgmma_sums_of(DTYPE).more, PANEL_COLS)
    start_last = make_start(forward.wgmma_sums_of(DTYPE).more, LAST_COLS)

    @cuda.jit(device=True, forceinline=True)
    def finish(acc, base, stage, parity, rows, lane):
        """Start all pieces but the first; returns the last one's stage: it is in flight."""
        before = stage
        for _ in range(1, PIECES - 1):
            before = stage
            stage, parity = next_stage(stage, parity)
            start_next(acc, base, stage, parity, rows)
            wgmma_wait_group(1)
            release(base, before, lane)
        before = stage
        stage, parity = next_stage(stage, parity)
        start_last(acc, base, stage, parity, rows)
        wgmma_wait_group(1)
        release(base, before, lane)
        return stage, parity

    @fragment_function()
    def exponentiate(s, p, lse, unit):
        """P of a tile, packed; s becomes P times the derivative of a capped score."""
        e = cuda.local.array(2, float32)
        for j in range(ROWS // 8):
            for h in range(2):
                for c in range(2):
                    x = s[j, 2 * h + c]
                    e[c] = exp2(x * unit - lse[h])
                    if CAPPED:
                        x = max(x, -ONE)  # where it is masked
                        s[j, 2 * h + c] = e[c] * (ONE - x * x)
                    else:
                        s[j, 2 * h + c] = e[c]
                p[j // 2, 2 * (j & 1) + h] = pack(e[0], e[1])

    @fragment_function()
    def differentiate(s, dp, ds, delta):
        for j in range(ROWS // 8):
            for h in range(2):
                x, y = dp[j, 2 * h] - delta[h], dp[j, 2 * h + 1] - delta[h]
                ds[j // 2, 2 * (j & 1) + h] = pack(s[j, 2 * h] * x, s[j, 2 * h + 1] * y)

    @fragment_function()
    def store(p, rows, x_map, row, slot, lane):
        """Store a warp's 16 rows of two squares by TMA."""
        if lane == 0:
            tma_store_wait_read(0)
        cuda.syncwarp()  # TMA has read the last rows: safe to overwrite
        lane_row = rows + (lane & 15) * ROW_BYTES
        for k in range(ROWS // 16):
            chunk = ((2 * k & 7) + (lane >> 4)) ^ (lane & 7)
            stmatrix_x4(uint32(lane_row + k // 4 * PANEL_BYTES + (chunk << 4)), p[k])
        fence_async_proxy()
        cuda.syncwarp()  # all rows are written: safe to copy
        if lane == 0:
            for square in range(2):
                tma_store_4d(x_map, 0, row + square * SQUARE, 0, slot, rows + square * PANEL_BYTES)
            tma_store_commit()

    @fragment_function()
    def take_rows(x, rows, row, b, head, none):
        """This lane's two numbers of lse or of delta."""
        for h in range(2):
            x[h] = none
            if row + 8 * h < rows.shape[2]:
                x[h] = rows[b, head, row + 8 * h]

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def compute(
        tid, base, p_map, ds_map, lse_2, delta, m_start, first, end, head, b, slot, m_square,
        num_squares, seqlen_q, seqlen_k, scale, mask_args,
    ):  # fmt: skip
        s = cuda.local.array(S_SHAPE, float32)
        dp = cuda.local.array(S_SHAPE, float32)
        p = cuda.local.array(P_SHAPE, uint32)
        of_lse = cuda.local.array(2, float32)
        of_delta = cuda.local.array(2, float32)
        group, lane, warp_row = int32((tid >> 7) - 1), tid & 31, int32((tid >> 5 & 3) * 16)
        row = int32(m_start + group * SQUARE + warp_row + (lane >> 2))
        position = int32(row + seqlen_k - seqlen_q)
        take_rows(of_lse, lse_2, row, b, head, NOTHING)
        take_rows(of_delta, delta, row, b, head, ZERO)
        a_rows = uint32(group * PANEL_BYTES)
        stored = uint32(base + P.start + group * 2 * PANEL_BYTES + warp_row * ROW_BYTES)
        unit = unit_of(scale, mask_args)
        of_squares = int32((m_square + group) * num_squares)  # before these queries'
        stage, parity = uint32(0), uint32(0)
        n_tile = first
        while n_tile < end:
            start_first(s, base, stage, parity, a_rows)  # S = Q Kᵀ                   line 10
            stage, parity = finish(s, base, stage, parity, a_rows, lane)
            last = stage
            stage, parity = next_stage(stage, parity)
            start_first(dp, base, stage, parity, a_rows)  # dP = dout Vᵀ              line 13
            wgmma_wait(1, s, S_LENGTH)
            release(base, last, lane)
            if CAPPED:
                cap_tile(s, angle_of(scale, mask_args))
            mask_tile(s, int32(n_tile * ROWS), position, seqlen_k, lane, mask_args)
            exponentiate(s, p, of_lse, unit)  # P                                     line 11
            row_of_squares = int32((of_squares + 2 * n_tile) * SQUARE + warp_row)
            store(p, stored, p_map, row_of_squares, slot, lane)
            stage, parity = finish(dp, base, stage, parity, a_rows, lane)
            wgmma_wait(0, dp, S_LENGTH)
            release(base, stage, lane)
            stage, parity = next_stage(stage, parity)
            differentiate(s, dp, p, of_delta)  # dS = P ∘ (dP − delta)                line 14
            store(p, stored, ds_map, row_of_squares, slot, lane)
            n_tile = int32(n_tile + 1)
        if lane == 0:
            tma_store_wait_read(0)  # shared memory must outlive the copy

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def scores_kernel(
        q_map, k_map, v_map, dout_map, p_map, ds_map, lse_2, delta, seqlen_q, seqlen_k,
        group_size, first_head, first_m, tiles_per_block, scale, left, right, unit, inverse_unit,
    ):  # fmt: skip
        """A thread block owns ROWS queries and takes some tiles of keys, one after the other.

        The maps have boxes of ROWS rows of q, k, v and dout, and of 16 of P and dS. These are
        arrays of shape (heads, squares · 64, 1, 64), with the squares of 64 queries side by side.

        grid      (⌈tiles of keys / tiles_per_block⌉, tiles of queries, heads) of the part
        shared    p (4, 64, 64); pieces (stages, 128, 64) of Q and of K, or dout and V; swizzled
        private   s, dp (16, 4), p (8, 4)
        HBM       Q, K, V, dout once per tile of the others; P and dS once
        paper     FlashAttention-2, Algorithm 2, lines 10 to 14
        budget    168 registers at the start, then 24 and 240. One thread block per SM
        """
        base = uint32(shared_base())
        tid = cuda.threadIdx.x
        slot = int32(cuda.blockIdx.z)
        of_all = uint32(first_head + slot)
        head, b = int32(of_all % uint32(lse_2.shape[1])), int32(of_all // uint32(lse_2.shape[1]))
        kv_head = int32(uint32(head) // uint32(group_size))
        # The last rows see the most keys under a causal mask: they begin first.
        m_tile = int32(cuda.gridDim.y - 1 - cuda.blockIdx.y)
        m_start = int32((first_m + m_tile) * ROWS)
        mask_args = MaskArgs(left, right, unit, inverse_unit)
        first, end = tiles_of(m_start, ROWS, seqlen_q, seqlen_k, mask_args)
        first = max(first, int32(cuda.blockIdx.x * tiles_per_block))
        end = min(end, int32((cuda.blockIdx.x + 1) * tiles_per_block))
        num_squares = int32((seqlen_k + ROWS - 1) // ROWS * 2)
        if tid == 0:
            init_rings(base, (RING,), CONSUMER_WARPS)
            fence_mbarrier_init()
        cuda.syncthreads()  # the barriers are made: safe to wait on

        if tid >> 7 == 0:
            setmaxnreg_dec(PRODUCER_REGISTERS)
            if tid == 0:
                maps = q_map, k_map, v_map, dout_map
                produce(base, *maps, m_start, first, end, head, kv_head, b)
        else:
            setmaxnreg_inc(CONSUMER_REGISTERS)
            m_square = int32(2 * m_tile)
            compute(
                tid, base, p_map, ds_map, lse_2, delta, m_start, first, end, head, b, slot,
                m_square, num_squares, seqlen_q, seqlen_k, scale, mask_args,
            )  # fmt: skip

    return scores_kernel


class Work(NamedTuple):
    """A tile of a gradient, of one thread block.

    Attributes
    ----------
    kind : int
        DQ, DK or DV.
    col_tile : int
        Of the columns.
    tile : int
        Of ROWS queries, counted from the part's first one; or of keys.
    first, end : int
        Tiles of 64 keys that are summed; or of queries of each head, counted from the array's
        first one.
    slot, num_slots : int
        Heads of queries, counted from the part's first one: dQ has one, dK and dV those of a group.
    kv_head : int
        Of all heads of K and V.
    """

    kind: int
    col_tile: int
    tile: int
    first: int
    end: int
    slot: int
    num_slots: int
    kv_head: int


class PartSizes(NamedTuple):
    """Sizes of a call and of its part: see `Part`."""

    seqlen_q: int
    seqlen_k: int
    num_heads: int
    group_size: int
    first_head: int
    slots: int
    first_m: int
    num_m: int
    mask_args: MaskArgs


@functools.cache
def make_gradients(HEAD_DIM, CAUSAL, DTYPE, WINDOW=(-1, -1)):
    """The kernel for dQ, dK and dV of a part; see `make_scores` and `make_gradients_plan`."""
    COL_TILES, LEFT_COLS, RIGHT_COLS = columns_of(HEAD_DIM)
    COLS = LEFT_COLS + RIGHT_COLS
    PANELS = ceil_div(COLS, PANEL_COLS)
    RIGHT_BYTES = LEFT_COLS // PANEL_COLS * PANEL_BYTES
    plan = make_gradients_plan(HEAD_DIM)
    RING, TILES, shared_base = plan.RING, plan.TILES, plan.shared_base
    STAGE_BYTES, B_OFFSET = (2 + PANELS) * PANEL_BYTES, 2 * PANEL_BYTES
    BY_ROWS, BY_COLUMNS = descriptor_bits(), descriptor_bits(PANEL_BYTES)
    LEFT8, RIGHT8 = LEFT_COLS // 8, RIGHT_COLS // 8
    LEFT_SHAPE, RIGHT_SHAPE = (LEFT8, 4), (max(RIGHT8, 1), 4)
    LEFT_LENGTH, RIGHT_LENGTH = LEFT_COLS // 2, RIGHT_COLS // 2
    sums_of = forward.wgmma_sums_of(DTYPE)
    pack = forward.pack_of(DTYPE)
    store_left = make_store_gradient(HEAD_DIM, LEFT_COLS, pack)
    store_right = make_store_gradient(HEAD_DIM, RIGHT_COLS, pack)
    keys_of = make_tiles_of(SQUARE, CAUSAL, WINDOW)
    queries_of = make_query_tiles(SQUARE, ROWS, CAUSAL, WINDOW)
    next_stage, wait_for, release = make_ring_functions(RING)
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def work_of(index, sizes):
        """The work of the index-th thread block: of each head dK and dV, the longest sums first.

        Those that run at the same time have a head in common, whose tiles L2 holds.
        """
        num_n = uint32((sizes.seqlen_k + ROWS - 1) // ROWS)
        num_slots = min(sizes.slots, sizes.group_size)  # of a head of K and V
        of_kv = uint32(COL_TILES * (2 * num_n + sizes.num_m * num_slots))
        of_part, index = int32(index // of_kv), uint32(index % of_kv)
        col_tile, index = int32(index % COL_TILES), uint32(index // COL_TILES)
        first_slot = int32(of_part * num_slots)
        kv_head = int32(uint32(sizes.first_head) // uint32(sizes.group_size) + of_part)
        if index < 2 * num_n:
            kind, tile = int32(DK if index & 1 else DV), int32(index >> 1)
            position = int32(tile * ROWS + sizes.seqlen_q - sizes.seqlen_k)
            first, end = queries_of(position, sizes.seqlen_q, sizes.mask_args)
            first = max(first, int32(2 * sizes.first_m))
            end = min(end, int32(2 * (sizes.first_m + sizes.num_m)))
            return Work(kind, col_tile, tile, first, end, first_slot, int32(num_slots), kv_head)
        index = uint32(index - 2 * num_n)
        slot = int32(first_slot + index // uint32(sizes.num_m))
        tile = int32(sizes.num_m - 1 - index % uint32(sizes.num_m))
        m_start = int32((sizes.first_m + tile) * ROWS)
        first, end = keys_of(m_start, ROWS, sizes.seqlen_q, sizes.seqlen_k, sizes.mask_args)
        return Work(int32(DQ), col_tile, tile, int32(first), int32(end), slot, int32(1), kv_head)

    @cuda.jit(device=True, forceinline=True)
    def produce(base, p_map, ds_map, q_map, k_map, dout_map, work, sizes):
        """Load tiles of P or dS, and of dout, K or Q."""
        num_squares = int32((sizes.seqlen_k + ROWS - 1) // ROWS * 2)
        a_map = p_map if work.kind == DV else ds_map
        b_map = dout_map if work.kind == DV else (k_map if work.kind == DQ else q_map)
        num_kv = uint32(sizes.num_heads) // uint32(sizes.group_size)
        first_col = int32(work.col_tile * COLS)
        stage, parity = uint32(0), uint32(1)
        slot = work.slot
        while slot < work.slot + work.num_slots:
            of_all = uint32(sizes.first_head + slot)
            head, b = int32(of_all % sizes.num_heads), int32(of_all // sizes.num_heads)
            if work.kind == DQ:
                head = int32(uint32(work.kv_head) % num_kv)
            i = work.first
            while i < work.end:
                full = base + RING.full + stage * BARRIER
                tile = base + TILES.start + stage * STAGE_BYTES
                wait(base + RING.empty + stage * BARRIER, parity)
                mbarrier_arrive_expect_tx(full, STAGE_BYTES)
                for group in range(2):
                    m, n = 2 * work.tile + group, i
                    if work.kind != DQ:
                        m, n = i - 2 * sizes.first_m, 2 * work.tile + group
                    row = int32((m * num_squares + n) * SQUARE)
                    tma_load_4d(tile + group * PANEL_BYTES, a_map, 0, row, 0, slot, full)
                for panel in range(PANELS):
                    to, col = tile + B_OFFSET + panel * PANEL_BYTES, first_col + panel * PANEL_COLS
                    tma_load_4d(to, b_map, col, int32(i * SQUARE), head, b, full)
                stage, parity = next_stage(stage, parity)
                i = int32(i + 1)
            slot = int32(slot + 1)

    def make_sum(multiply, A_BITS):
        @cuda.jit(device=True, forceinline=True)
        def sum_products(left, right, base, group, lane, count):
            """Add the products of `count` stages; each warpgroup has a square of P or dS as A."""
            if count <= 0:
                return
            stage, parity, before = uint32(0), uint32(0), uint32(0)
            i = int32(0)
            while True:
                tile = uint32(base + TILES.start + stage * STAGE_BYTES)
                a = descriptor(A_BITS, uint32(tile + group * PANEL_BYTES))
                b = descriptor(BY_COLUMNS, uint32(tile + B_OFFSET))
                b_right = descriptor(BY_COLUMNS, uint32(tile + B_OFFSET + RIGHT_BYTES))
                wait_for(base, stage, parity)
                wgmma_fence()
                multiply(LEFT_COLS, SQUARE, left, a, b)
                if RIGHT_COLS:
                    multiply(RIGHT_COLS, SQUARE, right, a, b_right)
                wgmma_commit()
                wgmma_wait_group(1)
                if i > 0:
                    release(base, before, lane)
                before = stage
                stage, parity = next_stage(stage, parity)
                i = int32(i + 1)
                if i == count:
                    break
            # Here, not after a branch around the products: ptxas would serialise them (C7515).
            wgmma_wait(0, left, LEFT_LENGTH)
            if RIGHT_COLS:
                hold(right, RIGHT_LENGTH)

        return sum_products

    sum_tiles = make_sum(sums_of.tiles, BY_ROWS)  # 64 queries; the sum is over 64 keys
    sum_columns = make_sum(sums_of.columns, BY_COLUMNS)  # over 64 queries; 64 keys

    @fragment_function()
    def compute(tid, base, dq, dk, dv, sums, work, sizes, begins, ends, softmax_scale):
        left = cuda.local.array(LEFT_SHAPE, float32)
        right = cuda.local.array(RIGHT_SHAPE, float32)
        group, lane, warp_row = int32((tid >> 7) - 1), tid & 31, int32((tid >> 5 & 3) * 16)
        of_keys = work.kind != DQ
        address = uint64(0)
        if of_keys and not (begins and ends):
            address = global_address(sums[cuda.blockIdx.x])
            address += uint64((group * (COLS // 8) * 128 + (tid & 127)) * 16)
        for j in range(LEFT8):
            for r in range(4):
                left[j, r] = ZERO
        for j in range(RIGHT8):
            for r in range(4):
                right[j, r] = ZERO
        if of_keys and not begins:
            for j in range(LEFT8):
                load_global_x4(left[j], address + uint64(2048 * j))
            for j in range(RIGHT8):
                load_global_x4(right[j], address + uint64(2048 * (LEFT8 + j)))
        count = int32(max(work.end - work.first, 0) * work.num_slots)
        if of_keys:  # dV += Pᵀ dout, dK += dSᵀ Q                               lines 12, 16
            sum_columns(left, right, base, group, lane, count)
        else:  # dQ += dS K                                                     line 15
            sum_tiles(left, right, base, group, lane, count)
        if of_keys and not ends:
            for j in range(LEFT8):
                store_global_x4(address + uint64(2048 * j), left[j])
            for j in range(RIGHT8):
                store_global_x4(address + uint64(2048 * (LEFT8 + j)), right[j])
            return
        row = int32(work.tile * ROWS + group * SQUARE + warp_row + (lane >> 2))
        x, of_all, heads, scale = dq, uint32(sizes.first_head + work.slot), sizes.num_heads, ONE
        if of_keys:
            x = dk if work.kind == DK else dv
            of_all = uint32(work.kv_head)
            heads = int32(uint32(sizes.num_heads) // uint32(sizes.group_size))
        else:
            row = int32(row + sizes.first_m * ROWS)
        if work.kind != DV:
            scale = softmax_scale
        head, b = int32(of_all % uint32(heads)), int32(of_all // uint32(heads))
        first_col = int32(work.col_tile * COLS)
        store_left(left, x, b, row, head, first_col, lane, scale)
        if RIGHT_COLS:
            store_right(right, x, b, row, head, int32(first_col + LEFT_COLS), lane, scale)

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def gradients_kernel(
        p_map, ds_map, q_map, k_map, dout_map, dq, dk, dv, sums, seqlen_q, seqlen_k,
        group_size, first_head, slots, first_m, num_m, begins, ends, softmax_scale,
        left, right, unit, inverse_unit,
    ):  # fmt: skip
        """A thread block owns ROWS rows of dQ, dK or dV, and all or half of their columns.

        All maps have boxes of 64 rows. sums has a row for each thread block of dK and dV, which is
        read only where the part does not begin its heads of K and V, and written only where it does
        not end them.

        grid      (tiles of columns · (2 · tiles of keys · heads of K and V + tiles of queries ·
                  heads),)
        shared    stages of: two squares of P or dS; the columns of 64 rows of Q, K or dout
        private   left, right: (LEFT_COLS / 8, 4), (RIGHT_COLS / 8, 4)
        HBM       P, dS, Q, K and dout once per tile; dQ, dK, dV once; sums twice between two parts
        paper     FlashAttention-2, Algorithm 2, lines 12, 15 and 16
        budget    168 registers at the start, then 24 and 240. One thread block per SM
        """
        base = uint32(shared_base())
        tid = cuda.threadIdx.x
        mask_args = MaskArgs(left, right, unit, inverse_unit)
        sizes = PartSizes(
            seqlen_q, seqlen_k, int32(dq.shape[2]), group_size, first_head, slots, first_m, num_m,
            mask_args,
        )  # fmt: skip
        work = work_of(uint32(cuda.blockIdx.x), sizes)
        if tid == 0:
            init_rings(base, (RING,), CONSUMER_WARPS)
            fence_mbarrier_init()
        cuda.syncthreads()  # the barriers are made: safe to wait on

        if tid >> 7 == 0:
            setmaxnreg_dec(PRODUCER_REGISTERS)
            if tid == 0:
                produce(base, p_map, ds_map, q_map, k_map, dout_map, work, sizes)
        else:
            setmaxnreg_inc(CONSUMER_REGISTERS)
            compute(tid, base, dq, dk, dv, sums, work, sizes, begins, ends, softmax_scale)

    return gradients_kernel


def tiles_per_block(part, num_n, num_sms):
    """Tiles of keys that a thread block of scores takes: about as many for each of them."""
    tiles = num_n * part.num_m * part.num_heads
    most = min(MOST_TILES, max(1, tiles // (BLOCKS_PER_SM * num_sms)))
    return ceil_div(num_n, ceil_div(num_n, most))


def num_gradient_tiles(part, group_size, num_n, col_tiles):
    """Thread blocks of `make_gradients` for a part."""
    num_kv = part.num_heads // min(part.num_heads, group_size)
    return col_tiles * (2 * num_n * num_kv + part.num_m * part.num_heads)


@arrays.replayed
@checks.takes(checks.NO_SLOPES)
def flash_attn_bwd_stored(dout, q, k, v, out, lse, **options):
    """Attention, backward, head_dim 264 to 512: float16 and bfloat16 on Hopper GPUs.

    The same bits in every run. It stores P and dS of some queries at a time, in at most
    WORKSPACE_BYTES, or in as much as 128 queries need.

    Parameters
    ----------
    dout, q, k, v, out, lse, softmax_scale
        As for `flash_attn_bwd_persistent`, all of one head_dim: a multiple of 8, 264 to 512.
    causal, window_size, softcap
        As for `flash_attn_v2`.

    Returns
    -------
    dq, dk, dv : arrays
        As of `flash_attn_bwd_persistent`.
    """
    inputs = dout, q, k, v, out, lse
    scores, _ = backward.check("flash_attn_bwd_stored", inputs, False, **options)
    mask, softmax_scale = scores.mask, scores.softmax_scale
    batch, seqlen_q, num_heads, head_dim = q.shape
    _, seqlen_k, num_kv_heads, _ = k.shape
    (dq, dk, dv), rows, _ = backward.prepare(*inputs, add_dq=False)
    if seqlen_k == 0 or seqlen_q == 0:
        return tuple(arrays.full(q, x.shape, 0, q.dtype) for x in (q, k, v))

    group_size = num_heads // num_kv_heads
    num_m, num_n = ceil_div(seqlen_q, ROWS), ceil_div(seqlen_k, ROWS)
    parts = parts_of(batch * num_heads, group_size, num_m, num_n, WORKSPACE_BYTES)
    largest = max(part.num_heads * part.num_m for part in parts)
    # A part has as many heads or fewer, and its tiles of queries follow one another.
    slots = parts[0].num_heads
    shape = slots, largest // slots * num_n * 4 * SQUARE, 1, SQUARE
    p, ds = (arrays.empty(q, shape, q.dtype) for _ in range(2))
    in_parts = not all(part.begins and part.ends for part in parts)
    col_tiles, *cols = columns_of(head_dim)
    size = 2 * num_n * col_tiles, ROWS * sum(cols)
    sums = arrays.empty(q, size if in_parts else (1, 1))

    _, window_size, softcap, _ = run_time_masks.constants_of(mask)
    constants = head_dim, mask.causal, arrays.dtype_name(q), window_size
    scores, gradients = make_scores(*constants, softcap), make_gradients(*constants)
    of_mask = run_time_masks.arguments_of(mask)
    dout, q, k, v = pad_rows(dout, q, k, v, multiple=PANEL_COLS)
    for_scores = [tensor_map(x, ROWS) for x in (q, k, v, dout)]
    for_scores += [tensor_map(x, 16) for x in (p, ds)]
    for_gradients = [tensor_map(x, SQUARE) for x in (p, ds, q, k, dout)]
    sizes = np.int32(seqlen_q), np.int32(seqlen_k), np.int32(group_size)
    for part in parts:
        first_head, first_m = np.int32(part.first_head), np.int32(part.first_m)
        per_block = tiles_per_block(part, num_n, arrays.num_sms(q))
        args = *for_scores, *rows, *sizes, first_head, first_m, np.int32(per_block)
        args += np.float32(softmax_scale * LOG2_E), *of_mask
        grid = ceil_div(num_n, per_block), part.num_m, part.num_heads
        size = make_scores_plan().bytes
        arrays.launch(scores, grid, (THREADS,), *args, shared_bytes=size)

        args = *for_gradients, dq, dk, dv, sums, *sizes, first_head, np.int32(part.num_heads)
        args += first_m, np.int32(part.num_m), np.int32(part.begins), np.int32(part.ends)
        args += softmax_scale, *of_mask
        grid = (num_gradient_tiles(part, group_size, num_n, col_tiles),)
        size = make_gradients_plan(head_dim).bytes
        arrays.launch(gradients, grid, (THREADS,), *args, shared_bytes=size)
    return dq, dk, dv
