"""Main loop of the persistent kernels: rings of K and V, and a consumer's iterations over them.

A thread block's queries see a range of tiles of keys. K and V come in rings of TILING.stages tiles
(TILING is a `PersistentTiling`), each with two barriers, "full" and "empty" (`mbarrier`). A tile is
found by its stage and by the parity of the phase in which the stage is filled.

One iteration of a consumer warpgroup: start Q Kᵀ of the next key tile, accumulate P V of this one,
then softmax the new scores.

Arrays are those of `fragments`.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32

from fa_numba.constants import LOG2_E
from fa_numba.kernels import masks
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
from fa_numba.tensor_core.fragments import make_fragment_functions, make_mask_tile, make_score_mod
from fa_numba.tensor_core.lazy_rescaling import make_softmax_steps
from fa_numba.tensor_core.shared_plan import SharedPlan
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.persistent_tiling import ROWS


class KVRings(NamedTuple):
    """Addresses in shared memory: the first tile of K and of V, and their barriers "full"."""

    k_tile: Any
    k_full: Any
    v_tile: Any
    v_full: Any


class Registers(NamedTuple):
    """Local arrays of a consumer's thread: scores, P, out; for two rows the softmax's state."""

    s: Any
    p: Any
    acc: Any
    m_i: Any
    l_i: Any
    alpha: Any
    offset: Any


class ModValues(NamedTuple):
    """Values of a score_mod: see `fragments.make_score_mod` and `alibi`.

    pieces is `slope_pieces` of slope', ramp the ramp's descriptor, wg_position the position of the
    warpgroup's first row among the keys.
    """

    slope: Any
    scale: Any
    pieces: Any
    ramp: Any
    wg_position: Any


class RingFunctions(NamedTuple):
    """Device functions of `make_ring`."""

    after: Any
    load_kv: Any
    skip_tiles: Any


class Mainloop(NamedTuple):
    """Device functions of `make_mainloop`."""

    mod_values: Any
    first_iteration: Any
    iterate: Any
    whole_tiles: Any
    add_last_product: Any
    finish_product: Any


@functools.cache
def make_plan(HEAD_DIM, TILING, ALIBI=False, PACKED=False):
    """Dynamic shared memory of a persistent kernel's thread block: a `SharedPlan`.

    Its regions are tiles Q, OUT, K, V; Q_RING, K_RING, V_RING; for packed batches CLAIM_RING; and
    RAMP for ALiBi.
    """
    row_bytes = ceil_div(HEAD_DIM, PANEL_COLS) * ROW_BYTES
    slot_bytes, kv_bytes = TILING.consumers * ROWS * row_bytes, TILING.block_n * row_bytes
    plan = SharedPlan()
    plan.Q = plan.tiles(TILING.slots, slot_bytes)
    plan.OUT = plan.tiles(1, slot_bytes) if TILING.slots > 1 else plan.Q  # one slot: out reuses it
    plan.K, plan.V = plan.tiles(TILING.stages, kv_bytes), plan.tiles(TILING.stages, kv_bytes)
    plan.Q_RING = plan.ring(TILING.slots)
    plan.K_RING, plan.V_RING = plan.ring(TILING.stages), plan.ring(TILING.stages)
    if PACKED:
        plan.CLAIM_RING = plan.ring(1)
    plan.RAMP = plan.region(ramp_bytes(TILING.block_n) if ALIBI else 0)
    return plan


@functools.cache
def make_tiles_of(BLOCK_N, CAUSAL, WINDOW):
    """tiles_of(m, num_rows, seqlen_q, seqlen_k): (first, end) of the tiles of keys to process.

    Some row of num_rows rows, from row m on, sees a key of each tile of range(first, end). If no
    row sees a key, the range has one tile, which is masked as a whole.
    """
    bounds = masks.make_bounds(CAUSAL, WINDOW)
    first_key, end_key = bounds.first_key, bounds.end_key

    @cuda.jit(device=True, forceinline=True)
    def tiles_of(m, num_rows, seqlen_q, seqlen_k):
        position = int32(m + seqlen_k - seqlen_q)
        n_end = max(end_key(position + num_rows - 1, seqlen_k), 1)
        end = int32((n_end + BLOCK_N - 1) // BLOCK_N)
        return min(int32(first_key(position) // BLOCK_N), int32(end - 1)), end

    return tiles_of


@functools.cache
def make_ring(HEAD_DIM, TILING):
    """Functions for the rings of K and V.

    Returns
    -------
    RingFunctions
        after(stage, parity)
            Returns the next stage of a ring, and the parity of its phase.
        load_kv(kv_map, n_start, head, b, kv_tile, kv_full, stage, was_empty)
            Waits until the stage is free, then starts the copy of a tile of K, or of V, from row
            n_start on. was_empty is the parity of the phase of "empty" that must have ended: 1 in
            the first round.
        skip_tiles(count, stage, parity, k_full, v_full, lane)
            Waits for `count` tiles of K and V and releases each unread. Returns stage and parity of
            the tile after them.
    """
    BLOCK_N, STAGES = TILING.block_n, TILING.stages
    NUM_PANELS = ceil_div(HEAD_DIM, PANEL_COLS)
    KV_BYTES = NUM_PANELS * BLOCK_N * ROW_BYTES
    BARRIER = mbarrier.BYTES
    EMPTY = STAGES * BARRIER  # from a stage's barrier "full" to its "empty"
    load_tile = make_load_tile(NUM_PANELS)
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def after(stage, parity):
        if stage == STAGES - 1:
            return int32(0), int32(parity ^ 1)
        return int32(stage + 1), parity

    @cuda.jit(device=True, forceinline=True)
    def load_kv(kv_map, n_start, head, b, kv_tile, kv_full, stage, was_empty):
        full = kv_full + stage * BARRIER
        rows = kv_tile + stage * KV_BYTES
        wait(full + EMPTY, was_empty)
        mbarrier_arrive_expect_tx(full, KV_BYTES)
        load_tile(rows, BLOCK_N, kv_map, n_start, head, b, full)

    @cuda.jit(device=True, forceinline=True)
    def skip_tiles(count, stage, parity, k_full, v_full, lane):
        while count > 0:
            for full in (k_full, v_full):
                wait(full + stage * BARRIER, parity)
                if lane == 0:
                    mbarrier_arrive(full + EMPTY + stage * BARRIER)
            stage, parity = after(stage, parity)
            count = int32(count - 1)
        return stage, parity

    return RingFunctions(after, load_kv, skip_tiles)


@functools.cache
def make_mainloop(HEAD_DIM, TILING, CAUSAL, DTYPE, WINDOW, SOFTCAP, ALIBI, CHECKED):
    """A consumer warpgroup's iterations over tiles of K and V.

    CHECKED says that a tile after the first may hold a key that some row does not see.

    The functions take `registers`, `rings` and `mod` (`Registers`, `KVRings`, `ModValues`); stage
    and parity of a tile; q_desc, the descriptor of the warpgroup's rows of Q; n_start, a tile's
    first key; position, that of this lane's first row among the keys (`masks`).

    Returns
    -------
    Mainloop
        mod_values(alibi_slopes, head, scale, ramp, wg_position, lane)
            Returns the `ModValues` of a head; ramp is an address.
        first_iteration(registers, rings, stage, parity, q_desc, n_start, position, seqlen_k, mod,
                        lane)
            Computes S of the first tile, which has this stage, and its softmax.
        iterate(registers, rings, stage, parity, q_desc, n_start, whole, position, seqlen_k, mod,
                lane)
            Computes S of the tile from key n_start on, and its softmax; accumulates P V of the tile
            before, which has this stage. Returns stage and parity of its own tile. `whole` comes
            from whole_tiles.
        whole_tiles(wg_position, seqlen_k)
            Returns (first, last): all rows of the warpgroup whose first row is at wg_position see a
            tile whole if first <= n_start <= last.
        add_last_product(registers, rings, stage, parity)
            Starts P V of the last tile, which has this stage.
        finish_product(acc, p, v_empty, lane)
            Waits until P V is added to acc, then releases the stage of V by its barrier v_empty.
    """
    BLOCK_N, STAGES, OVERLAP = TILING.block_n, TILING.stages, TILING.overlap
    COLS = 16 * ceil_div(HEAD_DIM, 16)  # multiplied; zero-padded from HEAD_DIM on
    KV_BYTES = ceil_div(HEAD_DIM, PANEL_COLS) * BLOCK_N * ROW_BYTES
    ROW_MAJOR = descriptor_bits()  # K: its rows lie along the sum
    COL_MAJOR = descriptor_bits(BLOCK_N * ROW_BYTES)  # V: a row for each term of the sum
    S_LENGTH, P_LENGTH, OUT_LENGTH = BLOCK_N // 2, BLOCK_N // 4, COLS // 2  # registers
    BARRIER = mbarrier.BYTES
    EMPTY = STAGES * BARRIER
    ON_TENSOR_CORES, ONE_SIDED = alibi_flags(CAUSAL, WINDOW, SOFTCAP, ALIBI)
    LEFT = WINDOW[0] >= 0
    multiply, multiply_registers = forward.wgmma_of(DTYPE)
    fragment_functions = make_fragment_functions(BLOCK_N, COLS, forward.pack_of(DTYPE))
    rescale, pack_p = fragment_functions.rescale, fragment_functions.pack_p
    raise_maximum, exponentiate = make_softmax_steps(BLOCK_N, SOFTCAP, ALIBI)
    mask_tile = make_mask_tile(BLOCK_N, CAUSAL, WINDOW)
    modify_scores = make_score_mod(BLOCK_N, CAUSAL, WINDOW, SOFTCAP, ALIBI).modify_scores
    bounds = masks.make_bounds(CAUSAL, WINDOW)
    first_key, end_key = bounds.first_key, bounds.end_key
    after = make_ring(HEAD_DIM, TILING).after
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def mod_values(alibi_slopes, head, scale, ramp, wg_position, lane):
        slope = alibi_slopes[head] if ALIBI else float32(0)
        pieces = uint32(0)
        if ON_TENSOR_CORES:
            pieces = slope_pieces(slope * (LOG2_E / scale), lane)
        return ModValues(slope, scale, pieces, descriptor(RAMP_BITS, ramp), wg_position)

    @cuda.jit(device=True, forceinline=True)
    def finish_product(acc, p, v_empty, lane):
        wgmma_wait_with(0, acc, OUT_LENGTH, p, P_LENGTH)
        if lane == 0:
            mbarrier_arrive(v_empty)

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def first_iteration(
        registers, rings, stage, parity, q_desc, n_start, position, seqlen_k, mod, lane
    ):
        s, p, _, m_i, l_i, alpha, offset = registers
        k_desc = descriptor(ROW_MAJOR, uint32(rings.k_tile + stage * KV_BYTES))
        wait(rings.k_full + stage * BARRIER, parity)
        if ON_TENSOR_CORES and ONE_SIDED:
            a = cuda.local.array(4, uint32)
            set_slope_columns(
                a, offset, mod.pieces, mod.slope * (LOG2_E / mod.scale), n_start, position, False
            )
        wgmma_fence()
        multiply(BLOCK_N, COLS, s, q_desc, k_desc)
        if ON_TENSOR_CORES and ONE_SIDED:
            wgmma_bf16_registers(BLOCK_N, 16, s, a, mod.ramp)
        wgmma_commit()
        wgmma_wait(0, s, S_LENGTH)
        if lane == 0:
            mbarrier_arrive(rings.k_full + EMPTY + stage * BARRIER)
        if ALIBI and not (ON_TENSOR_CORES and ONE_SIDED):
            modify_scores(s, offset, n_start, position, mod.slope, mod.scale, lane)
        mask_tile(s, n_start, position, seqlen_k, lane)
        _, small = raise_maximum(s, offset, m_i, l_i, alpha, mod.scale)
        exponentiate(s, offset, m_i, l_i, small, mod.scale)
        pack_p(s, p)

    def make_iteration(EDGE):
        """An iteration; with EDGE there may be a key to mask, or keys on both sides of a row.

        Two functions instead of a branch in one: ptxas moves few instructions across a branch.
        """
        BY_RAMP = ON_TENSOR_CORES and (ONE_SIDED or not EDGE)  # else keys may be on both sides

        @cuda.jit(device=True, forceinline=True, fastmath=True)
        def iteration(
            registers, rings, stage, parity, q_desc, n_start, position, seqlen_k, mod, lane
        ):
            s, p, acc, m_i, l_i, alpha, offset = registers
            k_tile, k_full, v_tile, v_full = rings
            if EDGE and (LEFT or ALIBI):
                # Else the compiler would compute values that depend on it before the loop, and
                # keep them in registers through all iterations (`opaque`).
                position = int32(opaque(position))
            next_stage, next_parity = after(stage, parity)
            k_desc = descriptor(ROW_MAJOR, uint32(k_tile + next_stage * KV_BYTES))
            v_desc = descriptor(COL_MAJOR, uint32(v_tile + stage * KV_BYTES))
            wait(k_full + next_stage * BARRIER, next_parity)
            wait(v_full + stage * BARRIER, parity)
            if BY_RAMP:
                a = cuda.local.array(4, uint32)
                keys_after = not ONE_SIDED and n_start > mod.wg_position
                slope = mod.slope * (LOG2_E / mod.scale)
                set_slope_columns(a, offset, mod.pieces, slope, n_start, position, keys_after)
            wgmma_fence()
            multiply(BLOCK_N, COLS, s, q_desc, k_desc)  # S = Q Kᵀ of the next tile
            if BY_RAMP:
                wgmma_bf16_registers(BLOCK_N, 16, s, a, mod.ramp)
            wgmma_commit()
            multiply_registers(COLS, BLOCK_N, acc, p, v_desc)  # out <- out + P V of this one
            wgmma_commit()

            wgmma_wait(1, s, S_LENGTH)
            if lane == 0:
                mbarrier_arrive(k_full + EMPTY + next_stage * BARRIER)
            if ALIBI and not BY_RAMP:
                modify_scores(s, offset, n_start, position, mod.slope, mod.scale, lane)
            if EDGE:
                mask_tile(s, n_start, position, seqlen_k, lane)
            risen, small = raise_maximum(s, offset, m_i, l_i, alpha, mod.scale)
            if ALIBI and small:  # all of P is negligible: below 2^−NEGLIGIBLE (`lazy_rescaling`)
                finish_product(acc, p, v_full + EMPTY + stage * BARRIER, lane)
                for j in range(BLOCK_N // 16):
                    for r in range(4):
                        p[j, r] = uint32(0)
                return next_stage, next_parity
            if not OVERLAP:
                finish_product(acc, p, v_full + EMPTY + stage * BARRIER, lane)
            exponentiate(s, offset, m_i, l_i, small, mod.scale)  # while P V runs, if OVERLAP
            if OVERLAP:
                # This wait could come later. Its loop keeps the compiler from moving the next one
                # up, before the softmax, which would then not overlap with P V.
                wait(v_full + next_stage * BARRIER, next_parity)
                finish_product(acc, p, v_full + EMPTY + stage * BARRIER, lane)
            pack_p(s, p)
            if risen:
                rescale(acc, alpha)  # out <- alpha out
            return next_stage, next_parity

        return iteration

    inner_iteration, edge_iteration = make_iteration(False), make_iteration(True)

    @cuda.jit(device=True, forceinline=True)
    def whole_tiles(wg_position, seqlen_k):
        first_whole = int32(first_key(wg_position + ROWS - 1))
        return first_whole, int32(end_key(wg_position, seqlen_k) - BLOCK_N)

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def iterate(
        registers, rings, stage, parity, q_desc, n_start, whole, position, seqlen_k, mod, lane
    ):
        first_whole, last_whole = whole
        tile = stage, parity, q_desc, n_start, position, seqlen_k
        edge = CHECKED and (n_start < first_whole or n_start > last_whole)
        if ON_TENSOR_CORES and not ONE_SIDED:  # keys on both sides of some row
            after_first = n_start + BLOCK_N - 1 > mod.wg_position
            edge = edge or (after_first and n_start < mod.wg_position + ROWS - 1)
        if edge:
            return edge_iteration(registers, rings, *tile, mod, lane)
        return inner_iteration(registers, rings, *tile, mod, lane)

    @cuda.jit(device=True, forceinline=True)
    def add_last_product(registers, rings, stage, parity):
        v_desc = descriptor(COL_MAJOR, uint32(rings.v_tile + stage * KV_BYTES))
        wait(rings.v_full + stage * BARRIER, parity)
        wgmma_fence()
        multiply_registers(COLS, BLOCK_N, registers.acc, registers.p, v_desc)
        wgmma_commit()

    return Mainloop(
        mod_values, first_iteration, iterate, whole_tiles, add_last_product, finish_product
    )
