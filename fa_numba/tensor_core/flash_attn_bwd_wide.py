"""FlashAttention's backward pass on Hopper, head_dim up to 256: a warpgroup for each gradient.

flash_attn_bwd_persistent   head_dim up to 128: two warpgroups, each with half of the keys
flash_attn_bwd_wide         head_dim 136 to 256: three warpgroups, for dV, dK and dQ <- this file

dK and dV of 64 keys with head_dim 256 take half of an SM's registers, so a tile has 64 keys and 64
queries, and each warpgroup keeps one of the two. They hand P and dS on through shared memory:

    warpgroup 1    Sᵀ = K Qᵀ       P = exp(S − lse)             dV += Pᵀ dout     P to warpgroup 2
    warpgroup 2    dPᵀ = V doutᵀ   dS = P ∘ (dP − delta)        dK += dSᵀ Q       dS to warpgroup 3
    warpgroup 3    dQ = dS K, 64 columns at a time; adds them to sums in HBM
    warpgroup 0    a thread loads by TMA: the next tiles of Q and dout, and the next K and V

They share no barrier: warpgroup 1 may be a tile ahead of warpgroup 2, and that one two tiles ahead
of warpgroup 3. So one computes exponentials, or waits for HBM, while the tensor cores multiply for
the others. The thread block is persistent, one per SM, and loops over tiles of keys (`key_tiles`).

The arithmetic, for a tile of 64 × 64 scores with head_dim 256:

    FLOPs           5 products, 10.5 million: 2560 cycles of an SM's tensor cores
    shared memory   K, V 64 KiB; two stages of Q and dout 128; P in float32 16; two stages of dSᵀ
                    16: 226 KiB of 227. wgmma reads 256 KiB of it, 2048 cycles; TMA writes 64 KiB
    registers       128 of dV or dK and 32 of scores, of 216 and 208; 32 of dQ, of 64; the thread
                    that loads has 24: 512 in all, 4 · 128
    L2              loads 64 KiB of Q and dout, adds 64 KiB of dQ: twice as much for each FLOP as
                    flash_attn_bwd_persistent, whose tiles have 128 keys. At 500 TFLOP/s that is 3.1
                    terabytes per second of each.

dQ is "added" (`dq_parts`): each part atomically to float32 sums, 0 at first, which a kernel after
rounds. With deterministic=True warpgroup 3 waits for the parts of all later keys before it adds its
own; tiles of keys begin in the same order, the last ones first, so it seldom waits long.

A user's mask and score (`gradient_expressions`): all four walk the runs of tiles of queries that
see a tile of keys, and a thread block that is done takes the next tile of keys.

A head_dim is zero-padded to a multiple of 64. V, dV, dout and out may have another one than Q and
K, a smaller one; up to 192 and 128 columns flash_attn_bwd_persistent takes them, in larger tiles.

Papers: FlashAttention-2, arXiv:2307.08691, Algorithm 2; Shah et al. 2024, FlashAttention-3,
arXiv:2407.08608, section 3 and appendix B.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32, uint64

from fa_numba import checks
from fa_numba.constants import LOG2_E, ONE, ZERO
from fa_numba.expressions.functions import NO_EXPRESSIONS
from fa_numba.on_cuda_cores import run_time_masks
from fa_numba.on_cuda_cores.run_time_masks import MaskArgs
from fa_numba.ptx import mbarrier
from fa_numba.ptx.barriers import (
    fence_async_proxy,
    named_barrier_sync,
    setmaxnreg_dec,
    setmaxnreg_inc,
)
from fa_numba.ptx.counters import counter_acquire, counter_release
from fa_numba.ptx.layouts import PANEL_COLS, ROW_BYTES
from fa_numba.ptx.ldmatrix import stmatrix_x4
from fa_numba.ptx.mbarrier import (
    fence_mbarrier_init,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
)
from fa_numba.ptx.statement import global_address, opaque
from fa_numba.ptx.tma import (
    make_load_tile,
    tma_store_4d,
    tma_store_commit,
    tma_store_wait_read,
)
from fa_numba.ptx.vectors import (
    bulk_load,
    load_shared_x2,
    load_shared_x4,
    store_shared_x4,
)
from fa_numba.ptx.wgmma import (
    descriptor,
    descriptor_bits,
    hold,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
    wgmma_wait_with,
)
from fa_numba.runtime import arrays
from fa_numba.runtime.tensor_maps import tensor_map
from fa_numba.tensor_core import backward, forward
from fa_numba.tensor_core.backward import Maps, padded, wgmma_products_of
from fa_numba.tensor_core.dq_parts import DQ_BYTES, add_part, paired
from fa_numba.tensor_core.fragments import fragment_function, make_fragment_functions
from fa_numba.tensor_core.gradient_expressions import (
    WalkedQueries,
    find_run,
    make_expression_functions,
    next_of_run,
    number_of_tiles,
    place_of_part,
    runs_of_keys,
)
from fa_numba.tensor_core.gradient_fragments import make_gradient_functions, make_score_functions
from fa_numba.tensor_core.key_tiles import (
    BATCH,
    KV_HEAD,
    N_TILE,
    SLOT_LENGTH,
    Sizes,
    make_order,
    make_query_tiles,
    make_steps,
)
from fa_numba.tensor_core.shared_plan import Region, Ring, SharedPlan, init_rings
from fa_numba.tiling.block_sizes import ceil_div

BLOCK_M = BLOCK_N = 64  # queries and keys of a tile
SHIFT = 6  # 64 = 1 << SHIFT
THREADS = 512  # warpgroups: one that loads, one for dV, one for dK, one for dQ
WARPS = 4  # of a warpgroup
STAGES = 2  # tiles of Q, of dout and of dS: one is multiplied while the next one arrives
BARRIER = mbarrier.BYTES
PANEL_BYTES = BLOCK_M * ROW_BYTES  # 64 columns of a tile
FLOATS_BYTES = BLOCK_M * 4  # of lse, and of delta, for a tile of queries
# Registers of the warpgroups. Together they have no more than the four begin with, 128 each: a
# warpgroup that asked for more would wait for ever.
PRODUCER_REGISTERS, DV_REGISTERS, DK_REGISTERS, DQ_REGISTERS = 24, 216, 208, 64
# dV and dK are two arrays of registers: one instruction cannot have 128 of them and four of A when
# the kernel begins with 128.
MOST_LEFT_COLS, LEFT_BYTES = 128, 2 * PANEL_BYTES
DQ_TURN = 1  # the named barrier of the 128 threads that sum dQ
# Rows of `slots`: a tile of keys is named once beside K and once beside V, which are freed at
# different times.
WITH_K, WITH_V = 0, 1

# A warp's part of P in shared memory: of each of its threads 16 bytes for each 8 queries.
CELL_BYTES = 32 * 16
P_BYTES = BLOCK_M // 8 * CELL_BYTES  # of a warp
STORE_BYTES = 16 * ROW_BYTES  # a warp's rows of a panel


class Layout(NamedTuple):
    """Regions and rings of shared memory, with the rows of lse and delta beside Q and dout."""

    k: Region
    v: Region
    q: Region
    dout: Region
    p: Region
    ds: Region
    lse: Region
    delta: Region
    k_ring: Ring
    v_ring: Ring
    q_ring: Ring
    dout_ring: Ring
    p_ring: Ring
    ds_ring: Ring


class Thread(NamedTuple):
    """Constants of a thread that computes: its lane, its warp's first row, its part of P."""

    lane: int
    warp_row: int
    p_cell: int


class Tile(NamedTuple):
    """A tile of keys, and the tiles of queries that see one of them, for each head of a group.

    `position` is the index of this lane's first key among the queries; the second key is eight
    further on.
    """

    n_tile: int
    kv_head: int
    b: int
    position: int
    first_m: int
    end_m: int


def left_and_right(head_dim):
    """Columns of the two arrays of dV, or of dK; the right one may have none."""
    cols = 16 * ceil_div(head_dim, 16)
    left = min(cols, MOST_LEFT_COLS)
    return left, cols - left


@functools.cache
def make_plan(HEAD_DIM, HEAD_DIM_V=None):
    """The `SharedPlan` of a thread block, with a `Layout`.

    HEAD_DIM_V, of V and dout, is at most HEAD_DIM, of Q and K, and that by default.
    """
    K_BYTES, V_BYTES = (BLOCK_M * 2 * padded(d) for d in (HEAD_DIM, HEAD_DIM_V or HEAD_DIM))
    plan = SharedPlan()
    plan.layout = Layout(
        k=plan.tiles(1, K_BYTES),
        v=plan.tiles(1, V_BYTES),
        q=plan.tiles(STAGES, K_BYTES),
        dout=plan.tiles(STAGES, V_BYTES),
        p=plan.tiles(1, WARPS * P_BYTES),
        ds=plan.tiles(STAGES, PANEL_BYTES),
        lse=plan.region(STAGES * FLOATS_BYTES),
        delta=plan.region(STAGES * FLOATS_BYTES),
        k_ring=plan.ring(1),
        v_ring=plan.ring(1),
        q_ring=plan.ring(STAGES),
        dout_ring=plan.ring(STAGES),
        p_ring=plan.ring(1),
        ds_ring=plan.ring(STAGES),
    )
    return plan


def shared_bytes(head_dim, head_dim_v=None):
    """Dynamic shared memory of a thread block."""
    return make_plan(head_dim, head_dim_v).bytes


# Numba computes in 64 bits with every number in the source. Registers are short here, so variables
# that live long are cut to 32.


@functools.cache
def make_producer(HEAD_DIM, HEAD_DIM_V, CAUSAL, WINDOW, DETERMINISTIC, IN_STEP, EXPRESSED):
    """produce(base, slots, maps, lse_2, delta, sizes, counters, runs): load tile after tile.

    One thread. The first tile of queries comes before K and V: its stage is free before they are.
    """
    AT = make_plan(HEAD_DIM, HEAD_DIM_V).layout
    K_BYTES, V_BYTES = AT.k.bytes, AT.v.bytes
    PAIRED = paired(CAUSAL, WINDOW) and not DETERMINISTIC
    n_tile_of, step_after = make_steps(PAIRED, DETERMINISTIC, DETERMINISTIC or EXPRESSED)
    order = make_order(IN_STEP)
    ranges, m_tile_of, head_of = order.ranges, order.m_tile_of, order.head_of
    query_tiles = make_query_tiles(BLOCK_M, BLOCK_N, CAUSAL, WINDOW)
    load_k_tile = make_load_tile(K_BYTES // PANEL_BYTES)  # also one of Q
    load_v_tile = make_load_tile(V_BYTES // PANEL_BYTES)  # also one of dout
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def name_tile(slots, row, n_tile, kv_head, b):
        slots[row, N_TILE] = n_tile
        slots[row, KV_HEAD] = kv_head
        slots[row, BATCH] = b

    @cuda.jit(device=True, forceinline=True)
    def load_keys(base, slots, parity, maps, n_tile, kv_head, b):
        """V and K, each once the last one is no longer needed: V is free first."""
        n_start = int32(n_tile * BLOCK_N)
        v_full, k_full = base + AT.v_ring.full, base + AT.k_ring.full
        wait(base + AT.v_ring.empty, parity)
        name_tile(slots, WITH_V, n_tile, kv_head, b)
        mbarrier_arrive_expect_tx(v_full, V_BYTES)
        load_v_tile(base + AT.v.start, BLOCK_N, maps.v, n_start, kv_head, b, v_full)
        wait(base + AT.k_ring.empty, parity)
        name_tile(slots, WITH_K, n_tile, kv_head, b)
        mbarrier_arrive_expect_tx(k_full, K_BYTES)
        load_k_tile(base + AT.k.start, BLOCK_N, maps.k, n_start, kv_head, b, k_full)

    @cuda.jit(device=True, forceinline=True)
    def load_queries(base, stage, parity, maps, lse_2, delta, m_tile, head, b):
        """Q with lse to a stage, once it is empty, and then dout with delta."""
        m_start, offset = int32(m_tile * BLOCK_M), uint64(m_tile * FLOATS_BYTES)
        floats, barrier = stage * FLOATS_BYTES, stage * BARRIER
        full = base + AT.q_ring.full + barrier
        wait(base + AT.q_ring.empty + barrier, parity)
        mbarrier_arrive_expect_tx(full, K_BYTES + FLOATS_BYTES)
        load_k_tile(base + AT.q.start + stage * K_BYTES, BLOCK_M, maps.q, m_start, head, b, full)
        source = global_address(lse_2[b, head]) + offset
        bulk_load(base + AT.lse.start + floats, source, FLOATS_BYTES, full)

        full = base + AT.dout_ring.full + barrier
        wait(base + AT.dout_ring.empty + barrier, parity)
        mbarrier_arrive_expect_tx(full, V_BYTES + FLOATS_BYTES)
        tile = base + AT.dout.start + stage * V_BYTES
        load_v_tile(tile, BLOCK_M, maps.dout, m_start, head, b, full)
        source = global_address(delta[b, head]) + offset
        bulk_load(base + AT.delta.start + floats, source, FLOATS_BYTES, full)

    @cuda.jit(device=True, forceinline=True)
    def produce(base, slots, maps, lse_2, delta, sizes, counters, runs):
        num_n_tiles = sizes.num_n_tiles
        heads, num_blocks = uint32(sizes.num_kv_heads), uint32(cuda.gridDim.x)
        # In pairs a head has an even number of steps; the last one may be empty.
        steps_per_head = uint32((num_n_tiles + 1 & ~1) if PAIRED else num_n_tiles)
        num_steps = uint32(steps_per_head * heads * sizes.batch)
        stage, parity = uint32(0), uint32(1)  # "empty" of a new ring has parity 1
        k_parity = uint32(1)
        step = uint32((2 if PAIRED else 1) * cuda.blockIdx.x)
        while step < num_steps:
            of_head, of_all = int32(step % steps_per_head), uint32(step // steps_per_head)
            kv_head, b = int32(of_all % heads), int32(of_all // heads)
            n_tile = n_tile_of(of_head, num_n_tiles)
            if not PAIRED or of_head < num_n_tiles:
                position = int32(n_tile * BLOCK_N) + sizes.shift
                first_m, end_m = query_tiles(position, sizes.seqlen_q, sizes.mask_args)
                head = int32(kv_head * sizes.group_size)
                loops = ranges(first_m, end_m, head, int32(head + sizes.group_size))
                outer, outer_end, inner_first, inner_end = loops
                downwards = 2 * n_tile < num_n_tiles
                inner, keys_wanted = inner_first, True
                if EXPRESSED:  # outer < outer_end while there are more tiles of queries
                    of_keys, end_head = (runs[0], b, n_tile), int32(head + sizes.group_size)
                    run = find_run(*of_keys, head, int32(0), end_head)
                    outer, outer_end, first_m, end_m = int32(0), run[3], int32(0), int32(1)
                while keys_wanted or (outer < outer_end and first_m < end_m):
                    if outer < outer_end and first_m < end_m:
                        m_tile = m_tile_of(outer, inner, first_m, end_m, downwards)
                        head = head_of(outer, inner)
                        if EXPRESSED:
                            head, m_tile = run[0], run[2]
                        load_queries(base, stage, parity, maps, lse_2, delta, m_tile, head, b)
                        stage = uint32(stage + 1)
                        if stage == STAGES:
                            stage, parity = uint32(0), uint32(parity ^ 1)
                        inner = int32(inner + 1)
                        if EXPRESSED:
                            run, _ = next_of_run(*of_keys, run, end_head)
                            outer_end = run[3]
                        elif inner == inner_end:
                            outer, inner = int32(outer + 1), inner_first
                    if keys_wanted:
                        load_keys(base, slots, k_parity, maps, n_tile, kv_head, b)
                        keys_wanted = False
                k_parity = uint32(k_parity ^ 1)
            step = step_after(step, num_blocks, counters)
        wait(base + AT.v_ring.empty, k_parity)
        slots[WITH_V, N_TILE] = -1
        mbarrier_arrive(base + AT.v_ring.full)
        wait(base + AT.k_ring.empty, k_parity)
        slots[WITH_K, N_TILE] = -1
        mbarrier_arrive(base + AT.k_ring.full)

    return produce


@functools.cache
def make_store_half(FIRST_COL, COLS, PANEL_STRIDE, pack):
    """store_half(acc, rows, x_map, tile, thread, seqlen_k, scale): up to 128 columns, by TMA.

    acc, of COLS columns, times scale goes to the warp's 16 rows of the map's array, from FIRST_COL
    on, through shared memory at `rows`: 16 rows of a panel, and of the next one PANEL_STRIDE bytes
    further on. They may be overwritten when the function returns.
    """

    @fragment_function()
    def store_half(acc, rows, x_map, tile, thread, seqlen_k, scale):
        fragment = cuda.local.array(4, uint32)
        lane = thread.lane
        n = int32(tile.n_tile * BLOCK_N + thread.warp_row)
        lane_row = rows + (lane & 15) * ROW_BYTES
        for j in range(COLS // 16):
            for i in range(2):
                for h in range(2):
                    x, y = acc[2 * j + i, 2 * h], acc[2 * j + i, 2 * h + 1]
                    fragment[2 * i + h] = pack(x * scale, y * scale)
            chunk = ((2 * j & 7) + (lane >> 4)) ^ (lane & 7)
            stmatrix_x4(lane_row + j // 4 * PANEL_STRIDE + (chunk << 4), fragment)
        fence_async_proxy()
        cuda.syncwarp()  # all rows are written: safe to copy
        if lane == 0:
            if n < seqlen_k:
                for panel in range((COLS + 63) // 64):
                    col, source = FIRST_COL + PANEL_COLS * panel, rows + panel * PANEL_STRIDE
                    tma_store_4d(x_map, col, n, tile.kv_head, tile.b, source)
            tma_store_commit()
            tma_store_wait_read(0)
        cuda.syncwarp()  # all rows are read: safe to overwrite

    return store_half


@fragment_function()
def clear(acc):
    for j in range(len(acc)):
        for r in range(4):
            acc[j, r] = ZERO


@functools.cache
def make_tile_of(CAUSAL, WINDOW):
    """tile_of(slots, row, thread, sizes): the `Tile` of a row of `slots`."""
    query_tiles = make_query_tiles(BLOCK_M, BLOCK_N, CAUSAL, WINDOW)

    @fragment_function()
    def tile_of(slots, row, thread, sizes):
        n_tile = slots[row, N_TILE]
        first = int32(n_tile * BLOCK_N + sizes.shift)  # the first key's index among the queries
        first_m, end_m = query_tiles(first, sizes.seqlen_q, sizes.mask_args)
        position = int32(first + thread.warp_row + (thread.lane >> 2))
        return Tile(n_tile, slots[row, KV_HEAD], slots[row, BATCH], position, first_m, end_m)

    return tile_of


@functools.cache
def make_sum_dv(HEAD_DIM, HEAD_DIM_V, CAUSAL, DTYPE, WINDOW, SOFTCAP, ALIBI, IN_STEP, EXPRESSIONS):
    """sum_dv(base, slots, thread, maps, sizes, scale, alibi_slopes, runs, args): Sᵀ, P and dV.

    Warpgroup 1.
    """
    EXPRESSED = EXPRESSIONS is not None
    AT, COLS = make_plan(HEAD_DIM, HEAD_DIM_V).layout, 16 * ceil_div(HEAD_DIM, 16)
    K_BYTES, V_BYTES = AT.k.bytes, AT.v.bytes
    P_EARLY = SOFTCAP > 0 or (EXPRESSED and EXPRESSIONS.changes_gradients)
    LEFT_COLS, RIGHT_COLS = left_and_right(HEAD_DIM_V)
    S_SHAPE, P_SHAPE = (BLOCK_M // 8, 4), (BLOCK_M // 16, 4)
    LEFT_SHAPE, RIGHT_SHAPE = (LEFT_COLS // 8, 4), (max(RIGHT_COLS // 8, 1), 4)
    S_LENGTH, P_LENGTH = BLOCK_M // 2, BLOCK_M // 4  # registers
    LEFT_LENGTH, RIGHT_LENGTH = LEFT_COLS // 2, RIGHT_COLS // 2
    BY_ROWS, BY_COLUMNS = descriptor_bits(), descriptor_bits(PANEL_BYTES)
    by_rows, _, by_registers = wgmma_products_of(DTYPE)
    pack = forward.pack_of(DTYPE)
    scores = make_score_functions(BLOCK_M, CAUSAL, WINDOW, SOFTCAP, ALIBI, pack)
    unit_of, cap, mask_tile, exponentiate = scores
    expressed = make_expression_functions(BLOCK_M, EXPRESSIONS or NO_EXPRESSIONS, pack, True)
    judge, exponentiate_expressed = expressed.judge, expressed.exponentiate
    pack_p = make_fragment_functions(BLOCK_M, PANEL_COLS, pack).pack_p
    store_left = make_store_half(0, LEFT_COLS, STORE_BYTES, pack)
    store_right = make_store_half(LEFT_COLS, RIGHT_COLS, STORE_BYTES, pack)
    order = make_order(IN_STEP)
    ranges, m_tile_of, head_of = order.ranges, order.m_tile_of, order.head_of
    tile_of = make_tile_of(CAUSAL, WINDOW)
    wait = mbarrier.wait_function()

    @fragment_function()
    def sum_dv(base, slots, thread, maps, sizes, scale, alibi_slopes, runs, args):
        s = cuda.local.array(S_SHAPE, float32)
        p = cuda.local.array(P_SHAPE, uint32)
        left = cuda.local.array(LEFT_SHAPE, float32)
        right = cuda.local.array(RIGHT_SHAPE, float32)
        lane = thread.lane
        stage, parity = uint32(0), uint32(0)
        k_parity, p_parity = uint32(0), uint32(1)  # "empty" of a new ring has parity 1
        while True:
            wait(base + AT.k_ring.full, k_parity)
            if slots[WITH_K, N_TILE] < 0:
                break
            tile = tile_of(slots, WITH_K, thread, sizes)
            clear(left)
            clear(right)
            in_flight = uint32(0)  # "empty" of the stage of dout that dV is being summed from

            loops = ranges(tile.first_m, tile.end_m, int32(0), sizes.group_size)
            outer_first, outer_end, inner_first, inner_end = loops
            downwards = 2 * tile.n_tile < sizes.num_n_tiles
            for outer in range(outer_first, outer_end):
                i, slope = head_of(outer, inner_first), ZERO
                if ALIBI:
                    slope = alibi_slopes[tile.kv_head * sizes.group_size + i]
                if EXPRESSED:
                    head = int32(tile.kv_head * sizes.group_size + i)
                    of_keys, end_head = (runs[0], tile.b, tile.n_tile), int32(head + 1)
                    inner_first, inner_end = int32(0), number_of_tiles(*of_keys, head, end_head)
                    run = find_run(*of_keys, head, int32(0), end_head)
                for inner in range(inner_first, inner_end):
                    if ALIBI and IN_STEP:
                        i = head_of(outer, inner)
                        slope = alibi_slopes[tile.kv_head * sizes.group_size + i]
                    m_tile = m_tile_of(outer, inner, tile.first_m, tile.end_m, downwards)
                    if EXPRESSED:
                        m_tile = run[2]
                        run, flags = next_of_run(*of_keys, run, end_head)
                    m_start, barrier = int32(m_tile * BLOCK_M), uint32(stage * BARRIER)
                    q = uint32(base + AT.q.start + stage * K_BYTES)
                    dout = uint32(base + AT.dout.start + stage * V_BYTES)
                    lse = uint32(base + AT.lse.start + stage * FLOATS_BYTES)
                    wait(base + AT.q_ring.full + barrier, parity)
                    k_rows = descriptor(BY_ROWS, opaque(uint32(base + AT.k.start)))
                    wgmma_fence()
                    by_rows(BLOCK_M, COLS, BLOCK_N, s, k_rows, descriptor(BY_ROWS, q))
                    wgmma_commit()  # Sᵀ = K Qᵀ                                       line 10
                    wgmma_wait_with(1, left, LEFT_LENGTH, p, P_LENGTH)
                    if RIGHT_COLS:
                        hold(right, RIGHT_LENGTH)
                    if lane == 0 and in_flight != 0:
                        mbarrier_arrive(in_flight)
                    if EXPRESSED:
                        queries = WalkedQueries(m_start, flags, tile.b, head, args)
                        n = int32(tile.position - sizes.shift)
                        bits = cuda.local.array(2, uint32)
                        judge(bits, queries, n, sizes, lane)  # while S is computed
                    wgmma_wait(0, s, S_LENGTH)
                    if EXPRESSED:
                        exponentiate_expressed(s, p, lse, bits, queries, n, sizes, scale, lane)
                    else:
                        cap(s, scale, sizes.mask_args)
                        position = tile.position
                        if IN_STEP:  # so that masks are not calculated before the loop over heads
                            position = int32(opaque(position))
                        mask_tile(s, m_start, position, sizes.seqlen_q, lane, sizes.mask_args)
                        # P                                                           line 11
                        unit = unit_of(scale, sizes.mask_args)
                        exponentiate(s, p, lse, m_start, position, slope, unit, lane)
                    cuda.syncwarp()  # lse is read
                    if lane == 0:
                        mbarrier_arrive(base + AT.q_ring.empty + barrier)

                    wait(base + AT.p_ring.empty, p_parity)
                    for j in range(BLOCK_M // 8):
                        store_shared_x4(thread.p_cell + j * CELL_BYTES, s[j])
                    cuda.syncwarp()  # the warp's part of P is written
                    if lane == 0:
                        mbarrier_arrive(base + AT.p_ring.full)
                    p_parity = uint32(p_parity ^ 1)
                    if not P_EARLY:  # else it is packed before its derivative is multiplied
                        pack_p(s, p)
                    wait(base + AT.dout_ring.full + barrier, parity)
                    wgmma_fence()
                    by_registers(LEFT_COLS, BLOCK_M, left, p, descriptor(BY_COLUMNS, dout))
                    if RIGHT_COLS:
                        dout_right = descriptor(BY_COLUMNS, dout + LEFT_BYTES)
                        by_registers(RIGHT_COLS, BLOCK_M, right, p, dout_right)
                    wgmma_commit()  # dV += Pᵀ dout                                   line 12
                    in_flight = uint32(base + AT.dout_ring.empty + barrier)
                    stage = uint32(stage + 1)
                    if stage == STAGES:
                        stage, parity = uint32(0), uint32(parity ^ 1)

            cuda.syncwarp()  # `slots` is read
            if lane == 0:
                mbarrier_arrive(base + AT.k_ring.empty)
            k_parity = uint32(k_parity ^ 1)
            wgmma_wait_with(0, left, LEFT_LENGTH, p, P_LENGTH)
            if RIGHT_COLS:
                hold(right, RIGHT_LENGTH)
            if lane == 0 and in_flight != 0:
                mbarrier_arrive(in_flight)
            wait(base + AT.p_ring.empty, p_parity)  # the last P is read: safe to overwrite
            rows = thread.p_cell - lane * 16
            store_left(left, rows, maps.dv, tile, thread, sizes.seqlen_k, ONE)
            if RIGHT_COLS:
                store_right(right, rows, maps.dv, tile, thread, sizes.seqlen_k, ONE)

    return sum_dv


@functools.cache
def make_differentiate(pack):
    """differentiate(dp, ds, p_cell, delta_rows, lane): dS = P ∘ (dP − delta), packed to 16 bits.

    P is in shared memory, in the order of the registers.
    """

    @fragment_function()
    def differentiate(dp, ds, p_cell, delta_rows, lane):
        p = cuda.local.array(4, float32)
        delta = cuda.local.array(2, float32)
        for j in range(BLOCK_M // 8):
            load_shared_x4(p, p_cell + j * CELL_BYTES)
            load_shared_x2(delta, delta_rows + (lane & 3) * 8 + 32 * j)
            for h in range(2):
                x, y = dp[j, 2 * h] - delta[0], dp[j, 2 * h + 1] - delta[1]
                ds[j // 2, 2 * (j & 1) + h] = pack(p[2 * h] * x, p[2 * h + 1] * y)

    return differentiate


@functools.cache
def make_sum_dk(HEAD_DIM, HEAD_DIM_V, CAUSAL, DTYPE, WINDOW, EXPRESSED):
    """sum_dk(base, slots, thread, maps, sizes, softmax_scale, runs): dPᵀ, dS, dK; warpgroup 2."""
    AT, COLS = make_plan(HEAD_DIM, HEAD_DIM_V).layout, 16 * ceil_div(HEAD_DIM_V, 16)
    K_BYTES, V_BYTES = AT.k.bytes, AT.v.bytes
    LEFT_COLS, RIGHT_COLS = left_and_right(HEAD_DIM)
    S_SHAPE, P_SHAPE = (BLOCK_M // 8, 4), (BLOCK_M // 16, 4)
    LEFT_SHAPE, RIGHT_SHAPE = (LEFT_COLS // 8, 4), (max(RIGHT_COLS // 8, 1), 4)
    S_LENGTH, P_LENGTH = BLOCK_M // 2, BLOCK_M // 4  # registers
    LEFT_LENGTH, RIGHT_LENGTH = LEFT_COLS // 2, RIGHT_COLS // 2
    BY_ROWS, BY_COLUMNS = descriptor_bits(), descriptor_bits(PANEL_BYTES)
    by_rows, _, by_registers = wgmma_products_of(DTYPE)
    pack = forward.pack_of(DTYPE)
    differentiate = make_differentiate(pack)
    store_ds = make_gradient_functions(BLOCK_M, pack).store_ds
    # Rows of dK go through both stages of dSᵀ: a panel to each.
    store_left = make_store_half(0, LEFT_COLS, PANEL_BYTES, pack)
    store_right = make_store_half(LEFT_COLS, RIGHT_COLS, PANEL_BYTES, pack)
    tile_of = make_tile_of(CAUSAL, WINDOW)
    wait = mbarrier.wait_function()

    @fragment_function()
    def sum_dk(base, slots, thread, maps, sizes, softmax_scale, runs):
        dp = cuda.local.array(S_SHAPE, float32)
        ds = cuda.local.array(P_SHAPE, uint32)
        left = cuda.local.array(LEFT_SHAPE, float32)
        right = cuda.local.array(RIGHT_SHAPE, float32)
        lane = thread.lane
        ds_rows = uint32(base + AT.ds.start + thread.warp_row * ROW_BYTES)
        # dS has the stages of Q and dout: tile after tile, all three advance together.
        stage, parity = uint32(0), uint32(0)
        v_parity, p_parity = uint32(0), uint32(0)
        while True:
            wait(base + AT.v_ring.full, v_parity)
            if slots[WITH_V, N_TILE] < 0:
                break
            tile = tile_of(slots, WITH_V, thread, sizes)
            clear(left)
            clear(right)
            in_flight = uint32(0)  # "empty" of the stage of Q that dK is being summed from

            first_m, end_m = tile.first_m, tile.end_m
            for i in range(sizes.group_size):  # in the order of the others
                if EXPRESSED:
                    head = int32(tile.kv_head * sizes.group_size + i)
                    of_keys = runs[0], tile.b, tile.n_tile
                    first_m, end_m = int32(0), number_of_tiles(*of_keys, head, int32(head + 1))
                for _ in range(first_m, end_m):
                    barrier = uint32(stage * BARRIER)
                    q = uint32(base + AT.q.start + stage * K_BYTES)
                    dout = uint32(base + AT.dout.start + stage * V_BYTES)
                    delta = uint32(base + AT.delta.start + stage * FLOATS_BYTES)
                    wait(base + AT.dout_ring.full + barrier, parity)
                    v_rows = descriptor(BY_ROWS, opaque(uint32(base + AT.v.start)))
                    wgmma_fence()
                    by_rows(BLOCK_M, COLS, BLOCK_N, dp, v_rows, descriptor(BY_ROWS, dout))
                    wgmma_commit()  # dPᵀ = V doutᵀ                                   line 13
                    wgmma_wait_with(1, left, LEFT_LENGTH, ds, P_LENGTH)
                    if RIGHT_COLS:
                        hold(right, RIGHT_LENGTH)
                    if lane == 0 and in_flight != 0:
                        mbarrier_arrive(in_flight)
                    wgmma_wait(0, dp, S_LENGTH)
                    wait(base + AT.p_ring.full, p_parity)
                    p_parity = uint32(p_parity ^ 1)
                    # dS = P ∘ (dP − delta)                                           line 14
                    differentiate(dp, ds, thread.p_cell, delta, lane)
                    cuda.syncwarp()  # the warp's part of P and delta are read
                    if lane == 0:
                        mbarrier_arrive(base + AT.p_ring.empty)
                        mbarrier_arrive(base + AT.dout_ring.empty + barrier)

                    wait(base + AT.ds_ring.empty + barrier, parity ^ uint32(1))
                    store_ds(ds, uint32(ds_rows + stage * PANEL_BYTES), lane)
                    fence_async_proxy()
                    cuda.syncwarp()  # the warp's rows of dSᵀ are written
                    if lane == 0:
                        mbarrier_arrive(base + AT.ds_ring.full + barrier)
                    wait(base + AT.q_ring.full + barrier, parity)
                    wgmma_fence()
                    by_registers(LEFT_COLS, BLOCK_M, left, ds, descriptor(BY_COLUMNS, q))
                    if RIGHT_COLS:
                        q_right = descriptor(BY_COLUMNS, q + LEFT_BYTES)
                        by_registers(RIGHT_COLS, BLOCK_M, right, ds, q_right)
                    wgmma_commit()  # dK += dSᵀ Q                                     line 16
                    in_flight = uint32(base + AT.q_ring.empty + barrier)
                    stage = uint32(stage + 1)
                    if stage == STAGES:
                        stage, parity = uint32(0), uint32(parity ^ 1)

            cuda.syncwarp()  # `slots` is read
            if lane == 0:
                mbarrier_arrive(base + AT.v_ring.empty)
            v_parity = uint32(v_parity ^ 1)
            wgmma_wait_with(0, left, LEFT_LENGTH, ds, P_LENGTH)
            if RIGHT_COLS:
                hold(right, RIGHT_LENGTH)
            if lane == 0 and in_flight != 0:
                mbarrier_arrive(in_flight)
            # Both stages of dSᵀ are read: safe to overwrite. The next tile takes stage `stage`,
            # which has the parity of the tile before the last one.
            other = uint32(stage ^ 1)
            last_parity = uint32(parity ^ stage)  # of the other stage, for the tile after the next
            wait(base + AT.ds_ring.empty + stage * BARRIER, parity ^ uint32(1))
            wait(base + AT.ds_ring.empty + other * BARRIER, last_parity ^ uint32(1))
            store_left(left, ds_rows, maps.dk, tile, thread, sizes.seqlen_k, softmax_scale)
            if RIGHT_COLS:
                store_right(right, ds_rows, maps.dk, tile, thread, sizes.seqlen_k, softmax_scale)

    return sum_dk


@functools.cache
def make_turns(CAUSAL, WINDOW, EXPRESSED):
    """await_turn(counter, m_tile, dq_tile, n_tile, sizes, runs): wait for the parts of later keys.

    One thread waits for those of query tile m_tile that come before key tile n_tile's; dq_tile is
    the index of m_tile among those of all heads.
    """
    BOUNDED, MAX_TRIES = mbarrier.BOUNDED, mbarrier.MAX_TRIES
    end_key = run_time_masks.make_bounds(CAUSAL, WINDOW).end_key

    @cuda.jit(device=True, forceinline=True)
    def await_turn(counter, m_tile, dq_tile, n_tile, sizes, runs):
        # The last query's position among the keys.
        last_query = int32(m_tile * BLOCK_M + BLOCK_M - 1 - sizes.shift)
        end = end_key(last_query, sizes.seqlen_k, sizes.mask_args)
        last_n = int32(((end + BLOCK_N - 1) >> SHIFT) - 1)
        before, tries = int32(last_n - n_tile), int32(0)
        if EXPRESSED:
            num_heads = int32(sizes.num_kv_heads * sizes.group_size)
            _, before = place_of_part((runs[1], num_heads, sizes.num_m_tiles), dq_tile, n_tile)
        while int32(counter_acquire(counter)) < before:
            tries = int32(tries + 1)
            if BOUNDED and tries > MAX_TRIES:
                break

    return await_turn


@functools.cache
def make_sum_dq(HEAD_DIM, HEAD_DIM_V, CAUSAL, DTYPE, WINDOW, DETERMINISTIC, IN_STEP, EXPRESSED):
    """sum_dq(base, slots, thread, dq_sum, sizes, counters, runs): dQ, warpgroup 3."""
    AT = make_plan(HEAD_DIM, HEAD_DIM_V).layout
    DQ_SHAPE, DQ_LENGTH = (PANEL_COLS // 8, 4), PANEL_COLS // 2
    SQUARE_SHIFT = (BLOCK_M * PANEL_COLS).bit_length() - 1  # from numbers of a tile of dQ to panels
    BY_COLUMNS = descriptor_bits(PANEL_BYTES)
    _, by_columns, _ = wgmma_products_of(DTYPE)
    order = make_order(IN_STEP)
    ranges, m_tile_of, head_of = order.ranges, order.m_tile_of, order.head_of
    tile_of = make_tile_of(CAUSAL, WINDOW)
    await_turn = make_turns(CAUSAL, WINDOW, EXPRESSED)
    wait = mbarrier.wait_function()

    @fragment_function()
    def sum_dq(base, slots, thread, dq_sum, sizes, counters, runs):
        x = cuda.local.array(DQ_SHAPE, float32)
        tid, lane = cuda.threadIdx.x, thread.lane
        k = uint32(base + AT.k.start)
        stage, parity, k_parity = uint32(0), uint32(0), uint32(0)
        while True:
            wait(base + AT.k_ring.full, k_parity)
            if slots[WITH_K, N_TILE] < 0:
                break
            tile = tile_of(slots, WITH_K, thread, sizes)
            loops = ranges(tile.first_m, tile.end_m, int32(0), sizes.group_size)
            outer_first, outer_end, inner_first, inner_end = loops
            downwards = 2 * tile.n_tile < sizes.num_n_tiles
            for outer in range(outer_first, outer_end):
                head = int32(tile.kv_head * sizes.group_size + head_of(outer, inner_first))
                if EXPRESSED:
                    of_keys, end_head = (runs[0], tile.b, tile.n_tile), int32(head + 1)
                    inner_first, inner_end = int32(0), number_of_tiles(*of_keys, head, end_head)
                    run = find_run(*of_keys, head, int32(0), end_head)
                m_tile = m_tile_of(outer, inner_first, tile.first_m, tile.end_m, downwards)
                sums = global_address(dq_sum[tile.b, head, m_tile]) + uint64(16 * (tid & 127))
                for inner in range(inner_first, inner_end):
                    m_tile = m_tile_of(outer, inner, tile.first_m, tile.end_m, downwards)
                    if IN_STEP:
                        head = int32(tile.kv_head * sizes.group_size + head_of(outer, inner))
                    if EXPRESSED:
                        m_tile = run[2]
                        run, _ = next_of_run(*of_keys, run, end_head)
                    if IN_STEP or EXPRESSED:
                        sums = global_address(dq_sum[tile.b, head, m_tile])
                        sums += uint64(16 * (tid & 127))
                    barrier = uint32(stage * BARRIER)
                    ds = descriptor(BY_COLUMNS, uint32(base + AT.ds.start + stage * PANEL_BYTES))
                    wait(base + AT.ds_ring.full + barrier, parity)
                    if DETERMINISTIC:
                        num_heads = int32(sizes.num_kv_heads * sizes.group_size)
                        of_all = int32((tile.b * num_heads + head) * sizes.num_m_tiles + m_tile)
                        counter = global_address(counters) + uint64(4 + 4 * of_all)
                        if tid & 127 == 0:
                            await_turn(counter, m_tile, of_all, tile.n_tile, sizes, runs)
                        named_barrier_sync(DQ_TURN, 128)  # all parts before are written
                    # A number of panels from memory, so that this stays a loop: unrolled, ptxas
                    # moves additions of a panel past the next product, and has no registers left.
                    k_panel, panels = k, int32(dq_sum.shape[3] >> SQUARE_SHIFT)
                    while panels > 0:
                        wgmma_fence()
                        by_columns(PANEL_COLS, BLOCK_N, x, ds, descriptor(BY_COLUMNS, k_panel))
                        wgmma_commit()  # dQ = dS K, 64 columns of it                 line 15
                        k_panel = uint32(k_panel + PANEL_BYTES)
                        wgmma_wait(0, x, DQ_LENGTH)
                        add_part(x, sums)
                        sums += uint64(DQ_BYTES)
                        panels = int32(panels - 1)
                    if lane == 0:
                        mbarrier_arrive(base + AT.ds_ring.empty + barrier)
                    if DETERMINISTIC:
                        named_barrier_sync(DQ_TURN, 128)  # this part is written
                        if tid & 127 == 0:
                            counter_release(counter, 1)
                    stage = uint32(stage + 1)
                    if stage == STAGES:
                        stage, parity = uint32(0), uint32(parity ^ 1)

            cuda.syncwarp()  # `slots` is read
            if lane == 0:
                mbarrier_arrive(base + AT.k_ring.empty)
            k_parity = uint32(k_parity ^ 1)

    return sum_dq


@functools.cache
def make_flash_attn_bwd_wide(
    HEAD_DIM,
    DETERMINISTIC,
    CAUSAL,
    DTYPE,
    WINDOW=(-1, -1),
    SOFTCAP=0.0,
    ALIBI=False,
    IN_STEP=False,
    HEAD_DIM_V=None,
    EXPRESSIONS=None,
):
    """The kernel for these compile-time constants: THREADS threads, `shared_bytes` of memory.

    HEAD_DIM, of Q and K, is a multiple of 8, above 64; HEAD_DIM_V, of V and out, is one up to
    HEAD_DIM, and that by default. DTYPE is "float16" or "bfloat16". dq_sum is 0 at first,
    and so are counters, which may be any scalar unless DETERMINISTIC. Without ALIBI alibi_slopes
    may be any scalar. WINDOW and SOFTCAP may be AT_RUN_TIME (`run_time_masks`); otherwise left,
    right, unit and inverse_unit are not read. IN_STEP (`key_tiles.make_order`) needs pairs of tiles
    of keys, so DETERMINISTIC must be False.

    With EXPRESSIONS the mask and the score are the user's alone, and args is the tuple of their
    arguments. runs is a tuple of tables, `gradient_expressions.Runs`: of_keys, and of_queries if
    DETERMINISTIC. counters is an array always. Otherwise both are empty.
    """
    EXPRESSED = EXPRESSIONS is not None
    HEAD_DIM_V = HEAD_DIM_V or HEAD_DIM
    plan = make_plan(HEAD_DIM, HEAD_DIM_V)
    AT, shared_base = plan.layout, plan.shared_base
    SLOTS_SHAPE = (2, SLOT_LENGTH)
    head_dims = HEAD_DIM, HEAD_DIM_V
    order = DETERMINISTIC, IN_STEP, EXPRESSED
    produce = make_producer(*head_dims, CAUSAL, WINDOW, *order)
    sum_dv = make_sum_dv(*head_dims, CAUSAL, DTYPE, WINDOW, SOFTCAP, ALIBI, IN_STEP, EXPRESSIONS)
    sum_dk = make_sum_dk(*head_dims, CAUSAL, DTYPE, WINDOW, EXPRESSED)
    sum_dq = make_sum_dq(*head_dims, CAUSAL, DTYPE, WINDOW, *order)

    @cuda.jit(device=True, forceinline=True)
    def init_barriers(base):
        """Arrivals are those of warps; of the producer, which loads, there is one."""
        init_rings(base, (AT.q_ring, AT.dout_ring), 2 * WARPS)  # both sums read both tiles
        init_rings(base, (AT.k_ring,), 2 * WARPS)  # Sᵀ and dQ
        init_rings(base, (AT.v_ring,), WARPS)
        mbarrier_init(base + AT.p_ring.full, WARPS)
        mbarrier_init(base + AT.p_ring.empty, WARPS)
        for stage in range(STAGES):
            mbarrier_init(base + AT.ds_ring.full + stage * BARRIER, WARPS)
            mbarrier_init(base + AT.ds_ring.empty + stage * BARRIER, WARPS)
        fence_mbarrier_init()

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def flash_attn_bwd_wide_kernel(
        q_map,
        k_map,
        v_map,
        dout_map,
        dk_map,
        dv_map,
        lse_2,
        delta,
        dq_sum,
        seqlen_q,
        seqlen_k,
        num_kv_heads,
        group_size,
        scale,
        softmax_scale,
        alibi_slopes,
        counters,
        left,
        right,
        unit,
        inverse_unit,
        runs,
        args,
    ):
        """A thread block loops over tiles of keys, each with the queries of its heads.

        grid      (at most one per SM,); warpgroups: loads, dV, dK, dQ
        shared    k (BLOCK_N, HEAD_DIM), v (BLOCK_N, HEAD_DIM_V); q, dout, STAGES of each, alike; p
                  (4, 8, 32, 4), in float32, by warps, and in the end dV; ds (STAGES, BLOCK_N,
                  BLOCK_M), keys by queries, and in the end dK; in panels of 64 columns, swizzled;
                  lse, delta (STAGES, BLOCK_M); barriers: full and empty of K, V and P, and for each
                  stage of Q, dout and dS; slots (2, 4)
        private   dV: s (8, 4), p (4, 4), left (16, 4), right (HEAD_DIM_V / 8 - 16, 4); dK: dp, ds,
                  left, right (HEAD_DIM / 8 - 16, 4); dQ: x (8, 4)
        HBM       K, V, dK, dV once; Q, dout, lse, delta once per tile of keys, other than the tiles
                  that see none of them; dQ's sums as often; counters: the next tile of keys, and
                  for each tile of queries the number of parts that are written
        paper     FlashAttention-2, Algorithm 2
        budget    128 registers at the start; then 24, 200, 200, 88; one thread block per SM
        """
        slots = cuda.shared.array(SLOTS_SHAPE, int32)  # the tiles of keys of K and of V
        base = uint32(shared_base())
        tid = cuda.threadIdx.x
        warp = int32((tid >> 5) & 3)
        lane = int32(tid & 31)
        p_cell = uint32(base + AT.p.start + warp * P_BYTES + lane * 16)
        thread = Thread(lane, int32(warp * 16), p_cell)
        sizes = Sizes(
            batch=int32(dq_sum.shape[0]),
            num_kv_heads=num_kv_heads,
            group_size=group_size,
            seqlen_q=seqlen_q,
            seqlen_k=seqlen_k,
            num_m_tiles=int32(dq_sum.shape[2]),
            num_n_tiles=int32((seqlen_k + BLOCK_N - 1) >> SHIFT),
            shift=int32(seqlen_q - seqlen_k),
            mask_args=MaskArgs(left, right, unit, inverse_unit),
        )
        maps = Maps(q_map, k_map, v_map, dout_map, dk_map, dv_map)
        if tid == 0:
            init_barriers(base)
        cuda.syncthreads()  # the barriers are made: safe to wait on

        warpgroup = tid >> 7
        if warpgroup == 0:
            setmaxnreg_dec(PRODUCER_REGISTERS)
            if tid == 0:
                produce(base, slots, maps, lse_2, delta, sizes, counters, runs)
        elif warpgroup == 1:
            setmaxnreg_inc(DV_REGISTERS)
            sum_dv(base, slots, thread, maps, sizes, scale, alibi_slopes, runs, args)
        elif warpgroup == 2:
            setmaxnreg_inc(DK_REGISTERS)
            sum_dk(base, slots, thread, maps, sizes, softmax_scale, runs)
        else:
            setmaxnreg_dec(DQ_REGISTERS)
            sum_dq(base, slots, thread, dq_sum, sizes, counters, runs)

    return flash_attn_bwd_wide_kernel


@arrays.replayed
@checks.takes(checks.SCORES)
def flash_attn_bwd_wide(dout, q, k, v, out, lse, *, deterministic=False, **options):
    """FlashAttention, backward, head_dim 136 to 256: float16 and bfloat16 on Hopper GPUs.

    Parameters
    ----------
    dout, q, k, v, out, lse, softmax_scale, deterministic
        As for `flash_attn_bwd_persistent`; head_dim is a multiple of 8, 136 to 256, or from 72 on
        if v has another one.
    causal, window_size, softcap, alibi_slopes, mask, mask_args, score, score_args, sinks
        As for `flash_attn_v2`.

    Returns
    -------
    dq, dk, dv, dsinks : arrays
        As of `flash_attn_bwd_persistent`.
    """
    inputs = dout, q, k, v, out, lse
    scores, deterministic = backward.check("flash_attn_bwd_wide", inputs, deterministic, **options)
    mask, given, scale = scores.mask, scores.given, scores.softmax_scale
    _, seqlen_q, num_heads, head_dim = q.shape
    batch, seqlen_k, num_kv_heads, head_dim_v = v.shape
    (dq, dk, dv), rows, dq_sum, *dsinks = backward.prepare(*inputs, sinks=scores.sinks_if_any)
    if seqlen_k == 0:
        return arrays.full(q, q.shape, 0, q.dtype), dk, dv, *dsinks

    units = batch * num_kv_heads * ceil_div(seqlen_k, BLOCK_N)
    in_pairs = paired(mask.causal, mask.window_size) and not deterministic
    counters, runs, expressions = np.int32(0), (), None
    if given is not None and seqlen_q:
        expressions, counters = given.expressions, arrays.full(q, (1,), 0, np.int32)
        tables = runs_of_keys(q, k, given, BLOCK_M, BLOCK_N, both=deterministic)
        runs = (tables.of_keys, tables.of_queries) if deterministic else (tables.of_keys,)
    if deterministic:
        counters = arrays.full(q, (1 + math.prod(dq_sum.shape[:3]),), 0, np.int32)
    elif in_pairs:
        units = batch * num_kv_heads * ceil_div(seqlen_k, 2 * BLOCK_N)
    boxes = (q, BLOCK_M), (k, BLOCK_N), (v, BLOCK_N), (dout, BLOCK_M), (dk, 16), (dv, 16)
    maps = (tensor_map(*box) for box in boxes)
    sizes = map(np.int32, (seqlen_q, seqlen_k, num_kv_heads, num_heads // num_kv_heads))
    scales = np.float32(scale * LOG2_E), scale
    args = *maps, *rows, dq_sum, *sizes, *scales, scores.slopes, counters
    args += *run_time_masks.arguments_of(mask), runs, scores.expression_args
    _, *constants = run_time_masks.constants_of(mask)
    constants += in_pairs and num_heads > num_kv_heads, head_dim_v, expressions
    kernel = make_flash_attn_bwd_wide(
        head_dim, deterministic, mask.causal, arrays.dtype_name(q), *constants
    )
    grid = (min(units, arrays.num_sms(q)),)
    size = shared_bytes(head_dim, head_dim_v)
    arrays.launch(kernel, grid, (THREADS,), *args, shared_bytes=size)
    backward.convert(dq_sum, dq, scale)
    return dq, dk, dv, *dsinks
