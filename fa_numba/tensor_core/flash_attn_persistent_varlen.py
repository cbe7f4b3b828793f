"""flash_attn_persistent over a packed batch: sequences of any lengths, end to end, no padding.

flash_attn_persistent         (batch, seqlen, ...)  each sequence as long as the longest
flash_attn_persistent_varlen  (num_tokens, ...)     each as long as it is             <- this file

The tokens of all sequences lie in one row, and cu_seqlens says where each begins: sequence b is
tokens cu_seqlens[b] to cu_seqlens[b + 1]. The products and the softmax are those of the neighbour.
Three things are new.

- Tiles are of unequal work, and only the GPU knows the lengths. A small kernel sorts the sequences,
  those with the most keys first; the thread blocks of the large one take tile after tile in that
  order from a counter, so that short ones fill up what the long ones leave.
- TMA knows where the batch ends, not where a sequence does: the last tile of K and V of a sequence
  brings rows of the next one. Their scores are masked, but P = 0 times a NaN in V would be NaN; so
  the consumers overwrite those rows of V with 0.
- out must not be stored past a sequence's end: a warp whose rows are not all of the sequence stores
  them one by one instead of by TMA.

On an H200, 8 sequences of 2048 take 574 (465) TFLOP/s at head_dim 128 and 437 (332) at 64, the
padded batch of them 621 (554) and 477 (383); 8 of 561 to 3500 tokens take 546 (479) and 433 (358).
float16, causal in brackets; benchmarks/NOTES.md.

Paper: Shah et al. 2024, FlashAttention-3, arXiv:2407.08608.
"""

import functools

import numpy as np
from numba import cuda, float32, int32, uint8, uint32, uint64

from fa_numba import arrays, checks
from fa_numba.analysis.block_sizes import ceil_div
from fa_numba.kernels import masks
from fa_numba.tensor_core import forward, mbarrier, wgmma
from fa_numba.tensor_core.barriers import (
    fence_async_proxy,
    named_barrier_sync,
    setmaxnreg_dec,
    setmaxnreg_inc,
)
from fa_numba.tensor_core.forward import HOPPER, LOG2_E
from fa_numba.tensor_core.fragments import (
    make_bend_tile,
    make_fragment_functions,
    make_mask_tile,
    make_online_softmax,
    make_store_row,
    make_store_tile,
)
from fa_numba.tensor_core.mbarrier import (
    fence_mbarrier_init,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
)
from fa_numba.tensor_core.ptx import shared_address
from fa_numba.tensor_core.tensor_maps import tensor_map
from fa_numba.tensor_core.tma import make_load_tile, tma_store_wait_read
from fa_numba.tensor_core.wgmma import (
    descriptor,
    descriptor_bits,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
    wgmma_wait_with,
)

MAX_HEAD_DIM = 128
STAGES = 2  # of K, and of V
SLOTS = 2  # of Q: the next queries are there before these are done
SCHEDULE_THREADS = 128
MAX_HEAD_DIM = 128  # beyond, shared memory does not hold two tiles of Q
# As in flash_attn_persistent; the producer has more to keep.
REGISTERS = {2: (40, 232), 3: (32, 160)}


def tile_sizes(head_dim, softcap=0.0):
    """Consumer warpgroups, of 64 query rows each, and keys in a tile."""
    if head_dim <= 64:
        return (3, 96 if softcap else 128)  # 128 do not leave the registers for a tanh
    return 2, 128


def shared_bytes(HEAD_DIM, CONSUMERS, BLOCK_N):
    """Dynamic shared memory that a thread block asks for."""
    row = ceil_div(HEAD_DIM, 64) * wgmma.ROW_BYTES
    tiles = ((SLOTS + 1) * 64 * CONSUMERS + 2 * STAGES * BLOCK_N) * row
    return tiles + mbarrier.BYTES * (3 * SLOTS + 4 * STAGES) + wgmma.GROUP_BYTES


@functools.cache
def make_schedule(BLOCK_M):
    """The kernel that sorts the sequences; BLOCK_M queries make a tile."""

    @cuda.jit
    def schedule_kernel(cu_seqlens_q, cu_seqlens_k, schedule):
        """A thread finds the place of a sequence: how many come before it, of how many tiles.

        grid      (⌈batch / threads⌉,)
        HBM       schedule (2 · batch + 2,): the number of tiles of queries before each sequence in
                  the new order, and of all; which sequences they are; a counter, which begins at 0.
                  cu_seqlens_q, cu_seqlens_k are read batch times
        """
        batch = cu_seqlens_q.shape[0] - 1
        b = cuda.grid(1)
        if b == 0:
            schedule[2 * batch + 1] = 0
        if b < batch:
            num_keys = cu_seqlens_k[b + 1] - cu_seqlens_k[b]
            place, first_tile = 0, 0
            for other in range(batch):
                difference = cu_seqlens_k[other + 1] - cu_seqlens_k[other] - num_keys
                if difference > 0 or (difference == 0 and other < b):
                    place += 1
                    num_queries = cu_seqlens_q[other + 1] - cu_seqlens_q[other]
                    first_tile += (num_queries + BLOCK_M - 1) // BLOCK_M
            schedule[place] = first_tile
            schedule[batch + 1 + place] = b
            if place == batch - 1:
                num_queries = cu_seqlens_q[b + 1] - cu_seqlens_q[b]
                schedule[batch] = first_tile + (num_queries + BLOCK_M - 1) // BLOCK_M

    return schedule_kernel


@cuda.jit(device=True)
def place_of(unit, num_heads, batch, schedule):
    """(sequence, head, tile of queries) of a unit of work; of each head its last tile first."""
    place, end = uint32(0), uint32(batch)
    while end - place > 1:  # the last sequence that does not begin after this unit
        middle = uint32((place + end) >> 1)
        if schedule[middle] * num_heads <= unit:
            place = middle
        else:
            end = middle
    first = schedule[place]
    num_m_tiles = uint32(schedule[uint32(place + 1)] - first)
    rest = uint32(unit - first * num_heads)
    head = rest // num_m_tiles  # unsigned: a division of 32 bits
    m_tile = num_m_tiles - 1 - (rest - head * num_m_tiles)
    return schedule[uint32(batch + 1 + place)], int32(head), int32(m_tile)


@functools.cache
def make_flash_attn_persistent_varlen(
    HEAD_DIM, CONSUMERS, BLOCK_N, CAUSAL, DTYPE, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False
):
    """The kernel for these compile-time constants; `shared_bytes` of shared memory.

    128 threads for each of CONSUMERS and for the producer. HEAD_DIM is a multiple of 8, DTYPE
    "float16" or "bfloat16". Without ALIBI the argument alibi_slopes is not looked at, and may be
    any scalar.
    """
    BLOCK_M = 64 * CONSUMERS
    THREADS = 128 * (CONSUMERS + 1)
    COLS = 16 * ceil_div(HEAD_DIM, 16)  # that are multiplied; those from HEAD_DIM on hold 0
    NUM_BLOCKS = ceil_div(HEAD_DIM, 64)  # of 64 columns, as TMA and wgmma have a tile
    Q_BYTES = NUM_BLOCKS * 64 * wgmma.ROW_BYTES  # of one consumer
    SLOT_BYTES = CONSUMERS * Q_BYTES
    BLOCK_BYTES = BLOCK_N * wgmma.ROW_BYTES
    KV_BYTES = NUM_BLOCKS * BLOCK_BYTES
    ROW_MAJOR = descriptor_bits()  # Q and K: their rows lie along the sum
    COL_MAJOR = descriptor_bits(BLOCK_BYTES)  # V: its rows are the sum's
    S_LENGTH, P_LENGTH, OUT_LENGTH = BLOCK_N // 2, BLOCK_N // 4, COLS // 2  # registers
    S_SHAPE, P_SHAPE, OUT_SHAPE = (BLOCK_N // 8, 4), (BLOCK_N // 16, 4), (COLS // 8, 4)
    BARRIER = mbarrier.BYTES
    PRODUCER_REGISTERS, CONSUMER_REGISTERS = REGISTERS[CONSUMERS]
    pack = forward.pack_of(DTYPE)
    multiply, multiply_registers = forward.wgmma_of(DTYPE)
    clear, _, _, rescale, pack_p = make_fragment_functions(BLOCK_N, COLS, pack)
    online_softmax = make_online_softmax(BLOCK_N, ALIBI)
    mask_tile = make_mask_tile(BLOCK_N, CAUSAL, WINDOW)
    unit_of, bend_tile = make_bend_tile(BLOCK_N, CAUSAL, WINDOW, SOFTCAP, ALIBI)
    first_key, end_key, _ = masks.make_bounds(CAUSAL, WINDOW)
    load_tile = make_load_tile(NUM_BLOCKS)
    finish_rows, store_tile = make_store_tile(HEAD_DIM, pack)
    store_row = make_store_row(HEAD_DIM, pack)
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def first_tile_of(m_start, seqlen_q, seqlen_k):
        """The first tile of keys that some row of a tile of queries sees."""
        return int32(first_key(m_start + seqlen_k - seqlen_q) // BLOCK_N)

    @cuda.jit(device=True, forceinline=True)
    def end_tile_of(m_start, seqlen_q, seqlen_k):
        """The last one, plus 1. Where there is none, one tile is left to be masked as a whole."""
        n_end = end_key(m_start + BLOCK_M - 1 + seqlen_k - seqlen_q, seqlen_k)
        return int32((max(n_end, 1) + BLOCK_N - 1) // BLOCK_N)

    @cuda.jit(device=True, forceinline=True)
    def phase(count, length):
        """Parity of the phase in which a ring's stage is filled the count-th time."""
        return int32((count // length) & 1)

    @cuda.jit(device=True, forceinline=True)
    def after(stage, parity):
        """The next stage of the ring of K and V, and the parity of its phase."""
        if stage == STAGES - 1:
            return int32(0), int32(parity ^ 1)
        return int32(stage + 1), parity

    @cuda.jit(device=True, forceinline=True)
    def clear_rows(memory, tile, first_row, thread):
        """Overwrite the rows of a tile from this one on with 0; by the threads of a warpgroup."""
        start = tile - shared_address(memory)
        for offset in range(first_row * wgmma.ROW_BYTES + 8 * thread, BLOCK_BYTES, 8 * 128):
            for block in range(NUM_BLOCKS):
                memory[uint64((start + block * BLOCK_BYTES + offset) >> 3)] = uint64(0)

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def flash_attn_persistent_varlen_kernel(
        q_map, k_map, v_map, out_map, out, lse, cu_seqlens_q, cu_seqlens_k, schedule, group_size,
        scale, alibi_slopes,
    ):  # fmt: skip
        """A thread block works through tiles of queries, each with its tiles of K and V.

        grid      (at most one per SM,); warpgroup 0 loads, the others compute
        shared    q_tile (SLOTS, CONSUMERS, 64, HEAD_DIM); out_tile (CONSUMERS, 64, HEAD_DIM);
                  k_tile, v_tile (STAGES, BLOCK_N, HEAD_DIM), in blocks of 64 columns, swizzled;
                  work (SLOTS, 8): which queries Q are; barriers: full and empty for each slot of
                  Q, each stage of K, and of V, full for each slot of work
        private   s (BLOCK_N / 8, 4), p (BLOCK_N / 16, 4), acc (HEAD_DIM / 8, 4); m_i, l_i, alpha,
                  offset for two rows
        HBM       Q, out, lse once; K and V of a sequence once per tile of its queries, but for the
                  tiles that none of them sees; schedule about log2(batch) times per tile of queries
        paper     FlashAttention-3, Algorithm 2
        budget    168 registers at the start, REGISTERS after; one thread block per SM
        """
        # first row in the sequence, head; the sequence's first query, and how many; its first key,
        # and how many; 1, or 0: no more
        work = cuda.shared.array((SLOTS, 8), int32)
        memory = cuda.shared.array(0, uint64)
        q_tile = (shared_address(cuda.shared.array(0, uint8)) + 1023) & 0xFFFFFC00
        out_tile = q_tile + SLOTS * SLOT_BYTES
        k_tile = out_tile + SLOT_BYTES
        v_tile = k_tile + STAGES * KV_BYTES
        q_full = v_tile + STAGES * KV_BYTES
        q_empty = q_full + SLOTS * BARRIER
        work_full = q_empty + SLOTS * BARRIER
        k_full = work_full + SLOTS * BARRIER
        k_empty = k_full + STAGES * BARRIER
        v_full = k_empty + STAGES * BARRIER
        v_empty = v_full + STAGES * BARRIER

        tid = cuda.threadIdx.x
        warpgroup = tid >> 7
        num_heads = lse.shape[1]

        if tid == 0:
            for slot in range(SLOTS):
                mbarrier_init(work_full + slot * BARRIER, 1)
                mbarrier_init(q_full + slot * BARRIER, 1)
                mbarrier_init(q_empty + slot * BARRIER, 4 * CONSUMERS)  # a lane of each warp
            for stage in range(STAGES):
                mbarrier_init(k_full + stage * BARRIER, 1)
                mbarrier_init(v_full + stage * BARRIER, 1)
                mbarrier_init(k_empty + stage * BARRIER, 4 * CONSUMERS)
                mbarrier_init(v_empty + stage * BARRIER, 4 * CONSUMERS)
            fence_mbarrier_init()
        cuda.syncthreads()  # the barriers are made: safe to wait on

        if warpgroup == 0:
            setmaxnreg_dec(PRODUCER_REGISTERS)
            if tid == 32:  # says which queries are next
                batch = cu_seqlens_q.shape[0] - 1
                num_units = schedule[batch] * num_heads
                queries = 0  # passed so far
                unit = cuda.blockIdx.x
                while True:
                    slot = queries % SLOTS
                    wait(q_empty + slot * BARRIER, phase(queries, SLOTS) ^ 1)
                    if unit >= num_units:
                        break
                    b, head, m_tile = place_of(unit, num_heads, batch, schedule)
                    work[slot, 0] = m_tile * BLOCK_M
                    work[slot, 1] = head
                    work[slot, 2] = cu_seqlens_q[b]
                    work[slot, 3] = cu_seqlens_q[b + 1] - cu_seqlens_q[b]
                    work[slot, 4] = cu_seqlens_k[b]
                    work[slot, 5] = cu_seqlens_k[b + 1] - cu_seqlens_k[b]
                    work[slot, 6] = 1
                    mbarrier_arrive(work_full + slot * BARRIER)
                    queries += 1
                    unit = cuda.gridDim.x + cuda.atomic.add(schedule, 2 * batch + 1, 1)
                work[slot, 6] = 0
                mbarrier_arrive(work_full + slot * BARRIER)
            if tid == 0:  # loads them, and their keys and values
                queries, tile = 0, 0  # passed so far; their places in the rings
                while True:
                    slot = queries % SLOTS
                    full = q_full + slot * BARRIER
                    wait(work_full + slot * BARRIER, phase(queries, SLOTS))
                    if work[slot, 6] == 0:
                        mbarrier_arrive(full)
                        break
                    m_start, head = work[slot, 0], work[slot, 1]
                    m = work[slot, 2] + m_start
                    mbarrier_arrive_expect_tx(full, SLOT_BYTES)
                    for w in range(CONSUMERS):
                        q_rows = q_tile + slot * SLOT_BYTES + w * Q_BYTES
                        load_tile(q_rows, 64, q_map, m + 64 * w, head, 0, full)
                    queries += 1
                    kv_head, k_start = head // group_size, work[slot, 4]
                    end_tile = end_tile_of(m_start, work[slot, 3], work[slot, 5])
                    n_tile = first_tile_of(m_start, work[slot, 3], work[slot, 5])
                    while n_tile < end_tile:
                        n = k_start + n_tile * BLOCK_N
                        stage, was_empty = tile % STAGES, phase(tile, STAGES) ^ 1
                        full = k_full + stage * BARRIER
                        rows = k_tile + stage * KV_BYTES
                        wait(k_empty + stage * BARRIER, was_empty)
                        mbarrier_arrive_expect_tx(full, KV_BYTES)
                        load_tile(rows, BLOCK_N, k_map, n, kv_head, 0, full)
                        full = v_full + stage * BARRIER
                        rows = v_tile + stage * KV_BYTES
                        wait(v_empty + stage * BARRIER, was_empty)
                        mbarrier_arrive_expect_tx(full, KV_BYTES)
                        load_tile(rows, BLOCK_N, v_map, n, kv_head, 0, full)
                        tile += 1
                        n_tile += int32(1)
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
            warp_row = ((tid >> 5) - 4) * 16  # in a tile of queries
            q_offset = (warpgroup - 1) * Q_BYTES
            out_rows = out_tile + q_offset + ((tid >> 5) & 3) * (16 * wgmma.ROW_BYTES)

            unit = unit_of(scale)  # what one of s is worth
            queries = int32(0)  # passed so far
            stage, parity = int32(0), int32(0)  # where in the ring the next tile of K and V is
            while True:
                slot = queries & int32(SLOTS - 1)
                wait(q_full + slot * BARRIER, phase(queries, SLOTS))
                if work[slot, 6] == 0:
                    break
                m_start, seqlen_q, seqlen_k = work[slot, 0], work[slot, 3], work[slot, 5]
                position = int32(m_start + warp_row + (lane >> 2) + seqlen_k - seqlen_q)
                slope = alibi_slopes[work[slot, 1]] if ALIBI else float32(0)
                first_tile = first_tile_of(m_start, seqlen_q, seqlen_k)
                end_tile = end_tile_of(m_start, seqlen_q, seqlen_k)
                q = descriptor(ROW_MAJOR, q_tile + slot * SLOT_BYTES + q_offset)
                clear(acc, m_i, l_i)

                wait(k_full + stage * BARRIER, parity)
                wgmma_fence()  # S of the first tile
                multiply(BLOCK_N, COLS, s, q, descriptor(ROW_MAJOR, k_tile + stage * KV_BYTES))
                wgmma_commit()
                wgmma_wait(0, s, S_LENGTH)
                if lane == 0:
                    mbarrier_arrive(k_empty + stage * BARRIER)
                bend_tile(s, offset, first_tile * BLOCK_N, position, slope, scale, lane)
                mask_tile(s, first_tile * BLOCK_N, position, seqlen_k, lane)
                online_softmax(s, offset, m_i, l_i, alpha, unit)
                pack_p(s, p)

                n_tile = int32(first_tile + 1)
                while n_tile < end_tile:
                    next_stage, next_parity = after(stage, parity)
                    k = descriptor(ROW_MAJOR, k_tile + next_stage * KV_BYTES)
                    v = descriptor(COL_MAJOR, v_tile + stage * KV_BYTES)
                    wait(k_full + next_stage * BARRIER, next_parity)
                    wait(v_full + stage * BARRIER, parity)
                    wgmma_fence()
                    multiply(BLOCK_N, COLS, s, q, k)  # S = Q Kᵀ of the next tile
                    wgmma_commit()
                    multiply_registers(COLS, BLOCK_N, acc, p, v)  # out <- out + P V of this one
                    wgmma_commit()

                    wgmma_wait(1, s, S_LENGTH)
                    if lane == 0:
                        mbarrier_arrive(k_empty + next_stage * BARRIER)
                    bend_tile(s, offset, n_tile * BLOCK_N, position, slope, scale, lane)
                    mask_tile(s, n_tile * BLOCK_N, position, work[slot, 5], lane)
                    online_softmax(s, offset, m_i, l_i, alpha, unit)  # while P V runs
                    # As in flash_attn_persistent: it holds the wait for P V back.
                    wait(v_full + next_stage * BARRIER, next_parity)

                    wgmma_wait_with(0, acc, OUT_LENGTH, p, P_LENGTH)
                    if lane == 0:
                        mbarrier_arrive(v_empty + stage * BARRIER)
                    pack_p(s, p)
                    rescale(acc, alpha)  # out <- alpha out
                    stage, parity = next_stage, next_parity
                    n_tile = int32(n_tile + 1)

                v = descriptor(COL_MAJOR, v_tile + stage * KV_BYTES)
                wait(v_full + stage * BARRIER, parity)
                num_rows = work[slot, 5] - (end_tile - 1) * BLOCK_N  # of V that are the sequence's
                if num_rows < BLOCK_N:
                    # Each warpgroup clears them for itself: it may overwrite 0 that another reads.
                    clear_rows(memory, v_tile + stage * KV_BYTES, num_rows, tid & 127)
                    fence_async_proxy()
                    named_barrier_sync(warpgroup, 128)  # the rows are 0: safe to multiply
                wgmma_fence()  # P V of the last tile
                multiply_registers(COLS, BLOCK_N, acc, p, v)
                wgmma_commit()
                m_warp, head = work[slot, 0] + warp_row, work[slot, 1]
                q_start, seqlen_q = work[slot, 2], work[slot, 3]
                lse_rows = lse[:, :, q_start : q_start + seqlen_q]
                finish_rows(m_i, l_i, inverse, lse_rows, 0, head, m_warp, lane, unit)
                wgmma_wait_with(0, acc, OUT_LENGTH, p, P_LENGTH)
                if lane == 0:
                    mbarrier_arrive(v_empty + stage * BARRIER)
                    mbarrier_arrive(q_empty + slot * BARRIER)  # work and Q are read
                if m_warp + 16 <= seqlen_q:
                    m, m_end = q_start + m_warp, q_start + seqlen_q
                    store_tile(acc, inverse, out_rows, out_map, m, m_end, head, 0, lane)
                else:  # the next rows are another sequence's
                    for h in range(2):
                        m = m_warp + (lane >> 2) + 8 * h
                        if m < seqlen_q:
                            store_row(acc, h, inverse[h], out[q_start + m, head], lane)
                queries = int32(queries + 1)
                stage, parity = after(stage, parity)
            if lane == 0:
                tma_store_wait_read(0)  # shared memory lives as long as the thread block

    return flash_attn_persistent_varlen_kernel


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
        128.
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
        max_head_dim=MAX_HEAD_DIM,
    )
    num_tokens_q, num_heads, head_dim = q.shape
    num_tokens_k, num_kv_heads, _ = k.shape
    mask, slopes = checks.check_mask(q, causal, window_size, softcap, alibi_slopes)
    scale = np.float32(checks.check_positive_scale(softmax_scale, head_dim) * LOG2_E)
    if num_tokens_k == 0:
        out = arrays.full(q, q.shape, 0, q.dtype)
        return out, arrays.full(q, (num_heads, num_tokens_q), -np.inf)
    out = arrays.empty(q, q.shape, q.dtype)
    lse = arrays.empty(q, (1, num_heads, num_tokens_q))
    batch = cu_seqlens_q.shape[0] - 1
    if num_tokens_q == 0:
        return out, lse[0]
    consumers, block_n = tile_sizes(head_dim, mask[2])
    block_m = 64 * consumers
    schedule = arrays.empty(q, (2 * batch + 2,), np.int32)
    sequences = cu_seqlens_q, cu_seqlens_k, schedule
    threads = (SCHEDULE_THREADS,)
    arrays.launch(make_schedule(block_m), (ceil_div(batch, *threads),), threads, *sequences)
    causal, *rest = mask
    kernel = make_flash_attn_persistent_varlen(
        head_dim, consumers, block_n, causal, arrays.dtype_name(q), *rest
    )
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
        lse,
        *sequences,
        group_size,
        scale,
        slopes,
        shared_bytes=shared_bytes(head_dim, consumers, block_n),
    )
    return out, lse[0]
