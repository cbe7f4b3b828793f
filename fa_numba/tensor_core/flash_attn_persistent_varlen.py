"""flash_attn_persistent over a packed batch: sequences of any lengths, end to end, no padding.

flash_attn_persistent         (batch, seqlen, ...)  each sequence as long as the longest
flash_attn_persistent_varlen  (num_tokens, ...)     each as long as it is             <- this file

The tokens of all sequences lie in one row, and cu_seqlens says where each begins: sequence b is
tokens cu_seqlens[b] to cu_seqlens[b + 1]. The tiles, the products and the softmax are those of the
neighbour (`turns`). Three things are new.

- Tiles are of unequal work, and only the GPU knows the lengths. Each thread block sorts the
  sequences, those with the most keys first; then it takes tile after tile in that order from a
  counter, so that short ones fill up what the long ones leave. A warp of its own claims a tile and
  finds out what it is while the one before is being loaded.
- TMA knows where the batch ends, not where a sequence does: the last tile of K and V of a sequence
  brings rows of the next one. Their scores are masked, but P = 0 times a NaN in V would be NaN; so
  the consumers overwrite those rows of V with 0. Those of Q too: a warp of the softmax decides
  by a vote of its rows when to rescale, and no other sequence may change even the last bit.
- out must not be stored past a sequence's end: a warp whose rows are not all of the sequence stores
  them one by one instead of by TMA.

On an H200, 8 sequences of 2048 take 658 (584) TFLOP/s at head_dim 128 and 530 (445) at 64, the
padded batch of them 685 (587) and 525 (444); 8 of 561 to 3500 tokens take 646 (595) and 522 (465).
float16, causal in brackets; benchmarks/results/tensor_core_masks.json.

Paper: Shah et al. 2024, FlashAttention-3, arXiv:2407.08608.
"""

import functools

import numpy as np
from numba import cuda, float32, int32, uint8, uint16, uint32, uint64

from fa_numba import checks
from fa_numba.constants import FULL_WARP, LOG2_E
from fa_numba.ptx import mbarrier
from fa_numba.ptx.barriers import (
    fence_async_proxy,
    named_barrier_sync,
    setmaxnreg_dec,
    setmaxnreg_inc,
)
from fa_numba.ptx.layouts import ROW_BYTES
from fa_numba.ptx.mbarrier import (
    fence_mbarrier_init,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
    phase,
)
from fa_numba.ptx.statement import shared_address
from fa_numba.ptx.tma import make_load_tile, tma_store_wait_read
from fa_numba.ptx.wgmma import descriptor, descriptor_bits
from fa_numba.runtime import arrays
from fa_numba.runtime.tensor_maps import tensor_map
from fa_numba.tensor_core import flash_attn_persistent, forward
from fa_numba.tensor_core.alibi import (
    RAMP_BITS,
    ramp_bytes,
    slope_pieces,
    tilted_and_one_sided,
    write_ramp,
)
from fa_numba.tensor_core.forward import HOPPER
from fa_numba.tensor_core.fragments import (
    make_bend_tile,
    make_fragment_functions,
    make_store_row,
    make_store_tile,
)
from fa_numba.tensor_core.mainloop import make_ring, make_tiles_of, make_turns
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.persistent_tiling import ROWS, persistent_tiling

# Sequences of a batch; where there are more, they stay in their order. For 512 there would be no
# shared memory left at head_dim 128 with ALiBi.
MAX_SORTED = 500
SECTION_BYTES = 24 << 20  # of K and V that are read at a time: two fifths of an H200's L2
REGISTERS = {2: (56, 224), 3: (32, 160)}  # as in flash_attn_persistent; the producer has more to do


def tiling_of(head_dim, num_tokens_k, batch, causal, softcap):
    """flash_attn_persistent's for sequences of the average length, but for `packed` and softcap."""
    tiling = persistent_tiling(head_dim, num_tokens_k // batch, causal, packed=True)
    if softcap and tiling.consumers == 3:
        return tiling._replace(block_n=96)  # 128 do not leave the registers for a tanh
    return tiling


def shared_bytes(HEAD_DIM, CONSUMERS, BLOCK_N, STAGES, SLOTS, ALIBI=False):
    """Dynamic shared memory of a thread block: flash_attn_persistent's, and claim's barriers."""
    tiling = CONSUMERS, BLOCK_N, STAGES, SLOTS
    return flash_attn_persistent.shared_bytes(HEAD_DIM, *tiling, ALIBI) + 2 * mbarrier.BYTES


@cuda.jit(device=True, forceinline=True)
def sort_sequences(cu_seqlens_k, batch, order, thread, num_threads):
    """The numbers of the sequences, those with the most keys first; thread by thread."""
    for b in range(thread, batch, num_threads):
        num_keys = cu_seqlens_k[b + 1] - cu_seqlens_k[b]
        place, start = 0, cu_seqlens_k[0]
        for other in range(batch):  # how many come before it?
            end = cu_seqlens_k[other + 1]
            longer = end - start - num_keys
            if longer > 0 or (longer == 0 and other < b):
                place += 1
            start = end
        order[place] = b


@cuda.jit(device=True, forceinline=True)
def head_and_tile(unit, num_m_tiles, num_heads, section):
    """Head and tile of queries of a sequence's unit: the last tiles of all heads come first.

    But of `section` heads at a time, so that K and V of those stay in L2.
    """
    unit, num_m_tiles, section = uint32(unit), uint32(num_m_tiles), uint32(section)
    first_head = uint32(unit // uint32(section * num_m_tiles) * section)  # divisions of 32 bits
    rest = uint32(unit - first_head * num_m_tiles)
    heads = uint32(min(section, uint32(num_heads - first_head)))
    rank = uint32(rest // heads)
    return int32(first_head + rest - rank * heads), int32(num_m_tiles - 1 - rank)


@functools.cache
def make_flash_attn_persistent_varlen(
    HEAD_DIM, TILING, CAUSAL, DTYPE, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False
):
    """The kernel for these compile-time constants; `shared_bytes` of shared memory.

    128 threads for each of TILING's consumers (`PersistentTiling`) and for the producer. HEAD_DIM
    is a multiple of 8, DTYPE "float16" or "bfloat16". Without ALIBI the argument alibi_slopes is
    not looked at, and may be any scalar.
    """
    CONSUMERS, BLOCK_N, STAGES, SLOTS, _ = TILING
    BLOCK_M = ROWS * CONSUMERS
    THREADS = 128 * (CONSUMERS + 1)
    COLS = 16 * ceil_div(HEAD_DIM, 16)  # that are multiplied; those from HEAD_DIM on hold 0
    NUM_PANELS = ceil_div(HEAD_DIM, 64)  # of 64 columns, as TMA and wgmma have a tile
    Q_BYTES = NUM_PANELS * ROWS * ROW_BYTES  # of one consumer
    SLOT_BYTES = CONSUMERS * Q_BYTES
    KV_BYTES = NUM_PANELS * BLOCK_N * ROW_BYTES
    SECTION_KEYS = SECTION_BYTES // (4 * HEAD_DIM)  # of all heads of a section
    ROW_MAJOR = descriptor_bits()  # Q: its rows lie along the sum
    S_SHAPE, P_SHAPE, OUT_SHAPE = (BLOCK_N // 8, 4), (BLOCK_N // 16, 4), (COLS // 8, 4)
    BARRIER = mbarrier.BYTES
    PRODUCER_REGISTERS, CONSUMER_REGISTERS = REGISTERS[CONSUMERS]
    OUT_IN_Q = SLOTS == 1
    # From the last tile of keys to the first: without a mask that in which the keys end, the one
    # with something to mask, then comes before the loop, and of the two turns, with a mask and
    # without, ptxas has only the latter to place in registers. With ALiBi so, too, under a causal
    # mask: the nearest keys, whose scores are the largest, come first, and far ones fade.
    BACKWARD = WINDOW == (-1, -1) and (ALIBI or not CAUSAL)
    STEP = -BLOCK_N if BACKWARD else BLOCK_N
    LEFT = WINDOW[0] >= 0
    MASKED = CAUSAL or WINDOW != (-1, -1)  # after the first tile, too
    TILTED, ONE_SIDED = tilted_and_one_sided(CAUSAL, WINDOW, SOFTCAP, ALIBI)
    RAMP_BYTES = ramp_bytes(BLOCK_N)
    pack = forward.pack_of(DTYPE)
    clear, *_ = make_fragment_functions(BLOCK_N, COLS, pack)
    unit_of, _ = make_bend_tile(BLOCK_N, CAUSAL, WINDOW, SOFTCAP, ALIBI)
    tiles_of = make_tiles_of(BLOCK_N, CAUSAL, WINDOW)
    after, fetch, pass_over = make_ring(HEAD_DIM, TILING)
    first_turn, inner_turn, edge_turn, whole_tiles, add_last, finish_product = make_turns(
        HEAD_DIM, TILING, CAUSAL, DTYPE, WINDOW, SOFTCAP, ALIBI
    )
    load_tile = make_load_tile(NUM_PANELS)
    finish_rows, store_tile = make_store_tile(HEAD_DIM, pack)
    store_row = make_store_row(HEAD_DIM, pack)
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def own_tiles(m_start, part, seqlen_q, seqlen_k):
        """The tiles that the part-th ROWS rows of a thread block see, range(first, end).

        And how many of the thread block's come before and after them. A part without a row has one.
        """
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
        """The tile of keys that is the step-th to be looked at."""
        return int32(end - 1 - step) if BACKWARD else int32(first + step)

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def attend(registers, rings, stage, parity, q, tiles, position, seqlen_k, bend, lane):
        """Turn by turn through these tiles; P V of the last, whose place it returns, is left."""
        _, _, _, _, wg_position = bend
        first, end = tiles
        n_start = int32(tile_at(0, first, end) * BLOCK_N)
        n_last = int32(tile_at(end - first - 1, first, end) * BLOCK_N)
        first_whole, last_whole = whole_tiles(wg_position, seqlen_k)
        tile = stage, parity, q, n_start, position, seqlen_k
        first_turn(registers, rings, *tile, bend, lane)
        while n_start != n_last:
            n_start = int32(n_start + STEP)
            tile = stage, parity, q, n_start, position, seqlen_k
            edge = MASKED and (n_start < first_whole or n_start > last_whole)
            if TILTED and not ONE_SIDED:  # keys to both sides of some row
                after_first = n_start + BLOCK_N - 1 > wg_position
                edge = edge or (after_first and n_start < wg_position + ROWS - 1)
            if edge:
                stage, parity = edge_turn(registers, rings, *tile, bend, lane)
            else:
                stage, parity = inner_turn(registers, rings, *tile, bend, lane)
        return stage, parity

    @cuda.jit(device=True, forceinline=True)
    def load_queries(
        queries, m_start, head, q_start, seqlen_q, seqlen_k, work, q_map, q_tile, q_full, q_empty
    ):
        """Once there is room, say which queries are next, and start their copy."""
        slot = queries % SLOTS
        full = q_full + slot * BARRIER
        wait(q_empty + slot * BARRIER, phase(queries, SLOTS) ^ 1)
        work[slot, 0] = m_start
        work[slot, 1] = head
        work[slot, 2] = q_start
        work[slot, 3] = seqlen_q
        work[slot, 4] = seqlen_k
        work[slot, 5] = 1
        mbarrier_arrive_expect_tx(full, SLOT_BYTES)
        for w in range(CONSUMERS):
            q_rows = q_tile + slot * SLOT_BYTES + w * Q_BYTES
            load_tile(q_rows, ROWS, q_map, q_start + m_start + ROWS * w, head, 0, full)

    @cuda.jit(device=True, forceinline=True)
    def clear_rows(memory, tile, num_rows, first_row, tid):
        """Overwrite a tile's rows from this one on with 0, which are another sequence's.

        Each warpgroup does it for itself: it may overwrite 0 of V that another reads.
        """
        first = 8 * (tid & 127)
        start = tile - shared_address(memory) + first
        panel_bytes = num_rows * ROW_BYTES
        for offset in range(0, panel_bytes, 8 * 128):  # unrolled: each thread 8 bytes
            if offset + first >= first_row * ROW_BYTES:
                for panel in range(NUM_PANELS):
                    memory[uint64((start + panel * panel_bytes + offset) >> 3)] = uint64(0)
        fence_async_proxy()
        named_barrier_sync(tid >> 7, 128)  # the rows are 0: safe to multiply

    @cuda.jit(device=True, forceinline=True)
    def clear_keys(memory, seqlen_k, end, v_tile, v_full, stage, parity, tid):
        """In V of tile end − 1, which has this place, overwrite rows past the sequence's end."""
        num_keys = int32(seqlen_k - (end - 1) * BLOCK_N)
        if num_keys < BLOCK_N:
            wait(v_full + stage * BARRIER, parity)
            clear_rows(memory, uint32(v_tile + stage * KV_BYTES), BLOCK_N, num_keys, tid)

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def flash_attn_persistent_varlen_kernel(
        q_map, k_map, v_map, out_map, out, lse, cu_seqlens_q, cu_seqlens_k, counter, group_size,
        scale, alibi_slopes,
    ):  # fmt: skip
        """A thread block works through tiles of queries, each with its tiles of K and V.

        The maps are addresses (`tensor_maps`), with boxes of 64 rows of q, BLOCK_N of k and v, 16
        of out; lse is (1, num_heads, num_tokens_q), counter one int32, 0 at the start. scale is
        softmax_scale · log2 e.

        grid      (at most one per SM,); warpgroup 0 loads, the others compute
        shared    q_tile (SLOTS, CONSUMERS, 64, HEAD_DIM); out_tile (CONSUMERS, 64, HEAD_DIM), which
                  is q_tile where that has one slot;
                  k_tile, v_tile (STAGES, BLOCK_N, HEAD_DIM), in panels of 64 columns, swizzled;
                  work (SLOTS, 6): which queries Q are; claim (8): which are next; order
                  (MAX_SORTED,); barriers: full and empty for each slot of Q, each stage of K, and
                  of V, and for claim; with ALIBI a ramp (`alibi`)
        private   s (BLOCK_N / 8, 4), p (BLOCK_N / 16, 4), acc (HEAD_DIM / 8, 4); m_i, l_i, alpha,
                  inverse, offset for two rows
        HBM       Q, out, lse once; K and V of a sequence once per tile of its queries, but for the
                  tiles that none of them sees; cu_seqlens
        paper     FlashAttention-3, Algorithm 2
        budget    168 registers at the start with 2 consumers, 128 with 3; then REGISTERS. One
                  thread block per SM
        """
        # first row in the sequence, head; the sequence's first query, how many queries and keys it
        # has; 1, or 0: no more
        work = cuda.shared.array((SLOTS, 6), int32)
        claim = cuda.shared.array(8, int32)  # as work; then the first key, and the head of K and V
        order = cuda.shared.array(MAX_SORTED, uint16)
        memory = cuda.shared.array(0, uint64)  # all dynamic memory, as numbers of 8 bytes
        q_tile = (shared_address(cuda.shared.array(0, uint8)) + 1023) & 0xFFFFFC00
        out_tile = q_tile if OUT_IN_Q else q_tile + SLOTS * SLOT_BYTES
        k_tile = out_tile + SLOT_BYTES
        v_tile = k_tile + STAGES * KV_BYTES
        q_full = v_tile + STAGES * KV_BYTES
        q_empty = q_full + SLOTS * BARRIER
        k_full = q_empty + SLOTS * BARRIER
        k_empty = k_full + STAGES * BARRIER
        v_full = k_empty + STAGES * BARRIER
        v_empty = v_full + STAGES * BARRIER
        claim_full = v_empty + STAGES * BARRIER
        claim_empty = claim_full + BARRIER
        ramp = uint32(claim_empty + BARRIER)

        tid = cuda.threadIdx.x
        warpgroup = tid >> 7
        num_heads = lse.shape[1]

        if tid == 0:
            for slot in range(SLOTS):
                mbarrier_init(q_full + slot * BARRIER, 1)
                mbarrier_init(q_empty + slot * BARRIER, 4 * CONSUMERS)  # a lane of each warp
            for stage in range(STAGES):
                mbarrier_init(k_full + stage * BARRIER, 1)
                mbarrier_init(v_full + stage * BARRIER, 1)
                mbarrier_init(k_empty + stage * BARRIER, 4 * CONSUMERS)
                mbarrier_init(v_empty + stage * BARRIER, 4 * CONSUMERS)
            mbarrier_init(claim_full, 1)
            mbarrier_init(claim_empty, 3)
            fence_mbarrier_init()
        if TILTED:
            write_ramp(ramp, RAMP_BYTES, int32(tid), THREADS)
        batch = cu_seqlens_q.shape[0] - 1
        if batch <= MAX_SORTED:
            sort_sequences(cu_seqlens_k, batch, order, tid, THREADS)
        cuda.syncthreads()  # the barriers are made: safe to wait on

        if warpgroup == 0:
            setmaxnreg_dec(PRODUCER_REGISTERS)
            if tid == 96:  # claims queries, and finds out which they are
                claimed = int32(cuda.blockIdx.x)
                # unit: counted from the first one of this sequence, which has a place in `order`
                unit, place, claims = claimed, int32(0), 0
                while place < batch:
                    b = int32(order[place]) if batch <= MAX_SORTED else place
                    q_start, k_start = cu_seqlens_q[b], cu_seqlens_k[b]
                    seqlen_q, seqlen_k = (
                        cu_seqlens_q[b + 1] - q_start,
                        cu_seqlens_k[b + 1] - k_start,
                    )
                    num_m_tiles = int32((seqlen_q + BLOCK_M - 1) // BLOCK_M)
                    if unit >= num_m_tiles * num_heads:  # they are of a later sequence
                        unit = int32(unit - num_m_tiles * num_heads)
                        place = int32(place + 1)
                        continue
                    kv_heads = max(uint32(SECTION_KEYS) // uint32(max(seqlen_k, 1)), uint32(2))
                    section = min(int32(kv_heads * uint32(group_size)), num_heads)
                    head, m_tile = head_and_tile(unit, num_m_tiles, num_heads, section)
                    claim[0] = m_tile * BLOCK_M
                    claim[1] = head
                    claim[2] = q_start
                    claim[3] = seqlen_q
                    claim[4] = seqlen_k
                    claim[5] = 1
                    claim[6] = k_start
                    claim[7] = uint32(head) // uint32(group_size)
                    mbarrier_arrive(claim_full)
                    wait(claim_empty, claims & 1)
                    claims += 1
                    before = claimed
                    claimed = int32(cuda.gridDim.x + cuda.atomic.add(counter, 0, 1))
                    unit = int32(unit + claimed - before)
                claim[5] = 0
                mbarrier_arrive(claim_full)
            if tid in (0, 32, 64):  # load them: a thread for Q, one for K, one for V
                kv_map = k_map if tid == 32 else v_map
                kv_tile = k_tile if tid == 32 else v_tile
                kv_full = k_full if tid == 32 else v_full
                queries = int32(0)  # passed so far
                stage, was_empty = int32(0), int32(1)  # the next tile's place in the ring
                while True:
                    wait(claim_full, queries & int32(1))
                    if claim[5] == 0:
                        break
                    m_start, head, q_start = claim[0], claim[1], claim[2]
                    seqlen_q, seqlen_k, k_start, kv_head = claim[3], claim[4], claim[6], claim[7]
                    if tid == 0:
                        mbarrier_arrive(claim_empty)
                        load_queries(
                            queries, m_start, head, q_start, seqlen_q, seqlen_k, work, q_map,
                            q_tile, q_full, q_empty,
                        )  # fmt: skip
                    else:
                        first, end = tiles_of(m_start, BLOCK_M, seqlen_q, seqlen_k)
                        step = int32(0)
                        while step < end - first:
                            # Not at once: who is done first claims next, and work comes out even.
                            if step == end - first - 1:
                                mbarrier_arrive(claim_empty)
                            row = int32(k_start + tile_at(step, first, end) * BLOCK_N)
                            to = kv_tile, kv_full, stage, was_empty
                            fetch(kv_map, row, 0, kv_head, 0, *to)
                            stage, was_empty = after(stage, was_empty)
                            step = int32(step + 1)
                    queries = int32(queries + 1)
                if tid == 0:
                    slot = queries % SLOTS
                    wait(q_empty + slot * BARRIER, phase(queries, SLOTS) ^ 1)
                    work[slot, 5] = 0
                    mbarrier_arrive(q_full + slot * BARRIER)
        else:
            setmaxnreg_inc(CONSUMER_REGISTERS)
            s = cuda.local.array(S_SHAPE, float32)
            p = cuda.local.array(P_SHAPE, uint32)
            acc = cuda.local.array(OUT_SHAPE, float32)
            m_i = cuda.local.array(2, float32)
            l_i = cuda.local.array(2, float32)
            alpha = cuda.local.array(2, float32)
            inverse = cuda.local.array(2, float32)
            offset = cuda.local.array(2, float32)
            lane = tid & 31
            warp_row = int32((tid >> 5 & 3) * 16)  # in the warpgroup's rows
            # By a shuffle, so that ptxas knows it as the same for a whole warp.
            part = int32(cuda.shfl_sync(FULL_WARP, warpgroup, 0) - 1)
            out_rows = uint32(out_tile + part * Q_BYTES + warp_row * ROW_BYTES)

            unit = unit_of(scale)  # what one of s is worth
            registers = s, p, acc, m_i, l_i, alpha, offset
            rings = k_tile, k_full, v_tile, v_full
            queries = int32(0)  # passed so far
            stage, parity = int32(0), int32(0)  # the next tile's place in the rings
            while True:
                slot = int32(queries % SLOTS)
                wait(q_full + slot * BARRIER, phase(queries, SLOTS))
                if work[slot, 5] == 0:
                    break
                m_start, seqlen_q, seqlen_k = work[slot, 0], work[slot, 3], work[slot, 4]
                m = int32(m_start + part * ROWS)  # the warpgroup's first row
                wg_position = int32(m + seqlen_k - seqlen_q)
                position = int32(wg_position + warp_row + (lane >> 2))
                slope = alibi_slopes[work[slot, 1]] if ALIBI else float32(0)
                pieces = slope_pieces(slope * (LOG2_E / scale), lane) if TILTED else uint32(0)
                bend = slope, scale, pieces, descriptor(RAMP_BITS, ramp), wg_position
                q_rows = uint32(q_tile + slot * SLOT_BYTES + part * Q_BYTES)
                q = descriptor(ROW_MAJOR, q_rows)
                clear(acc, m_i, l_i)
                if seqlen_q - m < ROWS:  # what other rows are must not show in a warp's votes
                    clear_rows(memory, q_rows, ROWS, seqlen_q - m, tid)

                first, end, before, _ = own_tiles(m_start, part, seqlen_q, seqlen_k)
                stage, parity = pass_over(before, stage, parity, k_full, v_full, lane)
                if BACKWARD:
                    clear_keys(memory, seqlen_k, end, v_tile, v_full, stage, parity, tid)
                tiles = first, end
                stage, parity = attend(
                    registers, rings, stage, parity, q, tiles, position, seqlen_k, bend, lane
                )

                # Read once more, which leaves the loop its registers.
                m_start, head, q_start = work[slot, 0], work[slot, 1], work[slot, 2]
                seqlen_q, seqlen_k = work[slot, 3], work[slot, 4]
                cuda.syncwarp()  # all lanes have read work: safe to overwrite
                if lane == 0 and not OUT_IN_Q:
                    mbarrier_arrive(q_empty + slot * BARRIER)  # work and Q are read
                _, end, _, rest = own_tiles(m_start, part, seqlen_q, seqlen_k)
                if not BACKWARD:
                    clear_keys(memory, seqlen_k, end, v_tile, v_full, stage, parity, tid)
                add_last(registers, rings, stage, parity)
                m = int32(m_start + part * ROWS + warp_row)
                lse_rows = lse[:, :, q_start : q_start + seqlen_q]
                finish_rows(m_i, l_i, inverse, lse_rows, 0, head, m, lane, unit)
                finish_product(acc, p, v_empty + stage * BARRIER, lane)
                stage, parity = after(stage, parity)
                if OUT_IN_Q:
                    named_barrier_sync(warpgroup, 128)  # its warps have read Q: safe to overwrite
                # A vote, so that ptxas knows that a warp stays together. Else it keeps addresses in
                # the loop above for each thread, and copies them to the warp before each product.
                if cuda.all_sync(FULL_WARP, m + 16 <= seqlen_q):
                    row, end_row = q_start + m, q_start + seqlen_q
                    store_tile(acc, inverse, out_rows, out_map, row, end_row, head, 0, lane)
                else:  # the next rows are another sequence's
                    for h in range(2):
                        row = m + (lane >> 2) + 8 * h
                        if row < seqlen_q:
                            store_row(acc, h, inverse[h], out[q_start + row, head], lane)
                if lane == 0 and OUT_IN_Q:
                    tma_store_wait_read(0)
                    mbarrier_arrive(q_empty + slot * BARRIER)  # work is read, and out copied
                stage, parity = pass_over(rest, stage, parity, k_full, v_full, lane)
                queries = int32(queries + 1)
            if lane == 0:
                tma_store_wait_read(0)  # shared memory lives as long as the thread block

    return flash_attn_persistent_varlen_kernel


@arrays.replayed
def flash_attn_persistent_varlen(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    *,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
):
    """FlashAttention-3, forward, over a packed batch: each sequence attends to itself alone.

    Parameters
    ----------
    q : GPU array of shape (num_tokens_q, num_heads, head_dim), float16 or bfloat16
        The queries of all sequences, end to end.
    k, v : GPU arrays of shape (num_tokens_k, num_kv_heads, head_dim), dtype of q
        Their keys and values. num_heads is a multiple of num_kv_heads (MHA, GQA, MQA). Any strides
        that are multiples of 16 bytes, with a contiguous last axis; head_dim a multiple of 8, up to
        256.
    cu_seqlens_q, cu_seqlens_k : arrays of shape (batch + 1,), int32
        Where the sequences begin, and last where they end: as for `flash_attn_varlen`.
    causal, window_size, softcap, alibi_slopes
        As for `flash_attn_varlen`.
    softmax_scale : float, default=1/√head_dim
        Positive.

    Returns
    -------
    out : array of the shape, dtype and library of q
        0 in a row that sees no key.
    lse : array of shape (num_heads, num_tokens_q), float32
        Natural log of the row's sum of e^score; −inf in a row that sees no key.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it must be, and what it got.
    RuntimeError
        On a GPU that has no wgmma.

    Notes
    -----
    The contents of cu_seqlens_q and cu_seqlens_k are not checked, as that would mean waiting for
    the GPU: numbers that are none of the above read memory that is not the batch's, or leave rows
    of out unwritten.
    """
    checks.check_varlen_tensor_core(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        name="flash_attn_persistent_varlen",
        supported=HOPPER,
        max_head_dim=checks.MAX_HEAD_DIM,
    )
    num_tokens_q, num_heads, head_dim = q.shape
    num_tokens_k, num_kv_heads, _ = k.shape
    mask, slopes = checks.check_mask(q, causal, window_size, softcap, alibi_slopes)
    scale = np.float32(checks.check_positive_scale(softmax_scale, head_dim) * LOG2_E)
    if num_tokens_k == 0:
        out = arrays.full(q, q.shape, 0, q.dtype)
        return out, arrays.full(q, (num_heads, num_tokens_q), -np.inf)
    out = arrays.empty(q, q.shape, q.dtype)
    lse = arrays.empty(q, (num_heads, num_tokens_q))
    if num_tokens_q == 0:
        return out, lse
    batch = cu_seqlens_q.shape[0] - 1
    causal, *rest = mask
    tiling = tiling_of(head_dim, num_tokens_k, batch, causal, mask[2])
    consumers, block_n, *_ = tiling
    block_m = 64 * consumers
    sequences = cu_seqlens_q, cu_seqlens_k, arrays.full(q, (1,), 0, np.int32)
    kernel = make_flash_attn_persistent_varlen(
        head_dim, tiling, causal, arrays.dtype_name(q), *rest
    )
    # A sequence has at most one tile of queries that is not full.
    most_units = (num_tokens_q // block_m + batch) * num_heads
    grid = (min(most_units, arrays.num_sms(q)),)
    maps = tensor_map(q, 64), tensor_map(k, block_n), tensor_map(v, block_n), tensor_map(out, 16)
    group_size = np.int32(num_heads // num_kv_heads)
    arrays.launch(
        kernel,
        grid,
        (128 * (consumers + 1),),
        *maps,
        out,
        arrays.with_axis(lse),
        *sequences,
        group_size,
        scale,
        slopes,
        shared_bytes=shared_bytes(head_dim, *tiling[:4], ALIBI=mask[3]),
    )
    return out, lse
