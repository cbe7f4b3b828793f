"""FlashAttention-3 forward on Hopper, head_dim 264 to 512: two warpgroups share queries.

flash_attn_persistent  head_dim up to 256: each warpgroup has 64 rows of queries and all of out
flash_attn_wide        head_dim 264 to 512: two warpgroups share 64 rows of queries  <- this file

Out of 64 queries with head_dim 512 takes half of an SM's registers, so a thread block has 64
queries, and each of two warpgroups keeps half of the columns of out:

    warpgroup 1    S = Q Kᵀ of the next tile    P = exp(S − m_i)    out += P V    P to warpgroup 2
    warpgroup 2    out += P V for the other columns
    warpgroup 0    a thread loads by TMA

While warpgroup 1 computes the softmax, the tensor cores multiply P V of the tile before, for both.
P goes through shared memory with the factors by which warpgroup 2 rescales its half of out; at the
end the factors are 1 / l_i.

K and V arrive in pieces of 64 keys and 128 columns, in one ring, in the order in which they are
multiplied: K of a tile, then V of the tile before. Each piece is freed as soon as its product is
done, because two tiles of K and V do not fit beside Q. V's pieces go to the warpgroups in turns.

The arithmetic, for 64 keys with head_dim 512:

    FLOPs           8.4 million: 2048 cycles of an SM's tensor cores
    shared memory   Q 64 KiB, a ring of nine pieces 144, two stages of P 16: 224 KiB of 227. wgmma
                    reads 208 KiB, and TMA and stmatrix write 136: 2752 cycles at 128 bytes each. So
                    the tensor cores multiply for three quarters of the time at most
    registers       128 of out, 32 of scores, 32 of P, of 240
    L2              128 KiB: twice as much for each FLOP as flash_attn_persistent, which has 128
                    rows of queries. That is no limit here: docs/notes/forward.md

With a smaller head_dim the last pieces have one panel of 64 columns, and of the last one as few
columns are multiplied as wgmma can. Three pieces took longer: docs/notes/forward.md.

TMA loads rows of 128 bytes, which L2 has in sectors of 32. Rows of K and V that begin within one,
as those of head_dim 264 do, are first copied to rows that begin at 128 bytes (`rows_for_tma`).

A packed batch (PACKED) has a thread block for each 64 queries of a sequence; a binary search finds
its sequence. Rows of the next sequence in the last tiles of Q and V are overwritten with 0, as in
flash_attn_persistent_varlen, and a warp whose rows belong to two sequences stores its own one by
one.

Papers: Shah et al. 2024, FlashAttention-3, arXiv:2407.08608, section 3.
"""

import functools

import numpy as np
from numba import cuda, float32, int32, uint32, uint64

from fa_numba import checks
from fa_numba.constants import FULL_WARP
from fa_numba.kernels.sequence_of import make_sequence_of
from fa_numba.on_cuda_cores import run_time_masks
from fa_numba.on_cuda_cores.run_time_masks import MaskArgs
from fa_numba.ptx import mbarrier
from fa_numba.ptx.barriers import (
    fence_async_proxy,
    named_barrier_sync,
    setmaxnreg_dec,
    setmaxnreg_inc,
)
from fa_numba.ptx.layouts import PANEL_COLS, ROW_BYTES
from fa_numba.ptx.ldmatrix import stmatrix_x4
from fa_numba.ptx.mbarrier import (
    fence_mbarrier_init,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
)
from fa_numba.ptx.tma import tma_load_4d, tma_store_wait_read
from fa_numba.ptx.wgmma import (
    descriptor,
    descriptor_bits,
    hold,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
    wgmma_wait_group,
    wgmma_wait_with,
)
from fa_numba.runtime import arrays
from fa_numba.runtime.tensor_maps import tensor_map
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.fragments import (
    fragment_function,
    make_fragment_functions,
    make_mask_tile,
    make_score_mod,
    make_store_row,
    make_store_tile,
)
from fa_numba.tensor_core.lazy_rescaling import make_softmax_steps
from fa_numba.tensor_core.mainloop import make_tiles_of
from fa_numba.tensor_core.padded_rows import pad_rows, rows_begin_at
from fa_numba.tensor_core.shared_plan import (
    SharedPlan,
    clear_rows,
    init_rings,
    make_ring_functions,
)
from fa_numba.tiling.block_sizes import ceil_div

ROWS = 64  # queries of a thread block
WARP_ROWS = 16
BLOCK_N = 64  # keys of a tile
PIECES = 4  # of Q, K, V and out: two for each warpgroup
PIECE_COLS = 128  # at most
WARPS = 4  # of a warpgroup
THREADS = 384
# 128 · (24 + 2 · 240) = 64512 of an SM's 65536.
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 24, 240
BARRIER = mbarrier.BYTES
PANEL_BYTES = BLOCK_N * ROW_BYTES  # 64 columns of 64 queries or keys
PIECE_BYTES = 2 * PANEL_BYTES
P_STAGES = 2
OUT_TURN = 1  # the named barrier of warpgroup 1
SECTOR_COLS = 16
TILES_OF_COPY = 16  # tiles of queries that read K and V, for a copy of them to pay
SHARED_BYTES = 232448  # that a thread block of a Hopper GPU can have


def panels_of_pieces(HEAD_DIM):
    """Panels of each piece of a row, 1 or 2: the first ones have two."""
    num_panels = ceil_div(HEAD_DIM, PANEL_COLS)
    return tuple(1 + (i < num_panels - PIECES) for i in range(PIECES))


@functools.cache
def make_plan():
    """The `SharedPlan` of a thread block; the ring has the shared memory that is left."""
    plan = SharedPlan()
    plan.Q = plan.tiles(1, PIECES * PIECE_BYTES)  # out overwrites it
    plan.P = plan.tiles(P_STAGES, PANEL_BYTES)
    plan.Q_FULL, plan.P_RING = plan.barriers(1), plan.ring(P_STAGES)
    factors = P_STAGES * ROWS * 4  # in static shared memory
    stages = (SHARED_BYTES - factors - plan.bytes) // (PIECE_BYTES + 2 * BARRIER)
    plan.RING = plan.ring(stages)
    plan.PIECES = plan.tiles(stages, PIECE_BYTES)
    return plan


@functools.cache
def make_flash_attn_wide(HEAD_DIM, CAUSAL, DTYPE, WINDOW=(-1, -1), SOFTCAP=0.0, PACKED=False):
    """The kernel for these compile-time constants; `make_plan` lays out its memory.

    HEAD_DIM is a multiple of 8, DTYPE "float16" or "bfloat16". WINDOW may be AT_RUN_TIME
    (`run_time_masks`).

    With PACKED the argument `packed` is (cu_seqlens_q, cu_seqlens_k, out), and seqlen_k is not
    read; otherwise it is empty.
    """
    PANELS = panels_of_pieces(HEAD_DIM)
    FIRST_COLS = tuple(PANEL_COLS * sum(PANELS[:i]) for i in range(PIECES))
    # That are multiplied: of the last piece as few as wgmma can, in steps of 16.
    ALL_COLS = 16 * ceil_div(HEAD_DIM, 16)
    COLS = tuple(min(PANEL_COLS * x, ALL_COLS - y) for x, y in zip(PANELS, FIRST_COLS, strict=True))
    COLS_0, COLS_1, COLS_2, COLS_3 = COLS
    plan = make_plan()
    Q, P, Q_FULL, P_RING = plan.Q, plan.P, plan.Q_FULL, plan.P_RING
    RING, KV, shared_base = plan.RING, plan.PIECES, plan.shared_base
    STAGES, Q_BYTES = RING.length, sum(PANELS) * PANEL_BYTES
    # Q, K and P: rows along the sum. V: a row for each term, a key.
    K_MAJOR_DESC, MN_MAJOR_DESC = descriptor_bits(), descriptor_bits(PANEL_BYTES)
    S_LENGTH, P_LENGTH = BLOCK_N // 2, BLOCK_N // 4  # registers
    LENGTH_0, LENGTH_1, LENGTH_2, LENGTH_3 = (x // 2 for x in COLS)
    S_SHAPE, P_SHAPE = (BLOCK_N // 8, 4), (BLOCK_N // 16, 4)
    SHAPE_0, SHAPE_1, SHAPE_2, SHAPE_3 = ((x // 8, 4) for x in COLS)
    P_STEPS = BLOCK_N // 16
    STEP = PIECE_BYTES >> 4  # in a descriptor
    pack = forward.pack_of(DTYPE)
    multiply, multiply_registers = forward.wgmma_of(DTYPE)
    multiply_more, multiply_tiles, _ = forward.wgmma_sums_of(DTYPE)
    of_0, of_1, of_2, of_3 = (make_fragment_functions(BLOCK_N, x, pack) for x in COLS)
    clear_0, clear_1, clear_2, clear_3 = of_0.clear, of_1.clear, of_2.clear, of_3.clear
    rescale_0, rescale_1, rescale_2, rescale_3 = (x.rescale for x in (of_0, of_1, of_2, of_3))
    pack_p = of_0.pack_p
    raise_maximum, exponentiate = make_softmax_steps(BLOCK_N, SOFTCAP)
    exponent_scale_of = make_score_mod(BLOCK_N, CAUSAL, WINDOW, SOFTCAP, False).exponent_scale_of
    mask_tile = make_mask_tile(BLOCK_N, CAUSAL, WINDOW)
    tiles_of = make_tiles_of(BLOCK_N, CAUSAL, WINDOW)
    sequence_of = make_sequence_of(ROWS)
    finish_rows = make_store_tile(PIECE_COLS, pack).finish_rows
    _, wait_for, release = make_ring_functions(RING)
    wait = mbarrier.wait_function()

    def make_store_piece(PIECE):
        """Store a warp's 16 rows of a piece of out, from row m_warp of its sequence on."""
        COL = FIRST_COLS[PIECE]
        cols = min(COLS[PIECE], HEAD_DIM - COL)
        store_tile, store_row = (
            make_store_tile(cols, pack, COL).store_tile,
            make_store_row(cols, pack),
        )

        @cuda.jit(device=True, forceinline=True, fastmath=True)
        def store_piece(
            acc, inverse, base, out_map, packed, m_warp, warp_row, seqlen_q, start, head, b, lane
        ):
            rows = uint32(base + Q.start + PIECE * PIECE_BYTES + warp_row * ROW_BYTES)
            if PACKED:
                # A vote, so that ptxas knows that a warp takes one branch.
                if cuda.all_sync(FULL_WARP, m_warp + WARP_ROWS <= seqlen_q):
                    m, end = int32(start + m_warp), int32(start + seqlen_q)
                    store_tile(acc, inverse, rows, out_map, m, end, head, b, lane)
                else:  # the next rows are another sequence's
                    for h in range(2):
                        row = m_warp + (lane >> 2) + 8 * h
                        if row < seqlen_q:
                            store_row(acc, h, inverse[h], packed[2][start + row, head, COL:], lane)
            else:
                store_tile(acc, inverse, rows, out_map, m_warp, seqlen_q, head, b, lane)

        return store_piece

    store_0, store_1, store_2, store_3 = map(make_store_piece, range(PIECES))

    @cuda.jit(device=True, forceinline=True)
    def advance(stage, parity, count):
        """Stage and parity of the piece `count` pieces later; count is at most STAGES."""
        stage = int32(stage + count)
        if stage >= STAGES:
            return int32(stage - STAGES), int32(parity ^ 1)
        return stage, parity

    @cuda.jit(device=True, forceinline=True)
    def piece_of(base, stage):
        return uint32(base + KV.start + stage * PIECE_BYTES)

    def make_load_piece(PIECE):
        """Functions that load a piece: of Q, and of K or V into the ring; the latter go on."""
        COUNT, COL = PANELS[PIECE], FIRST_COLS[PIECE]
        Q_PIECE = Q.start + PIECE * PIECE_BYTES

        @cuda.jit(device=True, forceinline=True)
        def load_piece(to, x_map, row, head, b, full):
            for panel in range(COUNT):
                source = x_map, COL + panel * PANEL_COLS, row, head, b
                tma_load_4d(to + panel * PANEL_BYTES, *source, full)

        @cuda.jit(device=True, forceinline=True)
        def load_of_q(base, q_map, row, head, b):
            load_piece(base + Q_PIECE, q_map, row, head, b, base + Q_FULL.start)

        @cuda.jit(device=True, forceinline=True)
        def load_next(base, x_map, row, head, b, stage, parity):
            full = base + RING.full + stage * BARRIER
            wait(base + RING.empty + stage * BARRIER, parity)
            mbarrier_arrive_expect_tx(full, COUNT * PANEL_BYTES)
            load_piece(piece_of(base, stage), x_map, row, head, b, full)
            return advance(stage, parity, 1)

        return load_of_q, load_next

    (q_0, next_0), (q_1, next_1), (q_2, next_2), (q_3, next_3) = map(make_load_piece, range(PIECES))

    @cuda.jit(device=True, forceinline=True)
    def load_pieces(base, x_map, n_start, head, b, stage, parity):
        """Load all pieces of a tile; returns the next stage."""
        stage, parity = next_0(base, x_map, n_start, head, b, stage, parity)
        stage, parity = next_1(base, x_map, n_start, head, b, stage, parity)
        stage, parity = next_2(base, x_map, n_start, head, b, stage, parity)
        return next_3(base, x_map, n_start, head, b, stage, parity)

    @cuda.jit(device=True, forceinline=True)
    def produce(base, q_map, k_map, v_map, m_start, k_start, first, end, head, kv_head, b):
        """The role of the thread that loads; m_start and k_start are rows of the maps."""
        mbarrier_arrive_expect_tx(base + Q_FULL.start, Q_BYTES)
        q_0(base, q_map, m_start, head, b)
        q_1(base, q_map, m_start, head, b)
        q_2(base, q_map, m_start, head, b)
        q_3(base, q_map, m_start, head, b)
        stage, parity = int32(0), int32(1)  # a wait with parity 1 on a new mbarrier returns at once
        n_tile = first
        while n_tile <= end:
            n_start = int32(k_start + n_tile * BLOCK_N)
            if n_tile < end:
                stage, parity = load_pieces(base, k_map, n_start, kv_head, b, stage, parity)
            if n_tile > first:
                before = int32(n_start - BLOCK_N)
                stage, parity = load_pieces(base, v_map, before, kv_head, b, stage, parity)
            n_tile = int32(n_tile + 1)

    def make_add_scores(COLS):
        """S += Q Kᵀ of the next piece, of COLS columns; releases the piece before."""

        @cuda.jit(device=True, forceinline=True)
        def add_scores(s, base, stage, parity, q_desc, lane):
            before = stage
            stage, parity = advance(stage, parity, 1)
            k_desc = descriptor(K_MAJOR_DESC, piece_of(base, stage))
            wait_for(base, stage, parity)
            wgmma_fence()
            multiply_more(BLOCK_N, COLS, s, q_desc, k_desc)
            wgmma_commit()
            wgmma_wait_group(1)
            release(base, before, lane)
            return stage, parity

        return add_scores

    add_1, add_2, add_3 = map(make_add_scores, COLS[1:])

    @cuda.jit(device=True, forceinline=True)
    def start_scores(s, base, stage, parity, lane):
        """S = Q Kᵀ, piece after piece; returns the last one's stage, whose product is in flight."""
        q_desc = descriptor(K_MAJOR_DESC, uint32(base + Q.start))
        wait_for(base, stage, parity)
        wgmma_fence()
        multiply(BLOCK_N, COLS_0, s, q_desc, descriptor(K_MAJOR_DESC, piece_of(base, stage)))
        wgmma_commit()
        stage, parity = add_1(s, base, stage, parity, uint64(q_desc + uint64(STEP)), lane)
        stage, parity = add_2(s, base, stage, parity, uint64(q_desc + uint64(2 * STEP)), lane)
        stage, parity = add_3(s, base, stage, parity, uint64(q_desc + uint64(3 * STEP)), lane)
        return stage, parity

    @cuda.jit(device=True, forceinline=True)
    def clear_keys(memory, base, stage, num_keys, tid):
        """In a piece of V that has arrived, zero the rows after a sequence's last keys."""
        if PACKED:
            if num_keys < BLOCK_N:
                clear_rows(memory, piece_of(base, stage), 2, BLOCK_N, num_keys, tid)

    def make_start_out(COLS):
        """A piece of out <- out + P V, of a tile with num_keys keys."""

        @cuda.jit(device=True, forceinline=True)
        def start_out(acc, p, memory, base, stage, parity, num_keys, tid):
            v_desc = descriptor(MN_MAJOR_DESC, piece_of(base, stage))
            wait_for(base, stage, parity)
            clear_keys(memory, base, stage, num_keys, tid)
            wgmma_fence()
            multiply_registers(COLS, BLOCK_N, acc, p, v_desc)
            wgmma_commit()

        return start_out

    start_0, start_2 = make_start_out(COLS_0), make_start_out(COLS_2)

    @cuda.jit(device=True, forceinline=True)
    def start_all_out(acc_0, acc_2, p, memory, base, stage, parity, num_keys, tid):
        """Warpgroup 1's pieces of P V: every second one; returns their stages."""
        start_0(acc_0, p, memory, base, stage, parity, num_keys, tid)
        second, parity = advance(stage, parity, 2)
        start_2(acc_2, p, memory, base, second, parity, num_keys, tid)
        return stage, second

    @cuda.jit(device=True, forceinline=True)
    def finish_all_out(acc_0, acc_2, p, base, first, second, lane):
        wgmma_wait_with(0, acc_0, LENGTH_0, p, P_LENGTH)
        release(base, first, lane)
        hold(acc_2, LENGTH_2)
        release(base, second, lane)

    @cuda.jit(device=True, forceinline=True)
    def announce(base, p_stage, lane):
        """Signal warpgroup 2 that this warp's factors and P are there."""
        if lane == 0:
            mbarrier_arrive(base + P_RING.full + p_stage * BARRIER)

    @cuda.jit(device=True, forceinline=True)
    def hand_on(factors, base, p_stage, warp_row, lane, upper, lower):
        """Write this warp's factors for warpgroup 2; `announce` follows."""
        if lane & 3 == 0:
            factors[p_stage, warp_row + (lane >> 2)] = upper
            factors[p_stage, warp_row + (lane >> 2) + 8] = lower
        fence_async_proxy()
        cuda.syncwarp()  # all lanes have written

    @fragment_function()
    def softmax(
        s, new_p, registers, factors, base, p_stage, p_parity, n_start, position, seqlen_k,
        scale, mask_args, warp_row, lane,
    ):  # fmt: skip
        """P of a tile, in registers and in shared memory; returns True if m_i has risen."""
        m_i, l_i, alpha, offset = registers
        mask_tile(s, n_start, position, seqlen_k, lane, mask_args)
        risen, small = raise_maximum(s, offset, m_i, l_i, alpha, scale, mask_args)
        exponentiate(s, offset, m_i, l_i, small, scale, mask_args)
        pack_p(s, new_p)
        wait(base + P_RING.empty + p_stage * BARRIER, p_parity ^ 1)
        fragment = cuda.local.array(4, uint32)
        # Lanes 0 to 15 address the left, 16 to 31 the right 8 of 16 columns: the order of A.
        row = base + P.start + p_stage * PANEL_BYTES + (warp_row + (lane & 15)) * ROW_BYTES
        for k in range(P_STEPS):
            for r in range(4):
                fragment[r] = new_p[k, r]
            chunk = (2 * k + (lane >> 4)) ^ (lane & 7)
            stmatrix_x4(uint32(row + (chunk << 4)), fragment)
        upper = alpha[0] if risen else float32(1)
        lower = alpha[1] if risen else float32(1)
        hand_on(factors, base, p_stage, warp_row, lane, upper, lower)
        return risen

    @cuda.jit(device=True, forceinline=True)
    def next_p(p_stage, p_parity):
        if p_stage == P_STAGES - 1:
            return int32(0), int32(p_parity ^ 1)
        return int32(p_stage + 1), p_parity

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def compute(
        tid, memory, base, factors, out_map, packed, lse, m_start, q_start, first, end, head, b,
        seqlen_k, scale, mask_args,
    ):  # fmt: skip
        """The role of warpgroup 1: scores, softmax, and its pieces of out, 0 and 2."""
        s = cuda.local.array(S_SHAPE, float32)
        p = cuda.local.array(P_SHAPE, uint32)
        new_p = cuda.local.array(P_SHAPE, uint32)
        acc_0 = cuda.local.array(SHAPE_0, float32)
        acc_2 = cuda.local.array(SHAPE_2, float32)
        m_i = cuda.local.array(2, float32)
        l_i = cuda.local.array(2, float32)
        alpha = cuda.local.array(2, float32)
        offset = cuda.local.array(2, float32)
        inverse = cuda.local.array(2, float32)
        seqlen_q = lse.shape[2]
        lane, warp_row = tid & 31, int32((tid >> 5 & 3) * WARP_ROWS)
        position = int32(m_start + warp_row + (lane >> 2) + seqlen_k - seqlen_q)
        registers = m_i, l_i, alpha, offset
        clear_0(acc_0, m_i, l_i)
        clear_2(acc_2, m_i, l_i)
        stage, parity = int32(0), int32(0)
        p_stage, p_parity = int32(0), int32(0)

        wait(base + Q_FULL.start, 0)
        if PACKED:
            if m_start + ROWS > seqlen_q:  # rows of another sequence must not count in votes
                q_tile = uint32(base + Q.start)
                clear_rows(memory, q_tile, 2 * PIECES, ROWS, seqlen_q - m_start, tid)
        stage, parity = start_scores(s, base, stage, parity, lane)
        wgmma_wait(0, s, S_LENGTH)
        release(base, stage, lane)
        n_start = int32(first * BLOCK_N)
        softmax(
            s, p, registers, factors, base, p_stage, p_parity, n_start, position, seqlen_k,
            scale, mask_args, warp_row, lane,
        )  # fmt: skip
        n_tile = int32(first + 1)
        while n_tile < end:
            p_before = p_stage
            p_stage, p_parity = next_p(p_stage, p_parity)
            stage, parity = advance(stage, parity, 1)
            stage, parity = start_scores(s, base, stage, parity, lane)
            last = stage
            stage, parity = advance(stage, parity, 1)
            v_0, v_2 = start_all_out(acc_0, acc_2, p, memory, base, stage, parity, BLOCK_N, tid)
            stage, parity = advance(stage, parity, PIECES - 1)  # the last piece of V
            wgmma_wait(2, s, S_LENGTH)
            release(base, last, lane)
            # Only now: its products shall run beside the softmax, not beside Q Kᵀ.
            announce(base, p_before, lane)
            n_start = int32(n_tile * BLOCK_N)
            risen = softmax(
                s, new_p, registers, factors, base, p_stage, p_parity, n_start, position, seqlen_k,
                scale, mask_args, warp_row, lane,
            )  # fmt: skip
            finish_all_out(acc_0, acc_2, p, base, v_0, v_2, lane)
            for k in range(P_STEPS):
                for r in range(4):
                    p[k, r] = new_p[k, r]
            if risen:
                rescale_0(acc_0, alpha)
                rescale_2(acc_2, alpha)
            n_tile = int32(n_tile + 1)
        announce(base, p_stage, lane)
        stage, parity = advance(stage, parity, 1)
        num_keys = int32(seqlen_k - (end - 1) * BLOCK_N)
        v_0, v_2 = start_all_out(acc_0, acc_2, p, memory, base, stage, parity, num_keys, tid)
        m_warp = int32(m_start + warp_row)
        exponent_scale = exponent_scale_of(scale, mask_args)
        finish_rows(m_i, l_i, inverse, lse, b, head, m_warp, lane, exponent_scale)
        p_stage, p_parity = next_p(p_stage, p_parity)
        wait(base + P_RING.empty + p_stage * BARRIER, p_parity ^ 1)
        hand_on(factors, base, p_stage, warp_row, lane, inverse[0], inverse[1])
        announce(base, p_stage, lane)
        finish_all_out(acc_0, acc_2, p, base, v_0, v_2, lane)
        named_barrier_sync(OUT_TURN, 128)  # the four warps have read Q: out may overwrite it
        store_0(
            acc_0, inverse, base, out_map, packed, m_warp, warp_row, seqlen_q, q_start, head, b,
            lane,
        )  # fmt: skip
        store_2(
            acc_2, inverse, base, out_map, packed, m_warp, warp_row, seqlen_q, q_start, head, b,
            lane,
        )  # fmt: skip
        if lane == 0:
            tma_store_wait_read(0)  # shared memory must outlive the copy

    @fragment_function()
    def take_factors(factors, of_rows, p_stage, row):
        of_rows[0] = factors[p_stage, row]
        of_rows[1] = factors[p_stage, row + 8]

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def assist(
        tid, memory, base, factors, out_map, packed, lse, m_start, q_start, first, end, head, b,
        seqlen_k,
    ):  # fmt: skip
        """The role of warpgroup 2: P V for the other pieces of out, 1 and the last."""
        acc_1 = cuda.local.array(SHAPE_1, float32)
        acc_3 = cuda.local.array(SHAPE_3, float32)
        of_rows = cuda.local.array(2, float32)
        unread = cuda.local.array(2, float32)
        seqlen_q = lse.shape[2]
        lane, warp_row = tid & 31, int32((tid >> 5 & 3) * WARP_ROWS)
        row = int32(warp_row + (lane >> 2))
        clear_1(acc_1, of_rows, unread)
        clear_3(acc_3, of_rows, unread)
        stage, parity = advance(int32(0), int32(0), PIECES)  # after K of the first tile
        p_stage, p_parity = int32(0), int32(0)
        n_tile = first
        while n_tile < end:
            if n_tile < end - 1:
                stage, parity = advance(stage, parity, PIECES)  # K of the next tile comes before V
            second, second_parity = advance(stage, parity, 1)
            third, third_parity = advance(stage, parity, PIECES - 1)
            wait(base + P_RING.full + p_stage * BARRIER, p_parity)
            take_factors(factors, of_rows, p_stage, row)
            if not cuda.all_sync(FULL_WARP, of_rows[0] == float32(1) and of_rows[1] == float32(1)):
                rescale_1(acc_1, of_rows)
                rescale_3(acc_3, of_rows)
            p_desc = descriptor(K_MAJOR_DESC, uint32(base + P.start + p_stage * PANEL_BYTES))
            num_keys = int32(seqlen_k - n_tile * BLOCK_N)
            v_desc = descriptor(MN_MAJOR_DESC, piece_of(base, second))
            wait_for(base, second, second_parity)
            clear_keys(memory, base, second, num_keys, tid)
            wgmma_fence()
            multiply_tiles(COLS_1, BLOCK_N, acc_1, p_desc, v_desc)
            wgmma_commit()
            v_desc = descriptor(MN_MAJOR_DESC, piece_of(base, third))
            wait_for(base, third, third_parity)
            clear_keys(memory, base, third, num_keys, tid)
            wgmma_fence()
            multiply_tiles(COLS_3, BLOCK_N, acc_3, p_desc, v_desc)
            wgmma_commit()
            wgmma_wait(1, acc_1, LENGTH_1)
            release(base, second, lane)
            wgmma_wait(0, acc_3, LENGTH_3)
            release(base, third, lane)
            if lane == 0:
                mbarrier_arrive(base + P_RING.empty + p_stage * BARRIER)
            p_stage, p_parity = next_p(p_stage, p_parity)
            stage, parity = advance(stage, parity, PIECES)
            n_tile = int32(n_tile + 1)
        wait(base + P_RING.full + p_stage * BARRIER, p_parity)
        take_factors(factors, of_rows, p_stage, row)
        m_warp = int32(m_start + warp_row)
        store_1(
            acc_1, of_rows, base, out_map, packed, m_warp, warp_row, seqlen_q, q_start, head, b,
            lane,
        )  # fmt: skip
        store_3(
            acc_3, of_rows, base, out_map, packed, m_warp, warp_row, seqlen_q, q_start, head, b,
            lane,
        )  # fmt: skip
        if lane == 0:
            tma_store_wait_read(0)

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def flash_attn_wide_kernel(
        q_map, k_map, v_map, out_map, lse, seqlen_k, group_size, scale,
        left, right, unit, inverse_unit, packed,
    ):  # fmt: skip
        """A thread block owns ROWS query rows and walks the tiles of K and V.

        The maps are addresses (`tensor_maps`), with boxes of ROWS rows of q, BLOCK_N of k and v,
        and 16 of out. scale is softmax_scale · log2 e; left, right, unit, inverse_unit are
        `run_time_masks.MaskArgs`.

        grid      (num_m_tiles, num_heads, batch), packed (num_tokens_q // ROWS + batch, num_heads);
                  384 threads: a warpgroup that loads and two that compute
        shared    Q (64, 512), which out overwrites; P (P_STAGES, 64, 64); pieces of K and V
                  (STAGES, 64, 128); all in swizzled panels of 64 columns. factors (P_STAGES, 64).
                  Barriers of Q, and "full" and "empty" of each stage
        private   s (8, 4), p and new_p (4, 4); two pieces of out, (16, 4) each; m_i, l_i, alpha,
                  inverse for two rows
        HBM       reads Q once, writes out and lse once; reads K and V once per tile of queries,
                  except the tiles that none of its queries attends to
        paper     FlashAttention-3, Algorithm 2
        budget    168 registers at the start, then 24 and 240. One thread block per SM
        """
        factors = cuda.shared.array((P_STAGES, ROWS), float32)
        base = shared_base()
        tid = cuda.threadIdx.x
        head, b = int32(cuda.blockIdx.y), int32(cuda.blockIdx.z)
        kv_head = int32(head // group_size)
        # The last rows see the most keys under a causal mask: they begin first.
        m_tile, q_start, k_start = cuda.gridDim.x - 1 - cuda.blockIdx.x, int32(0), int32(0)
        memory = 0
        if PACKED:
            memory = cuda.shared.array(0, uint64)  # all dynamic memory, as numbers of 8 bytes
            sequence, q_start, seqlen_q, m_start = sequence_of(m_tile, packed[0])
            if m_start >= seqlen_q:
                return
            k_start = packed[1][sequence]
            seqlen_k = packed[1][sequence + 1] - k_start
            lse = lse[:, :, q_start : q_start + seqlen_q]
            m_start = int32(m_start)
        else:
            m_start = int32(m_tile * ROWS)
        seqlen_q = lse.shape[2]
        mask_args = MaskArgs(left, right, unit, inverse_unit)
        first, end = tiles_of(m_start, ROWS, seqlen_q, seqlen_k, mask_args)
        if tid == 0:
            mbarrier_init(base + Q_FULL.start, 1)
            for p_stage in range(P_STAGES):  # warpgroup 1 fills, warpgroup 2 empties
                mbarrier_init(base + P_RING.full + p_stage * BARRIER, WARPS)
                mbarrier_init(base + P_RING.empty + p_stage * BARRIER, WARPS)
            init_rings(base, (RING,), WARPS)
            fence_mbarrier_init()
        cuda.syncthreads()  # the barriers are made: safe to wait on

        if tid >> 7 == 0:
            setmaxnreg_dec(PRODUCER_REGISTERS)
            if tid == 0:
                q_row = int32(q_start + m_start)
                produce(
                    base, q_map, k_map, v_map, q_row, k_start, first, end, head, kv_head, b
                )  # fmt: skip
        elif tid >> 7 == 1:
            setmaxnreg_inc(CONSUMER_REGISTERS)
            compute(
                tid, memory, base, factors, out_map, packed, lse, m_start, q_start, first, end,
                head, b, seqlen_k, scale, mask_args,
            )  # fmt: skip
        else:
            setmaxnreg_inc(CONSUMER_REGISTERS)
            assist(
                tid, memory, base, factors, out_map, packed, lse, m_start, q_start, first, end,
                head, b, seqlen_k,
            )  # fmt: skip

    return flash_attn_wide_kernel


def rows_for_tma(k, v, query_tiles):
    """K and V for their maps; copied to rows that begin at lines of 128 bytes where that pays.

    Rows that begin at sectors of 32 bytes are read at full speed where they lie.

    Parameters
    ----------
    k, v : arrays of shape (batch, seqlen_k, num_kv_heads, head_dim)
    query_tiles : int
        How many read a head of K and V.
    """
    if query_tiles < TILES_OF_COPY or all(rows_begin_at(x, SECTOR_COLS) for x in (k, v)):
        return k, v
    return pad_rows(k, v, multiple=PANEL_COLS)


@arrays.replayed
@checks.takes(checks.NO_SLOPES)
def flash_attn_wide(q, k, v, **options):
    """FlashAttention-3, forward, for head_dim 264 to 512: float16 and bfloat16 on Hopper GPUs.

    Parameters
    ----------
    q, k, v, softmax_scale
        As for `flash_attn_persistent`, all of one head_dim: a multiple of 8, 264 to 512.
    causal, window_size, softcap
        As for `flash_attn_v2`.

    Returns
    -------
    out, lse : arrays
        As of `flash_attn_v2`.
    """
    call = checks.forward_call(q, k, v, on=checks.KERNELS["flash_attn_wide"], **options)
    if 0 in (call.seqlen_q, call.seqlen_k):
        return call.results_without_keys()
    mask, window_size = call.mask, run_time_masks.constants_of(call.mask).window_size
    constants = call.head_dim, mask.causal, call.dtype, window_size, mask.softcap
    kernel = make_flash_attn_wide(*constants)
    grid = (ceil_div(call.seqlen_q, ROWS), call.num_heads, call.batch)
    k, v = rows_for_tma(k, v, grid[0] * call.group_size)
    boxes = (q, ROWS), (k, BLOCK_N), (v, BLOCK_N), (call.out, WARP_ROWS)
    maps = [tensor_map(*box) for box in boxes]
    sizes = np.int32(call.seqlen_k), np.int32(call.group_size)
    arguments = *maps, call.lse, *sizes, call.scale_log2, *run_time_masks.arguments_of(mask), ()
    size = make_plan().bytes
    arrays.launch(kernel, grid, (THREADS,), *arguments, shared_bytes=size)
    return call.out, call.lse
