"""Backward with wgmma, for a tile of keys: its shared memory, and the products of a query tile.

A thread block has a warpgroup that loads and two that compute. Each of these has 64 of the BLOCK_N
keys of a tile, and multiplies five times for each tile of queries; flash_attn_bwd_persistent says
how. The tiles that a thread block takes, and the places of its results, are the kernels' own.

Paper: FlashAttention-2, arXiv:2307.08691, Algorithm 2.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numba import cuda, int32, uint32, uint64

from fa_numba.expressions.functions import NO_EXPRESSIONS
from fa_numba.ptx import mbarrier, vectors, wgmma
from fa_numba.ptx.barriers import fence_async_proxy, named_barrier_sync
from fa_numba.ptx.layouts import ROW_BYTES
from fa_numba.ptx.mbarrier import fence_mbarrier_init, mbarrier_init
from fa_numba.ptx.statement import opaque
from fa_numba.ptx.wgmma import (
    descriptor,
    descriptor_bits,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
    wgmma_wait_with,
)
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.backward import padded, tile_rows, wgmma_products_of
from fa_numba.tensor_core.dq_parts import DQ_BYTES, has_third
from fa_numba.tensor_core.dropout_fragments import make_key_rows
from fa_numba.tensor_core.fragments import fragment_function, make_fragment_functions
from fa_numba.tensor_core.gradient_expressions import make_expression_functions
from fa_numba.tensor_core.gradient_fragments import (
    BLOCK_N,
    make_differentiate_packed,
    make_gradient_functions,
    make_score_functions,
)
from fa_numba.tensor_core.shared_plan import Region, Ring, SharedPlan, init_rings
from fa_numba.tiling.block_sizes import ceil_div

THREADS = 384  # a warpgroup that loads, and two that compute, each for 64 of the BLOCK_N keys
CONSUMER_WARPS = 8
STAGES = 2  # tiles of Q, and of dout: one is multiplied while the next one is in flight
SLOTS = 2  # of K: the next keys are loaded while these are multiplied
# A producer's and two consumers' registers are together no more than the three begin with, 168
# each: a warpgroup that asked for more would wait for ever.
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 24, 240
DS_FULL = 1  # the named barrier of the 256 consumer threads
BARRIER = mbarrier.BYTES


class Layout(NamedTuple):
    """Regions and rings of shared memory, with the rows of lse and delta beside Q and dout."""

    k: Region
    v: Region
    dv: Region
    q: Region
    dout: Region
    ds: Region
    lse: Region
    delta: Region
    q_ring: Ring
    dout_ring: Ring
    k_ring: Ring
    v_ring: Ring
    asked: Region
    ready: Region
    written: Region


class Thread(NamedTuple):
    """Constants of a consumer thread.

    Attributes
    ----------
    lane : int
    is_first : bool
        True in one of all consumer threads.
    warp_row : int
        The warp's first key in a tile of keys.
    half : int
        0 or 1, the warpgroup's number.
    v_rows, ds_columns : uint64
        Descriptors of its rows of V and of its half of dS.
    ds_rows : uint32
        Address of the warp's rows of dSᵀ.
    dq_row, dq_col : int
        The thread's first row and column in a tile of dQ.
    dq_offset : uint64
        Offset of its numbers in a tile of dq_sum, in bytes.
    unit : float32
        Factor from a score to a power of 2.
    """

    lane: int
    is_first: bool
    warp_row: int
    half: int
    v_rows: int
    ds_columns: int
    ds_rows: int
    dq_row: int
    dq_col: int
    dq_offset: int
    unit: float


class Keys(NamedTuple):
    """A tile of K in a slot: descriptors of a warpgroup's half, by rows and by columns.

    `position` is the index of this lane's first key among the queries, or with EXPRESSIONS among
    the keys; the second key is eight further on.
    """

    slot: int
    rows: int
    columns: int
    position: int


class Queries(NamedTuple):
    """A tile of Q and dout in a stage, filled in the phase of `parity`; its first query."""

    stage: int
    parity: int
    m_start: int


class QueriesToDrop(NamedTuple):
    """`Queries`, with the values that dropout of their tile needs.

    Attributes
    ----------
    kept : local array
        Flags of the entries that are kept: `dropout_fragments.KeyRows`.
    place : Place
    dropout : Dropout
    """

    stage: int
    parity: int
    m_start: int
    kept: Any
    place: Any
    dropout: Any


class Registers(NamedTuple):
    """Local arrays of a consumer thread: scores, their gradients, and sums."""

    s: Any
    dp: Any
    p: Any
    ds: Any
    dq: Any
    dk: Any
    dv: Any


@cuda.jit(device=True, forceinline=True)
def init_barriers(base, at, counts_parts):
    """One thread makes the barriers of a `Layout`: "empty" awaits each consumer warp."""
    init_rings(base, (at.q_ring, at.dout_ring), CONSUMER_WARPS)
    init_rings(base, (at.k_ring,), CONSUMER_WARPS)
    init_rings(base, (at.v_ring,), CONSUMER_WARPS)
    if counts_parts:
        mbarrier_init(base + at.asked.start, 1)
        mbarrier_init(base + at.ready.start, 1)
        mbarrier_init(base + at.written.start, CONSUMER_WARPS)
    fence_mbarrier_init()


@cuda.jit(device=True, forceinline=True)
def next_stage(stage, parity):
    """Stage and parity of the next tile in the ring of Q, and of dout."""
    stage = uint32(stage + 1)
    if stage == STAGES:
        stage, parity = uint32(0), uint32(parity ^ 1)
    return stage, parity


def slots_of(head_dim):
    """Tiles of K in shared memory: with more than 128 columns there is room for one."""
    return SLOTS if head_dim <= 128 else 1


@functools.cache
def make_plan(HEAD_DIM, HEAD_DIM_V=None):
    """The `SharedPlan` of a thread block, with a `Layout`.

    HEAD_DIM_V, of V and dout, is at most HEAD_DIM, of Q and K, and that by default.
    """
    BLOCK_M, ROW = tile_rows(HEAD_DIM), 2 * padded(HEAD_DIM)
    V_ROW = 2 * padded(HEAD_DIM_V or HEAD_DIM)
    plan = SharedPlan()
    plan.layout = Layout(
        k=plan.tiles(slots_of(HEAD_DIM), BLOCK_N * ROW), v=plan.tiles(1, BLOCK_N * V_ROW),
        dv=plan.tiles(1, BLOCK_N * V_ROW), q=plan.tiles(STAGES, BLOCK_M * ROW),
        dout=plan.tiles(STAGES, BLOCK_M * V_ROW), ds=plan.tiles(STAGES, 2 * BLOCK_M * BLOCK_N),
        lse=plan.region(STAGES * 4 * BLOCK_M), delta=plan.region(STAGES * 4 * BLOCK_M),
        q_ring=plan.ring(STAGES), dout_ring=plan.ring(STAGES), k_ring=plan.ring(SLOTS),
        v_ring=plan.ring(1), asked=plan.barriers(1), ready=plan.barriers(1),
        written=plan.barriers(1),
    )  # fmt: skip
    return plan


def shared_bytes(head_dim, head_dim_v=None):
    """Dynamic shared memory of a thread block."""
    return make_plan(head_dim, head_dim_v).bytes


class TileFunctions(NamedTuple):
    """Functions of a consumer for a tile of queries.

    Attributes
    ----------
    thread_of(base, scale, mask_args)
        The thread's `Thread`.
    keys_of(base, slot, first, thread)
        `Keys` of a slot; `first` is its first key, with the index that `Keys.position` has.
    multiply(x, base, keys, queries, thread, sizes, scale, slope)
        The products of a tile of `Queries`, with DROPOUT `QueriesToDrop`, with EXPRESSIONS
        `ExpressedQueries`. When it returns, those that sum dV, dQ and dK are in flight, in this
        order; where dQ has a third panel, dV is summed.
    multiply_third(x, keys, thread, stage)
        The third panel of dQ (`dq_parts.has_third`), in place of the warpgroup's own.
    wait_for_dq(x), wait_for_dk(x)
        Wait for dV and dQ, and for dK.
    """

    thread_of: Callable
    keys_of: Callable
    multiply: Callable
    multiply_third: Callable
    wait_for_dq: Callable
    wait_for_dk: Callable


@functools.cache
def make_hide(BLOCK_M, SOFTCAP):
    """hide(keys, m_start): both, the one hidden from the compiler that leaves enough registers.

    Masks are then calculated while the tensor cores compute S, and not before the loop over heads
    in step (`key_tiles.make_order`).
    """
    HIDES_QUERIES = BLOCK_M == 64 and SOFTCAP == 0

    @cuda.jit(device=True, forceinline=True)
    def hide(keys, m_start):
        if HIDES_QUERIES:
            m_start = int32(opaque(m_start))
        else:
            position = int32(opaque(keys.position))
            keys = Keys(keys.slot, keys.rows, keys.columns, position)
        return keys, m_start

    return hide


@functools.cache
def make_tile_functions(
    HEAD_DIM, CAUSAL, DTYPE, WINDOW, SOFTCAP, ALIBI, DROPOUT=False, EXPRESSIONS=None,
    HEAD_DIM_V=None,
):  # fmt: skip
    """`TileFunctions` for these constants."""
    HEAD_DIM_V = HEAD_DIM_V or HEAD_DIM
    BLOCK_M, AT = tile_rows(HEAD_DIM), make_plan(HEAD_DIM, HEAD_DIM_V).layout
    # Columns that are multiplied; those from HEAD_DIM on are 0.
    COLS, COLS_V = (16 * ceil_div(d, 16) for d in (HEAD_DIM, HEAD_DIM_V))
    KV_PANEL, Q_PANEL = BLOCK_N * ROW_BYTES, BLOCK_M * ROW_BYTES  # bytes of 64 columns
    K_STRIDE = AT.k.bytes // SLOTS if slots_of(HEAD_DIM) > 1 else 0  # from a slot to the next
    Q_BYTES, DOUT_BYTES = AT.q.bytes // STAGES, AT.dout.bytes // STAGES
    DS_BYTES = AT.ds.bytes // STAGES  # dSᵀ: its rows are keys, its columns queries
    FLOATS_BYTES = BLOCK_M * 4  # of lse, and of delta
    HALF_BYTES = 64 * ROW_BYTES  # half of the rows of a panel of keys
    # A warpgroup's half of dQ: half of the columns of K, or half of the rows, dSᵀ's columns.
    BY_COLS = padded(HEAD_DIM) >= 128
    THIRD = has_third(HEAD_DIM)
    K_HALF, DS_HALF = (KV_PANEL, 0) if BY_COLS else (0, KV_PANEL)
    BY_ROWS = descriptor_bits()  # rows lie along the sum
    Q_BY_COLUMNS = descriptor_bits(Q_PANEL)  # a row for each term of the sum
    KV_BY_COLUMNS = descriptor_bits(KV_PANEL)
    S_LENGTH, P_LENGTH = BLOCK_M // 2, BLOCK_M // 4  # registers
    K_LENGTH, V_LENGTH, DQ_LENGTH = COLS // 2, COLS_V // 2, 32
    by_rows, by_columns, by_registers = wgmma_products_of(DTYPE)
    by_tiles = wgmma.wgmma_tiles_bf16 if DTYPE == "bfloat16" else wgmma.wgmma_tiles_f16
    pack = forward.pack_of(DTYPE)
    unpack = vectors.unpack_bf16x2 if DTYPE == "bfloat16" else vectors.unpack_f16x2
    # A causal mask as bits was measured to gain with 128 queries in a tile: docs/notes/backward.md.
    BITS = BLOCK_M == 128 and CAUSAL and WINDOW == (-1, -1)
    scores = make_score_functions(BLOCK_M, CAUSAL, WINDOW, SOFTCAP, ALIBI, pack, BITS)
    unit_of, cap, mask_tile, exponentiate = scores
    EXPRESSED = EXPRESSIONS is not None
    expressed = make_expression_functions(BLOCK_M, EXPRESSIONS or NO_EXPRESSIONS, pack)
    judge, exponentiate_expressed = expressed.judge, expressed.exponentiate
    P_EARLY = SOFTCAP > 0 or (EXPRESSED and EXPRESSIONS.changes_gradients)
    gradients = make_gradient_functions(BLOCK_M, pack, P_EARLY)
    differentiate, store_ds = gradients.differentiate, gradients.store_ds
    differentiate_packed = make_differentiate_packed(BLOCK_M, pack, unpack)
    pack_p = make_fragment_functions(BLOCK_M, 64, pack).pack_p
    key_rows = make_key_rows(BLOCK_M, pack, P_EARLY)
    draw, differentiate_kept = key_rows.draw, key_rows.differentiate
    wait = mbarrier.wait_function()

    @fragment_function()
    def thread_of(base, scale, mask_args):
        tid = cuda.threadIdx.x
        lane, half = int32(tid & 31), int32((tid >> 7) - 1)
        warp_row = int32(((tid >> 5) - 4) * 16)
        v_tile, ds_tile = uint32(base + AT.v.start), uint32(base + AT.ds.start)
        return Thread(
            lane=lane, is_first=tid == 128, warp_row=warp_row, half=half,
            v_rows=descriptor(BY_ROWS, v_tile + half * HALF_BYTES),
            ds_columns=descriptor(KV_BY_COLUMNS, ds_tile + half * DS_HALF),
            ds_rows=uint32(ds_tile + warp_row * ROW_BYTES),
            dq_row=int32((0 if BY_COLS else 64 * half) + (warp_row & 63) + (lane >> 2)),
            dq_col=int32(64 * half if BY_COLS else 0),
            dq_offset=uint64(half * DQ_BYTES + (tid & 127) * 16), unit=unit_of(scale, mask_args),
        )  # fmt: skip

    @fragment_function()
    def keys_of(base, slot, first, thread):
        k = uint32(base + AT.k.start + slot * K_STRIDE)
        return Keys(
            slot=slot,
            rows=descriptor(BY_ROWS, k + thread.half * HALF_BYTES),
            columns=descriptor(KV_BY_COLUMNS, k + thread.half * K_HALF),
            position=int32(first + thread.warp_row + (thread.lane >> 2)),
        )

    @fragment_function()
    def start_scores(x, base, keys, stage):
        """Start the first product; addresses of the tile's lse, delta, Q and dout."""
        # Starts cut to 32 bits first: the compiler then leaves other offsets to the loads.
        lse_rows, delta_rows = uint32(base + AT.lse.start), uint32(base + AT.delta.start)
        lse = uint32(lse_rows + stage * FLOATS_BYTES)
        delta = uint32(delta_rows + stage * FLOATS_BYTES)
        q = uint32(base + AT.q.start + stage * Q_BYTES)
        dout = uint32(base + AT.dout.start + stage * DOUT_BYTES)
        wgmma_fence()
        by_rows(BLOCK_M, COLS, BLOCK_N, x.s, keys.rows, descriptor(BY_ROWS, q))
        wgmma_commit()  # Sᵀ = K Qᵀ                                                   line 10
        return lse, delta, q, dout

    @fragment_function()
    def multiply(x, base, keys, queries, thread, sizes, scale, slope):
        seqlen_q, mask_args = sizes.seqlen_q, sizes.mask_args
        stage, parity, m_start = queries.stage, queries.parity, queries.m_start
        lane, barrier = thread.lane, uint32(stage * BARRIER)
        lse, delta, q, dout = start_scores(x, base, keys, stage)
        wait(base + AT.v_ring.full, keys.slot)
        wait(base + AT.dout_ring.full + barrier, parity)
        by_rows(BLOCK_M, COLS_V, BLOCK_N, x.dp, thread.v_rows, descriptor(BY_ROWS, dout))
        wgmma_commit()  # dPᵀ = V doutᵀ                                               line 13

        if DROPOUT:
            # While S is computed: the waits end at once, and their loops keep the compiler from
            # calling Philox before the products start, or after the wait for S.
            wait(base + AT.dout_ring.full + barrier, parity)
            draw(queries.kept, m_start, queries.place, queries.dropout, lane)
            wait(base + AT.dout_ring.full + barrier, parity)
        if EXPRESSED:
            n = keys.position
            bits = cuda.local.array(2, uint32)
            judge(bits, queries, n, sizes, lane)  # while S is computed
        wgmma_wait(1, x.s, S_LENGTH)
        if EXPRESSED and SOFTCAP > 0:
            cap(x.s, scale, mask_args)
            exponentiate(x.s, x.p, lse, m_start, keys.position, slope, thread.unit, lane)
            expressed.hide(x.s, x.p, bits, queries, n, sizes, lane)
        elif EXPRESSED:
            exponentiate_expressed(x.s, x.p, lse, bits, queries, n, sizes, scale, lane)
        else:
            cap(x.s, scale, mask_args)
            mask_tile(x.s, m_start, keys.position, seqlen_q, lane, mask_args)
            # P                                                                       line 11
            exponentiate(x.s, x.p, lse, m_start, keys.position, slope, thread.unit, lane)
        wgmma_wait(0, x.dp, S_LENGTH)
        if DROPOUT:
            differentiate_kept(x.s, x.dp, delta, x.p, x.ds, queries.kept, lane)
        else:
            differentiate(x.s, x.dp, delta, x.p, x.ds, lane)  # dS = P ∘ (dP - delta)  line 14

        wgmma_fence()
        by_registers(COLS_V, BLOCK_M, x.dv, x.p, descriptor(Q_BY_COLUMNS, dout))
        wgmma_commit()  # dV += Pᵀ dout                                               line 12
        store_ds(x.ds, thread.ds_rows + stage * DS_BYTES, lane)
        fence_async_proxy()
        named_barrier_sync(DS_FULL, 256)  # all of dSᵀ is there
        wgmma_fence()
        ds_columns = thread.ds_columns + uint64(stage * (DS_BYTES >> 4))
        by_columns(64, BLOCK_N, x.dq, ds_columns, keys.columns)
        wgmma_commit()  # dQ = dS K, half of it                                       line 15
        # dK last: it runs while the threads write dQ to HBM.
        by_registers(COLS, BLOCK_M, x.dk, x.ds, descriptor(Q_BY_COLUMNS, q))
        wgmma_commit()  # dK += dSᵀ Q                                                 line 16

    @fragment_function()
    def multiply_in_turn(x, base, keys, queries, thread, sizes, scale, slope):
        """dK and dV take 160 registers: S and dP never at once, and P in 16 bits."""
        seqlen_q, mask_args = sizes.seqlen_q, sizes.mask_args
        stage, parity, m_start = queries.stage, queries.parity, queries.m_start
        lane, barrier = thread.lane, uint32(stage * BARRIER)
        lse, delta, q, dout = start_scores(x, base, keys, stage)
        wgmma_wait(0, x.s, S_LENGTH)
        cap(x.s, scale, mask_args)
        mask_tile(x.s, m_start, keys.position, seqlen_q, lane, mask_args)
        # P                                                                           line 11
        exponentiate(x.s, x.p, lse, m_start, keys.position, slope, thread.unit, lane)
        wait(base + AT.v_ring.full, keys.slot)
        wait(base + AT.dout_ring.full + barrier, parity)
        if SOFTCAP > 0:  # P first, and then P times the derivative of a score
            wgmma_fence()
            by_registers(COLS_V, BLOCK_M, x.dv, x.p, descriptor(Q_BY_COLUMNS, dout))
            wgmma_commit()  # dV += Pᵀ dout                                           line 12
            wgmma_wait_with(0, x.dv, V_LENGTH, x.p, P_LENGTH)
        pack_p(x.s, x.p)
        wgmma_fence()
        by_rows(BLOCK_M, COLS_V, BLOCK_N, x.dp, thread.v_rows, descriptor(BY_ROWS, dout))
        wgmma_commit()  # dPᵀ = V doutᵀ                                               line 13
        if SOFTCAP > 0:
            wgmma_wait(0, x.dp, S_LENGTH)
        else:
            by_registers(COLS_V, BLOCK_M, x.dv, x.p, descriptor(Q_BY_COLUMNS, dout))
            wgmma_commit()  # dV += Pᵀ dout                                           line 12
            wgmma_wait(1, x.dp, S_LENGTH)
        differentiate_packed(x.p, x.dp, delta, x.ds, lane)  # dS = P ∘ (dP - delta)    line 14
        store_ds(x.ds, thread.ds_rows + stage * DS_BYTES, lane)
        if SOFTCAP <= 0:
            wgmma_wait_with(0, x.dv, V_LENGTH, x.p, P_LENGTH)
        fence_async_proxy()
        named_barrier_sync(DS_FULL, 256)  # all of dSᵀ is there
        wgmma_fence()
        ds_columns = thread.ds_columns + uint64(stage * (DS_BYTES >> 4))
        by_columns(64, BLOCK_N, x.dq, ds_columns, keys.columns)
        wgmma_commit()  # dQ = dS K, a third of it                                    line 15
        ds_start = uint32(base + AT.ds.start + stage * DS_BYTES)
        ds_rows = descriptor(BY_ROWS, ds_start + thread.half * HALF_BYTES)
        by_tiles(COLS, BLOCK_M, x.dk, ds_rows, descriptor(Q_BY_COLUMNS, q))
        wgmma_commit()  # dK += dSᵀ Q                                                 line 16

    @fragment_function()
    def multiply_third(x, keys, thread, stage):
        wgmma_fence()
        k_columns = keys.columns + uint64((2 - thread.half) * (KV_PANEL >> 4))
        ds_columns = thread.ds_columns + uint64(stage * (DS_BYTES >> 4))
        by_columns(64, BLOCK_N, x.dq, ds_columns, k_columns)
        wgmma_commit()
        wgmma_wait(0, x.dq, DQ_LENGTH)

    @fragment_function()
    def wait_for_dq(x):
        if THIRD:
            wgmma_wait(1, x.dq, DQ_LENGTH)
        else:
            wgmma_wait_with(1, x.dv, V_LENGTH, x.p, P_LENGTH)

    @fragment_function()
    def wait_for_dk(x):
        if THIRD:
            wgmma_wait(0, x.dk, K_LENGTH)
        else:
            wgmma_wait_with(0, x.dk, K_LENGTH, x.ds, P_LENGTH)

    of_tile = multiply_in_turn if THIRD else multiply
    return TileFunctions(thread_of, keys_of, of_tile, multiply_third, wait_for_dq, wait_for_dk)
