"""Consumers of the backward kernels with wgmma: their loop over tiles of keys, and the stores.

The two warpgroups of `gradient_mainloop` take one tile of keys after the other from `slots`, and
for each one tile of queries after the other from the ring of Q and dout. They sum dV and dK in
registers, hand on each part of dQ (`dq_parts`), and store dK and dV by TMA while the next tile of
keys begins.

The sequences of a batch have the same length (`key_tiles`), or it is PACKED (`packed_key_tiles`).
Then a tile of keys in `slots` has the lengths of its sequence, dq_sum has the tiles of all
sequences in a row, and TMA copies by maps of windows. There the producer loads V between a tile of
Q and one of dout, and the consumers release V while the last tile of queries ends.

Paper: FlashAttention-2, arXiv:2307.08691, Algorithm 2.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32, uint64

from fa_numba.constants import ONE, ZERO
from fa_numba.on_cuda_cores.run_time_masks import MaskArgs
from fa_numba.ptx import mbarrier
from fa_numba.ptx.barriers import named_barrier_sync
from fa_numba.ptx.layouts import ROW_BYTES
from fa_numba.ptx.mbarrier import mbarrier_arrive
from fa_numba.ptx.statement import global_address, opaque
from fa_numba.ptx.tma import in_window, tma_store_wait_read
from fa_numba.ptx.wgmma import hold
from fa_numba.tensor_core import forward, key_tiles, packed_key_tiles
from fa_numba.tensor_core.backward import tile_rows
from fa_numba.tensor_core.dq_parts import (
    ADDED,
    FLAGS,
    INDEX,
    N_SHIFT,
    PANEL_SHIFT,
    THIRD_COL,
    TILE,
    TILE_SHIFT,
    Rows,
    add_part,
    has_third,
    make_dq_functions,
    third_offset,
    tile_bytes,
)
from fa_numba.tensor_core.dropout_fragments import PATCHES, make_key_rows
from fa_numba.tensor_core.fragments import fragment_function
from fa_numba.tensor_core.gradient_expressions import (
    DQ_TILE,
    HEAD,
    KIND,
    LAST_TILE,
    M_TILE,
    ExpressedQueries,
    run_of,
)
from fa_numba.tensor_core.gradient_fragments import BLOCK_N, make_store_float32, make_store_tile
from fa_numba.tensor_core.gradient_mainloop import (
    BARRIER,
    DS_FULL,
    SLOTS,
    Queries,
    QueriesToDrop,
    Registers,
    make_hide,
    make_plan,
    make_tile_functions,
    next_stage,
)
from fa_numba.tensor_core.key_tiles import BATCH, N_TILE, make_order, make_query_tiles
from fa_numba.tensor_core.packed_key_tiles import (
    K_END,
    K_ROW,
    K_START,
    Q_ROW,
    SEQLEN_Q,
    SEQUENCE,
    goes_downwards,
    position_of,
)
from fa_numba.tiling.block_sizes import ceil_div

STORE_ROWS = 16  # a warp's rows of dK and of dV


class Outputs(NamedTuple):
    """Where the consumers add or store dQ, and the factors that they need.

    softmax_scale is the factor of dQ and dK; with dropout times that of the kept entries.
    """

    dq_sum: Any
    dq: Any
    scale: float
    softmax_scale: float
    alibi_slopes: Any
    dropout: Any


class PackedSizes(NamedTuple):
    """What all sequences of a packed batch have in common, in place of `key_tiles.Sizes`."""

    group_size: int
    mask_args: MaskArgs


class Lengths(NamedTuple):
    """Sizes of a sequence of a packed batch: shift is seqlen_q − seqlen_k."""

    seqlen_q: int
    mask_args: MaskArgs
    seqlen_k: int
    shift: int


@functools.cache
def make_consumer(
    HEAD_DIM, ORDER, CAUSAL, DTYPE, WINDOW, SOFTCAP, ALIBI, DROPOUT, GRAD_FLOAT32, IN_STEP,
    EXPRESSIONS=None, HEAD_DIM_V=None, PACKED=False,
):  # fmt: skip
    """consume(base, slots, part, maps, outputs, sizes, messages, of_queries, args): 256 threads.

    They compute tile after tile. `sizes` is a `key_tiles.Sizes`, with PACKED a `PackedSizes`;
    DROPOUT and GRAD_FLOAT32 are not for a PACKED batch. With EXPRESSIONS messages name the tiles of
    queries, args are the user's, and of_queries is the table of the runs of each tile of queries;
    with ADDED it is not read.
    """
    HEAD_DIM_V = HEAD_DIM_V or HEAD_DIM
    BLOCK_M, AT = tile_rows(HEAD_DIM), make_plan(HEAD_DIM, HEAD_DIM_V).layout
    COLS, COLS_V = (16 * ceil_div(d, 16) for d in (HEAD_DIM, HEAD_DIM_V))
    DK_COLS = min(COLS, 128)  # of dK, through the stages of dS; the rest through dV's region
    S_SHAPE, P_SHAPE = (BLOCK_M // 8, 4), (BLOCK_M // 16, 4)
    DK_SHAPE, DV_SHAPE, DQ_SHAPE = (COLS // 8, 4), (COLS_V // 8, 4), (8, 4)
    ONE_HEAD_DIM, DQ_LENGTH, DQ_TILE_BYTES = COLS == COLS_V, 32, tile_bytes(HEAD_DIM)
    KEPT_LENGTH = BLOCK_M // (16 * PATCHES)
    M_SHIFT, COUNTED, EXPRESSED = BLOCK_M.bit_length() - 1, ORDER != ADDED, EXPRESSIONS is not None
    of_slots = packed_key_tiles if PACKED else key_tiles
    KV_HEAD, SEEN = of_slots.KV_HEAD, of_slots.SEEN
    NAME, SEQUENCE_AT = (K_ROW, SEQUENCE) if PACKED else (N_TILE, BATCH)
    pack = forward.pack_of(DTYPE)
    dq_functions = make_dq_functions(HEAD_DIM, BLOCK_M, ORDER, CAUSAL, DTYPE, WINDOW)
    name_part, put, clear = dq_functions.name_part, dq_functions.put, dq_functions.clear
    THIRD = has_third(HEAD_DIM)
    SUMS_SHIFT = PANEL_SHIFT if THIRD else TILE_SHIFT
    options = WINDOW, SOFTCAP, ALIBI, DROPOUT, EXPRESSIONS, HEAD_DIM_V
    tile = make_tile_functions(HEAD_DIM, CAUSAL, DTYPE, *options)
    thread_of, keys_of, multiply = tile.thread_of, tile.keys_of, tile.multiply
    multiply_third = tile.multiply_third
    wait_for_dq, wait_for_dk = tile.wait_for_dq, tile.wait_for_dk
    if GRAD_FLOAT32:
        store_dk, store_dv = make_store_float32(HEAD_DIM), make_store_float32(HEAD_DIM_V)
    else:
        store_dk, store_dv = make_store_tile(DK_COLS, pack), make_store_tile(COLS_V, pack)
    store_dk_rest = make_store_tile(COLS, pack, DK_COLS)
    query_tiles = make_query_tiles(BLOCK_M, BLOCK_N, CAUSAL, WINDOW)
    ranges, m_tile_of, head_of, dq_step = make_order(IN_STEP)
    hide = make_hide(BLOCK_M, SOFTCAP)
    place_to_drop = make_key_rows(BLOCK_M, pack, SOFTCAP > 0).place_of
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def index_of(slots, slot, n_tile):
        """The number of a tile of keys in its sequence."""
        if PACKED:
            return int32((slots[slot, K_ROW] - slots[slot, K_START]) >> N_SHIFT)
        return n_tile

    @cuda.jit(device=True, forceinline=True)
    def lengths_of(slots, slot, sizes):
        """Lengths of its sequence: read again where they are needed, kept they take registers."""
        if PACKED:
            seqlen_q = slots[slot, SEQLEN_Q]
            seqlen_k = int32(slots[slot, K_END] - slots[slot, K_START])
            return Lengths(seqlen_q, sizes.mask_args, seqlen_k, int32(seqlen_q - seqlen_k))
        return sizes

    @cuda.jit(device=True, forceinline=True)
    def batch_of(slots, slot):
        """The sequence's place in the first axis of dq."""
        return int32(0) if PACKED else slots[slot, BATCH]

    @cuda.jit(device=True, forceinline=True)
    def num_m_tiles_of(slots, slot, sizes):
        """Tiles of queries of its sequence."""
        if PACKED:
            return int32((slots[slot, SEQLEN_Q] + BLOCK_M - 1) >> M_SHIFT)
        return sizes.num_m_tiles

    @cuda.jit(device=True, forceinline=True)
    def m_row_of(slots, slot, m_tile):
        """Row of a tile of queries in arrays of tiles."""
        return int32(slots[slot, packed_key_tiles.M_TILE] + m_tile) if PACKED else m_tile

    @cuda.jit(device=True, forceinline=True)
    def is_first(slots, slot, n_tile):
        return slots[slot, K_ROW] == slots[slot, K_START] if PACKED else n_tile == 0

    @cuda.jit(device=True, forceinline=True)
    def is_last(slots, slot, n_tile, sizes):
        if PACKED:
            return slots[slot, K_ROW] + BLOCK_N >= slots[slot, K_END]
        return n_tile + 1 == sizes.num_n_tiles

    @fragment_function()
    def clear_unseen(slots, slot, n_tile, first_tile, end_tile, kv_head, b, thread, outputs, sizes):
        """dQ of the tiles of queries before the first and after the last that see a key."""
        head = int32(kv_head * sizes.group_size)
        rows = Rows(b, head, thread.dq_row, thread.dq_col)
        num_m_tiles = num_m_tiles_of(slots, slot, sizes)
        if PACKED:  # the sequence's
            q_row = slots[slot, Q_ROW]
            dq = outputs.dq[:, q_row : q_row + slots[slot, SEQLEN_Q]]
        else:
            dq = outputs.dq
        if is_first(slots, slot, n_tile):
            end = min(first_tile, num_m_tiles)
            clear(int32(0), end, rows, dq, sizes.group_size, thread.lane)
        if is_last(slots, slot, n_tile, sizes):
            begin = max(end_tile, int32(0))
            clear(begin, num_m_tiles, rows, dq, sizes.group_size, thread.lane)

    @fragment_function()
    def clear_hidden(slots, slot, kv_head, b, thread, outputs, sizes, of_queries):
        """dQ of the tiles of queries that see no key."""
        first_head = int32(kv_head * sizes.group_size)
        num_m_tiles = num_m_tiles_of(slots, slot, sizes)
        if PACKED:  # the sequence's
            q_row = slots[slot, Q_ROW]
            dq = outputs.dq[:, q_row : q_row + slots[slot, SEQLEN_Q]]
        else:
            dq = outputs.dq
        for head in range(first_head, int32(first_head + sizes.group_size)):
            rows = Rows(b, head, thread.dq_row, thread.dq_col)
            for m_tile in range(num_m_tiles):
                _, end, _ = run_of(of_queries, b, int32(head), m_row_of(slots, slot, m_tile), 0)
                if end == 0:
                    clear(m_tile, m_tile + 1, rows, dq, int32(1), thread.lane)

    @fragment_function()
    def begin_tile(keys, m_tile, slots, slot, i, slope, outputs, sizes):
        """Keys and the first query of a tile of head i of a group, and its slope."""
        m_start = int32(m_tile * BLOCK_M)
        if IN_STEP:
            keys, m_start = hide(keys, m_start)
            if ALIBI:
                slope = outputs.alibi_slopes[int32(slots[slot, KV_HEAD] * sizes.group_size + i)]
        return keys, m_start, slope

    @fragment_function()
    def ask(base, slots, slot, n_tile, part, m_tile, address, outputs, sizes):
        """Name the part of dQ of a tile of queries to the counting warp."""
        n_tile, lengths = index_of(slots, slot, n_tile), lengths_of(slots, slot, sizes)
        tile = int32((address - global_address(outputs.dq_sum)) >> SUMS_SHIFT)
        if THIRD:  # of panels
            tile = int32(uint32(tile) // uint32(3))
        shift, seqlen_k = lengths.shift, lengths.seqlen_k
        name_part(part, tile, m_tile, n_tile, shift, seqlen_k, sizes.mask_args)
        mbarrier_arrive(base + AT.asked.start)

    @fragment_function()
    def put_part(x, base, slots, slot, part, parity, address, rows, keys, stage, thread, outputs):
        """This warp's part of dQ, once it may be written."""
        wait(base + AT.ready.start, parity)
        if PACKED:  # the sequence's
            q_row = slots[slot, Q_ROW]
            dq = outputs.dq[:, q_row : q_row + slots[slot, SEQLEN_Q]]
        else:
            dq = outputs.dq
        put(x.dq, address, part[FLAGS], dq, rows, thread.lane, outputs.softmax_scale)
        if THIRD and stage == thread.half:
            multiply_third(x, keys, thread, stage)
            rows = Rows(rows.b, rows.head, rows.m, THIRD_COL)
            address += third_offset(thread)
            put(x.dq, address, part[FLAGS], dq, rows, thread.lane, outputs.softmax_scale)
        cuda.syncwarp()  # the whole warp's part is written
        if thread.lane == 0:
            mbarrier_arrive(base + AT.written.start)

    @fragment_function()
    def store_keys(x, base, first, end, kv_head, b, thread, maps, outputs):
        """dK and dV of the warp's 16 keys, by TMA, through shared memory."""
        lane, scale = thread.lane, outputs.softmax_scale
        if PACKED:
            row, b = in_window(int32(first + thread.warp_row), end, STORE_ROWS)
            end_row = STORE_ROWS
        else:
            row, end_row = int32(first * BLOCK_N + thread.warp_row), end
        dv_rows = base + AT.dv.start + thread.warp_row * ROW_BYTES
        dv_scale = outputs.dropout.scale if DROPOUT else ONE
        store_dv(x.dv, dv_rows, maps.dv, row, end_row, kv_head, b, lane, dv_scale)
        named_barrier_sync(DS_FULL, 256)  # dSᵀ is read: safe to overwrite
        store_dk(x.dk, thread.ds_rows, maps.dk, row, end_row, kv_head, b, lane, scale)
        if COLS > DK_COLS and not GRAD_FLOAT32:
            if lane == 0:
                tma_store_wait_read(1)
            cuda.syncwarp()  # dV is read: safe to overwrite
            store_dk_rest(x.dk, dv_rows, maps.dk, row, end_row, kv_head, b, lane, scale)

    @fragment_function()
    def consume(base, slots, part, maps, outputs, sizes, messages, of_queries, args):
        s = cuda.local.array(S_SHAPE, float32)
        dp = cuda.local.array(S_SHAPE, float32)
        p = cuda.local.array(P_SHAPE, uint32)
        ds = cuda.local.array(P_SHAPE, uint32)
        dq_acc = cuda.local.array(DQ_SHAPE, float32)
        dk_acc = cuda.local.array(DK_SHAPE, float32)
        dv_acc = cuda.local.array(DV_SHAPE, float32)
        kept = cuda.local.array(KEPT_LENGTH, uint32)
        x = Registers(s, dp, p, ds, dq_acc, dk_acc, dv_acc)
        dq_sum, scale = outputs.dq_sum, outputs.scale
        thread = thread_of(base, scale, sizes.mask_args)
        lane = thread.lane

        stage, parity = uint32(0), uint32(0)
        slot, k_parity = uint32(0), uint32(0)  # V's parity is `slot`
        part_parity = uint32(0)
        while True:
            wait(base + AT.k_ring.full + slot * BARRIER, k_parity)
            n_tile = slots[slot, NAME]
            if n_tile < 0:
                break
            # The first key's index among the queries, or with EXPRESSED among the keys.
            if PACKED:
                first = position_of(slots, slot)
                if EXPRESSED:
                    first = int32(slots[slot, K_ROW] - slots[slot, K_START])
            else:
                first = int32(n_tile * BLOCK_N + sizes.shift)
                if EXPRESSED:
                    first = int32(n_tile * BLOCK_N)
            keys = keys_of(base, slot, first, thread)
            seqlen_q = lengths_of(slots, slot, sizes).seqlen_q
            first_tile, end_tile = query_tiles(first, seqlen_q, sizes.mask_args)
            for j in range(COLS // 8):
                for r in range(4):
                    dk_acc[j, r] = ZERO
                    if ONE_HEAD_DIM or j < COLS_V // 8:
                        dv_acc[j, r] = ZERO
            if lane == 0:
                tma_store_wait_read(0)
            cuda.syncwarp()  # dK and dV of the keys before are read: safe to overwrite

            if EXPRESSED:
                more = slots[slot, SEEN] != 0
                while more:
                    barrier = uint32(stage * BARRIER)
                    wait(base + AT.q_ring.full + barrier, parity)
                    if COUNTED and thread.is_first:
                        part[TILE] = messages[stage, DQ_TILE]
                        part[INDEX] = index_of(slots, slot, n_tile)
                        mbarrier_arrive(base + AT.asked.start)
                    m_start = int32(messages[stage, M_TILE] * BLOCK_M)
                    head, b = messages[stage, HEAD], slots[slot, SEQUENCE_AT]
                    place, dropout = 0, 0
                    if DROPOUT:
                        place = place_to_drop(int32(opaque(keys.position)), head, b, lane)
                        dropout = outputs.dropout
                    tile = stage, parity, m_start
                    queries = ExpressedQueries(*tile, kept, place, dropout, messages, b, head, args)
                    lengths = lengths_of(slots, slot, sizes)
                    multiply(x, base, keys, queries, thread, lengths, scale, ZERO)
                    if PACKED:
                        more = messages[stage, KIND] & LAST_TILE == 0
                        if lane == 0 and not more:
                            mbarrier_arrive(base + AT.v_ring.empty)  # the next V meanwhile
                    wait_for_dq(x)
                    if lane == 0:
                        mbarrier_arrive(base + AT.dout_ring.empty + barrier)
                    hold(dq_acc, DQ_LENGTH)
                    # The message again: kept, it would take registers.
                    address = global_address(dq_sum) + thread.dq_offset
                    address += uint64(DQ_TILE_BYTES) * uint64(messages[stage, DQ_TILE])
                    if COUNTED:
                        m = int32(messages[stage, M_TILE] * BLOCK_M + thread.dq_row)
                        rows = Rows(batch_of(slots, slot), messages[stage, HEAD], m, thread.dq_col)
                        of_part = part, part_parity, address, rows, keys, stage
                        put_part(x, base, slots, slot, *of_part, thread, outputs)
                        part_parity = uint32(part_parity ^ 1)
                    else:
                        add_part(dq_acc, address)
                    more = messages[stage, KIND] & LAST_TILE == 0
                    wait_for_dk(x)
                    if lane == 0:
                        mbarrier_arrive(base + AT.q_ring.empty + barrier)
                    stage, parity = next_stage(stage, parity)
            else:
                loops = ranges(first_tile, end_tile, int32(0), sizes.group_size)
                outer_first, outer_end, inner_first, inner_end = loops
                if PACKED:
                    downwards = goes_downwards(slots, slot)
                else:
                    downwards = 2 * n_tile < sizes.num_n_tiles
                for outer in range(outer_first, outer_end):
                    i = head_of(outer, inner_first)
                    m_tile = m_tile_of(outer, inner_first, first_tile, end_tile, downwards)
                    head = int32(slots[slot, KV_HEAD] * sizes.group_size + i)
                    slope = outputs.alibi_slopes[head] if ALIBI else ZERO
                    if PACKED:
                        tile = head, m_row_of(slots, slot, m_tile)
                    else:
                        tile = slots[slot, BATCH], head, m_tile
                    address = global_address(dq_sum[tile]) + thread.dq_offset
                    for inner in range(inner_first, inner_end):
                        i = head_of(outer, inner)
                        m_tile = m_tile_of(outer, inner, first_tile, end_tile, downwards)
                        of_tile = keys, m_tile, slots, slot, i, slope, outputs, sizes
                        if not PACKED:
                            these, m_start, slope = begin_tile(*of_tile)
                        barrier = uint32(stage * BARRIER)
                        wait(base + AT.q_ring.full + barrier, parity)
                        if COUNTED and thread.is_first:
                            ask(base, slots, slot, n_tile, part, m_tile, address, outputs, sizes)
                        if PACKED:  # after `ask`: the order in which each kernel was measured
                            these, m_start, slope = begin_tile(*of_tile)
                        if DROPOUT:  # the place anew: kept, it would take eight registers
                            head = int32(slots[slot, KV_HEAD] * sizes.group_size + i)
                            n = int32(int32(opaque(keys.position)) - sizes.shift)
                            place = place_to_drop(n, head, slots[slot, BATCH], lane)
                            queries = QueriesToDrop(
                                stage, parity, m_start, kept, place, outputs.dropout
                            )
                        else:
                            queries = Queries(stage, parity, m_start)
                        lengths = lengths_of(slots, slot, sizes)
                        multiply(x, base, these, queries, thread, lengths, scale, slope)
                        if PACKED:
                            if lane == 0 and inner + 1 == inner_end and outer + 1 == outer_end:
                                # The next V while this tile ends.
                                mbarrier_arrive(base + AT.v_ring.empty)
                        wait_for_dq(x)
                        if lane == 0:
                            mbarrier_arrive(base + AT.dout_ring.empty + barrier)
                        hold(dq_acc, DQ_LENGTH)
                        if COUNTED:
                            # Read again: kept, they would take two registers.
                            head = int32(slots[slot, KV_HEAD] * sizes.group_size + i)
                            m = int32(m_tile * BLOCK_M + thread.dq_row)
                            rows = Rows(batch_of(slots, slot), head, m, thread.dq_col)
                            of_part = part, part_parity, address, rows, keys, stage
                            put_part(x, base, slots, slot, *of_part, thread, outputs)
                            part_parity = uint32(part_parity ^ 1)
                        else:
                            add_part(dq_acc, address)
                            if THIRD and stage == thread.half:
                                multiply_third(x, keys, thread, stage)
                                add_part(dq_acc, address + third_offset(thread))
                        tiles_of_head = int32(dq_sum.shape[1]) if PACKED else sizes.num_m_tiles
                        address += uint64(DQ_TILE_BYTES) * uint64(dq_step(tiles_of_head))
                        wait_for_dk(x)
                        if lane == 0:
                            mbarrier_arrive(base + AT.q_ring.empty + barrier)
                        stage, parity = next_stage(stage, parity)

            if PACKED:
                unseen = slots[slot, SEEN] == 0 if EXPRESSED else first_tile >= end_tile
                if unseen:  # no query sees these keys
                    wait(base + AT.v_ring.full, slot)
                    if lane == 0:
                        mbarrier_arrive(base + AT.v_ring.empty)
            else:
                wait(base + AT.v_ring.full, slot)  # also if no query sees these keys
            kv_head, b = slots[slot, KV_HEAD], batch_of(slots, slot)
            if COUNTED:
                if not EXPRESSED:
                    clear_unseen(
                        slots, slot, n_tile, first_tile, end_tile, kv_head, b, thread, outputs,
                        sizes,
                    )  # fmt: skip
                elif is_first(slots, slot, n_tile):
                    clear_hidden(slots, slot, kv_head, b, thread, outputs, sizes, of_queries)
            if PACKED:
                place = slots[slot, K_ROW], slots[slot, K_END], slots[slot, KV_HEAD], b
            else:
                place = n_tile, sizes.seqlen_k, kv_head, b
            cuda.syncwarp()  # `slots` is read: safe to overwrite
            if lane == 0:
                if not PACKED:
                    mbarrier_arrive(base + AT.v_ring.empty)
                mbarrier_arrive(base + AT.k_ring.empty + slot * BARRIER)
            store_keys(x, base, *place, thread, maps, outputs)
            slot = uint32(slot + 1)
            if slot == SLOTS:
                slot, k_parity = uint32(0), uint32(k_parity ^ 1)
        if COUNTED and thread.is_first:
            part[TILE] = -1
            mbarrier_arrive(base + AT.asked.start)
        if lane == 0:
            tma_store_wait_read(0)  # shared memory lives as long as the thread block

    return consume
