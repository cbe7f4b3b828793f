"""Persistent FlashAttention-3 forward over a packed batch: sequences of any lengths, no padding.

flash_attn_persistent         (batch, seqlen, ...)  each sequence as long as the longest
flash_attn_persistent_varlen  (num_tokens, ...)     each as long as it is             <- this file

The tokens of all sequences lie in one row, and cu_seqlens says where each begins: sequence b is
tokens cu_seqlens[b] to cu_seqlens[b + 1]. Tiles, products and softmax are those of
flash_attn_persistent (`mainloop`). Three things differ.

- A dynamic tile scheduler. Query tiles differ in work, and only the GPU knows the lengths. Each
  thread block sorts the sequences by their number of keys, the longest first. Then it claims one
  query tile after the other in this order from a counter in global memory: short sequences fill
  the gaps that long ones leave. A scheduler thread claims the next query tile while the producer
  threads load the current one.
- Zero-padding of the last tiles. TMA knows where the batch ends, not where a sequence ends: the
  last tile of K and V holds rows of the next sequence. Their scores are masked, but P = 0 times a
  NaN in V would be NaN. So the consumers overwrite those rows of V with 0. They overwrite those of
  Q too: a warp votes over its rows when to rescale, and no other sequence may change even the last
  bit of a result.
- Stores that end with the sequence. A warp whose rows belong to two sequences stores its own rows
  one by one instead of by TMA.

On an H200, 8 sequences of 2048 run at 663 (584) TFLOP/s at head_dim 128 and 528 (442) at 64, the
padded batch of them at 690 (588) and 530 (448); 8 of 561 to 3500 tokens at 651 (595) and 523 (460).
float16, causal in brackets; benchmarks/results/tensor_core_masks.json.

Paper: Shah et al. 2024, FlashAttention-3, arXiv:2407.08608.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint16, uint32, uint64

from fa_numba import checks
from fa_numba.constants import FULL_WARP
from fa_numba.expressions import nodes
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
from fa_numba.tensor_core.expression_tiles import (
    ExpressionArgs,
    add_sink,
    make_run_functions,
    make_tile_functions,
)
from fa_numba.tensor_core.fragments import (
    make_fragment_functions,
    make_score_mod,
    make_store_row,
    make_store_tile,
)
from fa_numba.tensor_core.mainloop import (
    KVRings,
    Registers,
    make_mainloop,
    make_plan,
    make_ring,
    make_tiles_of,
    make_walk,
    tile_bytes,
)
from fa_numba.tensor_core.run_tables import BLOCKS, make_packed_table, ranges_of_packed
from fa_numba.tensor_core.shared_plan import clear_rows, init_rings
from fa_numba.tensor_core.tile_scheduler import SECTION_BYTES, head_and_tile, sort_sequences
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.persistent_tiling import ROWS, WARP_ROWS, persistent_tiling

# Sequences of a batch that are sorted; a longer batch keeps its order. For 512 there would be no
# shared memory left at head_dim 128 with ALiBi.
MAX_SORTED = 500
# Registers per thread set by setmaxnreg: {consumer warpgroups: (producer, consumer)}, as in
# flash_attn_persistent. With two consumers the producer gets more, for it also schedules.
REGISTERS = {2: (56, 224), 3: (32, 160)}
# A slot of `work` describes a query tile: its first row in its sequence, and its head; the
# sequence's first query, its numbers of queries and keys; 1, or 0 if there are no more query tiles.
# `claim` also has the sequence's first key, and the head of K and V.
M_START, HEAD, Q_START, SEQLEN_Q, SEQLEN_K, MORE, K_START, KV_HEAD = range(8)
WORK_LENGTH, CLAIM_LENGTH = 6, 8
# With expressions both have the sequence's number, and the tile's row in the table of runs; `work`
# also has its first run.
SEQUENCE, RUNS_ROW, FIRST_RUN = 8, 9, 10
EXPRESSED_LENGTH = 13


class Batch(NamedTuple):
    """The sequences of a packed batch: arrays in global memory, and the order of processing."""

    cu_seqlens_q: Any
    cu_seqlens_k: Any
    order: Any
    counter: Any
    num_heads: Any
    group_size: Any


class Tile(NamedTuple):
    """A query tile and its sequence."""

    m_start: Any
    head: Any
    q_start: Any
    seqlen_q: Any
    seqlen_k: Any


def tiling_of(head_dim, num_tokens_k, batch, causal, softcap, head_dim_v=None):
    """The `PersistentTiling` for sequences of the average length."""
    keys = num_tokens_k // batch
    tiling = persistent_tiling(head_dim, keys, causal, packed=True, head_dim_v=head_dim_v)
    if softcap and tiling.consumers == 3:
        return tiling._replace(block_n=96)  # 128 do not leave the registers for a tanh
    return tiling


def shared_bytes(HEAD_DIM, TILING, ALIBI=False, HEAD_DIM_V=None):
    """Dynamic shared memory of a thread block."""
    return make_plan(HEAD_DIM, TILING, ALIBI, True, HEAD_DIM_V).bytes


@functools.cache
def make_flash_attn_persistent_varlen(
    HEAD_DIM, TILING, CAUSAL, DTYPE, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False, HEAD_DIM_V=None,
    EXPRESSIONS=None, SINKS=False,
):  # fmt: skip
    """The kernel for these compile-time constants; `mainloop.make_plan` lays out its memory.

    128 threads for the producer warpgroup and for each consumer warpgroup of TILING
    (`PersistentTiling`). HEAD_DIM, of Q and K, is a multiple of 8, and so is HEAD_DIM_V, of V and
    out: at most HEAD_DIM, and that by default. DTYPE is "float16" or "bfloat16". Without ALIBI the
    argument alibi_slopes is not read, and may be any scalar. WINDOW and SOFTCAP may be AT_RUN_TIME
    (`run_time_masks`); otherwise left, right, unit and inverse_unit are not read.

    With EXPRESSIONS the mask and the score are the user's alone, or their mask and SOFTCAP; runs is
    the tuple of their table (`run_tables.make_packed_table`) and args that of their arguments;
    sinks is that of the sinks, with SINKS. Otherwise empty.
    """
    CONSUMERS, BLOCK_N = TILING.consumers, TILING.block_n
    SLOTS = TILING.slots
    BLOCK_M = ROWS * CONSUMERS
    THREADS = TILING.num_threads
    HEAD_DIM_V = HEAD_DIM_V or HEAD_DIM
    OUT_COLS = 16 * ceil_div(HEAD_DIM_V, 16)  # a multiple of 16, as wgmma needs; the others are 0
    # 128-byte-swizzled panels of 64 columns, as TMA and wgmma require.
    NUM_PANELS, V_PANELS = ceil_div(HEAD_DIM, PANEL_COLS), ceil_div(HEAD_DIM_V, PANEL_COLS)
    Q_BYTES = NUM_PANELS * ROWS * ROW_BYTES  # rows of Q of one consumer warpgroup
    SLOT_BYTES = CONSUMERS * Q_BYTES
    V_BYTES = tile_bytes(HEAD_DIM_V, BLOCK_N)
    SECTION_KEYS = SECTION_BYTES // (2 * (HEAD_DIM + HEAD_DIM_V))  # of all heads of a section
    K_MAJOR_DESC = descriptor_bits()  # Q: head_dim, the reduction dimension, is contiguous
    S_SHAPE, P_SHAPE, OUT_SHAPE = (BLOCK_N // 8, 4), (BLOCK_N // 16, 4), (OUT_COLS // 8, 4)
    EXPRESSED = EXPRESSIONS is not None
    WORK_SHAPE = SLOTS, EXPRESSED_LENGTH if EXPRESSED else WORK_LENGTH
    CLAIM_SHAPE = EXPRESSED_LENGTH if EXPRESSED else CLAIM_LENGTH
    plan = make_plan(HEAD_DIM, TILING, ALIBI, True, HEAD_DIM_V)
    Q, OUT, K, V, RAMP = plan.Q, plan.OUT, plan.K, plan.V, plan.RAMP
    Q_RING, K_RING, V_RING = plan.Q_RING, plan.K_RING, plan.V_RING
    CLAIM_RING, shared_base = plan.CLAIM_RING, plan.shared_base
    BARRIER = mbarrier.BYTES
    PRODUCER_REGISTERS, CONSUMER_REGISTERS = REGISTERS[CONSUMERS]
    OUT_IN_Q = SLOTS == 1  # out has no memory of its own: it overwrites Q
    OUT_BYTES = Q_BYTES if OUT_IN_Q else tile_bytes(HEAD_DIM_V, ROWS)  # of a consumer warpgroup
    # Process the key tiles from the last to the first. Without causal and window only the last tile
    # needs masking. It then comes before the loop, and ptxas must fit only one of the two kinds of
    # iteration into registers, the unmasked one. With ALiBi also under a causal mask: the nearest
    # keys, which have the largest scores, come first, and the distant ones are negligible.
    BACKWARD = WINDOW == (-1, -1) and (ALIBI or not CAUSAL) and not EXPRESSED
    STEP = -BLOCK_N if BACKWARD else BLOCK_N
    LEFT = WINDOW[0] >= 0
    MASK_IN_LOOP = CAUSAL or WINDOW != (-1, -1)  # after the first tile, too
    ALIBI_BY_WGMMA = alibi_flags(CAUSAL, WINDOW, SOFTCAP, ALIBI).by_wgmma
    RAMP_BYTES = ramp_bytes(BLOCK_N)
    pack = forward.pack_of(DTYPE)
    clear = make_fragment_functions(BLOCK_N, OUT_COLS, pack).clear
    exponent_scale_of = make_score_mod(BLOCK_N, CAUSAL, WINDOW, SOFTCAP, ALIBI).exponent_scale_of
    tiles_of = make_tiles_of(BLOCK_N, CAUSAL, WINDOW)
    next_stage, load_kv, skip_tiles = make_ring(HEAD_DIM, TILING, HEAD_DIM_V)
    options = DTYPE, WINDOW, SOFTCAP, ALIBI, MASK_IN_LOOP
    more = {"EXPRESSIONS": EXPRESSIONS, "HEAD_DIM_V": HEAD_DIM_V}
    loop = make_mainloop(HEAD_DIM, TILING, CAUSAL, *options, **more)
    run_of = make_run_functions(BLOCK_M).run_of
    walk = make_walk(BLOCK_M, BLOCK_N, loop, skip_tiles)
    softmax_scale_of = make_tile_functions(BLOCK_N, EXPRESSIONS).exponent_scale_of
    score_mod_args_of, unmasked_range_of = loop.score_mod_args_of, loop.unmasked_range_of
    first_iteration, iterate = loop.first_iteration, loop.iterate
    add_last_product, finish_product = loop.add_last_product, loop.finish_product
    load_tile = make_load_tile(NUM_PANELS)
    finish_rows, store_tile = make_store_tile(HEAD_DIM_V, pack)
    store_row = make_store_row(HEAD_DIM_V, pack)
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def own_tiles(m_start, wg_index, seqlen_q, seqlen_k, mask_args):
        """Key tiles that the wg_index-th ROWS rows of a thread block attend to.

        Returns (first, end, num_before, num_after). They are range(first, end); num_before and
        num_after count the thread block's other key tiles, in the order of processing. A warpgroup
        whose rows are all past seqlen_q gets one tile.
        """
        all_first, all_end = tiles_of(m_start, BLOCK_M, seqlen_q, seqlen_k, mask_args)
        m = int32(m_start + wg_index * ROWS)
        first, end = tiles_of(m, ROWS, seqlen_q, seqlen_k, mask_args)
        if BACKWARD:
            first = int32(end - 1) if m >= seqlen_q else first
            num_before = int32(all_end - end) if CAUSAL else int32(0)
            return first, end, num_before, int32(first - all_first)
        end = int32(first + 1) if m >= seqlen_q else end
        num_before = int32(first - all_first) if LEFT else int32(0)
        return first, end, num_before, int32(all_end - end)

    @cuda.jit(device=True, forceinline=True)
    def tile_at(i, first, end):
        """Index of the i-th key tile in the order of processing."""
        return int32(end - 1 - i) if BACKWARD else int32(first + i)

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def attend(
        registers, rings, stage, parity, q_desc, tiles, position, seqlen_k, score_mod_args, lane
    ):
        """Process these key tiles, except P V of the last; return its stage and parity."""
        first, end = tiles
        n_start = int32(tile_at(0, first, end) * BLOCK_N)
        n_last = int32(tile_at(end - first - 1, first, end) * BLOCK_N)
        wg_position, mask_args = score_mod_args.wg_position, score_mod_args.mask_args
        unmasked_range = unmasked_range_of(wg_position, seqlen_k, mask_args)
        first_iteration(
            registers, rings, stage, parity, q_desc, n_start,
            position, seqlen_k, score_mod_args, lane,
        )  # fmt: skip
        while n_start != n_last:
            n_start = int32(n_start + STEP)
            stage, parity = iterate(
                registers, rings, stage, parity, q_desc, n_start,
                unmasked_range, position, seqlen_k, score_mod_args, lane,
            )  # fmt: skip
        return stage, parity

    @cuda.jit(device=True, forceinline=True)
    def clear_keys(memory, seqlen_k, end, base, stage, parity, tid):
        """In V of tile end − 1, which has this stage, zero the rows past the sequence's end."""
        num_keys = int32(seqlen_k - (end - 1) * BLOCK_N)
        if num_keys < BLOCK_N:
            wait(base + V_RING.full + stage * BARRIER, parity)
            v_tile = base + V.start + stage * V_BYTES
            clear_rows(memory, uint32(v_tile), V_PANELS, BLOCK_N, num_keys, tid)

    @cuda.jit(device=True, forceinline=True)
    def schedule(claim, base, batch):
        """The role of the scheduler thread: claim query tiles, and describe each in `claim`."""
        claim_full, claim_empty = base + CLAIM_RING.full, base + CLAIM_RING.empty
        num_sequences = batch.cu_seqlens_q.shape[0] - 1
        claimed = int32(cuda.blockIdx.x)
        # unit: counted from the first one of the sequence that is at `index` in the order
        unit, index, claims = claimed, int32(0), 0
        while index < num_sequences:
            b = int32(batch.order[index]) if num_sequences <= MAX_SORTED else index
            q_start, k_start = batch.cu_seqlens_q[b], batch.cu_seqlens_k[b]
            seqlen_q = batch.cu_seqlens_q[b + 1] - q_start
            seqlen_k = batch.cu_seqlens_k[b + 1] - k_start
            num_m_tiles = int32((seqlen_q + BLOCK_M - 1) // BLOCK_M)
            if unit >= num_m_tiles * batch.num_heads:  # it belongs to a later sequence
                unit = int32(unit - num_m_tiles * batch.num_heads)
                index = int32(index + 1)
                continue
            kv_heads = max(uint32(SECTION_KEYS) // uint32(max(seqlen_k, 1)), uint32(2))
            section = min(int32(kv_heads * uint32(batch.group_size)), batch.num_heads)
            head, m_tile = head_and_tile(unit, num_m_tiles, batch.num_heads, section)
            claim[M_START] = m_tile * BLOCK_M
            claim[HEAD] = head
            claim[Q_START] = q_start
            claim[SEQLEN_Q] = seqlen_q
            claim[SEQLEN_K] = seqlen_k
            claim[MORE] = 1
            claim[K_START] = k_start
            claim[KV_HEAD] = uint32(head) // uint32(batch.group_size)
            if EXPRESSED:
                claim[SEQUENCE] = b
                claim[RUNS_ROW] = (q_start // BLOCK_M + b + m_tile) * BLOCK_M
            mbarrier_arrive(claim_full)
            wait(claim_empty, claims & 1)
            claims += 1
            before = claimed
            claimed = int32(cuda.gridDim.x + cuda.atomic.add(batch.counter, 0, 1))
            unit = int32(unit + claimed - before)
        claim[MORE] = 0
        mbarrier_arrive(claim_full)

    @cuda.jit(device=True, forceinline=True)
    def load_q_tile(num_q_tiles_done, tile, work, q_map, base, sequence, runs_row, runs):
        """Wait for a free slot, describe the query tile in work[slot], and start its TMA load."""
        slot = num_q_tiles_done % SLOTS
        full = base + Q_RING.full + slot * BARRIER
        wait(base + Q_RING.empty + slot * BARRIER, phase(num_q_tiles_done, SLOTS) ^ 1)
        work[slot, M_START] = tile.m_start
        work[slot, HEAD] = tile.head
        work[slot, Q_START] = tile.q_start
        work[slot, SEQLEN_Q] = tile.seqlen_q
        work[slot, SEQLEN_K] = tile.seqlen_k
        work[slot, MORE] = 1
        if EXPRESSED:  # the run is read here, where nobody waits for it
            work[slot, SEQUENCE], work[slot, RUNS_ROW] = sequence, runs_row
            run = run_of(runs[0], int32(0), tile.head, runs_row, int32(0))
            for i in range(3):
                work[slot, FIRST_RUN + i] = run[i]
        mbarrier_arrive_expect_tx(full, SLOT_BYTES)
        for w in range(CONSUMERS):
            q_rows = base + Q.start + slot * SLOT_BYTES + w * Q_BYTES
            row = tile.q_start + tile.m_start + ROWS * w
            load_tile(q_rows, ROWS, q_map, row, tile.head, 0, full)

    @cuda.jit(device=True, forceinline=True)
    def produce(tid, work, claim, base, q_map, k_map, v_map, mask_args, runs):
        """The role of a producer thread: thread 0 loads Q, 32 loads K, 64 loads V."""
        claim_full, claim_empty = base + CLAIM_RING.full, base + CLAIM_RING.empty
        loads_k = tid == 32
        kv_map = k_map if loads_k else v_map
        kv_tile = base + K.start if loads_k else base + V.start
        kv_full = base + K_RING.full if loads_k else base + V_RING.full
        num_q_tiles_done = int32(0)
        # A wait with parity 1 on a new mbarrier returns at once, so the first loads do not block.
        stage, empty_parity = int32(0), int32(1)  # of the next tile of K or V
        while True:
            wait(claim_full, num_q_tiles_done & int32(1))
            if claim[MORE] == 0:
                break
            m_start, head, q_start = claim[M_START], claim[HEAD], claim[Q_START]
            seqlen_q, seqlen_k = claim[SEQLEN_Q], claim[SEQLEN_K]
            k_start, kv_head = claim[K_START], claim[KV_HEAD]
            sequence, runs_row = int32(0), int32(0)
            if EXPRESSED:
                sequence, runs_row = claim[SEQUENCE], claim[RUNS_ROW]
            if tid == 0:
                mbarrier_arrive(claim_empty)
                tile = Tile(m_start, head, q_start, seqlen_q, seqlen_k)
                load_q_tile(num_q_tiles_done, tile, work, q_map, base, sequence, runs_row, runs)
            elif EXPRESSED:
                r = int32(0)
                i, end, _ = run_of(runs[0], int32(0), head, runs_row, r)
                while i < end:
                    tile_start = i * BLOCK_N
                    i = int32(i + 1)
                    if i == end:
                        r = int32(r + 1)
                        i, end, _ = run_of(runs[0], int32(0), head, runs_row, r)
                        if end == 0:
                            mbarrier_arrive(claim_empty)  # at the last key tile, as below
                    load_kv(
                        kv_map, int32(k_start + tile_start), kv_head, 0,
                        kv_tile, kv_full, stage, empty_parity, loads_k,
                    )  # fmt: skip
                    stage, empty_parity = next_stage(stage, empty_parity)
            else:
                first, end = tiles_of(m_start, BLOCK_M, seqlen_q, seqlen_k, mask_args)
                i = int32(0)
                while i < end - first:
                    # Release the claim only at the last key tile: the thread block that finishes
                    # first then claims next, so all have about the same work.
                    if i == end - first - 1:
                        mbarrier_arrive(claim_empty)
                    row = int32(k_start + tile_at(i, first, end) * BLOCK_N)
                    load_kv(
                        kv_map, row, kv_head, 0, kv_tile, kv_full, stage, empty_parity, loads_k
                    )  # fmt: skip
                    stage, empty_parity = next_stage(stage, empty_parity)
                    i = int32(i + 1)
            num_q_tiles_done = int32(num_q_tiles_done + 1)
        if tid == 0:  # tell the consumers that there are no more query tiles
            slot = num_q_tiles_done % SLOTS
            wait(base + Q_RING.empty + slot * BARRIER, phase(num_q_tiles_done, SLOTS) ^ 1)
            work[slot, MORE] = 0
            mbarrier_arrive(base + Q_RING.full + slot * BARRIER)  # expects no TMA bytes

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def consume(
        tid, work, memory, base, out_map, out, lse, scale, alibi_slopes, mask_args,
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
            seqlen_q, seqlen_k = work[slot, SEQLEN_Q], work[slot, SEQLEN_K]
            m = int32(m_start + wg_index * ROWS)  # the warpgroup's first row
            wg_position = int32(m + seqlen_k - seqlen_q)
            position = int32(wg_position + warp_row + (lane >> 2))
            if not EXPRESSED:
                score_mod_args = score_mod_args_of(
                    alibi_slopes, work[slot, HEAD], scale, ramp, wg_position, lane, mask_args
                )
            q_rows = uint32(q_tile + slot * SLOT_BYTES + wg_index * Q_BYTES)
            q_desc = descriptor(K_MAJOR_DESC, q_rows)
            clear(acc, m_i, l_i)
            if seqlen_q - m < ROWS:  # rows of another sequence must not count in a warp's votes
                clear_rows(memory, q_rows, NUM_PANELS, ROWS, seqlen_q - m, tid)

            if EXPRESSED:
                head, b = work[slot, HEAD], work[slot, SEQUENCE]
                first_run = (
                    work[slot, FIRST_RUN], work[slot, FIRST_RUN + 1], work[slot, FIRST_RUN + 2]
                )  # fmt: skip
                stage, parity, remaining, end = walk(
                    registers, rings, stage, parity, q_desc, first_run, runs[0],
                    (int32(0), head, work[slot, RUNS_ROW]), wg_index, position, seqlen_k,
                    ExpressionArgs(scale, 0, 0, True, b, head, expression_args, runs[1:]), lane,
                )  # fmt: skip
            else:
                lengths = seqlen_q, seqlen_k
                first, end, num_before, _ = own_tiles(m_start, wg_index, *lengths, mask_args)
                # Release the key tiles before this warpgroup's first.
                stage, parity = skip_tiles(num_before, stage, parity, k_full, v_full, lane)
                if BACKWARD:
                    clear_keys(memory, seqlen_k, end, base, stage, parity, tid)
                tiles = first, end
                stage, parity = attend(
                    registers, rings, stage, parity, q_desc, tiles,
                    position, seqlen_k, score_mod_args, lane,
                )  # fmt: skip

            # Read again: the loop needs the registers.
            m_start, head, q_start = work[slot, M_START], work[slot, HEAD], work[slot, Q_START]
            seqlen_q, seqlen_k = work[slot, SEQLEN_Q], work[slot, SEQLEN_K]
            cuda.syncwarp()  # all lanes have read work: safe to overwrite
            if lane == 0 and not OUT_IN_Q:
                mbarrier_arrive(q_empty + slot * BARRIER)  # work and Q are read
            if not EXPRESSED:
                lengths = seqlen_q, seqlen_k
                _, end, _, remaining = own_tiles(m_start, wg_index, *lengths, mask_args)
            if not BACKWARD:
                clear_keys(memory, seqlen_k, end, base, stage, parity, tid)
            add_last_product(registers, rings, stage, parity)
            m = int32(m_start + wg_index * ROWS + warp_row)
            lse_rows = lse[:, :, q_start : q_start + seqlen_q]
            if SINKS:
                add_sink(m_i, l_i, alpha, sinks[0][head], exponent_scale, lane)
            finish_rows(m_i, l_i, inverse, lse_rows, 0, head, m, lane, exponent_scale)
            if SINKS:
                for h in range(2):
                    inverse[h] *= alpha[h]
            finish_product(acc, p, v_empty + stage * BARRIER, lane)
            stage, parity = next_stage(stage, parity)
            if OUT_IN_Q:
                # Barrier 1, 2 or 3 (0 is syncthreads): the warpgroup's 4 warps have read Q, so that
                # out may overwrite it.
                named_barrier_sync(warpgroup, 128)
            # A vote, so that ptxas knows that a warp takes one branch. Else it keeps addresses in
            # the loop above for each thread, and copies them to the warp before each product.
            if cuda.all_sync(FULL_WARP, m + WARP_ROWS <= seqlen_q):
                row, end_row = q_start + m, q_start + seqlen_q
                store_tile(acc, inverse, out_rows, out_map, row, end_row, head, 0, lane)
            else:  # the next rows are another sequence's
                for h in range(2):
                    row = m + (lane >> 2) + 8 * h
                    if row < seqlen_q:
                        store_row(acc, h, inverse[h], out[q_start + row, head], lane)
            if lane == 0 and OUT_IN_Q:
                # The next Q overwrites out: TMA must have read it before the slot is released.
                tma_store_wait_read(0)
                mbarrier_arrive(q_empty + slot * BARRIER)
            # Release the key tiles after this warpgroup's last.
            stage, parity = skip_tiles(remaining, stage, parity, k_full, v_full, lane)
            num_q_tiles_done = int32(num_q_tiles_done + 1)
        if lane == 0:
            tma_store_wait_read(0)  # shared memory must outlive the last copy

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def flash_attn_persistent_varlen_kernel(
        q_map, k_map, v_map, out_map, out, lse, cu_seqlens_q, cu_seqlens_k, counter, group_size,
        scale, alibi_slopes, left, right, unit, inverse_unit, sinks, runs, args,
    ):  # fmt: skip
        """A thread block loops over query tiles, and for each over the tiles of K and V.

        The maps are addresses (`tensor_maps`), with boxes of ROWS rows of q, BLOCK_N of k and v,
        and 16 of out; lse is (1, num_heads, num_tokens_q), counter one int32, 0 at the start. scale
        is softmax_scale · log2 e; left, right, unit, inverse_unit are `run_time_masks.MaskArgs`.

        grid      (at most one per SM,); warpgroup 0 is the producer, the others are consumers
        shared    Q (SLOTS, CONSUMERS, 64, HEAD_DIM); OUT (CONSUMERS, 64, HEAD_DIM_V), in Q's memory
                  if SLOTS is 1; K (STAGES, BLOCK_N, HEAD_DIM), V (STAGES, BLOCK_N, HEAD_DIM_V); all
                  in swizzled panels of 64 columns. work (SLOTS, 6): the query tile in each slot of
                  Q; claim (8): the next query tile; order (MAX_SORTED,). Q_RING, K_RING, V_RING,
                  CLAIM_RING: barriers "full" and "empty" of each slot or stage, and of claim. With
                  ALIBI the RAMP: the key columns 0, 1, 2, … that wgmma multiplies by the ALiBi
                  slope (`alibi`)
        private   s (BLOCK_N / 8, 4), p (BLOCK_N / 16, 4), acc (HEAD_DIM_V / 8, 4); m_i, l_i, alpha,
                  inverse, offset for two rows
        HBM       reads Q once, writes out and lse once; reads K and V of a sequence once per query
                  tile, except the key tiles that none of its queries attends to; reads cu_seqlens
        paper     FlashAttention-3, Algorithm 2
        budget    168 registers at the start with 2 consumers, 128 with 3; then REGISTERS. One
                  thread block per SM
        """
        work = cuda.shared.array(WORK_SHAPE, int32)  # indices: M_START to MORE
        claim = cuda.shared.array(CLAIM_SHAPE, int32)  # indices: M_START to KV_HEAD
        order = cuda.shared.array(MAX_SORTED, uint16)
        memory = cuda.shared.array(0, uint64)  # all dynamic memory, as numbers of 8 bytes
        base = shared_base()
        tid = cuda.threadIdx.x
        mask_args = MaskArgs(left, right, unit, inverse_unit)
        if tid == 0:
            # Arrivals that complete a phase of "empty": one lane of each consumer warp.
            init_rings(base, (Q_RING,), 4 * CONSUMERS)
            init_rings(base, (K_RING, V_RING), 4 * CONSUMERS)
            init_rings(base, (CLAIM_RING,), 3)  # the producer threads of Q, K and V
            fence_mbarrier_init()
        if ALIBI_BY_WGMMA:
            write_ramp(uint32(base + RAMP.start), RAMP_BYTES, int32(tid), THREADS)
        num_sequences = cu_seqlens_q.shape[0] - 1
        if num_sequences <= MAX_SORTED:
            sort_sequences(cu_seqlens_k, num_sequences, order, tid, THREADS)
        cuda.syncthreads()  # barriers are initialized, the order is written: safe to use

        if tid >> 7 == 0:
            setmaxnreg_dec(PRODUCER_REGISTERS)
            if tid == 96:  # one thread in each of four warps
                sequences = cu_seqlens_q, cu_seqlens_k, order, counter
                schedule(claim, base, Batch(*sequences, lse.shape[1], group_size))
            if tid in (0, 32, 64):
                produce(tid, work, claim, base, q_map, k_map, v_map, mask_args, runs)
        else:
            setmaxnreg_inc(CONSUMER_REGISTERS)
            consume(
                tid, work, memory, base, out_map, out, lse, scale, alibi_slopes, mask_args,
                sinks, runs, args,
            )  # fmt: skip

    return flash_attn_persistent_varlen_kernel


@arrays.replayed
@checks.takes(checks.SCORES)
def flash_attn_persistent_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, **options):
    """FlashAttention-3, forward, over a packed batch: 16 bits on Hopper GPUs.

    Each sequence attends to itself alone.

    Parameters
    ----------
    q : GPU array of shape (num_tokens_q, num_heads, head_dim), float16 or bfloat16
        Queries of all sequences, end to end.
    k : GPU array of shape (num_tokens_k, num_kv_heads, head_dim), dtype of q
    v : GPU array of shape (num_tokens_k, num_kv_heads, head_dim_v), dtype of q
        Keys and values of all sequences. num_heads is a multiple of num_kv_heads (MHA, GQA, MQA).
        Any strides that are multiples of 16 bytes, with a contiguous last axis; head_dim a multiple
        of 8, up to 256; head_dim_v a multiple of 8, up to head_dim.
    cu_seqlens_q, cu_seqlens_k : arrays of shape (batch + 1,), int32
        First tokens of the sequences, and the end of the last, as for `flash_attn_varlen`.
    causal, window_size, softcap, alibi_slopes
        As for `flash_attn_varlen`.
    softmax_scale : float, default=1/√head_dim
        Positive.
    mask, mask_args, score, score_args, sinks
        As for `flash_attn_varlen`.

    Returns
    -------
    out : array of the shape, dtype and library of q, but with the head_dim of v
        0 in a row that sees no key.
    lse : array of shape (num_heads, num_tokens_q), float32
        Natural log of the row's sum of e^score; −inf in a row that sees no key, or its sink.

    Notes
    -----
    The contents of cu_seqlens_q and cu_seqlens_k are not checked: that would mean to wait for the
    GPU. Wrong contents read memory outside of the batch, or leave rows of out unwritten.
    """
    requirements = checks.KERNELS["flash_attn_persistent_varlen"]
    requirements.check_packed(q, k, v, cu_seqlens_q, cu_seqlens_k)
    num_tokens_q, num_heads, head_dim = q.shape
    num_tokens_k, num_kv_heads, head_dim_v = v.shape
    out_shape = num_tokens_q, num_heads, head_dim_v
    form = {"as_options": True, "cap_apart": True, "positive_scale": True}
    scores = checks.check_scores(q, **form, **options)
    mask, given, scale = scores.mask, scores.given, scores.scale_log2
    if num_tokens_k == 0:
        out = arrays.full(q, out_shape, 0, q.dtype)
        lse = arrays.full(q, (num_heads, num_tokens_q), -np.inf)
        if scores.has_sinks:
            lse[...] = scores.sinks[:, None]
        return out, lse
    out = arrays.empty(q, out_shape, q.dtype)
    lse = arrays.empty(q, (num_heads, num_tokens_q))
    if num_tokens_q == 0:
        return out, lse
    batch = cu_seqlens_q.shape[0] - 1
    tiling = tiling_of(head_dim, num_tokens_k, batch, mask.causal, mask.softcap, head_dim_v)
    consumers, block_n = tiling.consumers, tiling.block_n
    block_m = ROWS * consumers
    sequences = cu_seqlens_q, cu_seqlens_k, arrays.full(q, (1,), 0, np.int32)
    # A softcap as an argument would cost 2 to 5 % of the time: docs/notes/launching.md.
    constants = run_time_masks.constants_of(mask).window_size, mask.softcap, mask.alibi, head_dim_v
    dtype = arrays.dtype_name(q)
    constants += scores.expressions_if_any, scores.has_sinks
    kernel = make_flash_attn_persistent_varlen(head_dim, tiling, mask.causal, dtype, *constants)
    runs = ()
    if given is not None:
        written = nodes.TRUE if given.expressions.mask is None else given.expressions.mask
        problem = num_tokens_q, num_tokens_k, num_heads, ROWS, block_n
        ranges = ranges_of_packed(q, written, given.arguments)
        table = make_packed_table(
            q, written, given.arguments, ranges, sequences[:2], problem, BLOCKS, consumers
        )
        runs = table, *ranges
    # A sequence has at most one query tile that is not full.
    most_units = (num_tokens_q // block_m + batch) * num_heads
    grid = (min(most_units, arrays.num_sms(q)),)
    boxes = (q, ROWS), (k, block_n), (v, block_n), (out, WARP_ROWS)
    group_size = np.int32(num_heads // num_kv_heads)
    arrays.launch(
        kernel, grid, (tiling.num_threads,), *(tensor_map(*box) for box in boxes), out,
        arrays.with_axis(lse), *sequences, group_size, scale, scores.slopes,
        *run_time_masks.arguments_of(mask), scores.sink_args, runs,
        scores.expression_args, shared_bytes=shared_bytes(head_dim, tiling, mask.alibi, head_dim_v),
    )  # fmt: skip
    return out, lse
