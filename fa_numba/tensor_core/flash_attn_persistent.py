"""Persistent FlashAttention-3 forward: one thread block per SM loops over query tiles.

flash_attn_mma         a warp multiplies tiles in registers; cp.async fetches the next
flash_attn_wgmma       four warps multiply tiles in shared memory; TMA fetches the next
flash_attn_ws          a producer warp loads; Q Kᵀ of the next key tile overlaps P V of this one
flash_attn_persistent  the next query tile is loaded while this one is computed      <- this file

In flash_attn_ws every query tile begins with a thread block's start and a wait for Q and K, and
ends with stores. The next thread block cannot start until these stores finish. With few keys that
takes much of the time. This kernel differs:

- One thread block per SM loops over many query tiles. Three producer threads, for Q, K and V, load
  tiles ahead of the consumers; none of the three waits for another's buffers.
- The next Q tile is loaded while the current one is computed (head_dim ≤ 128). Out is written to
  shared memory and stored by TMA. For head_dim > 128 out reuses Q's memory, so the next Q load
  waits for that store.
- A static tile scheduler divides each head into work slices (groups of query tiles) and assigns
  them to the thread blocks in alternating order, 0 … n−1, n−1 … 0. So every thread block has about
  the same work under a causal mask (`tiling.persistent_tiling`, `tile_scheduler`). A user's mask
  with arrays leaves unknown how long a query tile takes: with two slots for Q a thread block takes
  its next one from a queue.

`mainloop` holds the iterations over key tiles; flash_attn_persistent_varlen shares it. The softmax
rescales lazily (`lazy_rescaling`). A key tile that no query of the thread block attends to is not
loaded; one tile always is. A warpgroup skips the key tiles that none of its own rows attends to.

Dropout (`dropout_fragments`) sets entries of P to 0 between the softmax, whose sum is that of all
entries, and P V. Its Philox runs beside the exponentials of the same tile. The factor of the kept
entries goes into the final division by that sum.

Without causal, window and ALiBi only the last key tile needs masking. For 64 < head_dim ≤ 128 (two
consumers) it is processed first, so the main loop has no masking; for other sizes this gained
nothing (docs/notes/forward.md).

TFLOP/s on an H200, float16, full / causal (benchmarks/results/tensor_core.json):

    head_dim     n   this kernel       cuDNN
         128  4096     707 / 655   650 / 562
          64  4096     544 / 483   483 / 436
         128   512     540 / 349   510 / 326
          64   512     409 / 268   383 / 256

Paper: Shah et al. 2024, FlashAttention-3, arXiv:2407.08608.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32

from fa_numba import checks
from fa_numba.constants import FULL_WARP
from fa_numba.kernels.dropout import LARGEST_ON_TENSOR_CORES
from fa_numba.on_cuda_cores import run_time_masks
from fa_numba.on_cuda_cores.run_time_masks import MaskArgs
from fa_numba.ptx import mbarrier
from fa_numba.ptx.barriers import named_barrier_sync, setmaxnreg_dec, setmaxnreg_inc
from fa_numba.ptx.layouts import PANEL_COLS, ROW_BYTES
from fa_numba.ptx.mbarrier import (
    fence_mbarrier_init,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    phase,
)
from fa_numba.ptx.tma import make_load_tile, tma_store_wait_read
from fa_numba.ptx.wgmma import descriptor, descriptor_bits
from fa_numba.runtime import arrays
from fa_numba.runtime.tensor_maps import tensor_map
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.alibi import alibi_flags, ramp_bytes, write_ramp
from fa_numba.tensor_core.dropout_fragments import (
    NO_DROPOUT,
    Dropout,
    dropout_arguments,
    make_query_rows,
)
from fa_numba.tensor_core.expression_tiles import (
    ExpressionArgs,
    add_sink,
    has_unknown_work,
    make_run_functions,
    make_tile_functions,
    runs_of,
)
from fa_numba.tensor_core.fragments import (
    make_fragment_functions,
    make_score_mod,
    make_store_float32,
    make_store_tile,
)
from fa_numba.tensor_core.mainloop import (
    DroppingArgs,
    KVRings,
    Registers,
    make_mainloop,
    make_plan,
    make_ring,
    make_tiles_of,
    make_walk,
    tile_bytes,
)
from fa_numba.tensor_core.run_tables import queue_of
from fa_numba.tensor_core.shared_plan import init_rings
from fa_numba.tensor_core.tile_scheduler import (
    BATCH,
    HEAD,
    M_START,
    MORE,
    SECTION_BYTES,
    WORK_LENGTH,
    divided,
    make_for_each_taken,
    make_for_each_tile,
)
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.persistent_tiling import (
    ROWS,
    WARP_ROWS,
    choose_num_slices,
    num_slices_for,
    persistent_tiling,
)

REQUIREMENTS = checks.KERNELS["flash_attn_persistent"]
# Registers per thread set by setmaxnreg: {consumer warpgroups: (producer, consumer)}. The sum over
# all threads must not exceed 65536: 128 · (40 + 2 · 232) = 64512, 128 · (32 + 3 · 160) = 65536.
REGISTERS = {2: (40, 232), 3: (32, 160)}


class ProducerArgs(NamedTuple):
    """Arguments of a producer thread.

    Attributes
    ----------
    loads_q, loads_k : bool
        True for the thread of Q, and for that of K.
    q_map, kv_map : uint64
        Tensor maps (addresses) of Q, and of K or V.
    kv_tile, kv_full : int
        Shared memory addresses: the first tile of K or V, and its barrier "full".
    work : shared array of shape (SLOTS, WORK_LENGTH)
        The query tile in each slot of Q.
    base : int
        Shared memory address of the plan's regions.
    seqlen_q, seqlen_k : int
    mask_args : MaskArgs
    runs : tuple
        With expressions, their table (`expression_tiles.runs_of`).
    """

    loads_q: Any
    loads_k: Any
    q_map: Any
    kv_map: Any
    kv_tile: Any
    kv_full: Any
    work: Any
    base: Any
    seqlen_q: Any
    seqlen_k: Any
    mask_args: Any
    runs: Any


@functools.cache
def make_flash_attn_persistent(
    HEAD_DIM, TILING, CAUSAL, DTYPE, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False, DROPOUT=False,
    OUT_FLOAT32=False, EXPRESSIONS=None, SINKS=False, HEAD_DIM_V=None,
):  # fmt: skip
    """The kernel for these compile-time constants; `mainloop.make_plan` lays out its memory.

    128 threads for the producer warpgroup and for each consumer warpgroup of TILING
    (`PersistentTiling`). HEAD_DIM, of Q and K, is a multiple of 8, and so is HEAD_DIM_V, of V and
    out: at most HEAD_DIM, and that by default. DTYPE is "float16" or "bfloat16". Without ALIBI the
    argument alibi_slopes is not read, and may be any scalar. WINDOW and SOFTCAP may be AT_RUN_TIME
    (`run_time_masks`); otherwise left, right, unit and inverse_unit are not read. With DROPOUT the
    kernel has more arguments, `dropout_fragments.dropout_arguments`. With OUT_FLOAT32 the argument
    out_map is out itself, float32, and the registers are stored without TMA.

    With EXPRESSIONS the mask and the score are the user's alone, or their mask and SOFTCAP; runs is
    that of `runs_of` and args the tuple of their arguments; sinks is that of the sinks, with SINKS.
    Otherwise empty.
    """
    CONSUMERS, BLOCK_N = TILING.consumers, TILING.block_n
    SLOTS = TILING.slots
    BLOCK_M = ROWS * CONSUMERS
    THREADS = TILING.num_threads
    HEAD_DIM_V = HEAD_DIM_V or HEAD_DIM
    OUT_COLS = 16 * ceil_div(HEAD_DIM_V, 16)  # a multiple of 16, as wgmma needs; the others are 0
    # 128-byte-swizzled panels of 64 columns, as TMA and wgmma require.
    NUM_PANELS = ceil_div(HEAD_DIM, PANEL_COLS)
    Q_BYTES = NUM_PANELS * ROWS * ROW_BYTES  # rows of Q of one consumer warpgroup
    SLOT_BYTES = CONSUMERS * Q_BYTES
    K_MAJOR_DESC = descriptor_bits()  # Q: head_dim, the reduction dimension, is contiguous
    S_SHAPE, P_SHAPE, OUT_SHAPE = (BLOCK_N // 8, 4), (BLOCK_N // 16, 4), (OUT_COLS // 8, 4)
    EXPRESSED = EXPRESSIONS is not None
    # A thread block takes the next query tile when it is ready. With one slot it must know before.
    TAKEN = SLOTS > 1 and has_unknown_work(EXPRESSIONS)
    RANGES = 3 if TAKEN else 1  # where they begin in runs
    FIRST_RUN = WORK_LENGTH  # with expressions, where the first run of a query tile is in its work
    WORK_SHAPE = SLOTS, WORK_LENGTH + (4 if EXPRESSED else 0)
    plan = make_plan(HEAD_DIM, TILING, ALIBI, HEAD_DIM_V=HEAD_DIM_V)
    Q, OUT, K, V, RAMP = plan.Q, plan.OUT, plan.K, plan.V, plan.RAMP
    Q_RING, K_RING, V_RING = plan.Q_RING, plan.K_RING, plan.V_RING
    shared_base = plan.shared_base
    BARRIER = mbarrier.BYTES
    PRODUCER_REGISTERS, CONSUMER_REGISTERS = REGISTERS[CONSUMERS]
    ALIBI_BY_WGMMA = alibi_flags(CAUSAL, WINDOW, SOFTCAP, ALIBI).by_wgmma
    RAMP_BYTES = ramp_bytes(BLOCK_N)
    OUT_IN_Q = SLOTS == 1  # out has no memory of its own: it overwrites Q
    OUT_BYTES = Q_BYTES if OUT_IN_Q else tile_bytes(HEAD_DIM_V, ROWS)  # of a consumer warpgroup
    LEFT = WINDOW[0] >= 0
    # Measured to gain with three consumers alone: docs/notes/masks.md, docs/notes/forward.md.
    PLAIN_CAUSAL = CAUSAL and WINDOW == (-1, -1) and SOFTCAP == 0
    HALVES = (LEFT or PLAIN_CAUSAL) and not (ALIBI or DROPOUT) and CONSUMERS == 3
    # Without causal, window and ALiBi only the last key tile needs masking. It is processed first,
    # so the loop has no masking. Measured to gain for these head_dims alone: docs/notes/forward.md.
    LAST_FIRST = not (CAUSAL or ALIBI) and WINDOW == (-1, -1) and not EXPRESSED
    LAST_FIRST = LAST_FIRST and CONSUMERS == 2 and HEAD_DIM_V <= 128
    # ALiBi: start at the diagonal tile, which has the largest scores. Not with a left window: it
    # already drops the distant keys, and the reordering needs a range that begins at tile 0.
    REORDERED = LAST_FIRST or (ALIBI and not LEFT)
    pack = forward.pack_of(DTYPE)
    clear = make_fragment_functions(BLOCK_N, OUT_COLS, pack).clear
    exponent_scale_of = make_score_mod(BLOCK_N, CAUSAL, WINDOW, SOFTCAP, ALIBI).exponent_scale_of
    tiles_of = make_tiles_of(BLOCK_N, CAUSAL, WINDOW)
    next_stage, load_kv, skip_tiles = make_ring(HEAD_DIM, TILING, HEAD_DIM_V)
    options = DTYPE, WINDOW, SOFTCAP, ALIBI
    more = not LAST_FIRST, DROPOUT, HALVES, EXPRESSIONS, HEAD_DIM_V
    loop = make_mainloop(HEAD_DIM, TILING, CAUSAL, *options, *more)
    run_of = make_run_functions(BLOCK_M).run_of
    walk = make_walk(BLOCK_M, BLOCK_N, loop, skip_tiles)
    softmax_scale_of = make_tile_functions(BLOCK_N, EXPRESSIONS).exponent_scale_of
    score_mod_args_of, unmasked_range_of = loop.score_mod_args_of, loop.unmasked_range_of
    first_iteration, iterate = loop.first_iteration, loop.iterate
    add_last_product, finish_product = loop.add_last_product, loop.finish_product
    ends_in_half = loop.ends_in_half
    load_tile = make_load_tile(NUM_PANELS)
    finish_rows, store_tile = make_store_tile(HEAD_DIM_V, pack)
    if OUT_FLOAT32:
        store_tile = make_store_float32(HEAD_DIM_V)
    place_of = make_query_rows(BLOCK_N).place_of
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def first_tile_of(m_start, end, seqlen_q, seqlen_k):
        """Index of the key tile to process first, if REORDERED.

        The last one if LAST_FIRST, else the tile on the diagonal of row m_start. The producer's
        `end` is the thread block's, a consumer's is its warpgroup's, and yet both find the same
        tile: with LAST_FIRST the two ends are equal, and otherwise each warpgroup's range includes
        the diagonal tile of m_start, as its rows do not come before m_start.
        """
        if LAST_FIRST:
            return int32(end - 1)
        return max(min(int32((m_start + seqlen_k - seqlen_q) // BLOCK_N), int32(end - 1)), int32(0))

    @cuda.jit(device=True, forceinline=True)
    def load_q_tile(num_q_tiles_done, m_start, head, b, args):
        """Wait for a free slot, describe the query tile in work[slot], and start its TMA load."""
        slot = num_q_tiles_done % SLOTS
        full = args.base + Q_RING.full + slot * BARRIER
        wait(args.base + Q_RING.empty + slot * BARRIER, phase(num_q_tiles_done, SLOTS) ^ 1)
        args.work[slot, M_START] = m_start
        args.work[slot, HEAD] = head
        args.work[slot, BATCH] = b
        args.work[slot, MORE] = 1
        if EXPRESSED:  # here nobody waits for it
            run = run_of(args.runs[0], b, head, m_start, int32(0))
            for i in range(3):
                args.work[slot, FIRST_RUN + i] = run[i]
        mbarrier_arrive_expect_tx(full, SLOT_BYTES)
        for w in range(CONSUMERS):
            q_rows = args.base + Q.start + slot * SLOT_BYTES + w * Q_BYTES
            load_tile(q_rows, ROWS, args.q_map, m_start + ROWS * w, head, b, full)

    @cuda.jit(device=True, forceinline=True)
    def load(state, m_start, head, b, kv_head, args):
        """Q's thread loads one query tile; K's and V's threads load the key tiles for it.

        The state is the number of query tiles done, and the next stage of K's or V's ring with the
        parity of the phase of "empty" to wait for.
        """
        num_q_tiles_done, stage, empty_parity = state
        if args.loads_q:
            load_q_tile(num_q_tiles_done, m_start, head, b, args)
            num_q_tiles_done = int32(num_q_tiles_done + 1)
        elif EXPRESSED:
            r = int32(0)
            i, end, _ = run_of(args.runs[0], b, head, m_start, r)
            while i < end:
                load_kv(
                    args.kv_map, int32(i * BLOCK_N), kv_head, b,
                    args.kv_tile, args.kv_full, stage, empty_parity, args.loads_k,
                )  # fmt: skip
                stage, empty_parity = next_stage(stage, empty_parity)
                i = int32(i + 1)
                if i == end:
                    r = int32(r + 1)
                    i, end, _ = run_of(args.runs[0], b, head, m_start, r)
        else:
            i, end = tiles_of(m_start, BLOCK_M, args.seqlen_q, args.seqlen_k, args.mask_args)
            first_tile = first_tile_of(m_start, end, args.seqlen_q, args.seqlen_k)
            while i < end:
                tile = i  # if REORDERED: first_tile, then 0, 1, … without first_tile
                if REORDERED and i <= first_tile:
                    tile = first_tile if i == 0 else int32(i - 1)
                n_start = tile * BLOCK_N
                load_kv(
                    args.kv_map, n_start, kv_head, b,
                    args.kv_tile, args.kv_full, stage, empty_parity, args.loads_k,
                )  # fmt: skip
                stage, empty_parity = next_stage(stage, empty_parity)
                i = int32(i + 1)
        return num_q_tiles_done, stage, empty_parity

    load_each = make_for_each_tile(BLOCK_M, load)
    take_each = make_for_each_taken(BLOCK_M, load)

    @cuda.jit(device=True, forceinline=True)
    def follow(state, group_size, args):
        """K's and V's threads load for the query tiles that Q's thread has taken."""
        num_q_tiles_done, slot = int32(0), int32(0)
        wait(args.base + Q_RING.full, int32(0))
        while args.work[slot, MORE] != 0:
            m_start, head, b = (
                args.work[slot, M_START],
                args.work[slot, HEAD],
                args.work[slot, BATCH],
            )
            kv_head, _ = divided(head, group_size)
            # The consumers need these tiles, so they cannot have released the slot.
            state = load(state, m_start, head, b, kv_head, args)
            num_q_tiles_done = int32(num_q_tiles_done + 1)
            slot = int32(num_q_tiles_done % SLOTS)
            wait(args.base + Q_RING.full + slot * BARRIER, phase(num_q_tiles_done, SLOTS))

    @cuda.jit(device=True, forceinline=True)
    def produce(
        tid, work, base, q_map, k_map, v_map, shape, seqlen_k, group_size, num_slices, mask_args,
        runs,
    ):  # fmt: skip
        """The role of a producer thread: thread 0 loads Q, 32 loads K, 64 loads V."""
        loads_k = tid == 32
        kv_map = k_map if loads_k else v_map
        kv_tile = base + K.start if loads_k else base + V.start
        kv_full = base + K_RING.full if loads_k else base + V_RING.full
        args = ProducerArgs(
            tid == 0, loads_k, q_map, kv_map, kv_tile, kv_full, work, base, shape[2], seqlen_k,
            mask_args, runs,
        )  # fmt: skip
        # A wait with parity 1 on a new mbarrier returns at once, so the first loads do not block.
        state = int32(0), int32(0), int32(1)
        if TAKEN:
            if tid == 0:
                state = take_each(state, shape, num_slices, runs[1], runs[2], args)
            else:
                follow(state, group_size, args)
        else:
            state = load_each(state, shape, group_size, num_slices, args)
        num_q_tiles_done, _, _ = state
        if tid == 0:  # tell the consumers that there are no more query tiles
            slot = num_q_tiles_done % SLOTS
            wait(base + Q_RING.empty + slot * BARRIER, phase(num_q_tiles_done, SLOTS) ^ 1)
            work[slot, MORE] = 0
            mbarrier_arrive(base + Q_RING.full + slot * BARRIER)  # expects no TMA bytes

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def consume(
        tid, work, base, out_map, lse, seqlen_k, scale, alibi_slopes, mask_args, dropout,
        sinks, runs, expression_args,
    ):  # fmt: skip
        """The role of a consumer warpgroup: attention for its ROWS rows of each query tile."""
        s = cuda.local.array(S_SHAPE, float32)
        p = cuda.local.array(P_SHAPE, uint32)
        acc = cuda.local.array(OUT_SHAPE, float32)
        m_i = cuda.local.array(2, float32)
        l_i = cuda.local.array(2, float32)
        alpha = cuda.local.array(2, float32)
        inverse = cuda.local.array(2, float32)
        offset = cuda.local.array(2, float32)
        q_tile, q_full, q_empty = base + Q.start, base + Q_RING.full, base + Q_RING.empty
        k_full, v_full, v_empty = base + K_RING.full, base + V_RING.full, base + V_RING.empty
        ramp = uint32(base + RAMP.start)
        seqlen_q = lse.shape[2]
        warpgroup, lane = tid >> 7, tid & 31
        warp_row = int32((tid >> 5 & 3) * WARP_ROWS)  # first of this warp's rows in the warpgroup's
        # Index of this warpgroup's ROWS rows in a query tile. The shuffle makes it warp-uniform, so
        # ptxas can use uniform registers.
        wg_index = int32(cuda.shfl_sync(FULL_WARP, warpgroup, 0) - 1)
        out_rows = uint32(base + OUT.start + wg_index * OUT_BYTES + warp_row * ROW_BYTES)

        # P = exp2((s − m_i) · exponent_scale)
        exponent_scale = exponent_scale_of(scale, mask_args)
        if EXPRESSED and SOFTCAP == 0:
            exponent_scale = softmax_scale_of(scale)
        registers = Registers(s, p, acc, m_i, l_i, alpha, offset)
        rings = KVRings(base + K.start, k_full, base + V.start, v_full)
        num_q_tiles_done = int32(0)
        # Between query tiles: of the next tile of K and V. In the loop over key tiles: of the tile
        # whose S is computed but whose P V is not.
        stage, parity = int32(0), int32(0)
        while True:
            slot = int32(num_q_tiles_done % SLOTS)
            wait(q_full + slot * BARRIER, phase(num_q_tiles_done, SLOTS))
            if work[slot, MORE] == 0:
                break
            m_start = work[slot, M_START]
            m = int32(m_start + wg_index * ROWS)  # the warpgroup's first row
            wg_position = int32(m + seqlen_k - seqlen_q)
            position = int32(wg_position + warp_row + (lane >> 2))
            if DROPOUT:
                place = place_of(m + warp_row, work[slot, HEAD], work[slot, BATCH], lane)
            if EXPRESSED:
                head, b = work[slot, HEAD], work[slot, BATCH]
                first_run = (
                    work[slot, FIRST_RUN], work[slot, FIRST_RUN + 1], work[slot, FIRST_RUN + 2]
                )  # fmt: skip
                of_tile = b, head, expression_args, runs[RANGES:]
                if DROPOUT:
                    args = ExpressionArgs(scale, place, dropout, True, *of_tile)
                else:
                    args = ExpressionArgs(scale, 0, 0, True, *of_tile)
            else:
                score_mod_args = score_mod_args_of(
                    alibi_slopes, work[slot, HEAD], scale, ramp, wg_position, lane, mask_args
                )
                if DROPOUT:
                    of_scores = score_mod_args
                    args = DroppingArgs(
                        of_scores.slope, of_scores.scale, of_scores.pieces, of_scores.ramp,
                        of_scores.wg_position, of_scores.mask_args, place, dropout,
                    )  # fmt: skip
                else:
                    args = score_mod_args
            q_desc = descriptor(
                K_MAJOR_DESC, uint32(q_tile + slot * SLOT_BYTES + wg_index * Q_BYTES)
            )
            clear(acc, m_i, l_i)

            remaining = int32(0)
            if EXPRESSED:
                stage, parity, remaining, _ = walk(
                    registers, rings, stage, parity, q_desc, first_run, runs[0],
                    (b, head, m_start), wg_index, position, seqlen_k, args, lane,
                )  # fmt: skip
            else:
                n_tile, end = tiles_of(m, ROWS, seqlen_q, seqlen_k, mask_args)
                step_start = int32(n_tile * BLOCK_N)
                # A warpgroup whose rows are all past seqlen_q processes one tile alone.
                step_end = int32(step_start + BLOCK_N if m >= seqlen_q else end * BLOCK_N)
                first_start = int32(first_tile_of(m_start, end, seqlen_q, seqlen_k) * BLOCK_N)
                unmasked_range = unmasked_range_of(wg_position, seqlen_k, mask_args)
                if LEFT:  # release the key tiles before this warpgroup's window
                    first, _ = tiles_of(m_start, BLOCK_M, seqlen_q, seqlen_k, mask_args)
                    stage, parity = skip_tiles(n_tile - first, stage, parity, k_full, v_full, lane)

                n_start = first_start if REORDERED else step_start
                first_iteration(
                    registers, rings, stage, parity, q_desc, n_start,
                    position, seqlen_k, args, lane,
                )  # fmt: skip
                step_start = int32(step_start + BLOCK_N)
                while step_start < step_end:
                    n_start = step_start
                    # first_start was processed first, so up to it step i processes tile i − 1.
                    if REORDERED and step_start <= first_start:
                        n_start = int32(step_start - BLOCK_N)
                    stage, parity = iterate(
                        registers, rings, stage, parity, q_desc, n_start,
                        unmasked_range, position, seqlen_k, args, lane,
                    )  # fmt: skip
                    step_start = int32(step_start + BLOCK_N)

            halved = False
            if HALVES:
                last_start = int32(step_end - BLOCK_N)
                halved = last_start > n_tile * BLOCK_N
                halved = halved and ends_in_half(last_start, wg_position, seqlen_k, mask_args)
            add_last_product(registers, rings, stage, parity, halved)
            # Read again, while P V runs: the loop needs the registers.
            m_start, head, b = work[slot, M_START], work[slot, HEAD], work[slot, BATCH]
            cuda.syncwarp()  # all lanes have read work: safe to overwrite
            if lane == 0 and not OUT_IN_Q:
                mbarrier_arrive(q_empty + slot * BARRIER)  # work and Q are read
            m_warp = int32(m_start + wg_index * ROWS + warp_row)
            if SINKS:
                add_sink(m_i, l_i, alpha, sinks[0][head], exponent_scale, lane)
            finish_rows(m_i, l_i, inverse, lse, b, head, m_warp, lane, exponent_scale)
            for h in range(2):
                if SINKS:
                    inverse[h] *= alpha[h]
                if DROPOUT:
                    inverse[h] *= dropout.scale
            finish_product(acc, p, v_empty + stage * BARRIER, lane)
            stage, parity = next_stage(stage, parity)
            if OUT_IN_Q:
                # Barrier 1, 2 or 3 (0 is syncthreads): the warpgroup's 4 warps have read Q, so that
                # out may overwrite it.
                named_barrier_sync(warpgroup, 128)
            store_tile(acc, inverse, out_rows, out_map, m_warp, seqlen_q, head, b, lane)
            if lane == 0 and OUT_IN_Q:
                # The next Q overwrites out: TMA must have read it before the slot is released.
                tma_store_wait_read(0)
                mbarrier_arrive(q_empty + slot * BARRIER)
            if not EXPRESSED:
                _, end = tiles_of(m_start, BLOCK_M, seqlen_q, seqlen_k, mask_args)
                remaining = int32(end - step_start // BLOCK_N)
            # Release the key tiles after this warpgroup's last.
            stage, parity = skip_tiles(remaining, stage, parity, k_full, v_full, lane)
            num_q_tiles_done = int32(num_q_tiles_done + 1)
        if lane == 0:
            tma_store_wait_read(0)  # shared memory must outlive the last copy

    @cuda.jit(device=True, inline="always", fastmath=True)
    def run(
        q_map, k_map, v_map, out_map, lse, seqlen_k, group_size, num_slices, scale, alibi_slopes,
        left, right, unit, inverse_unit, dropout, sinks, runs, args,
    ):  # fmt: skip
        """The kernel, with dropout or without."""
        work = cuda.shared.array(WORK_SHAPE, int32)  # M_START, HEAD, BATCH, MORE of each slot of Q
        base = shared_base()
        tid = cuda.threadIdx.x
        mask_args = MaskArgs(left, right, unit, inverse_unit)
        if tid == 0:
            # Arrivals that complete a phase of "empty": one lane of each consumer warp.
            init_rings(base, (Q_RING,), 4 * CONSUMERS)
            init_rings(base, (K_RING, V_RING), 4 * CONSUMERS)
            fence_mbarrier_init()
        if ALIBI_BY_WGMMA:
            write_ramp(uint32(base + RAMP.start), RAMP_BYTES, int32(tid), THREADS)
        cuda.syncthreads()  # the barriers are initialized: safe to wait on

        if tid >> 7 == 0:
            setmaxnreg_dec(PRODUCER_REGISTERS)
            if tid in (0, 32, 64):  # one thread in each of three warps
                maps = q_map, k_map, v_map
                sizes = seqlen_k, group_size, num_slices
                produce(tid, work, base, *maps, lse.shape, *sizes, mask_args, runs)
        else:
            setmaxnreg_inc(CONSUMER_REGISTERS)
            consume(
                tid, work, base, out_map, lse, seqlen_k, scale, alibi_slopes, mask_args, dropout,
                sinks, runs, args,
            )  # fmt: skip

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def flash_attn_persistent_kernel(
        q_map, k_map, v_map, out_map, lse, seqlen_k, group_size, num_slices, scale, alibi_slopes,
        left, right, unit, inverse_unit, sinks, runs, args,
    ):  # fmt: skip
        """A thread block loops over query tiles, and for each over the tiles of K and V.

        The maps are addresses (`tensor_maps`), with boxes of ROWS rows of q, BLOCK_N of k and v,
        and 16 of out. A head has num_slices work slices (`persistent_tiling`); with a queue they
        are the heads of a section (`tile_scheduler`). scale is softmax_scale · log2 e; left,
        right, unit, inverse_unit are `run_time_masks.MaskArgs`.

        grid      (at most one per SM,); warpgroup 0 is the producer, the others are consumers
        shared    Q (SLOTS, CONSUMERS, 64, HEAD_DIM); OUT (CONSUMERS, 64, HEAD_DIM_V), in Q's memory
                  if SLOTS is 1; K (STAGES, BLOCK_N, HEAD_DIM), V (STAGES, BLOCK_N, HEAD_DIM_V); all
                  in swizzled panels of 64 columns. work (SLOTS, 4): the query tile in each slot of
                  Q. Q_RING, K_RING, V_RING: barriers "full" and "empty" of each slot or stage. With
                  ALIBI the RAMP: the key columns 0, 1, 2, … that wgmma multiplies by the ALiBi
                  slope (`alibi`)
        private   s (BLOCK_N / 8, 4), p (BLOCK_N / 16, 4), acc (HEAD_DIM_V / 8, 4); m_i, l_i, alpha,
                  inverse, offset for two rows
        HBM       reads Q once, writes out and lse once; reads K and V once per query tile, except
                  the key tiles that none of its queries attends to
        paper     FlashAttention-3, Algorithm 2
        budget    168 registers at the start with 2 consumers, 128 with 3; then REGISTERS. One
                  thread block per SM
        """
        run(
            q_map, k_map, v_map, out_map, lse, seqlen_k, group_size, num_slices, scale,
            alibi_slopes, left, right, unit, inverse_unit, NO_DROPOUT, sinks, runs, args,
        )  # fmt: skip

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def flash_attn_persistent_dropout_kernel(
        q_map, k_map, v_map, out_map, lse, seqlen_k, group_size, num_slices, scale, alibi_slopes,
        left, right, unit, inverse_unit,
        key_0, key_1, key_2, key_3, key_4, key_5, key_6, limits, keep_scale, sinks, runs, args,
    ):  # fmt: skip
        """flash_attn_persistent_kernel with dropout: the same budget."""
        keys = key_0, key_1, key_2, key_3, key_4, key_5, key_6
        run(
            q_map, k_map, v_map, out_map, lse, seqlen_k, group_size, num_slices, scale,
            alibi_slopes, left, right, unit, inverse_unit,
            Dropout(keys, limits, keep_scale), sinks, runs, args,
        )  # fmt: skip

    return flash_attn_persistent_dropout_kernel if DROPOUT else flash_attn_persistent_kernel


@arrays.replayed
@checks.takes(checks.SCORES)
def flash_attn_persistent(q, k, v, *, dropout_p=0.0, seed=0, out_dtype=None, **options):
    """FlashAttention-3, forward, persistent: float16 and bfloat16 on Hopper GPUs.

    Parameters
    ----------
    q : GPU array of shape (batch, seqlen_q, num_heads, head_dim), float16 or bfloat16
    k : GPU array of shape (batch, seqlen_k, num_kv_heads, head_dim), dtype of q
    v : GPU array of shape (batch, seqlen_k, num_kv_heads, head_dim_v), dtype of q
        num_heads is a multiple of num_kv_heads (MHA, GQA, MQA). Any strides that are multiples of
        16 bytes, with a contiguous last axis; head_dim a multiple of 8, up to 256; head_dim_v a
        multiple of 8, up to head_dim.
    causal, window_size, softcap, alibi_slopes
        As for `flash_attn_v2`.
    softmax_scale : float, default=1/√head_dim
        Positive.
    dropout_p, seed
        As for `flash_attn_v2`, with the same mask; dropout_p at most 31/32.
    mask, mask_args, score, score_args, sinks
        As for `flash_attn_v2`.
    out_dtype : "float32", default=None
        Dtype of out; None is that of q. A partial result, to be merged with others, loses nothing
        in float32.

    Returns
    -------
    out : array of the shape and library of q, but with the head_dim of v
        0 in a row that sees no key.
    lse : array of shape (batch, num_heads, seqlen_q), float32
        Natural log of the row's sum of e^score; −inf in a row that sees no key.
    """
    call = checks.forward_call(q, k, v, on=REQUIREMENTS, out_dtype=out_dtype, **options)
    dropout_p, seed = checks.check_dropout(dropout_p, seed, largest=LARGEST_ON_TENSOR_CORES)
    if 0 in (call.seqlen_q, call.seqlen_k):
        return call.results_without_keys()
    # A softcap as an argument would cost 2 to 5 % of the time: docs/notes/launching.md.
    mask, window_size = call.mask, run_time_masks.constants_of(call.mask).window_size
    tiling = persistent_tiling(
        call.head_dim,
        call.seqlen_k,
        mask.causal,
        seqlen_q=call.seqlen_q,
        head_dim_v=call.head_dim_v,
    )
    if dropout_p > 0:  # Philox runs beside the exponentials: no wait for P V may lie between
        tiling = tiling._replace(overlap=False)
    expressions = call.expressions_if_any
    kernel = make_flash_attn_persistent(
        call.head_dim, tiling, mask.causal, call.dtype, window_size, mask.softcap, mask.alibi,
        dropout_p > 0, out_dtype is not None, expressions, call.has_sinks, call.head_dim_v,
    )  # fmt: skip
    consumers, block_n = tiling.consumers, tiling.block_n
    num_sms, batch_heads = arrays.num_sms(q), call.batch * call.num_heads
    if call.given is None:
        tiles = ROWS * consumers, block_n, mask.causal, mask.window_size, consumers
        num_slices = choose_num_slices(batch_heads, num_sms, call.seqlen_q, call.seqlen_k, *tiles)
        runs = ()
    else:
        runs, counts = runs_of(call, q, k, block_n, consumers)
        num_slices = num_slices_for(counts, batch_heads, num_sms)
    num_units = num_slices * batch_heads
    if tiling.slots > 1 and has_unknown_work(expressions):
        runs = runs[0], *queue_of(q, runs[0]), *runs[1:]
        of_head = 2 * (call.head_dim + call.head_dim_v) * call.seqlen_k  # bytes of K and V
        section = call.group_size * max(SECTION_BYTES // of_head, 1)
        num_slices = min(section, batch_heads)
        num_units = len(counts) * batch_heads
    grid = (min(num_units, num_sms),)
    maps = [tensor_map(*box) for box in ((q, ROWS), (k, block_n), (v, block_n))]
    maps.append(tensor_map(call.out, WARP_ROWS) if out_dtype is None else call.out)
    sizes = np.int32(call.seqlen_k), np.int32(call.group_size), np.int32(num_slices)
    arguments = *maps, call.lse, *sizes, call.scale_log2
    arguments += call.slopes, *run_time_masks.arguments_of(mask)
    if dropout_p > 0:
        arguments += dropout_arguments(dropout_p, seed)
    arguments += call.sink_args, runs, call.expression_args
    plan = make_plan(call.head_dim, tiling, mask.alibi, HEAD_DIM_V=call.head_dim_v)
    arrays.launch(kernel, grid, (tiling.num_threads,), *arguments, shared_bytes=plan.bytes)
    return call.out, call.lse
