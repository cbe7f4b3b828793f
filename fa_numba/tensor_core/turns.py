"""From tile to tile of keys: a warpgroup's way through them, of which flash_attn_persistent_varlen
is made. flash_attn_persistent, which it follows, has the same in its own body.

A thread block's queries see a range of tiles of keys. K and V come in rings of TILING.stages
tiles, each with two barriers, "full" and "empty": a tile's place is its stage, and the parity of
the phase in which that is filled. A turn is a warpgroup's step from one tile to the next: S of the
next while out takes in P V of this one, then the softmax.

Without a mask the keys are gone through from the last to the first. The one tile with something to
mask, that in which the keys end, then comes before the loop, and of the two turns, with a mask and
without, ptxas has only the latter to place in registers. With ALiBi so, too, under a causal mask:
the nearest keys, whose scores are the largest, come first, and far ones may be left out.

Arrays are those of `fragments`.
"""

import functools

from numba import cuda, int32, uint32

from fa_numba.analysis.block_sizes import ceil_div
from fa_numba.analysis.persistent_tiling import ROWS
from fa_numba.kernels import masks
from fa_numba.tensor_core import forward, mbarrier, wgmma
from fa_numba.tensor_core.alibi import tilt
from fa_numba.tensor_core.fragments import (
    LOG2_E,
    make_bend_tile,
    make_fragment_functions,
    make_mask_tile,
)
from fa_numba.tensor_core.lazy_softmax import make_lazy_softmax_parts
from fa_numba.tensor_core.mbarrier import mbarrier_arrive, mbarrier_arrive_expect_tx
from fa_numba.tensor_core.ptx import opaque
from fa_numba.tensor_core.tma import make_load_tile
from fa_numba.tensor_core.wgmma import (
    descriptor,
    descriptor_bits,
    wgmma_bf16_registers,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
    wgmma_wait_with,
)


def goes_back(causal, window_size, alibi):
    """Whether the keys are gone through from the last to the first."""
    return window_size == (-1, -1) and (alibi or not causal)


@functools.cache
def make_tiles(TILING, CAUSAL, WINDOW, ALIBI):
    """Which tiles of keys there are to look at, and when; range(first, end) of them.

    Returns
    -------
    tiles_of(m, num_rows, seqlen_q, seqlen_k)
        first, end: those that some of these rows, from row m on, sees. Where there is none, one is
        left to be masked as a whole.
    own_tiles(m_start, part, seqlen_q, seqlen_k)
        first, end, before, rest: those that the part-th ROWS rows of a thread block see, and how
        many of the thread block's come before and after them. A part without any row has one.
    tile_at(step, first, end)
        The one that is the step-th to be looked at.
    """
    BLOCK_N, BLOCK_M = TILING.block_n, ROWS * TILING.consumers
    BACKWARD, LEFT = goes_back(CAUSAL, WINDOW, ALIBI), WINDOW[0] >= 0
    first_key, end_key, _ = masks.make_bounds(CAUSAL, WINDOW)

    @cuda.jit(device=True, forceinline=True)
    def tiles_of(m, num_rows, seqlen_q, seqlen_k):
        position = int32(m + seqlen_k - seqlen_q)
        n_end = max(end_key(position + num_rows - 1, seqlen_k), 1)
        end = int32((n_end + BLOCK_N - 1) // BLOCK_N)
        return min(int32(first_key(position) // BLOCK_N), int32(end - 1)), end

    @cuda.jit(device=True, forceinline=True)
    def own_tiles(m_start, part, seqlen_q, seqlen_k):
        all_first, all_end = tiles_of(m_start, BLOCK_M, seqlen_q, seqlen_k)
        m = int32(m_start + part * ROWS)
        first, end = tiles_of(m, ROWS, seqlen_q, seqlen_k)
        if BACKWARD:
            first = int32(end - 1) if m >= seqlen_q else first
            before = int32(all_end - end) if CAUSAL else int32(0)
            return first, end, before, int32(first - all_first)
        end = int32(first + 1) if m >= seqlen_q else end
        before = int32(first - all_first) if LEFT else int32(0)
        return first, end, before, int32(all_end - end)

    @cuda.jit(device=True, forceinline=True)
    def tile_at(step, first, end):
        return int32(end - 1 - step) if BACKWARD else int32(first + step)

    return tiles_of, own_tiles, tile_at


@functools.cache
def make_ring(HEAD_DIM, TILING):
    """What is done with the rings of K and V.

    Returns
    -------
    after(stage, parity)
        The next stage of a ring, and the parity of its phase.
    fetch(kv_map, row, head, b, kv_tile, kv_full, stage, was_empty)
        Start to copy a tile of K, or of V, once there is room; the place of the tile after it.
    pass_over(count, stage, parity, k_full, v_full, lane)
        Give back so many tiles of K and V as they come; the place of the tile after them.
    """
    BLOCK_N, STAGES = TILING.block_n, TILING.stages
    NUM_BLOCKS = ceil_div(HEAD_DIM, 64)
    KV_BYTES = NUM_BLOCKS * BLOCK_N * wgmma.ROW_BYTES
    BARRIER = mbarrier.BYTES
    EMPTY = STAGES * BARRIER  # from a stage's barrier "full" to its "empty"
    load_tile = make_load_tile(NUM_BLOCKS)
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def after(stage, parity):
        if stage == STAGES - 1:
            return int32(0), int32(parity ^ 1)
        return int32(stage + 1), parity

    @cuda.jit(device=True, forceinline=True)
    def fetch(kv_map, row, head, b, kv_tile, kv_full, stage, was_empty):
        full = kv_full + stage * BARRIER
        rows = kv_tile + stage * KV_BYTES
        wait(full + EMPTY, was_empty)
        mbarrier_arrive_expect_tx(full, KV_BYTES)
        load_tile(rows, BLOCK_N, kv_map, row, head, b, full)
        return after(stage, was_empty)

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

    Returns
    -------
    attend(registers, rings, stage, parity, q, tiles, position, seqlen_k, bend, lane)
        Attention of the rows that the descriptor q names to tiles, range(first, end) of which the
        first has this place; but P V of the last is not in acc yet, whose place is returned.
        position is where this lane's first row stands among the keys (`masks`).
    add_last(registers, rings, stage, parity)
        Start to add it.
    finish_product(acc, p, v_empty, lane)
        Wait until P V is added to acc, and V may be overwritten.
    """
    BLOCK_N, STAGES, OVERLAP = TILING.block_n, TILING.stages, TILING.overlap
    COLS = 16 * ceil_div(HEAD_DIM, 16)  # that are multiplied; those from HEAD_DIM on hold 0
    KV_BYTES = ceil_div(HEAD_DIM, 64) * BLOCK_N * wgmma.ROW_BYTES
    ROW_MAJOR = descriptor_bits()  # K: its rows lie along the sum
    COL_MAJOR = descriptor_bits(BLOCK_N * wgmma.ROW_BYTES)  # V: a row for each term of the sum
    S_LENGTH, P_LENGTH, OUT_LENGTH = BLOCK_N // 2, BLOCK_N // 4, COLS // 2  # registers
    BARRIER = mbarrier.BYTES
    EMPTY = STAGES * BARRIER
    MASKED_WITHIN = CAUSAL or WINDOW != (-1, -1)  # before the last tile, too
    BACKWARD = goes_back(CAUSAL, WINDOW, ALIBI)
    TILTED = ALIBI and SOFTCAP == 0  # ALiBi by tensor cores, but where softcap comes before it
    ONE_SIDED = CAUSAL or WINDOW[1] == 0  # no key behind a row's own position is seen
    LEFT = WINDOW[0] >= 0
    STEP = -BLOCK_N if BACKWARD else BLOCK_N
    multiply, multiply_registers = forward.wgmma_of(DTYPE)
    _, _, _, rescale, pack_p = make_fragment_functions(BLOCK_N, COLS, forward.pack_of(DTYPE))
    raise_maximum, exponentiate = make_lazy_softmax_parts(BLOCK_N, SOFTCAP, ALIBI, FADES=ALIBI)
    mask_tile = make_mask_tile(BLOCK_N, CAUSAL, WINDOW)
    _, bend_tile = make_bend_tile(BLOCK_N, CAUSAL, WINDOW, SOFTCAP, ALIBI)
    first_key, end_key, _ = masks.make_bounds(CAUSAL, WINDOW)
    _, _, tile_at = make_tiles(TILING, CAUSAL, WINDOW, ALIBI)
    after, _, _ = make_ring(HEAD_DIM, TILING)
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def finish_product(acc, p, v_empty, lane):
        wgmma_wait_with(0, acc, OUT_LENGTH, p, P_LENGTH)
        if lane == 0:
            mbarrier_arrive(v_empty)

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def first_turn(registers, rings, stage, parity, q, n_start, position, seqlen_k, bend, lane):
        """S, and the softmax, of the tile from key n_start on, the first."""
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
        TILT = TILTED and (ONE_SIDED or not EDGE)

        @cuda.jit(device=True, forceinline=True, fastmath=True)
        def turn(registers, rings, stage, parity, q, n_start, position, seqlen_k, bend, lane):
            """S, and the softmax, of the tile from key n_start on; P V of the one before, at stage.

            Returns where in the rings the tile is, as `after` does.
            """
            s, p, acc, m_i, l_i, alpha, offset = registers
            k_tile, k_full, v_tile, v_full = rings
            slope, scale, pieces, ramp, wg_position = bend
            if EDGE and (LEFT or ALIBI):
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
            if ALIBI and small:  # so far below the maximum that P is 0
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

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def attend(registers, rings, stage, parity, q, tiles, position, seqlen_k, bend, lane):
        _, _, _, _, wg_position = bend
        first, end = tiles
        n_start = int32(tile_at(0, first, end) * BLOCK_N)
        n_last = int32(tile_at(end - first - 1, first, end) * BLOCK_N)
        # Tiles that begin from here to there are seen whole, by all of the rows.
        first_whole = int32(first_key(wg_position + ROWS - 1))
        last_whole = int32(end_key(wg_position, seqlen_k) - BLOCK_N)
        first_turn(registers, rings, stage, parity, q, n_start, position, seqlen_k, bend, lane)
        while n_start != n_last:
            n_start = int32(n_start + STEP)
            tile = stage, parity, q, n_start, position, seqlen_k
            edge = MASKED_WITHIN and (n_start < first_whole or n_start > last_whole)
            if TILTED and not ONE_SIDED:  # keys to both sides of some row
                after_first = n_start + BLOCK_N - 1 > wg_position
                edge = edge or (after_first and n_start < wg_position + ROWS - 1)
            if edge:
                stage, parity = edge_turn(registers, rings, *tile, bend, lane)
            else:
                stage, parity = inner_turn(registers, rings, *tile, bend, lane)
        return stage, parity

    @cuda.jit(device=True, forceinline=True)
    def add_last(registers, rings, stage, parity):
        _, p, acc, _, _, _, _ = registers
        _, _, v_tile, v_full = rings
        v = descriptor(COL_MAJOR, uint32(v_tile + stage * KV_BYTES))
        wait(v_full + stage * BARRIER, parity)
        wgmma_fence()
        multiply_registers(COLS, BLOCK_N, acc, p, v)
        wgmma_commit()

    return attend, add_last, finish_product
