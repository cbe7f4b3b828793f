"""FlashAttention-3 forward in FP8: Q, K, V and P in e4m3, twice the products per cycle.

flash_attn_wgmma       four warps multiply tiles in shared memory; TMA fetches the next
flash_attn_ws          a warp of its own fetches; the next tile's Q Kᵀ beside this one's P V
flash_attn_persistent  the next queries are in flight before these are done
flash_attn_fp8         8 bits per element, a scale for each tile                 <- this file

`quantize_fp8` rounds Q, K and V before. Each tile has one scale, so an outlier costs precision in
its own tile alone. The tile lies in memory byte for byte as wgmma reads it: one bulk copy brings
it. Differences to flash_attn_persistent:

- The scale of K enters the softmax scale of its tile. out is divided by the scale of the newest
  tile of V, and converted from one scale to the next when that tile is added.
- P is multiplied by 2⁶, to use the range of e4m3. The shift of the exponent is part of the one
  multiply-add that each score needs anyway.
- wgmma returns D in pairs of columns, and takes an 8-bit A in groups of four. A sum over keys may
  run in any order, so V is stored with its keys in the order of P's registers: P is packed in
  place.
- The tensor cores keep about 14 bits of a sum of e4m3 products and truncate the rest towards 0:
  too few bits for sums over thousands of keys. So P V of each tile is a separate sum, added to out
  in float32; the conversion from V's scale to the next makes it one multiply-add.
- V has an additional column of ones, so P V contains the row sums of P. They cost no additions, and
  rounding and truncation reduce them as they reduce out, which is divided by them.

Each of three consumer warpgroups runs S, softmax and P V strictly in order, so S and P V can share
registers. Three warps, one of each warpgroup, share an exp unit; named barriers let one at a time
use it, while the others multiply and round.

The softmax rescales lazily, as in `lazy_rescaling`, but m_i stays below the row's maximum by at
most LAZY powers of 2: a larger P leaves fewer bits for the small values.

On an H200, head_dim 128, n = 4096: 1033 (942) TFLOP/s where flash_attn_persistent had 711 (657), at
n = 512 746 (487) and 537 (353); causal in brackets. Rounding Q, K and V takes 0.09 ms for 16384
tokens of 16 heads, 88 % of a copy's bandwidth (docs/notes/fp8.md): including it,
sequences from 2048, causal from 4096 on are faster than in float16. benchmarks/results/fp8.json.

Paper: Shah et al. 2024, FlashAttention-3, arXiv:2407.08608, section 3.3; for the sums of 14 bits
DeepSeek-AI 2024, DeepSeek-V3, arXiv:2412.19437, section 3.3.2.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32, uint64

from fa_numba import checks
from fa_numba.constants import FULL_WARP
from fa_numba.kernels import masks
from fa_numba.ptx import mbarrier
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
    phase,
)
from fa_numba.ptx.statement import global_address
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
from fa_numba.tensor_core.fragments import (
    fragment_function,
    make_fragment_functions,
    make_mask_tile,
    make_store_tile,
    over_quad_max,
)
from fa_numba.tensor_core.lazy_rescaling import make_largest
from fa_numba.tensor_core.quantize_fp8 import SUM_ROWS, width_of
from fa_numba.tensor_core.shared_plan import SharedPlan, init_rings
from fa_numba.tensor_core.tile_scheduler import (
    BATCH,
    HEAD,
    M_START,
    MORE,
    WORK_LENGTH,
    make_for_each_tile,
)
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.persistent_tiling import choose_num_slices

REQUIREMENTS = checks.KERNELS["flash_attn_fp8"]
NO_WINDOW = (-1, -1)
Q_ROWS = 64  # of a consumer: one tile of Q, with one scale
RINGS = 2, 2  # stages of K, and of V; slots of Q: the next queries arrive before these are done
# By head_dim, where the warps use the exp unit in any order: the warpgroups of a tile of queries
# may have unequal work, and those that end early go on with the next ones (docs/notes/fp8.md).
LONGER_RINGS = {64: (4, 3), 128: (2, 3)}
CONSUMERS, BLOCK_N = 3, 128  # warpgroups that compute; keys in a tile
REGISTERS = 32, 160  # of a producer's thread, and of a consumer's
# P is stored as 2^6 P, at most 2^8.75 if m_i is LAZY below the row's maximum; 448, the largest
# number of e4m3, is 2^8.8. P_SHIFT is an integer, so that a largest P of 1 is exact.
P_SHIFT, LAZY = np.float32(6), np.float32(2.75)
# m_i before the first key; m_i includes the factor of its scores, scales and log2 e. A masked score
# is below it for any factor of at least LEAST_FACTOR: fragments.MASKED · LEAST_FACTOR < NOTHING.
NOTHING = np.float32(-1e15)
LEAST_FACTOR = np.float32(1e-14)
OWN, NEXT = range(2)  # named barriers of a warp: its own, and that of the warp after it


class SoftmaxFunctions(NamedTuple):
    """Device functions of `make_softmax`."""

    raise_maximum: Any
    exponentiate: Any
    pack_p: Any
    add_tile: Any


class Registers(NamedTuple):
    """Local arrays of a consumer's thread."""

    s: Any
    p: Any
    acc: Any
    part: Any
    m_i: Any


class KVRings(NamedTuple):
    """Addresses in shared memory: the first tile of K and of V, and their barriers "full"."""

    k_tile: Any
    k_full: Any
    v_tile: Any
    v_full: Any


class Scales(NamedTuple):
    """A consumer's factor of S; arrays in shared memory with a number for each stage."""

    factor: Any
    k_scales: Any
    v_ratios: Any


class QLoads(NamedTuple):
    """Arguments of the producer's thread for Q."""

    q: Any
    q_scale: Any
    v_scale: Any
    scale: Any
    work: Any
    factors: Any
    base: Any
    seqlen_q: Any
    seqlen_k: Any
    absent_rows: Any


class KVLoads(NamedTuple):
    """Arguments of the producer's thread for K, or for V."""

    tiles: Any
    scales: Any
    of_stages: Any
    kv_tile: Any
    kv_full: Any
    seqlen_q: Any
    seqlen_k: Any
    absent_rows: Any


def absent_rows(seqlen_q, causal):
    """Rows by which the first tile of queries begins before query 0.

    Under a causal mask the tiles of queries end with the last one's block of Q_ROWS: where a head's
    blocks do not fill its tiles, idle consumers are then those of the tile with the fewest keys.
    """
    return Q_ROWS * (-ceil_div(seqlen_q, Q_ROWS) % CONSUMERS) if causal else 0


def orders_exponentials(head_dim, seqlen_k, causal):
    """Whether one warp at a time uses the exp unit: where it is faster (docs/notes/fp8.md).

    Under a causal mask a warp whose rows see no key of a tile is ahead of the others, and would
    wait for them.
    """
    if head_dim <= 64:
        return not causal and seqlen_k <= 2048
    return not causal or seqlen_k > 1024


def rings_of(HEAD_DIM, ORDERED):
    """Stages of K and of V, and slots of Q; ORDERED as for `make_flash_attn_fp8`."""
    return RINGS if ORDERED else LONGER_RINGS[HEAD_DIM]


@functools.cache
def make_plan(HEAD_DIM, ORDERED):
    """Dynamic shared memory of a thread block: a `SharedPlan`."""
    STAGES, SLOTS = rings_of(HEAD_DIM, ORDERED)
    plan = SharedPlan()
    plan.Q = plan.tiles(SLOTS * CONSUMERS, Q_ROWS * HEAD_DIM)
    plan.OUT = plan.tiles(CONSUMERS, 2 * Q_ROWS * HEAD_DIM)  # 2 bytes per element
    plan.K = plan.tiles(STAGES, BLOCK_N * HEAD_DIM)
    plan.V = plan.tiles(STAGES, BLOCK_N * (HEAD_DIM + SUM_ROWS))
    plan.Q_RING, plan.K_RING, plan.V_RING = map(plan.ring, (SLOTS, STAGES, STAGES))
    return plan


def shared_bytes(HEAD_DIM, ORDERED):
    """Dynamic shared memory that a thread block asks for."""
    return make_plan(HEAD_DIM, ORDERED).bytes


@functools.cache
def make_softmax(HEAD_DIM, BLOCK_N):
    """Functions for the scores of BLOCK_N keys, in the layout of `fragments`.

    Returns
    -------
    SoftmaxFunctions
        raise_maximum(s, m_i, acc, factor)
            Raises m_i, which includes the factor, if a score is far above it; then rescales out
            and the sum of P.
        exponentiate(s, m_i, factor)
            Replaces s by 2^6 P = 2^(factor s − m_i + 6).
        pack_p(s, p)
            Packs P in e4m3 as A of the next product: p of shape (BLOCK_N / 32, 4).
        add_tile(acc, part, v_ratio)
            Adds part to acc. out is divided by the scale of the newest tile of V; v_ratio is the
            older scale over the newer. The column of sums of P has no scale.
    """
    S8, P32, OUT8 = BLOCK_N // 8, BLOCK_N // 32, HEAD_DIM // 8
    largest, largest_bits = make_largest(BLOCK_N)

    @fragment_function()
    def raise_maximum(s, m_i, acc, factor):
        top = cuda.local.array(2, float32)
        unchanged, known = True, True
        for h in range(2):
            top[h] = largest_bits(s, h)
            known = known and top[h] >= float32(0)
            unchanged = unchanged and max(top[h], float32(0)) * factor <= m_i[h] + LAZY
        if not cuda.all_sync(FULL_WARP, unchanged):
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

    return SoftmaxFunctions(raise_maximum, exponentiate, pack_p, add_tile)


@functools.cache
def make_flash_attn_fp8(HEAD_DIM, CAUSAL, DTYPE, ORDERED):
    """The kernel for these compile-time constants; `make_plan` lays out its shared memory.

    128 threads for each of CONSUMERS and for the producer. HEAD_DIM is 64 or 128; DTYPE, "float16"
    or "bfloat16", is that of out. With ORDERED one warp at a time uses the exp unit
    (`orders_exponentials`). Without, under a causal mask, a warpgroup computes the first half of a
    tile alone where none of its rows sees the second.
    """
    STAGES, SLOTS = rings_of(HEAD_DIM, ORDERED)
    HALVES, HALF = CAUSAL and not ORDERED, BLOCK_N // 2
    BLOCK_M = Q_ROWS * CONSUMERS
    THREADS = 128 * (CONSUMERS + 1)
    Q_BYTES = Q_ROWS * HEAD_DIM  # of one consumer
    SLOT_BYTES = CONSUMERS * Q_BYTES
    V_ROWS = HEAD_DIM + SUM_ROWS
    K_BYTES, V_BYTES = BLOCK_N * HEAD_DIM, BLOCK_N * V_ROWS
    QK_WIDTH, V_WIDTH = width_of(HEAD_DIM), width_of(BLOCK_N)
    QK_BITS, V_BITS = narrow_descriptor_bits(QK_WIDTH), narrow_descriptor_bits(V_WIDTH)
    OUT_LENGTH = V_ROWS // 2  # registers
    S_SHAPE, P_SHAPE, OUT_SHAPE = (BLOCK_N // 8, 4), (BLOCK_N // 32, 4), (V_ROWS // 8, 4)
    plan = make_plan(HEAD_DIM, ORDERED)
    Q, OUT, K, V = plan.Q, plan.OUT, plan.K, plan.V
    Q_RING, K_RING, V_RING = plan.Q_RING, plan.K_RING, plan.V_RING
    shared_base = plan.shared_base
    BARRIER = mbarrier.BYTES
    EMPTY = (
        K_RING.empty - K_RING.full
    )  # from the barrier "full" of a stage of K or V to its "empty"
    NEVER = 4 * CONSUMERS + 1  # a named barrier at which no warp waits; ORDERED uses those before
    PRODUCER_REGISTERS, CONSUMER_REGISTERS = REGISTERS
    pack = forward.pack_of(DTYPE)
    clear = make_fragment_functions(BLOCK_N, V_ROWS, pack).clear
    end_key = masks.make_bounds(CAUSAL, NO_WINDOW).end_key
    finish_rows, store_tile = make_store_tile(HEAD_DIM, pack)
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def num_tiles_of(last_row, seqlen_q, seqlen_k):
        """Tiles of keys that rows up to this one see; if there is none, one to mask as a whole."""
        n_end = end_key(last_row + seqlen_k - seqlen_q, seqlen_k)
        return int32((max(n_end, 1) + BLOCK_N - 1) // BLOCK_N)

    @cuda.jit(device=True, forceinline=True)
    def first_tile(scales, b, head):
        """Index of a head's first tile in the whole array: in 32 bits, to save registers."""
        return int32((b * int32(scales.shape[1]) + head) * int32(scales.shape[2]))

    @cuda.jit(device=True, forceinline=True)
    def load_q(count, m_start, head, b, kv_head, args):
        """Wait for a free slot, write to it which queries are next, and start their copy."""
        slot = count % SLOTS
        full = args.base + Q_RING.full + slot * BARRIER
        if CAUSAL:
            m_start = int32(m_start - args.absent_rows)
        wait(args.base + Q_RING.empty + slot * BARRIER, phase(count, SLOTS) ^ 1)
        args.work[slot, M_START] = m_start
        args.work[slot, HEAD] = head
        args.work[slot, BATCH] = b
        args.work[slot, MORE] = 1
        num_tiles = num_tiles_of(m_start + BLOCK_M - 1, args.seqlen_q, args.seqlen_k)
        last_tile = first_tile(args.v_scale, b, kv_head) + num_tiles - 1
        args.factors[slot, CONSUMERS] = args.v_scale[0, 0, last_tile]
        first = first_tile(args.q_scale, b, head)
        for w in range(CONSUMERS):
            # An absent block is block 0: its consumer reads neither its rows nor its factor.
            row = int32(m_start + w * Q_ROWS)
            block = int32(first + (max(row, int32(0)) if CAUSAL else row) // Q_ROWS)
            args.factors[slot, w] = args.q_scale[0, 0, block] * args.scale
            q_rows = global_address(args.q) + uint64(uint32(block)) * uint64(Q_BYTES)
            q_tile = args.base + Q.start + (slot * CONSUMERS + w) * Q_BYTES
            bulk_load(q_tile, q_rows, Q_BYTES, full)
        # Last, because it tells the consumers that `factors` and `work` are written; the barrier
        # may count bytes before it expects them.
        mbarrier_arrive_expect_tx(full, SLOT_BYTES)
        return uint32(count + 1)

    load_each_q = make_for_each_tile(BLOCK_M, load_q)

    def make_load_kv(NUM_BYTES, OF_V):
        """Load the tiles of K, or of V, that a tile of queries sees.

        A stage gets the scale of its tile of K; of V the scale of the tile before over its own.
        """

        @cuda.jit(device=True, forceinline=True)
        def load_kv(count, m_start, head, b, kv_head, args):
            before = float32(1)
            if CAUSAL:
                m_start = int32(m_start - args.absent_rows)
            n_tile = first_tile(args.scales, b, kv_head)
            end = int32(n_tile + num_tiles_of(m_start + BLOCK_M - 1, args.seqlen_q, args.seqlen_k))
            source = global_address(args.tiles) + uint64(uint32(n_tile)) * uint64(NUM_BYTES)
            while n_tile < end:
                stage, was_empty = count % STAGES, phase(count, STAGES) ^ 1
                full = args.kv_full + stage * BARRIER
                this = args.scales[0, 0, n_tile]
                ratio = before / this
                wait(full + EMPTY, was_empty)
                args.of_stages[stage] = ratio if OF_V else this
                mbarrier_arrive_expect_tx(full, NUM_BYTES)
                bulk_load(args.kv_tile + stage * NUM_BYTES, source, NUM_BYTES, full)
                before = this
                source += uint64(NUM_BYTES)
                count = uint32(count + 1)
                n_tile = int32(n_tile + 1)
            return count

        return load_kv

    load_each_k = make_for_each_tile(BLOCK_M, make_load_kv(K_BYTES, False))
    load_each_v = make_for_each_tile(BLOCK_M, make_load_kv(V_BYTES, True))

    @cuda.jit(device=True, forceinline=True)
    def take_exp_unit(order):
        """Wait until the warp before has computed its exponentials; `order` has two barriers."""
        if ORDERED:
            named_barrier_sync(order[OWN], 64)

    @cuda.jit(device=True, forceinline=True)
    def pass_exp_unit(order):
        """Let the next warp compute its exponentials."""
        if ORDERED:
            named_barrier_arrive(order[NEXT], 64)

    def make_iteration(EDGE, NUM_KEYS):
        """S, softmax and P V of the first keys of a tile; with EDGE some may need a mask.

        Functions instead of branches in one: ptxas moves few instructions across a branch.
        """
        S_LENGTH, P_LENGTH = NUM_KEYS // 2, NUM_KEYS // 8  # registers
        mask_tile = make_mask_tile(NUM_KEYS, CAUSAL, NO_WINDOW)
        softmax = make_softmax(HEAD_DIM, NUM_KEYS)
        raise_maximum, exponentiate = softmax.raise_maximum, softmax.exponentiate
        pack_p, add_tile = softmax.pack_p, softmax.add_tile

        @cuda.jit(device=True, forceinline=True, fastmath=True)
        def iteration(
            registers, rings, scales, tile, q_desc, n_start, position, seqlen_k, order, lane
        ):
            s, p, acc, part, m_i = registers
            k_tile, k_full, v_tile, v_full = rings
            stage, parity = tile % STAGES, phase(tile, STAGES)
            k_desc = descriptor(QK_BITS, uint32(k_tile + stage * K_BYTES))
            wait(k_full + stage * BARRIER, parity)
            wgmma_fence()
            wgmma_e4m3(NUM_KEYS, HEAD_DIM, QK_WIDTH, s, q_desc, k_desc)  # S = Q Kᵀ
            wgmma_commit()
            factor = max(scales.factor * scales.k_scales[stage], LEAST_FACTOR)
            wgmma_wait(0, s, S_LENGTH)
            if lane == 0:
                mbarrier_arrive(k_full + EMPTY + stage * BARRIER)
            if EDGE:
                mask_tile(s, n_start, position, seqlen_k, lane)
            raise_maximum(s, m_i, acc, factor)
            take_exp_unit(order)
            exponentiate(s, m_i, factor)
            # Never true. ptxas would round each two exponentials at once, and a warp that waits
            # for every two leaves half of the exp unit's time unused. Across a branch that reads
            # the last exponential it moves nothing.
            if ORDERED and s[NUM_KEYS // 8 - 1, 3] < float32(0):
                named_barrier_arrive(NEVER, 32)
            pass_exp_unit(order)
            pack_p(s, p)

            v_desc = descriptor(V_BITS, uint32(v_tile + stage * V_BYTES))
            wait(v_full + stage * BARRIER, parity)
            wgmma_fence()
            wgmma_e4m3_registers(V_ROWS, NUM_KEYS, V_WIDTH, part, p, v_desc)
            wgmma_commit()
            v_ratio = scales.v_ratios[stage]
            wgmma_wait_with(0, part, OUT_LENGTH, p, P_LENGTH)
            if lane == 0:
                mbarrier_arrive(v_full + EMPTY + stage * BARRIER)
            add_tile(acc, part, v_ratio)  # out <- out + P V

        return iteration

    inner_iteration, edge_iteration = (make_iteration(edge, BLOCK_N) for edge in (False, True))
    half_iteration = make_iteration(True, HALF)

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def consume(tid, work, factors, k_scales, v_ratios, base, out_map, lse, seqlen_k):
        """The role of a consumer warpgroup: attention for its part of each query tile."""
        s = cuda.local.array(S_SHAPE, float32)
        p = cuda.local.array(P_SHAPE, uint32)
        acc = cuda.local.array(OUT_SHAPE, float32)
        part = cuda.local.array(OUT_SHAPE, float32)
        m_i = cuda.local.array(2, float32)
        l_i = cuda.local.array(2, float32)
        inverse = cuda.local.array(2, float32)
        q_tile, q_full, q_empty = base + Q.start, base + Q_RING.full, base + Q_RING.empty
        k_full, v_full = base + K_RING.full, base + V_RING.full
        seqlen_q = int32(lse.shape[2])
        lane = tid & 31
        # Which of a tile's rows are the warpgroup's, and the warp's. Shuffles tell ptxas that they
        # are the same for a whole warp: values that depend on them are then kept once for a warp.
        group = int32(cuda.shfl_sync(FULL_WARP, tid >> 7, 0) - 1)
        warp = int32(cuda.shfl_sync(FULL_WARP, tid >> 5 & 3, 0))  # of the warpgroup
        warp_row = int32(warp * 16)  # in the warpgroup's rows
        out_rows = uint32(base + OUT.start + 2 * group * Q_BYTES + warp_row * ROW_BYTES)
        registers = Registers(s, p, acc, part, m_i)
        rings = KVRings(base + K.start, k_full, base + V.start, v_full)
        is_last = group == CONSUMERS - 1
        next_group = int32(0 if is_last else group + 1)
        order = uint32(1 + 4 * group + warp), uint32(1 + 4 * next_group + warp)
        if is_last:
            pass_exp_unit(order)  # the first warpgroup begins

        num_q_tiles_done, tile = int32(0), uint32(0)  # tile: of K and V, counted over all of Q
        while True:
            slot = int32(num_q_tiles_done % SLOTS)
            wait(q_full + slot * BARRIER, phase(num_q_tiles_done, SLOTS))
            if work[slot, MORE] == 0:
                break
            m_start = work[slot, M_START]
            m = int32(m_start + group * Q_ROWS)  # the warpgroup's first row
            q_rows = uint32(q_tile + slot * SLOT_BYTES + group * Q_BYTES)
            q_desc = descriptor(QK_BITS, q_rows)
            clear(acc, m_i, l_i)
            for h in range(2):
                m_i[h] = NOTHING

            scales = Scales(factors[slot, group], k_scales, v_ratios)
            num_tiles = num_tiles_of(m_start + BLOCK_M - 1, seqlen_q, seqlen_k)
            inside = m < seqlen_q and (not CAUSAL or m >= 0)
            own = num_tiles_of(m + Q_ROWS - 1, seqlen_q, seqlen_k) if inside else int32(0)
            whole = int32(max(end_key(m + seqlen_k - seqlen_q, seqlen_k), 0) // BLOCK_N)
            inner_end, end = uint32(tile + min(whole, own)), uint32(tile + own)
            all_end = uint32(tile + num_tiles)
            while tile != inner_end:
                # Inner iterations read neither n_start nor position.
                inner_iteration(registers, rings, scales, tile, q_desc, 0, 0, seqlen_k, order, lane)
                tile = uint32(tile + 1)
            while tile != end:
                # Read again, here and below: registers are scarce.
                position = int32(work[slot, M_START] + group * Q_ROWS + seqlen_k - seqlen_q)
                position = int32(position + warp_row + (lane >> 2))
                n_start = int32((own - int32(end - tile)) * BLOCK_N)
                where = n_start, position, seqlen_k
                last = work[slot, M_START] + group * Q_ROWS + Q_ROWS - 1 + seqlen_k - seqlen_q
                if HALVES and end_key(int32(last), seqlen_k) <= n_start + HALF:
                    half_iteration(registers, rings, scales, tile, q_desc, *where, order, lane)
                else:
                    edge_iteration(registers, rings, scales, tile, q_desc, *where, order, lane)
                tile = uint32(tile + 1)

            m_start, head, b = work[slot, M_START], work[slot, HEAD], work[slot, BATCH]
            m_warp = int32(m_start + group * Q_ROWS + warp_row)
            if CAUSAL and m_warp < 0:
                m_warp = seqlen_q  # nothing of an absent block is stored
            v_scale = factors[slot, CONSUMERS]
            while tile != all_end:  # other warpgroups see them: release them unread
                stage, parity = tile % STAGES, phase(tile, STAGES)
                wait(k_full + stage * BARRIER, parity)
                if lane == 0:
                    mbarrier_arrive(k_full + EMPTY + stage * BARRIER)
                take_exp_unit(order)
                pass_exp_unit(order)
                wait(v_full + stage * BARRIER, parity)
                v_scale *= v_ratios[stage]  # from the scale of the last tile to its own last one's
                cuda.syncwarp()  # v_ratios is read: safe to overwrite
                if lane == 0:
                    mbarrier_arrive(v_full + EMPTY + stage * BARRIER)
                tile = uint32(tile + 1)
            cuda.syncwarp()  # work and factors are read: safe to overwrite
            if lane == 0:
                mbarrier_arrive(q_empty + slot * BARRIER)
            for h in range(2):
                l_i[h] = acc[HEAD_DIM // 8, 2 * h]  # in a quad's first lane; 0 in the others
                m_i[h] -= P_SHIFT  # l_i is a sum of 2^6 P
            finish_rows(m_i, l_i, inverse, lse, b, head, m_warp, lane, float32(1))
            for h in range(2):
                inverse[h] *= v_scale
            store_tile(acc, inverse, out_rows, out_map, m_warp, seqlen_q, head, b, lane)
            num_q_tiles_done = int32(num_q_tiles_done + 1)
        if lane == 0:
            tma_store_wait_read(0)  # shared memory must outlive the last copy

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def flash_attn_fp8_kernel(
        q, k, v, q_scale, k_scale, v_scale, out_map, lse, seqlen_k, group_size, num_slices, scale,
        absent_rows,
    ):  # fmt: skip
        """A thread block works through tiles of queries, each with its tiles of K and V.

        q, k, v and their scales are those of `quantize_fp8.Quantized`; out_map is the address of a
        tensor map with boxes of 16 rows. scale is softmax_scale · log2 e, absent_rows
        `absent_rows` of the sizes.

        grid      (at most one per SM,); warpgroup 0 loads, the others compute
        shared    q_tile (SLOTS, CONSUMERS, 64, HEAD_DIM), k_tile (STAGES, BLOCK_N, HEAD_DIM),
                  v_tile (STAGES, V_ROWS, BLOCK_N), in panels, swizzled; out_tile (CONSUMERS, 64,
                  HEAD_DIM) in 16 bits, also so; work (SLOTS, 4): which queries Q are; factors;
                  k_scales, v_ratios; barriers: full and empty for each slot of Q, each stage of K,
                  and of V
        private   s (BLOCK_N / 8, 4), p (BLOCK_N / 32, 4), acc and part (V_ROWS / 8, 4); m_i, l_i,
                  inverse for two rows
        HBM       Q, out, lse once; K and V once per tile of queries, except for tiles that none of
                  them sees
        paper     FlashAttention-3, Algorithm 2 and section 3.3
        budget    128 registers at the start, REGISTERS after; one thread block per SM
        """
        work = cuda.shared.array((SLOTS, WORK_LENGTH), int32)  # indices: M_START to MORE
        factors = cuda.shared.array((SLOTS, 4), float32)  # scales: each consumer's Q, the last V
        k_scales = cuda.shared.array(STAGES, float32)
        v_ratios = cuda.shared.array(STAGES, float32)  # scale of the tile before over this one's
        base = shared_base()
        tid = cuda.threadIdx.x
        if tid == 0:
            init_rings(base, (Q_RING,), 4 * CONSUMERS)  # one lane of each warp
            init_rings(base, (K_RING, V_RING), 4 * CONSUMERS)
            fence_mbarrier_init()
        cuda.syncthreads()  # the barriers are made: safe to wait on

        if tid >> 7 == 0:
            setmaxnreg_dec(PRODUCER_REGISTERS)
            shape, seqlen_q, count = lse.shape, int32(lse.shape[2]), uint32(0)
            if tid == 0:  # one thread for Q, one for K, one for V
                q_loads = QLoads(
                    q, q_scale, v_scale, scale, work, factors, base, seqlen_q, seqlen_k,
                    absent_rows,
                )  # fmt: skip
                num_q_tiles_done = load_each_q(count, shape, group_size, num_slices, q_loads)
                slot = num_q_tiles_done % SLOTS
                wait(base + Q_RING.empty + slot * BARRIER, phase(num_q_tiles_done, SLOTS) ^ 1)
                work[slot, MORE] = 0
                mbarrier_arrive(base + Q_RING.full + slot * BARRIER)
            elif tid == 32:
                ring = base + K.start, base + K_RING.full
                k_loads = KVLoads(k, k_scale, k_scales, *ring, seqlen_q, seqlen_k, absent_rows)
                load_each_k(count, shape, group_size, num_slices, k_loads)
            elif tid == 64:
                ring = base + V.start, base + V_RING.full
                v_loads = KVLoads(v, v_scale, v_ratios, *ring, seqlen_q, seqlen_k, absent_rows)
                load_each_v(count, shape, group_size, num_slices, v_loads)
        else:
            setmaxnreg_inc(CONSUMER_REGISTERS)
            consume(tid, work, factors, k_scales, v_ratios, base, out_map, lse, seqlen_k)

    return flash_attn_fp8_kernel


def flash_attn_fp8(q, k, v, *, causal=False, softmax_scale=None, hadamard=True):
    """FlashAttention-3, forward, in e4m3: float16 or bfloat16 in and out, on Hopper GPUs.

    Parameters
    ----------
    q, k, v, softmax_scale
        As for `flash_attn_persistent`, all of one head_dim, 64 or 128.
    causal : bool, default=False
        As for `flash_attn_v2`.
    hadamard : bool, default=True
        Spread outliers of Q and K over their rows before rounding.

    Returns
    -------
    out, lse : arrays
        As of `flash_attn_v2`.
    """
    hadamard = checks.check_flag("hadamard", hadamard)
    call = checks.forward_call(q, k, v, causal, softmax_scale=softmax_scale, on=REQUIREMENTS)
    checks.check_fp8(q)
    if 0 in (call.seqlen_q, call.seqlen_k):
        return call.results_without_keys()
    quantized = quantize(q, k, v, hadamard)
    attend(*quantized, call.out, call.lse, call.mask.causal, call.scale_log2)
    return call.out, call.lse


def quantize(q, k, v, hadamard=True, least=3 * (quantize_fp8.LEAST,)):
    """Quantise Q, K and V into the tiles that `attend` takes; K and V may serve other queries.

    Returns
    -------
    q8, k8, v8 : Quantized
    """
    options = {"hadamard": hadamard, "multiple": CONSUMERS, "least": least}
    return quantize_fp8.quantize(q, k, v, Q_ROWS, BLOCK_N, **options)


def attend(q8, k8, v8, out, lse, causal, scale):
    """Launch the kernel on the results of `quantize`.

    Parameters
    ----------
    q8, k8, v8 : Quantized
    out : array of the shape of q, float16 or bfloat16
    lse : array of shape (batch, num_heads, seqlen_q), float32
    causal : bool
    scale : float32
        softmax_scale · log2 e.
    """
    batch, seqlen_q, num_heads, head_dim = q8.shape
    _, seqlen_k, num_kv_heads, _ = k8.shape
    ordered = orders_exponentials(head_dim, seqlen_k, causal)
    kernel = make_flash_attn_fp8(head_dim, causal, arrays.dtype_name(out), ordered)
    absent = absent_rows(seqlen_q, causal)
    cut = seqlen_q + absent, seqlen_k, Q_ROWS * CONSUMERS, BLOCK_N, causal, NO_WINDOW, CONSUMERS
    num_sms = arrays.num_sms(out)
    # Of 1, 2, 3 and 6, two were the fastest for short causal sequences at head_dim 64, on an H200.
    nearest = None if ordered else 2
    num_slices = choose_num_slices(batch * num_heads, num_sms, *cut, nearest=nearest)
    grid = (min(num_slices * batch * num_heads, num_sms),)
    tiles, scales = (q8.tiles, k8.tiles, v8.tiles), (q8.scales, k8.scales, v8.scales)
    sizes = np.int32(seqlen_k), np.int32(num_heads // num_kv_heads), np.int32(num_slices)
    out_map, size = tensor_map(out, 16), shared_bytes(head_dim, ordered)
    arguments = *tiles, *scales, out_map, lse, *sizes, scale, np.int32(absent)
    arrays.launch(kernel, grid, (128 * (CONSUMERS + 1),), *arguments, shared_bytes=size)
