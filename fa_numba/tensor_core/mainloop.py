"""From tile to tile of keys: rings of K and V, and a warpgroup's turns.

flash_attn_persistent is made of these functions, and so is flash_attn_persistent_varlen.

A thread block's queries see a range of tiles of keys. K and V come in rings of TILING.stages tiles
(TILING is a `PersistentTiling`), each with two barriers, "full" and "empty": a tile's place is its
stage, and the parity of the phase in which that is filled. A turn is a warpgroup's step from one
tile to the next: S of the next while out takes in P V of this one, then the softmax.

Arrays are those of `fragments`.
"""

import functools

from numba import cuda, int32, uint32

from fa_numba.constants import LOG2_E
from fa_numba.kernels import masks
from fa_numba.ptx import mbarrier
from fa_numba.ptx.layouts import ROW_BYTES
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
from fa_numba.tensor_core.alibi import tilt, tilted_and_one_sided
from fa_numba.tensor_core.fragments import make_bend_tile, make_fragment_functions, make_mask_tile
from fa_numba.tensor_core.lazy_rescaling import make_lazy_softmax_parts
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.persistent_tiling import ROWS


@functools.cache
def make_tiles_of(BLOCK_N, CAUSAL, WINDOW):
    """The function that says which tiles of keys there are to look at.

    Returns
    -------
    tiles_of(m, num_rows, seqlen_q, seqlen_k)
        first, end: those that some of these rows, from row m on, sees are range(first, end). Where
        there is none, one is left to be masked as a whole.
    """
    first_key, end_key, _ = masks.make_bounds(CAUSAL, WINDOW)

    @cuda.jit(device=True, forceinline=True)
    def tiles_of(m, num_rows, seqlen_q, seqlen_k):
        position = int32(m + seqlen_k - seqlen_q)
        n_end = max(end_key(position + num_rows - 1, seqlen_k), 1)
        end = int32((n_end + BLOCK_N - 1) // BLOCK_N)
        return min(int32(first_key(position) // BLOCK_N), int32(end - 1)), end

    return tiles_of


@functools.cache
def make_ring(HEAD_DIM, TILING):
    """What is done with the rings of K and V.

    Returns
    -------
    after(stage, parity)
        The next stage of a ring, and the parity of its phase.
    fetch(kv_map, row, tile, head, b, kv_tile, kv_full, stage, was_empty)
        Once there is room, start to copy the tile-th tile of K, or of V, from this row on.
        was_empty: parity of the phase of "empty" that must have ended, 1 the first time round.
    pass_over(count, stage, parity, k_full, v_full, lane)
        Give back so many tiles of K and V as they come; the place of the tile after them.
    """
    BLOCK_N, STAGES = TILING.block_n, TILING.stages
    NUM_PANELS = ceil_div(HEAD_DIM, 64)
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
    def fetch(kv_map, row, tile, head, b, kv_tile, kv_full, stage, was_empty):
        full = kv_full + stage * BARRIER
        rows = kv_tile + stage * KV_BYTES
        wait(full + EMPTY, was_empty)
        mbarrier_arrive_expect_tx(full, KV_BYTES)
        load_tile(rows, BLOCK_N, kv_map, row + tile * BLOCK_N, head, b, full)

    @cuda.jit(device=True, forceinline=True)
    def pass_over(count, stage, parity, k_full, v_full, lane):
        while count > 0:
            for full in (k_full, v_full):
                wait(full + stage * BARRIER, parity)
                if lane == 0:
                    mbarrier_arrive(full + EMPTY + stage * BARRIER)
            stage, parity = after(stage, parity)
            count = int32(count - 1)
        return stage, parity

    return after, fetch, pass_over


@functools.cache
def make_turns(HEAD_DIM, TILING, CAUSAL, DTYPE, WINDOW, SOFTCAP, ALIBI):
    """What a warpgroup does with tiles of K and V.

    `registers` are s, p, acc, m_i, l_i, alpha and offset; `rings` the addresses k_tile, k_full,
    v_tile and v_full; `bend` is slope, scale (`make_bend_tile`), pieces (`slope_pieces` of slope'),
    the descriptor of the ramp (`alibi`), and where the warpgroup's first row stands among the keys.
    The descriptor q names the warpgroup's rows of Q; position is where this lane's first row stands
    (`masks`).

    Returns
    -------
    first_turn(registers, rings, stage, parity, q, n_start, position, seqlen_k, bend, lane)
        S, and the softmax, of the first tile, which has this place and begins with key n_start.
    inner_turn, edge_turn(registers, rings, stage, parity, q, n_start, position, seqlen_k, bend,
                          lane)
        The same of the tile from key n_start on, and P V of the one before, which has this place.
        Returns the tile's own. Inner ones mask nothing, and have keys to one side of the rows.
    whole_tiles(wg_position, seqlen_k)
        first, last: of a warpgroup whose first row stands there, all rows see a tile whole if
        first <= n_start <= last.
    add_last(registers, rings, stage, parity)
        Start to add P V of the last tile, which has this place.
    finish_product(acc, p, v_empty, lane)
        Wait until P V is added to acc; tell v_empty, a barrier, that V may be overwritten.
    """
    BLOCK_N, STAGES, OVERLAP = TILING.block_n, TILING.stages, TILING.overlap
    COLS = 16 * ceil_div(HEAD_DIM, 16)  # that are multiplied; those from HEAD_DIM on hold 0
    KV_BYTES = ceil_div(HEAD_DIM, 64) * BLOCK_N * ROW_BYTES
    ROW_MAJOR = descriptor_bits()  # K: its rows lie along the sum
    COL_MAJOR = descriptor_bits(BLOCK_N * ROW_BYTES)  # V: a row for each term of the sum
    S_LENGTH, P_LENGTH, OUT_LENGTH = BLOCK_N // 2, BLOCK_N // 4, COLS // 2  # registers
    BARRIER = mbarrier.BYTES
    EMPTY = STAGES * BARRIER
    TILTED, ONE_SIDED = tilted_and_one_sided(CAUSAL, WINDOW, SOFTCAP, ALIBI)
    LEFT = WINDOW[0] >= 0
    multiply, multiply_registers = forward.wgmma_of(DTYPE)
    _, _, _, rescale, pack_p = make_fragment_functions(BLOCK_N, COLS, forward.pack_of(DTYPE))
    raise_maximum, exponentiate = make_lazy_softmax_parts(BLOCK_N, SOFTCAP, ALIBI)
    mask_tile = make_mask_tile(BLOCK_N, CAUSAL, WINDOW)
    _, bend_tile = make_bend_tile(BLOCK_N, CAUSAL, WINDOW, SOFTCAP, ALIBI)
    first_key, end_key, _ = masks.make_bounds(CAUSAL, WINDOW)
    after, _, _ = make_ring(HEAD_DIM, TILING)
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def finish_product(acc, p, v_empty, lane):
        wgmma_wait_with(0, acc, OUT_LENGTH, p, P_LENGTH)
        if lane == 0:
            mbarrier_arrive(v_empty)

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def first_turn(registers, rings, stage, parity, q, n_start, position, seqlen_k, bend, lane):
        s, p, _, m_i, l_i, alpha, offset = registers
        k_tile, k_full, _, _ = rings
        slope, scale, pieces, ramp, _ = bend
        k = descriptor(ROW_MAJOR, uint32(k_tile + stage * KV_BYTES))
        wait(k_full + stage * BARRIER, parity)
        if TILTED and ONE_SIDED:
            a = cuda.local.array(4, uint32)
            tilt(a, offset, pieces, slope * (LOG2_E / scale), n_start, position, False)
        wgmma_fence()
        multiply(BLOCK_N, COLS, s, q, k)
        if TILTED and ONE_SIDED:
            wgmma_bf16_registers(BLOCK_N, 16, s, a, ramp)
        wgmma_commit()
        wgmma_wait(0, s, S_LENGTH)
        if lane == 0:
            mbarrier_arrive(k_full + EMPTY + stage * BARRIER)
        if ALIBI and not (TILTED and ONE_SIDED):
            bend_tile(s, offset, n_start, position, slope, scale, lane)
        mask_tile(s, n_start, position, seqlen_k, lane)
        _, small = raise_maximum(s, offset, m_i, l_i, alpha, scale)
        exponentiate(s, offset, m_i, l_i, small, scale)
        pack_p(s, p)

    def make_turn(EDGE):
        """The step from a tile of keys to the next, where there may be something to mask, or not.

        Two functions and not a branch in one: around a branch ptxas can move little.
        """
        TILT = TILTED and (ONE_SIDED or not EDGE)  # at other edges keys are to both sides: no line

        @cuda.jit(device=True, forceinline=True, fastmath=True)
        def turn(registers, rings, stage, parity, q, n_start, position, seqlen_k, bend, lane):
            s, p, acc, m_i, l_i, alpha, offset = registers
            k_tile, k_full, v_tile, v_full = rings
            slope, scale, pieces, ramp, wg_position = bend
            if EDGE and (
                LEFT or ALIBI
            ):  # else all turns would keep what follows from it (`opaque`)
                position = int32(opaque(position))
            next_stage, next_parity = after(stage, parity)
            k = descriptor(ROW_MAJOR, uint32(k_tile + next_stage * KV_BYTES))
            v = descriptor(COL_MAJOR, uint32(v_tile + stage * KV_BYTES))
            wait(k_full + next_stage * BARRIER, next_parity)
            wait(v_full + stage * BARRIER, parity)
            if TILT:
                a = cuda.local.array(4, uint32)
                behind = not ONE_SIDED and n_start > wg_position
                tilt(a, offset, pieces, slope * (LOG2_E / scale), n_start, position, behind)
            wgmma_fence()
            multiply(BLOCK_N, COLS, s, q, k)  # S = Q Kᵀ of the next tile
            if TILT:
                wgmma_bf16_registers(BLOCK_N, 16, s, a, ramp)
            wgmma_commit()
            multiply_registers(COLS, BLOCK_N, acc, p, v)  # out <- out + P V of this one
            wgmma_commit()

            wgmma_wait(1, s, S_LENGTH)
            if lane == 0:
                mbarrier_arrive(k_full + EMPTY + next_stage * BARRIER)
            if ALIBI and not TILT:
                bend_tile(s, offset, n_start, position, slope, scale, lane)
            if EDGE:
                mask_tile(s, n_start, position, seqlen_k, lane)
            risen, small = raise_maximum(s, offset, m_i, l_i, alpha, scale)
            if ALIBI and small:  # all of P is below 2^−FADED: as good as 0 (`lazy_softmax`)
                finish_product(acc, p, v_full + EMPTY + stage * BARRIER, lane)
                for j in range(BLOCK_N // 16):
                    for r in range(4):
                        p[j, r] = uint32(0)
                return next_stage, next_parity
            if not OVERLAP:
                finish_product(acc, p, v_full + EMPTY + stage * BARRIER, lane)
            exponentiate(s, offset, m_i, l_i, small, scale)  # while P V runs, if OVERLAP
            if OVERLAP:
                # This wait could come later. Its loop keeps the compiler from moving the next one
                # up, before the softmax, which would then not be beside P V.
                wait(v_full + next_stage * BARRIER, next_parity)
                finish_product(acc, p, v_full + EMPTY + stage * BARRIER, lane)
            pack_p(s, p)
            if risen:
                rescale(acc, alpha)  # out <- alpha out
            return next_stage, next_parity

        return turn

    inner_turn, edge_turn = make_turn(False), make_turn(True)

    @cuda.jit(device=True, forceinline=True)
    def whole_tiles(wg_position, seqlen_k):
        first_whole = int32(first_key(wg_position + ROWS - 1))
        return first_whole, int32(end_key(wg_position, seqlen_k) - BLOCK_N)

    @cuda.jit(device=True, forceinline=True)
    def add_last(registers, rings, stage, parity):
        _, p, acc, _, _, _, _ = registers
        _, _, v_tile, v_full = rings
        v = descriptor(COL_MAJOR, uint32(v_tile + stage * KV_BYTES))
        wait(v_full + stage * BARRIER, parity)
        wgmma_fence()
        multiply_registers(COLS, BLOCK_N, acc, p, v)
        wgmma_commit()

    return first_turn, inner_turn, edge_turn, whole_tiles, add_last, finish_product
