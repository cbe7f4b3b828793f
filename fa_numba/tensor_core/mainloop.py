"""Main loop of the persistent kernels: rings of K and V, and a consumer's iterations over them.

The queries of a thread block attend to a range of key tiles. Each of K and V has a ring of
TILING.stages tiles (TILING is a `PersistentTiling`). Each stage has two barriers (`mbarrier`):
"full" needs the arrival of the producer thread and the tile's bytes, "empty" needs one arrival of
each consumer warp. A tile's stage and the parity of the phase that fills it identify the tile.

One iteration of a consumer warpgroup starts Q Kᵀ of a new key tile, accumulates P V of the key tile
before it, and computes the softmax of the new scores.

Arrays are those of `fragments`.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32

from fa_numba.constants import LOG2_E
from fa_numba.expressions.tiles import HIDDEN, MIXED
from fa_numba.on_cuda_cores import run_time_masks
from fa_numba.on_cuda_cores.run_time_masks import UNREAD
from fa_numba.ptx import mbarrier
from fa_numba.ptx.layouts import PANEL_COLS, ROW_BYTES
from fa_numba.ptx.mbarrier import mbarrier_arrive, mbarrier_arrive_expect_tx
from fa_numba.ptx.statement import opaque
from fa_numba.ptx.tma import make_load_tile
from fa_numba.ptx.wgmma import (
    descriptor,
    descriptor_bits,
    wgmma_bf16_registers,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
    wgmma_wait_with,
)
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.alibi import (
    RAMP_BITS,
    alibi_flags,
    ramp_bytes,
    set_slope_columns,
    slope_pieces,
)
from fa_numba.tensor_core.dropout_fragments import make_query_rows
from fa_numba.tensor_core.expression_tiles import (
    ExpressionArgs,
    make_run_functions,
    make_tile_functions,
)
from fa_numba.tensor_core.fragments import (
    fragment_function,
    make_fragment_functions,
    make_mask_tile,
    make_score_mod,
)
from fa_numba.tensor_core.lazy_rescaling import make_softmax_steps
from fa_numba.tensor_core.shared_plan import SharedPlan
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.persistent_tiling import ROWS


class KVRings(NamedTuple):
    """Shared memory addresses: the first tile and the first barrier "full" of K and of V."""

    k_tile: Any
    k_full: Any
    v_tile: Any
    v_full: Any


class Registers(NamedTuple):
    """Local arrays of a consumer thread: scores, P, out; the softmax's state for two rows."""

    s: Any
    p: Any
    acc: Any
    m_i: Any
    l_i: Any
    alpha: Any
    offset: Any


class ScoreModArgs(NamedTuple):
    """Arguments of the score_mod (`fragments.make_score_mod`, `alibi`).

    Attributes
    ----------
    slope, scale : float32
        The head's ALiBi slope, and softmax_scale · log2 e.
    pieces : uint32
        `slope_pieces` of slope'.
    ramp : uint64
        wgmma descriptor of the ramp.
    wg_position : int32
        Position among the keys of the warpgroup's first row.
    mask_args : MaskArgs
    """

    slope: Any
    scale: Any
    pieces: Any
    ramp: Any
    wg_position: Any
    mask_args: Any


class DroppingArgs(NamedTuple):
    """`ScoreModArgs`, and the arguments of a main loop with dropout in their place.

    Attributes
    ----------
    place : dropout_fragments.Place
    dropout : dropout_fragments.Dropout
    """

    slope: Any
    scale: Any
    pieces: Any
    ramp: Any
    wg_position: Any
    mask_args: Any
    place: Any
    dropout: Any


class RingFunctions(NamedTuple):
    """Device functions of `make_ring`."""

    next_stage: Any
    load_kv: Any
    skip_tiles: Any


class Mainloop(NamedTuple):
    """Device functions of `make_mainloop`."""

    score_mod_args_of: Any
    first_iteration: Any
    iterate: Any
    unmasked_range_of: Any
    add_last_product: Any
    finish_product: Any
    ends_in_half: Any


def tile_bytes(head_dim, num_rows):
    """Bytes of a tile of `num_rows` rows: whole panels."""
    return ceil_div(head_dim, PANEL_COLS) * ROW_BYTES * num_rows


@functools.cache
def make_plan(HEAD_DIM, TILING, ALIBI=False, PACKED=False, HEAD_DIM_V=None):
    """Dynamic shared memory of a persistent kernel's thread block: a `SharedPlan`.

    HEAD_DIM_V, of V and out, is at most HEAD_DIM, of Q and K, and that by default.

    Its regions are the tiles Q, OUT, K, V; the barriers Q_RING, K_RING, V_RING, and for packed
    batches CLAIM_RING; and with ALIBI the RAMP: the key columns 0, 1, 2, … that wgmma multiplies by
    the ALiBi slope (`alibi`).
    """
    block_m, block_n = TILING.consumers * ROWS, TILING.block_n
    HEAD_DIM_V = HEAD_DIM_V or HEAD_DIM
    plan = SharedPlan()
    plan.Q = plan.tiles(TILING.slots, tile_bytes(HEAD_DIM, block_m))
    plan.OUT = plan.Q  # with one slot out reuses it
    if TILING.slots > 1:
        plan.OUT = plan.tiles(1, tile_bytes(HEAD_DIM_V, block_m))
    plan.K = plan.tiles(TILING.stages, tile_bytes(HEAD_DIM, block_n))
    plan.V = plan.tiles(TILING.stages, tile_bytes(HEAD_DIM_V, block_n))
    plan.Q_RING = plan.ring(TILING.slots)
    plan.K_RING, plan.V_RING = plan.ring(TILING.stages), plan.ring(TILING.stages)
    if PACKED:
        plan.CLAIM_RING = plan.ring(1)
    plan.RAMP = plan.region(ramp_bytes(TILING.block_n) if ALIBI else 0)
    return plan


@functools.cache
def make_tiles_of(BLOCK_N, CAUSAL, WINDOW):
    """tiles_of(m, num_rows, seqlen_q, seqlen_k, mask_args): first and end of the key tiles.

    They are range(first, end): the key tiles that at least one of the rows m to m + num_rows − 1
    attends to. If no row attends to a key, the range has one tile, and all of it is masked.
    """
    bounds = run_time_masks.make_bounds(CAUSAL, WINDOW)
    first_key, end_key = bounds.first_key, bounds.end_key

    @cuda.jit(device=True, forceinline=True)
    def tiles_of(m, num_rows, seqlen_q, seqlen_k, mask_args=UNREAD):
        position = int32(m + seqlen_k - seqlen_q)
        n_end = max(end_key(position + num_rows - 1, seqlen_k, mask_args), 1)
        end = int32((n_end + BLOCK_N - 1) // BLOCK_N)
        return min(int32(first_key(position, mask_args) // BLOCK_N), int32(end - 1)), end

    return tiles_of


@functools.cache
def make_ring(HEAD_DIM, TILING, HEAD_DIM_V=None):
    """Functions for the rings of K and V.

    Returns
    -------
    RingFunctions
        next_stage(stage, parity)
            Returns stage and parity of a ring's next tile.
        load_kv(kv_map, n_start, head, b, kv_tile, kv_full, stage, empty_parity, loads_k)
            Waits until the stage is free, then starts the TMA copy of a tile of K, or of V, from
            row n_start on. empty_parity is the parity of the phase of "empty" that must have ended:
            1 in the first round. loads_k, True for K, is not read if both have the same head_dim.
        skip_tiles(count, stage, parity, k_full, v_full, lane)
            Waits for `count` tiles of K and V and releases each unread. Returns stage and parity of
            the tile after them.
    """
    BLOCK_N, STAGES = TILING.block_n, TILING.stages
    ONE_LOAD = HEAD_DIM_V in (None, HEAD_DIM)
    BARRIER = mbarrier.BYTES
    EMPTY = STAGES * BARRIER  # from a stage's barrier "full" to its "empty"
    wait = mbarrier.wait_function()

    def make_load(HEAD_DIM):
        TILE_BYTES = tile_bytes(HEAD_DIM, BLOCK_N)
        load_tile = make_load_tile(ceil_div(HEAD_DIM, PANEL_COLS))

        @cuda.jit(device=True, forceinline=True)
        def load(kv_map, n_start, head, b, kv_tile, kv_full, stage, empty_parity):
            full = kv_full + stage * BARRIER
            rows = kv_tile + stage * TILE_BYTES
            wait(full + EMPTY, empty_parity)
            mbarrier_arrive_expect_tx(full, TILE_BYTES)
            load_tile(rows, BLOCK_N, kv_map, n_start, head, b, full)

        return load

    load_k, load_v = make_load(HEAD_DIM), make_load(HEAD_DIM_V or HEAD_DIM)

    @cuda.jit(device=True, forceinline=True)
    def next_stage(stage, parity):
        if stage == STAGES - 1:
            return int32(0), int32(parity ^ 1)
        return int32(stage + 1), parity

    @cuda.jit(device=True, forceinline=True)
    def load_kv(
        kv_map, n_start, head, b, kv_tile, kv_full, stage, empty_parity, loads_k=True
    ):  # fmt: skip
        if ONE_LOAD or loads_k:
            load_k(kv_map, n_start, head, b, kv_tile, kv_full, stage, empty_parity)
        else:
            load_v(kv_map, n_start, head, b, kv_tile, kv_full, stage, empty_parity)

    @cuda.jit(device=True, forceinline=True)
    def skip_tiles(count, stage, parity, k_full, v_full, lane):
        while count > 0:
            for full in (k_full, v_full):
                wait(full + stage * BARRIER, parity)
                if lane == 0:
                    mbarrier_arrive(full + EMPTY + stage * BARRIER)
            stage, parity = next_stage(stage, parity)
            count = int32(count - 1)
        return stage, parity

    return RingFunctions(next_stage, load_kv, skip_tiles)


@functools.cache
def make_mainloop(
    HEAD_DIM, TILING, CAUSAL, DTYPE, WINDOW, SOFTCAP, ALIBI, MASK_IN_LOOP, DROPOUT=False,
    HALVES=False, EXPRESSIONS=None, HEAD_DIM_V=None,
):  # fmt: skip
    """A consumer warpgroup's iterations over tiles of K and V.

    HEAD_DIM_V, of V and out, is HEAD_DIM, of Q and K, by default.
    With MASK_IN_LOOP a tile after the first may need masking. With HALVES the half of a window's
    first tile, or of a later one, that none of the warpgroup's rows attends to is not computed; not
    with ALIBI or DROPOUT, and for head_dim up to 64 alone: half of a tile is then half of its one
    panel. With EXPRESSIONS score_mod_args are `ExpressionArgs`, and unmasked_range is not read.

    Parameters of the functions: registers, rings and score_mod_args (`Registers`, `KVRings`,
    `ScoreModArgs`); stage and parity of a tile; q_desc, the descriptor of the warpgroup's rows of
    Q; n_start, a tile's first key; position, the position among the keys of this lane's first row
    (`masks`).

    Returns
    -------
    Mainloop
        score_mod_args_of(alibi_slopes, head, scale, ramp, wg_position, lane, mask_args)
            Returns the `ScoreModArgs` of a head; ramp is an address.
        first_iteration(registers, rings, stage, parity, q_desc, n_start, position, seqlen_k,
                        score_mod_args, lane)
            Computes S and its softmax for the first tile. stage and parity are that tile's.
        iterate(registers, rings, stage, parity, q_desc, n_start, unmasked_range, position,
                seqlen_k, score_mod_args, lane)
            Computes S and its softmax for the new tile, from key n_start on, and accumulates P V of
            the tile before it. stage and parity are the earlier tile's; returns the new tile's.
        unmasked_range_of(wg_position, seqlen_k, mask_args)
            Returns (first, last). A tile needs no mask if first <= n_start <= last: all rows of the
            warpgroup whose first row is at wg_position attend to all of its keys.
        add_last_product(registers, rings, stage, parity, halved)
            Starts P V of the last tile. stage and parity are that tile's. halved: its second half
            is not computed (`ends_in_half`, and it is not the first tile).
        finish_product(acc, p, v_empty, lane)
            Waits until P V is added to acc, then releases the stage of V by its barrier v_empty.
        ends_in_half(n_start, wg_position, seqlen_k, mask_args)
            Returns True if none of the warpgroup's rows attends to the second half of a tile.
    """
    BLOCK_N, STAGES, OVERLAP = TILING.block_n, TILING.stages, TILING.overlap
    HEAD_DIM_V = HEAD_DIM_V or HEAD_DIM
    COLS = 16 * ceil_div(HEAD_DIM, 16)  # a multiple of 16, as wgmma needs; extra columns are 0
    OUT_COLS = 16 * ceil_div(HEAD_DIM_V, 16)
    K_BYTES, V_BYTES = tile_bytes(HEAD_DIM, BLOCK_N), tile_bytes(HEAD_DIM_V, BLOCK_N)
    # K is K-major: head_dim, the reduction dimension of Q Kᵀ, is contiguous. V is MN-major: the
    # keys are the reduction dimension of P V, and head_dim is contiguous.
    K_MAJOR_DESC = descriptor_bits()
    MN_MAJOR_DESC = descriptor_bits(BLOCK_N * ROW_BYTES)
    S_LENGTH, P_LENGTH, OUT_LENGTH = BLOCK_N // 2, BLOCK_N // 4, OUT_COLS // 2  # registers
    BARRIER = mbarrier.BYTES
    EMPTY = STAGES * BARRIER
    ALIBI_BY_WGMMA, ONE_SIDED = alibi_flags(CAUSAL, WINDOW, SOFTCAP, ALIBI)
    LEFT = WINDOW[0] >= 0
    multiply, multiply_registers = forward.wgmma_of(DTYPE)
    fragment_functions = make_fragment_functions(BLOCK_N, OUT_COLS, forward.pack_of(DTYPE))
    rescale, pack_p = fragment_functions.rescale, fragment_functions.pack_p
    query_rows = make_query_rows(BLOCK_N)
    draw_keys, drop = query_rows.draw_keys, query_rows.drop
    raise_maximum, exponentiate = make_softmax_steps(BLOCK_N, SOFTCAP, ALIBI)
    mask_tile = make_mask_tile(BLOCK_N, CAUSAL, WINDOW)
    EXPRESSED = EXPRESSIONS is not None
    expressed = make_tile_functions(BLOCK_N, EXPRESSIONS)
    softmax_scale_of, verdicts_of = expressed.exponent_scale_of, expressed.verdicts
    modify_by_expressions = expressed.modify_seen
    modify_scores = make_score_mod(BLOCK_N, CAUSAL, WINDOW, SOFTCAP, ALIBI).modify_scores
    bounds = run_time_masks.make_bounds(CAUSAL, WINDOW)
    first_key, end_key = bounds.first_key, bounds.end_key
    next_stage = make_ring(HEAD_DIM, TILING).next_stage
    wait = mbarrier.wait_function()
    HALF = BLOCK_N // 2
    HALF_S_LENGTH, P16_OF_HALF, HALF_P_SHAPE = HALF // 2, HALF // 16, (HALF // 16, 4)
    half_steps = make_softmax_steps(HALF, SOFTCAP, ALIBI)
    raise_half, exponentiate_half = half_steps.raise_maximum, half_steps.exponentiate
    mask_half = make_mask_tile(HALF, CAUSAL, WINDOW)
    pack_half = make_fragment_functions(HALF, OUT_COLS, forward.pack_of(DTYPE)).pack_p

    @cuda.jit(device=True, forceinline=True)
    def starts_in_half(n_start, wg_position, mask_args):
        """True if none of the warpgroup's rows attends to the first half of a tile."""
        return first_key(wg_position, mask_args) >= n_start + HALF

    @cuda.jit(device=True, forceinline=True)
    def ends_in_half(n_start, wg_position, seqlen_k, mask_args=UNREAD):
        return end_key(wg_position + ROWS - 1, seqlen_k, mask_args) <= n_start + HALF

    @fragment_function()
    def pack_into_half(s, p, HALF_INDEX):
        """Pack P of a half of a tile; the other half is 0."""
        packed = cuda.local.array(HALF_P_SHAPE, uint32)
        pack_half(s, packed)
        for k in range(P16_OF_HALF):
            for r in range(4):
                p[HALF_INDEX * P16_OF_HALF + k, r] = packed[k, r]
                p[(1 - HALF_INDEX) * P16_OF_HALF + k, r] = uint32(0)

    @cuda.jit(device=True, forceinline=True)
    def score_mod_args_of(alibi_slopes, head, scale, ramp, wg_position, lane, mask_args=UNREAD):
        slope = alibi_slopes[head] if ALIBI else float32(0)
        pieces = uint32(0)
        if ALIBI_BY_WGMMA:
            pieces = slope_pieces(slope * (LOG2_E / scale), lane)
        ramp = descriptor(RAMP_BITS, ramp)
        return ScoreModArgs(slope, scale, pieces, ramp, wg_position, mask_args)

    @cuda.jit(device=True, forceinline=True)
    def finish_product(acc, p, v_empty, lane):
        wgmma_wait_with(0, acc, OUT_LENGTH, p, P_LENGTH)
        if lane == 0:
            mbarrier_arrive(v_empty)

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def first_half_iteration(
        registers, rings, stage, parity, q_desc, n_start, position, seqlen_k, score_mod_args, lane
    ):
        """first_iteration of a tile whose first half is not seen: its second half."""
        s, p, _, m_i, l_i, alpha, offset = registers
        scale, mask_args = score_mod_args.scale, score_mod_args.mask_args
        rows = rings.k_tile + stage * K_BYTES + HALF * ROW_BYTES
        k_desc = descriptor(K_MAJOR_DESC, uint32(rows))
        wait(rings.k_full + stage * BARRIER, parity)
        wgmma_fence()
        multiply(HALF, COLS, s, q_desc, k_desc)
        wgmma_commit()
        wgmma_wait(0, s, HALF_S_LENGTH)
        if lane == 0:
            mbarrier_arrive(rings.k_full + EMPTY + stage * BARRIER)
        mask_half(s, int32(n_start + HALF), position, seqlen_k, lane, mask_args)
        _, small = raise_half(s, offset, m_i, l_i, alpha, scale, mask_args)
        exponentiate_half(s, offset, m_i, l_i, small, scale, mask_args)
        pack_into_half(s, p, 1)

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def last_half_iteration(
        registers, rings, stage, parity, q_desc, n_start, position, seqlen_k, score_mod_args, lane
    ):
        """An iteration over a tile whose second half is not seen: its first half."""
        s, p, acc, m_i, l_i, alpha, offset = registers
        scale, mask_args = score_mod_args.scale, score_mod_args.mask_args
        k_tile, k_full, v_tile, v_full = rings
        position = int32(opaque(position))
        new_stage, new_parity = next_stage(stage, parity)
        k_desc = descriptor(K_MAJOR_DESC, uint32(k_tile + new_stage * K_BYTES))
        v_desc = descriptor(MN_MAJOR_DESC, uint32(v_tile + stage * V_BYTES))
        wait(k_full + new_stage * BARRIER, new_parity)
        wait(v_full + stage * BARRIER, parity)
        wgmma_fence()
        multiply(HALF, COLS, s, q_desc, k_desc)
        wgmma_commit()
        multiply_registers(OUT_COLS, BLOCK_N, acc, p, v_desc)
        wgmma_commit()
        wgmma_wait(1, s, HALF_S_LENGTH)
        if lane == 0:
            mbarrier_arrive(k_full + EMPTY + new_stage * BARRIER)
        mask_half(s, n_start, position, seqlen_k, lane, mask_args)
        risen, small = raise_half(s, offset, m_i, l_i, alpha, scale, mask_args)
        exponentiate_half(s, offset, m_i, l_i, small, scale, mask_args)
        wait(v_full + new_stage * BARRIER, new_parity)
        finish_product(acc, p, v_full + EMPTY + stage * BARRIER, lane)
        pack_into_half(s, p, 0)
        if risen:
            rescale(acc, alpha)
        return new_stage, new_parity

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def first_iteration(
        registers, rings, stage, parity, q_desc, n_start, position, seqlen_k, score_mod_args, lane
    ):
        starts = HALVES and LEFT  # without a left window the first half of a tile is always seen
        if starts and starts_in_half(n_start, score_mod_args.wg_position, score_mod_args.mask_args):
            tile = stage, parity, q_desc, n_start, position, seqlen_k
            first_half_iteration(registers, rings, *tile, score_mod_args, lane)
            return
        s, p, _, m_i, l_i, alpha, offset = registers
        scale = softmax_scale_of(score_mod_args.scale)
        mask_args = UNREAD if EXPRESSED else score_mod_args.mask_args
        k_desc = descriptor(K_MAJOR_DESC, uint32(rings.k_tile + stage * K_BYTES))
        wait(rings.k_full + stage * BARRIER, parity)
        if ALIBI_BY_WGMMA and ONE_SIDED:
            a = cuda.local.array(4, uint32)
            slope = score_mod_args.slope * (LOG2_E / score_mod_args.scale)
            pieces = score_mod_args.pieces
            set_slope_columns(a, offset, pieces, slope, n_start, position, False)
        wgmma_fence()
        multiply(BLOCK_N, COLS, s, q_desc, k_desc)
        if ALIBI_BY_WGMMA and ONE_SIDED:
            wgmma_bf16_registers(BLOCK_N, 16, s, a, score_mod_args.ramp)
        wgmma_commit()
        words = cuda.local.array(3, uint32)
        if DROPOUT:
            draw_keys(words, n_start, score_mod_args.place, score_mod_args.dropout, lane)
        seen = uint32(0), uint32(0)
        if EXPRESSED and score_mod_args.masked:
            seen = verdicts_of(n_start, position, seqlen_k, lane, score_mod_args)
        wgmma_wait(0, s, S_LENGTH)
        if lane == 0:
            mbarrier_arrive(rings.k_full + EMPTY + stage * BARRIER)
        if ALIBI and not (ALIBI_BY_WGMMA and ONE_SIDED):
            slope = score_mod_args.slope
            modify_scores(s, offset, n_start, position, slope, scale, lane, mask_args)
        if EXPRESSED:
            tile = seen, n_start, position, seqlen_k, lane, score_mod_args
            if score_mod_args.masked:
                modify_by_expressions(s, True, *tile)
            else:
                modify_by_expressions(s, False, *tile)
        else:
            mask_tile(s, n_start, position, seqlen_k, lane, mask_args)
        _, small = raise_maximum(s, offset, m_i, l_i, alpha, scale, mask_args)
        exponentiate(s, offset, m_i, l_i, small, scale, mask_args)
        pack_p(s, p)
        if DROPOUT:
            drop(p, words, n_start, score_mod_args.place, score_mod_args.dropout)

    def make_iteration(EDGE):
        """An iteration; with EDGE the tile may need a mask, or have keys on both sides of a row.

        Two functions instead of a branch in one: ptxas moves few instructions across a branch.
        """
        BY_RAMP = ALIBI_BY_WGMMA and (ONE_SIDED or not EDGE)  # else keys may be on both sides

        @cuda.jit(device=True, forceinline=True, fastmath=True)
        def iteration(
            registers, rings, stage, parity, q_desc, n_start,
            position, seqlen_k, score_mod_args, lane,
        ):  # fmt: skip
            s, p, acc, m_i, l_i, alpha, offset = registers
            scale = softmax_scale_of(score_mod_args.scale)
            mask_args = UNREAD if EXPRESSED else score_mod_args.mask_args
            k_tile, k_full, v_tile, v_full = rings
            if EDGE and (LEFT or ALIBI or EXPRESSED):
                # Else the compiler would compute values that depend on it before the loop, and
                # keep them in registers through all iterations (`opaque`).
                position = int32(opaque(position))
            new_stage, new_parity = next_stage(stage, parity)
            k_desc = descriptor(K_MAJOR_DESC, uint32(k_tile + new_stage * K_BYTES))
            v_desc = descriptor(MN_MAJOR_DESC, uint32(v_tile + stage * V_BYTES))
            wait(k_full + new_stage * BARRIER, new_parity)
            wait(v_full + stage * BARRIER, parity)
            if BY_RAMP:
                a = cuda.local.array(4, uint32)
                keys_after = not ONE_SIDED and n_start > score_mod_args.wg_position
                slope = score_mod_args.slope * (LOG2_E / scale)
                pieces = score_mod_args.pieces
                set_slope_columns(a, offset, pieces, slope, n_start, position, keys_after)
            wgmma_fence()
            multiply(BLOCK_N, COLS, s, q_desc, k_desc)  # S = Q Kᵀ of the new tile
            if BY_RAMP:
                wgmma_bf16_registers(BLOCK_N, 16, s, a, score_mod_args.ramp)
            wgmma_commit()
            # out <- out + P V of the tile before
            multiply_registers(OUT_COLS, BLOCK_N, acc, p, v_desc)
            wgmma_commit()
            words = cuda.local.array(3, uint32)
            if DROPOUT:
                draw_keys(words, n_start, score_mod_args.place, score_mod_args.dropout, lane)

            seen = uint32(0), uint32(0)
            if EXPRESSED and EDGE:  # beside the products
                seen = verdicts_of(n_start, position, seqlen_k, lane, score_mod_args)
            wgmma_wait(1, s, S_LENGTH)
            if lane == 0:
                mbarrier_arrive(k_full + EMPTY + new_stage * BARRIER)
            if ALIBI and not BY_RAMP:
                slope = score_mod_args.slope
                modify_scores(s, offset, n_start, position, slope, scale, lane, mask_args)
            if EXPRESSED:
                tile = n_start, position, seqlen_k, lane, score_mod_args
                modify_by_expressions(s, EDGE, seen, *tile)
            elif EDGE:
                mask_tile(s, n_start, position, seqlen_k, lane, mask_args)
            risen, small = raise_maximum(s, offset, m_i, l_i, alpha, scale, mask_args)
            if ALIBI and small:  # all of P is negligible: below 2^−NEGLIGIBLE (`lazy_rescaling`)
                finish_product(acc, p, v_full + EMPTY + stage * BARRIER, lane)
                for j in range(BLOCK_N // 16):
                    for r in range(4):
                        p[j, r] = uint32(0)
                return new_stage, new_parity
            if not OVERLAP:
                finish_product(acc, p, v_full + EMPTY + stage * BARRIER, lane)
            exponentiate(s, offset, m_i, l_i, small, scale, mask_args)  # while P V runs, if OVERLAP
            if OVERLAP:
                # This wait could come later. Its loop keeps the compiler from moving the next one
                # up, before the softmax, which would then not overlap with P V.
                wait(v_full + new_stage * BARRIER, new_parity)
                finish_product(acc, p, v_full + EMPTY + stage * BARRIER, lane)
            pack_p(s, p)
            if DROPOUT:
                drop(p, words, n_start, score_mod_args.place, score_mod_args.dropout)
            if risen:
                rescale(acc, alpha)  # out <- alpha out
            return new_stage, new_parity

        return iteration

    inner_iteration, edge_iteration = make_iteration(False), make_iteration(True)

    @cuda.jit(device=True, forceinline=True)
    def unmasked_range_of(wg_position, seqlen_k, mask_args=UNREAD):
        first_unmasked = int32(first_key(wg_position + ROWS - 1, mask_args))
        return first_unmasked, int32(end_key(wg_position, seqlen_k, mask_args) - BLOCK_N)

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def iterate(
        registers, rings, stage, parity, q_desc, n_start,
        unmasked_range, position, seqlen_k, score_mod_args, lane,
    ):  # fmt: skip
        first_unmasked, last_unmasked = unmasked_range
        tile = stage, parity, q_desc, n_start, position, seqlen_k
        if EXPRESSED:
            if score_mod_args.masked:
                return edge_iteration(registers, rings, *tile, score_mod_args, lane)
            return inner_iteration(registers, rings, *tile, score_mod_args, lane)
        mask_args = score_mod_args.mask_args
        edge = MASK_IN_LOOP and (n_start < first_unmasked or n_start > last_unmasked)
        if ALIBI_BY_WGMMA and not ONE_SIDED:  # keys on both sides of some row
            after_first = n_start + BLOCK_N - 1 > score_mod_args.wg_position
            edge = edge or (after_first and n_start < score_mod_args.wg_position + ROWS - 1)
        if HALVES and ends_in_half(n_start, score_mod_args.wg_position, seqlen_k, mask_args):
            return last_half_iteration(registers, rings, *tile, score_mod_args, lane)
        if edge:
            return edge_iteration(registers, rings, *tile, score_mod_args, lane)
        return inner_iteration(registers, rings, *tile, score_mod_args, lane)

    @cuda.jit(device=True, forceinline=True)
    def add_last_product(registers, rings, stage, parity, halved=False):
        v_desc = descriptor(MN_MAJOR_DESC, uint32(rings.v_tile + stage * V_BYTES))
        wait(rings.v_full + stage * BARRIER, parity)
        wgmma_fence()
        if HALVES and halved:
            multiply_registers(OUT_COLS, HALF, registers.acc, registers.p, v_desc)
            wgmma_commit()
            return
        multiply_registers(OUT_COLS, BLOCK_N, registers.acc, registers.p, v_desc)
        wgmma_commit()

    return Mainloop(
        score_mod_args_of, first_iteration, iterate, unmasked_range_of, add_last_product,
        finish_product, ends_in_half,
    )  # fmt: skip


@functools.cache
def make_walk(BLOCK_M, BLOCK_N, loop, skip_tiles):
    """walk(registers, rings, stage, parity, q_desc, run, runs, place, part, position, seqlen_k,
    args, lane): a warpgroup's iterations over the runs of a tile of BLOCK_M queries.

    With expressions alone. `run` is the first run, read already; the next ones are read from runs
    long before they are needed. place is (b, head, row): where they are in the table
    (`expression_tiles.make_run_functions`). part is the warpgroup's number, args its
    `ExpressionArgs`, whose `masked` is not read.

    Returns stage and parity of the last tile, whose P V is not added; how many tiles after it the
    thread block has; the end of its run.
    """
    run_of, class_of = make_run_functions(BLOCK_M)
    first_iteration, iterate = loop.first_iteration, loop.iterate

    @cuda.jit(device=True, forceinline=True)
    def args_of_run(args, masked):
        return ExpressionArgs(
            args.scale, args.place, args.dropout, masked, args.b, args.head, args.args, args.ranges
        )

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def walk(
        registers, rings, stage, parity, q_desc, run, runs, place, part, position, seqlen_k, args,
        lane,
    ):  # fmt: skip
        k_full, v_full = rings.k_full, rings.v_full
        n_tile, end, classes = run
        r = int32(1)
        next_tile, next_end, next_classes = run_of(runs, *place, r)
        while class_of(classes, part) == HIDDEN:  # before the first that it sees
            stage, parity = skip_tiles(end - n_tile, stage, parity, k_full, v_full, lane)
            n_tile, end, classes, r = next_tile, next_end, next_classes, int32(r + 1)
            next_tile, next_end, next_classes = run_of(runs, *place, r)
        args = args_of_run(args, class_of(classes, part) == MIXED)
        first_iteration(
            registers, rings, stage, parity, q_desc, int32(n_tile * BLOCK_N),
            position, seqlen_k, args, lane,
        )  # fmt: skip
        n_tile = int32(n_tile + 1)
        remaining, last_end = int32(0), end
        while end > 0:
            while n_tile < end:
                stage, parity = iterate(
                    registers, rings, stage, parity, q_desc, int32(n_tile * BLOCK_N),
                    (0, 0), position, seqlen_k, args, lane,
                )  # fmt: skip
                n_tile = int32(n_tile + 1)
            n_tile, end, classes, r = next_tile, next_end, next_classes, int32(r + 1)
            next_tile, next_end, next_classes = run_of(runs, *place, r)
            if class_of(classes, part) == HIDDEN:  # after the last that it sees
                remaining = int32(remaining + end - n_tile)
                n_tile = end
            else:
                last_end = end
            args = args_of_run(args, class_of(classes, part) == MIXED)
        return stage, parity, remaining, last_end

    return walk
