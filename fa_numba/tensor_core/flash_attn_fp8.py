"""flash_attn_persistent on 8-bit floats: Q, K, V and P in e4m3, twice the products per cycle.

flash_attn_wgmma       four warps multiply tiles in shared memory; TMA fetches the next
flash_attn_ws          a warp of its own fetches; the next tile's Q Kᵀ beside this one's P V
flash_attn_persistent  the next queries are on their way before these are done
flash_attn_fp8         8 bits to an element, a scale for each tile               <- this file

`quantize_fp8` rounds Q, K and V before. A tile of each has one scale, so that an outlier costs
precision in its own tile alone, and it lies in memory byte for byte as wgmma reads it: one bulk
copy brings it. Against flash_attn_persistent

- the scale of K enters the softmax scale of its tile. out is held over V's scale of the newest
  tile, brought from one to the next where the newest is added;
- P is multiplied by 2⁶, to use the range of e4m3. The shift of the exponent is part of the one
  multiply-add that each score needs anyway;
- wgmma holds D in pairs of columns, but wants an A of 8 bits in fours. A sum over keys does not
  mind their order, so V was written with its keys as P holds them: P is packed in place;
- of sums of e4m3 products the tensor cores keep about 14 bits and cut off the rest, always towards
  0: too little for sums over thousands of keys. So P V of a tile is a sum of its own, added to out
  in float32; from V's scale to the next it is one multiply-add;
- V has a column of ones more, and so P V has the sum of P: no additions for it, and what rounding
  and cutting off take from out, they take from the sum that it is divided by, too.

None of three warpgroups overlaps with itself, so that S and P V of a tile can have the same
registers. Their warps take turns for the exponentials: each has the special function unit to itself
while the others multiply and round.

A row's maximum may lag behind, as in `lazy_softmax`, but by LAZY powers of 2 alone: what P is held
larger by, its small values lack in bits.

On an H200, head_dim 128, n = 4096: 1032 (913) TFLOP/s where flash_attn_persistent had 706 (650), at
n = 512 764 (477) and 543 (352); causal in brackets. Rounding Q, K and V takes 0.09 ms for 16384
tokens of 16 heads, 88 % of a copy's bandwidth (benchmarks/NOTES.md): with it sequences from 2048,
causal from 4096 on are quicker than in float16. benchmarks/results/fp8.json.

Paper: Shah et al. 2024, FlashAttention-3, arXiv:2407.08608, section 3.3; for the sums of 14 bits
DeepSeek-AI 2024, DeepSeek-V3, arXiv:2412.19437, section 3.3.2.
"""

import functools

import numpy as np
from numba import cuda, float32, int32, uint8, uint32, uint64

from fa_numba import checks
from fa_numba.constants import FULL_WARP
from fa_numba.kernels import masks
from fa_numba.ptx import mbarrier, wgmma
from fa_numba.ptx.barriers import (
    named_barrier_arrive,
    named_barrier_sync,
    setmaxnreg_dec,
    setmaxnreg_inc,
)
from fa_numba.ptx.convert import exp2, pack_e4m3x4
from fa_numba.ptx.layouts import ROW_BYTES
from fa_numba.ptx.mbarrier import (
    fence_mbarrier_init,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
    phase,
)
from fa_numba.ptx.statement import global_address, shared_address
from fa_numba.ptx.tma import tma_store_wait_read
from fa_numba.ptx.vectors import bulk_load
from fa_numba.ptx.wgmma import (
    descriptor,
    narrow_descriptor_bits,
    wgmma_commit,
    wgmma_e4m3,
    wgmma_e4m3_registers,
    wgmma_fence,
    wgmma_wait,
    wgmma_wait_with,
)
from fa_numba.runtime import arrays
from fa_numba.runtime.tensor_maps import tensor_map
from fa_numba.tensor_core import forward, quantize_fp8
from fa_numba.tensor_core.forward import HOPPER
from fa_numba.tensor_core.fragments import (
    fragment_function,
    make_fragment_functions,
    make_mask_tile,
    make_store_tile,
    over_quad_max,
)
from fa_numba.tensor_core.lazy_rescaling import make_largest
from fa_numba.tensor_core.quantize_fp8 import SUM_ROWS, width_of
from fa_numba.tensor_core.tile_scheduler import divided, m_tile_of
from fa_numba.tiling.persistent_tiling import choose_num_slices

NO_WINDOW = (-1, -1)
Q_ROWS = 64  # of a consumer: a tile of Q, which has a scale
STAGES = 2  # of K, and of V
SLOTS = 2  # of Q: the next queries are there before these are done
CONSUMERS, BLOCK_N = 3, 128  # warpgroups that compute; keys in a tile
REGISTERS = 32, 160  # of a producer's thread, and of a consumer's
# P is held as 2^6 P, at most 2^8.75 where a row's maximum lags behind; 448, the largest number of
# e4m3, is 2^8.8. The shift is whole, so that a row's largest P is 1 and exact where nothing lags.
P_SHIFT, LAZY = np.float32(6), np.float32(2.75)
# m_i before the first key; m_i has its scores' factor in it, scales and log2 e. A masked score is
# below it for any factor from LEAST_FACTOR on: fragments.MASKED · LEAST_FACTOR < NOTHING.
NOTHING = np.float32(-1e15)
LEAST_FACTOR = np.float32(1e-14)

MAX_HEAD_DIM = 128  # beyond, registers do not hold it all


def takes_turns(seqlen_k, causal):
    """Whether the warpgroups take turns for the exponentials.

    With few keys under a causal mask one is often at its last tile, and the others would wait.
    """
    return not causal or seqlen_k > 1024


def shared_bytes(HEAD_DIM):
    """Dynamic shared memory that a thread block asks for."""
    queries = (SLOTS + 2) * 64 * CONSUMERS * HEAD_DIM  # out has 2 bytes to an element
    keys = STAGES * BLOCK_N * (2 * HEAD_DIM + SUM_ROWS)
    return queries + keys + mbarrier.BYTES * (2 * SLOTS + 4 * STAGES) + wgmma.GROUP_BYTES


@functools.cache
def make_softmax(HEAD_DIM):
    """Functions for scores of a tile, as `fragments.make_fragment_functions` has them.

    Returns
    -------
    raise_maximum(s, m_i, acc, factor)
        Where a score is far above m_i, which has the factor in it, m_i rises, and out and the sum
        of P are brought to it.
    exponentiate(s, m_i, factor)
        s becomes 2^6 P = 2^(factor s − m_i + 6).
    pack_p(s, p)
        P in e4m3, as A of the next product: p of shape (BLOCK_N / 32, 4).
    add_tile(acc, part, v_ratio)
        acc becomes acc + part. out is held over V's scale of the newest tile: v_ratio is the one
        before over it. The column of sums of P has no scale.
    """
    S8, P32, OUT8 = BLOCK_N // 8, BLOCK_N // 32, HEAD_DIM // 8
    largest, largest_bits = make_largest(BLOCK_N)

    @fragment_function()
    def raise_maximum(s, m_i, acc, factor):
        top = cuda.local.array(2, float32)
        stays, known = True, True
        for h in range(2):
            top[h] = largest_bits(s, h)
            known = known and top[h] >= float32(0)
            stays = stays and max(top[h], float32(0)) * factor <= m_i[h] + LAZY
        if not cuda.all_sync(FULL_WARP, stays):
            if not cuda.all_sync(FULL_WARP, known):
                for h in range(2):
                    top[h] = largest(s, h)
            for h in range(2):
                m_new = max(m_i[h], over_quad_max(top[h]) * factor)
                alpha = exp2(m_i[h] - m_new)
                m_i[h] = m_new
                for j in range(OUT8 + 1):
                    for c in range(2):
                        acc[j, 2 * h + c] *= alpha

    @fragment_function()
    def exponentiate(s, m_i, factor):
        for h in range(2):
            shift = P_SHIFT - m_i[h]
            for j in range(S8):
                for c in range(2):
                    s[j, 2 * h + c] = exp2(s[j, 2 * h + c] * factor + shift)

    @fragment_function()
    def pack_p(s, p):
        for k in range(P32):
            for half in range(2):  # of 32 columns
                for h in range(2):
                    j = 4 * k + 2 * half
                    p[k, 2 * half + h] = pack_e4m3x4(
                        s[j, 2 * h], s[j, 2 * h + 1], s[j + 1, 2 * h], s[j + 1, 2 * h + 1]
                    )

    @fragment_function()
    def add_tile(acc, part, v_ratio):
        for h in range(2):
            acc[OUT8, 2 * h] += part[OUT8, 2 * h]
        for j in range(OUT8):
            for r in range(4):
                acc[j, r] = v_ratio * acc[j, r] + part[j, r]

    return raise_maximum, exponentiate, pack_p, add_tile


@functools.cache
def make_flash_attn_fp8(HEAD_DIM, CAUSAL, DTYPE, TURNS):
    """The kernel for these compile-time constants; `shared_bytes` of shared memory.

    128 threads for each of CONSUMERS and for the producer. HEAD_DIM is 64 or 128, DTYPE, of out,
    "float16" or "bfloat16". TURNS: see `takes_turns`.
    """
    BLOCK_M = 64 * CONSUMERS
    THREADS = 128 * (CONSUMERS + 1)
    Q_BYTES = 64 * HEAD_DIM  # of one consumer
    SLOT_BYTES = CONSUMERS * Q_BYTES
    V_ROWS = HEAD_DIM + SUM_ROWS
    K_BYTES, V_BYTES = BLOCK_N * HEAD_DIM, BLOCK_N * V_ROWS
    QK_WIDTH, V_WIDTH = width_of(HEAD_DIM), width_of(BLOCK_N)
    QK, V = narrow_descriptor_bits(QK_WIDTH), narrow_descriptor_bits(V_WIDTH)
    S_LENGTH, P_LENGTH, OUT_LENGTH = BLOCK_N // 2, BLOCK_N // 8, V_ROWS // 2  # registers
    S_SHAPE, P_SHAPE, OUT_SHAPE = (BLOCK_N // 8, 4), (BLOCK_N // 32, 4), (V_ROWS // 8, 4)
    BARRIER = mbarrier.BYTES
    EMPTY = STAGES * BARRIER  # from the barrier "full" of a stage of K or V to its "empty"
    NEVER = 4 * CONSUMERS + 1  # a named barrier at which nobody waits; those before are the turns'
    PRODUCER_REGISTERS, CONSUMER_REGISTERS = REGISTERS
    pack = forward.pack_of(DTYPE)
    clear, _, _, _, _ = make_fragment_functions(BLOCK_N, V_ROWS, pack)
    raise_maximum, exponentiate, pack_p, add_tile = make_softmax(HEAD_DIM)
    mask_tile = make_mask_tile(BLOCK_N, CAUSAL, NO_WINDOW)
    _, end_key, _ = masks.make_bounds(CAUSAL, NO_WINDOW)
    finish_rows, store_tile = make_store_tile(HEAD_DIM, pack)
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def num_tiles_of(last_row, seqlen_q, seqlen_k):
        """Tiles of keys that some row up to this one sees; one if there is none, all masked."""
        n_end = end_key(last_row + seqlen_k - seqlen_q, seqlen_k)
        return int32((max(n_end, 1) + BLOCK_N - 1) // BLOCK_N)

    @cuda.jit(device=True, forceinline=True)
    def first_tile(scales, b, head):
        """Of a head, counted from the array's first: in 32 bits, for the producers' registers."""
        return int32((b * int32(scales.shape[1]) + head) * int32(scales.shape[2]))

    def make_producer(feed):
        """What a thread does that fetches: `feed` for each tile of queries of its thread block."""

        @cuda.jit(device=True, forceinline=True)
        def produce(seqlen_q, seqlen_k, num_heads, batch, group_size, num_shares, ring):
            num_m_tiles = int32((seqlen_q + BLOCK_M - 1) // BLOCK_M)
            num_units = int32(num_shares * num_heads * batch)  # shares of all heads
            count = uint32(0)  # passed so far: the place in the ring
            # units of the rounds before; this one's place in the round, to and fro
            dealt, place = int32(0), int32(cuda.blockIdx.x)
            while dealt + place < num_units:
                rest, share = divided(dealt + place, num_shares)
                b, head = divided(rest, num_heads)
                kv_head, _ = divided(head, group_size)
                dealt = int32(dealt + cuda.gridDim.x)
                place = int32(cuda.gridDim.x - 1 - place)
                step = int32(0)
                m_tile = m_tile_of(step, share, num_shares, num_m_tiles)
                while m_tile >= 0:
                    m_start = int32(m_tile * BLOCK_M)
                    num_tiles = num_tiles_of(m_start + BLOCK_M - 1, seqlen_q, seqlen_k)
                    count = feed(count, m_start, num_tiles, b, head, kv_head, ring)
                    step = int32(step + 1)
                    m_tile = m_tile_of(step, share, num_shares, num_m_tiles)
            return count

        return produce

    @make_producer
    @cuda.jit(device=True, forceinline=True)
    def produce_q(count, m_start, num_tiles, b, head, kv_head, ring):
        """Once there is room, say which queries are next, and start their copy."""
        q, q_scale, v_scale, scale, work, factors, q_tile, q_full, q_empty = ring
        slot = count % SLOTS
        full = q_full + slot * BARRIER
        wait(q_empty + slot * BARRIER, phase(count, SLOTS) ^ 1)
        work[slot, 0] = m_start
        work[slot, 1] = head
        work[slot, 2] = b
        work[slot, 3] = 1
        factors[slot, CONSUMERS] = v_scale[0, 0, first_tile(v_scale, b, kv_head) + num_tiles - 1]
        first = int32(first_tile(q_scale, b, head) + m_start // Q_ROWS)
        for w in range(CONSUMERS):
            factors[slot, w] = q_scale[0, 0, first + w] * scale
        mbarrier_arrive_expect_tx(full, SLOT_BYTES)
        q_rows = global_address(q) + uint64(uint32(first)) * uint64(Q_BYTES)
        bulk_load(q_tile + slot * SLOT_BYTES, q_rows, SLOT_BYTES, full)
        return uint32(count + 1)

    def make_kv_producer(NUM_BYTES, OF_V):
        """For tiles of K and their scales; or of V, and the scale of the one before over theirs."""

        @make_producer
        @cuda.jit(device=True, forceinline=True)
        def produce_kv(count, m_start, num_tiles, b, head, kv_head, ring):
            tiles, scales, given, kv_tile, kv_full = ring
            before = float32(1)
            n_tile = first_tile(scales, b, kv_head)
            end = int32(n_tile + num_tiles)
            source = global_address(tiles) + uint64(uint32(n_tile)) * uint64(NUM_BYTES)
            while n_tile < end:
                stage, was_empty = count % STAGES, phase(count, STAGES) ^ 1
                full = kv_full + stage * BARRIER
                this = scales[0, 0, n_tile]
                ratio = before / this
                wait(full + EMPTY, was_empty)
                given[stage] = ratio if OF_V else this
                mbarrier_arrive_expect_tx(full, NUM_BYTES)
                bulk_load(kv_tile + stage * NUM_BYTES, source, NUM_BYTES, full)
                before = this
                source += uint64(NUM_BYTES)
                count = uint32(count + 1)
                n_tile = int32(n_tile + 1)
            return count

        return produce_kv

    produce_k, produce_v = make_kv_producer(K_BYTES, False), make_kv_producer(V_BYTES, True)

    @cuda.jit(device=True, forceinline=True)
    def begin_turn(turn):
        """Wait until it is this warp's turn. `turn`: its named barrier, and the next one's."""
        if TURNS:
            named_barrier_sync(turn[0], 64)

    @cuda.jit(device=True, forceinline=True)
    def pass_turn(turn):
        if TURNS:
            named_barrier_arrive(turn[1], 64)

    def make_turn(EDGE):
        """The step to the next tile of keys, where there may be something to mask, or not.

        Two functions and not a branch in one: around a branch ptxas can move little.
        """

        @cuda.jit(device=True, forceinline=True, fastmath=True)
        def take(registers, rings, given, tile, q, n_start, position, seqlen_k, group, turn, lane):
            s, p, acc, part, m_i = registers
            k_tile, k_full, v_tile, v_full = rings
            factors, k_scales, v_ratios = given
            stage, parity = tile % STAGES, phase(tile, STAGES)
            k = descriptor(QK, uint32(k_tile + stage * K_BYTES))
            wait(k_full + stage * BARRIER, parity)
            wgmma_fence()
            wgmma_e4m3(BLOCK_N, HEAD_DIM, QK_WIDTH, s, q, k)  # S = Q Kᵀ
            wgmma_commit()
            factor = max(factors[group] * k_scales[stage], LEAST_FACTOR)
            wgmma_wait(0, s, S_LENGTH)
            if lane == 0:
                mbarrier_arrive(k_full + EMPTY + stage * BARRIER)
            if EDGE:
                mask_tile(s, n_start, position, seqlen_k, lane)
            raise_maximum(s, m_i, acc, factor)
            begin_turn(turn)
            exponentiate(s, m_i, factor)
            # Never so. ptxas would round two exponentials as soon as they are there, and a warp
            # that waits for every two leaves half of the special function unit's time unused. Over
            # a branch that asks for the last one it moves nothing.
            if TURNS and s[BLOCK_N // 8 - 1, 3] < float32(0):
                named_barrier_arrive(NEVER, 32)
            pass_turn(turn)
            pack_p(s, p)

            v = descriptor(V, uint32(v_tile + stage * V_BYTES))
            wait(v_full + stage * BARRIER, parity)
            wgmma_fence()
            wgmma_e4m3_registers(V_ROWS, BLOCK_N, V_WIDTH, part, p, v)
            wgmma_commit()
            v_ratio = v_ratios[stage]
            wgmma_wait_with(0, part, OUT_LENGTH, p, P_LENGTH)
            if lane == 0:
                mbarrier_arrive(v_full + EMPTY + stage * BARRIER)
            add_tile(acc, part, v_ratio)  # out <- out + P V

        return take

    take_inner, take_edge = make_turn(False), make_turn(True)

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def flash_attn_fp8_kernel(
        q, k, v, q_scale, k_scale, v_scale, out_map, lse, seqlen_k, group_size, num_shares, scale
    ):
        """A thread block works through tiles of queries, each with its tiles of K and V.

        q, k, v and their scales are those of `quantize_fp8.Quantized`; out_map is the address of a
        tensor map with boxes of 16 rows. scale is softmax_scale · log2 e.

        grid      (at most one per SM,); warpgroup 0 loads, the others compute
        shared    q_tile (SLOTS, CONSUMERS, 64, HEAD_DIM), k_tile (STAGES, BLOCK_N, HEAD_DIM),
                  v_tile (STAGES, V_ROWS, BLOCK_N), in blocks of columns, swizzled; out_tile
                  (CONSUMERS, 64, HEAD_DIM) in 16 bits, also so; work (SLOTS, 4): which queries Q
                  are, factors; k_scales, v_ratios; barriers: full and empty for each slot of Q,
                  each stage of K, and of V
        private   s (BLOCK_N / 8, 4), p (BLOCK_N / 32, 4), acc and part (V_ROWS / 8, 4); m_i, l_i,
                  inverse for two rows
        HBM       Q, out, lse once; K and V once per tile of queries, but for the tiles that none
                  of them sees
        paper     FlashAttention-3, Algorithm 2 and section 3.3
        budget    128 registers at the start, REGISTERS after; one thread block per SM
        """
        work = cuda.shared.array((SLOTS, 4), int32)  # first row, head, batch, 1; or 0: no more
        factors = cuda.shared.array((SLOTS, 4), float32)  # of each consumer's Q; of the last V
        k_scales = cuda.shared.array(STAGES, float32)
        v_ratios = cuda.shared.array(STAGES, float32)  # scale of the tile before over this one's
        q_tile = (shared_address(cuda.shared.array(0, uint8)) + 1023) & 0xFFFFFC00
        out_tile = q_tile + SLOTS * SLOT_BYTES
        k_tile = out_tile + 2 * SLOT_BYTES
        v_tile = k_tile + STAGES * K_BYTES
        q_full = v_tile + STAGES * V_BYTES
        q_empty = q_full + SLOTS * BARRIER
        k_full = q_empty + SLOTS * BARRIER
        k_empty = k_full + STAGES * BARRIER
        v_full = k_empty + STAGES * BARRIER
        v_empty = v_full + STAGES * BARRIER

        tid = cuda.threadIdx.x
        warpgroup = tid >> 7
        num_heads, seqlen_q = int32(lse.shape[1]), int32(lse.shape[2])

        if tid == 0:
            for slot in range(SLOTS):
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
            shape = seqlen_q, seqlen_k, num_heads, int32(lse.shape[0]), group_size, num_shares
            if tid == 0:  # a thread for Q, one for K, one for V
                q_ring = q, q_scale, v_scale, scale, work, factors, q_tile, q_full, q_empty
                queries = produce_q(*shape, q_ring)
                slot = queries % SLOTS
                wait(q_empty + slot * BARRIER, phase(queries, SLOTS) ^ 1)
                work[slot, 3] = 0
                mbarrier_arrive(q_full + slot * BARRIER)
            elif tid == 32:
                produce_k(*shape, (k, k_scale, k_scales, k_tile, k_full))
            elif tid == 64:
                produce_v(*shape, (v, v_scale, v_ratios, v_tile, v_full))
        else:
            setmaxnreg_inc(CONSUMER_REGISTERS)
            s = cuda.local.array(S_SHAPE, float32)
            p = cuda.local.array(P_SHAPE, uint32)
            acc = cuda.local.array(OUT_SHAPE, float32)
            part = cuda.local.array(OUT_SHAPE, float32)
            m_i = cuda.local.array(2, float32)
            l_i = cuda.local.array(2, float32)
            inverse = cuda.local.array(2, float32)
            lane = tid & 31
            # Which of a tile's rows are the warpgroup's, and the warp's. By shuffles, so that ptxas
            # knows it as the same for a whole warp: what follows from it is kept once for a warp.
            group = int32(cuda.shfl_sync(FULL_WARP, warpgroup, 0) - 1)
            warp = int32(cuda.shfl_sync(FULL_WARP, tid >> 5 & 3, 0))  # of the warpgroup
            warp_row = int32(warp * 16)  # in the warpgroup's rows
            out_rows = uint32(out_tile + 2 * group * Q_BYTES + warp_row * ROW_BYTES)
            registers = s, p, acc, part, m_i
            rings = k_tile, k_full, v_tile, v_full
            is_last = group == CONSUMERS - 1
            next_group = int32(0 if is_last else group + 1)
            turn = uint32(1 + 4 * group + warp), uint32(1 + 4 * next_group + warp)
            if is_last:
                pass_turn(turn)  # the first warpgroup begins

            queries, tile = int32(0), uint32(0)  # passed so far; their places in the rings
            while True:
                slot = int32(queries % SLOTS)
                wait(q_full + slot * BARRIER, phase(queries, SLOTS))
                if work[slot, 3] == 0:
                    break
                m_start = work[slot, 0]
                m = int32(m_start + group * Q_ROWS)  # the warpgroup's first row
                q_rows = descriptor(QK, uint32(q_tile + slot * SLOT_BYTES + group * Q_BYTES))
                clear(acc, m_i, l_i)
                for h in range(2):
                    m_i[h] = NOTHING

                given = factors[slot], k_scales, v_ratios
                num_tiles = num_tiles_of(m_start + BLOCK_M - 1, seqlen_q, seqlen_k)
                own = num_tiles_of(m + Q_ROWS - 1, seqlen_q, seqlen_k) if m < seqlen_q else int32(0)
                whole = int32(max(end_key(m + seqlen_k - seqlen_q, seqlen_k), 0) // BLOCK_N)
                inner_end, end = uint32(tile + min(whole, own)), uint32(tile + own)
                all_end = uint32(tile + num_tiles)
                while tile != inner_end:
                    # Inner turns look at neither n_start nor position.
                    step = tile, q_rows, 0, 0, seqlen_k, group, turn, lane
                    take_inner(registers, rings, given, *step)
                    tile = uint32(tile + 1)
                while tile != end:
                    # Read again, here and below: registers are scarce.
                    position = int32(work[slot, 0] + group * Q_ROWS + seqlen_k - seqlen_q)
                    position = int32(position + warp_row + (lane >> 2))
                    n_start = int32((own - int32(end - tile)) * BLOCK_N)
                    step = tile, q_rows, n_start, position, seqlen_k, group, turn, lane
                    take_edge(registers, rings, given, *step)
                    tile = uint32(tile + 1)

                m_start, head, b = work[slot, 0], work[slot, 1], work[slot, 2]
                m_warp = int32(m_start + group * Q_ROWS + warp_row)
                of_v = factors[slot, CONSUMERS]
                while tile != all_end:  # that others see: given back as they come
                    stage, parity = tile % STAGES, phase(tile, STAGES)
                    wait(k_full + stage * BARRIER, parity)
                    if lane == 0:
                        mbarrier_arrive(k_full + EMPTY + stage * BARRIER)
                    begin_turn(turn)
                    pass_turn(turn)
                    wait(v_full + stage * BARRIER, parity)
                    of_v *= v_ratios[stage]  # from the last tile of all to the last of its own
                    cuda.syncwarp()  # v_ratios is read: safe to overwrite
                    if lane == 0:
                        mbarrier_arrive(v_full + EMPTY + stage * BARRIER)
                    tile = uint32(tile + 1)
                cuda.syncwarp()  # work and factors are read: safe to overwrite
                if lane == 0:
                    mbarrier_arrive(q_empty + slot * BARRIER)
                for h in range(2):
                    l_i[h] = acc[HEAD_DIM // 8, 2 * h]  # of a quad's first lane; elsewhere 0
                    m_i[h] -= P_SHIFT  # l_i is a sum of 2^6 P
                finish_rows(m_i, l_i, inverse, lse, b, head, m_warp, lane, float32(1))
                for h in range(2):
                    inverse[h] *= of_v
                store_tile(acc, inverse, out_rows, out_map, m_warp, seqlen_q, head, b, lane)
                queries = int32(queries + 1)
            if lane == 0:
                tma_store_wait_read(0)  # shared memory lives as long as the thread block

    return flash_attn_fp8_kernel


def flash_attn_fp8(q, k, v, *, causal=False, softmax_scale=None, hadamard=True):
    """FlashAttention-3, forward, in e4m3: float16 or bfloat16 in and out, on Hopper GPUs.

    Parameters
    ----------
    q : GPU array of shape (batch, seqlen_q, num_heads, head_dim), float16 or bfloat16
    k, v : GPU arrays of shape (batch, seqlen_k, num_kv_heads, head_dim), dtype of q
        num_heads is a multiple of num_kv_heads (MHA, GQA, MQA). Any strides that are multiples of
        16 bytes, with a contiguous last axis; head_dim 64 or 128.
    causal : bool, default=False
        Bottom-right aligned: seqlen_q=2, seqlen_k=5 keeps  1 1 1 1 0 / 1 1 1 1 1.
    softmax_scale : float, default=1/√head_dim
        Positive.
    hadamard : bool, default=True
        Spread outliers of Q and K over their rows before rounding.

    Returns
    -------
    out : array of the shape, dtype and library of q
        0 in a row that sees no key.
    lse : array of shape (batch, num_heads, seqlen_q), float32
        Natural log of the row's sum of e^score; −inf in a row that sees no key.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it must be, and what it got.
    RuntimeError
        On a GPU that has no wgmma.
    """
    hadamard = checks.check_flag("hadamard", hadamard)
    out, lse, causal, scale = forward.prepare(
        "flash_attn_fp8", q, k, v, causal, softmax_scale, HOPPER, MAX_HEAD_DIM
    )
    checks.check_fp8(q)
    if k.shape[1] > 0 and q.shape[1] > 0:  # else out is 0, lse is −inf already
        attend(*quantize(q, k, v, hadamard), out, lse, causal, scale)
    return out, lse


def quantize(q, k, v, hadamard=True, least=3 * (quantize_fp8.LEAST,)):
    """Q, K and V in the tiles that `attend` takes; K and V may be kept for other queries.

    Returns
    -------
    q8, k8, v8 : Quantized
    """
    options = {"hadamard": hadamard, "multiple": CONSUMERS, "least": least}
    return quantize_fp8.quantize(q, k, v, Q_ROWS, BLOCK_N, **options)


def attend(q8, k8, v8, out, lse, causal, scale):
    """Launch the kernel on what `quantize` returned.

    Parameters
    ----------
    q8, k8, v8 : Quantized
    out : array of the shape that Q had, float16 or bfloat16
    lse : array of shape (batch, num_heads, seqlen_q), float32
    causal : bool
    scale : float32
        softmax_scale · log2 e.
    """
    batch, seqlen_q, num_heads, head_dim = q8.shape
    _, seqlen_k, num_kv_heads, _ = k8.shape
    turns = takes_turns(seqlen_k, causal)
    kernel = make_flash_attn_fp8(head_dim, causal, arrays.dtype_name(out), turns)
    cut = seqlen_q, seqlen_k, Q_ROWS * CONSUMERS, BLOCK_N, causal, NO_WINDOW, CONSUMERS
    num_sms = arrays.num_sms(out)
    num_shares = choose_num_slices(batch * num_heads, num_sms, *cut)
    grid = (min(num_shares * batch * num_heads, num_sms),)
    tiles, scales = (q8.tiles, k8.tiles, v8.tiles), (q8.scales, k8.scales, v8.scales)
    sizes = np.int32(seqlen_k), np.int32(num_heads // num_kv_heads), np.int32(num_shares)
    out_map, size = tensor_map(out, 16), shared_bytes(head_dim)
    arguments = *tiles, *scales, out_map, lse, *sizes, scale
    arrays.launch(kernel, grid, (128 * (CONSUMERS + 1),), *arguments, shared_bytes=size)
