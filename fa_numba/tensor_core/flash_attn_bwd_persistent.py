"""FlashAttention's backward pass on Hopper's tensor cores: wgmma and TMA, persistent thread blocks.

flash_attn_bwd_registers    a thread computes tiles in registers; S and dP once
flash_attn_bwd_mma          a warp multiplies tiles in registers; cp.async fetches
flash_attn_bwd_persistent   a warpgroup multiplies tiles in shared memory; TMA fetches <- this file

A tile has 128 keys, each of two consumer warpgroups has 64 of them, and the loop is over tiles of
queries. For each tile of queries a warpgroup multiplies five times:

    Sᵀ = K Qᵀ       dPᵀ = V doutᵀ       with its keys as the rows. Then Pᵀ and dSᵀ are in registers
    dV += Pᵀ dout   dK += dSᵀ Q         in the layout that these two products need for their A.
    dQ = dS K                           sums over the keys of both warpgroups: dSᵀ goes through
                                        shared memory, and each warpgroup computes half of dQ.

The first two products read Q and dout by rows, the next two read them by columns, and the last one
reads dSᵀ and K by columns. wgmma does both: nothing is transposed.

There is one thread block per SM, and it loops over tiles of keys. The producer loads the next
tile's K, V and Q while the consumers still compute this one. dK and dV are stored by TMA, through
shared memory, while the next tile begins.

A head_dim below 64, or between 64 and 128, is zero-padded to that.

Each tile of keys computes a part of dQ of every query that sees one of its keys. Three ways to sum
the parts, in float32 and in the layout of the registers:

"added"     A kernel before sets the sums to 0, each part is added atomically, and a kernel after
            rounds: `convert_dq`. The parts come in any order, so the last digits of dQ differ from
            run to run. Under a causal mask each thread block takes tiles of keys in pairs, a long
            one and a short one, so that all have the same work.
"arrival"   No kernel before and none after: the first part to arrive is stored, the next ones are
            added, and the last one reads the sum, adds it to itself and rounds. A counter in HBM
            gives each part its index; a warp of its own asks for it, and waits until all parts
            before it are written. That costs more for each tile and saves two passes over dQ,
            which pays where a query sees few keys.
"ordered"   The same with indices fixed in advance, from the last keys to the first, which is also
            the order in which the tiles of keys begin: the same bits in every run. Under a causal
            mask a tile of keys then reaches each tile of queries just after the next keys did, and
            seldom waits.

On an H200 it ran at 0.98 to 1.48 times the speed of cuDNN: float16, head_dim 64 and 128, n = 512 to
16384, full and causal (benchmarks/results/tensor_core_bwd.json). A thread block for each tile of
keys, not persistent, was 1.02 to 1.06 times slower at n = 8192 in three of four cases, 1.02 times
faster in one, and 1.03 to 1.31 times slower at n = 512 and 2048.

Papers: FlashAttention-2, arXiv:2307.08691, Algorithm 2; Shah et al. 2024, FlashAttention-3,
arXiv:2407.08608, section 3 and appendix B.
"""

import functools
import math

import numpy as np
from numba import cuda, float32, int32, uint8, uint32, uint64

from fa_numba import checks
from fa_numba.constants import LOG2_E, ONE
from fa_numba.kernels import masks
from fa_numba.ptx import mbarrier, wgmma
from fa_numba.ptx.barriers import (
    fence_async_proxy,
    named_barrier_sync,
    setmaxnreg_dec,
    setmaxnreg_inc,
)
from fa_numba.ptx.convert import exp2
from fa_numba.ptx.counters import counter_acquire, counter_release, counter_take
from fa_numba.ptx.ldmatrix import stmatrix_x4
from fa_numba.ptx.mbarrier import (
    fence_mbarrier_init,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
)
from fa_numba.ptx.statement import global_address, shared_address
from fa_numba.ptx.tma import make_load_tile, tma_store_4d, tma_store_commit, tma_store_wait_read
from fa_numba.ptx.vectors import (
    atomic_add_x4,
    bulk_load,
    load_global_x4_relaxed,
    load_shared_x2,
    store_global_x4_relaxed,
)
from fa_numba.ptx.wgmma import (
    descriptor,
    descriptor_bits,
    hold,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
    wgmma_wait_with,
)
from fa_numba.runtime import arrays
from fa_numba.runtime.tensor_maps import tensor_map
from fa_numba.tensor_core import backward, forward
from fa_numba.tensor_core.backward import (
    BLOCK_N,
    CAPPED_MASKED,
    DQ_BYTES,
    make_gradient_functions,
    make_store_gradient,
    padded,
    tile_rows,
    wgmma_products_of,
)
from fa_numba.tensor_core.forward import HOPPER
from fa_numba.tensor_core.fragments import MASKED, fragment_function, make_cap_tile
from fa_numba.tiling.block_sizes import ceil_div

THREADS = 384  # two warpgroups compute, each 64 of the BLOCK_N keys; a third one loads
STAGES = 2  # tiles of Q, and of dout: one is multiplied while the next one is in flight
# A producer's and two consumers' registers are together no more than the three begin with, 168
# each: a warpgroup that asked for more would wait for ever.
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 24, 240
DS_FULL = 1  # the named barrier of the 256 threads that compute
TURNS_KEYS = 1024  # that a query sees, and fewer
TURNS_TILES = 15  # for each SM, and more
SLOTS = 2  # of K: the next keys are there before these are done
N_SHIFT = BLOCK_N.bit_length() - 1
ADDED, TURNS, ORDERED = "added", "turns", "ordered"  # how the parts of dQ come together
TILE_SHIFT = (2 * DQ_BYTES).bit_length() - 1  # of the bytes of a tile's sums
NEW, DONE = 1, 2  # bits: the first part of a tile of dQ, the last one


def shared_bytes(HEAD_DIM):
    """Shared memory that a thread block asks for."""
    BLOCK_M, COLS = tile_rows(HEAD_DIM), padded(HEAD_DIM)
    keys = (SLOTS + 2) * BLOCK_N * COLS  # K; V; dV on its way out
    tiles = 2 * (keys + 2 * STAGES * BLOCK_M * COLS + 2 * BLOCK_M * BLOCK_N)
    rows = 2 * STAGES * BLOCK_M * 4
    barriers = mbarrier.BYTES * (2 * SLOTS + 5 + 4 * STAGES)
    return tiles + rows + barriers + wgmma.GROUP_BYTES


def paired(CAUSAL, WINDOW):
    """Are there long and short tiles of keys, that a thread block takes in pairs?"""
    left, right = WINDOW
    return left < 0 and (CAUSAL or right >= 0)


@functools.cache
def make_score_functions(BLOCK_M, CAUSAL, WINDOW, SOFTCAP, ALIBI, pack):
    """What becomes of Sᵀ, keys by BLOCK_M queries, before it is exponentiated.

    As `fragments.make_bend_tile` and `make_mask_tile`, but that a row is a key. `position` is where
    this lane's first key stands among the queries (`masks`); the columns begin at query m_start.

    Returns
    -------
    unit_of(scale)
        What one of s is worth in powers of 2, after `cap`.
    cap(s, scale)
        Softcap.
    mask_tile(s, m_start, position, seqlen_q, lane)
        What no query sees, or not this one, becomes MASKED.
    exponentiate(s, p, lse_rows, m_start, position, slope, unit, lane)
        s becomes P = 2^(unit s − lse), lse to the base 2, less what ALiBi takes. With a softcap p
        becomes P in 16 bits, as A of a product, and s P times the derivative of a capped score.
    """
    M8, UNIT = BLOCK_M // 8, np.float32(SOFTCAP * math.log2(math.e))
    CAPPED, HIDDEN = (True, CAPPED_MASKED) if SOFTCAP > 0 else (False, MASKED)
    left, right = WINDOW
    LEFT, ONE_SIDED = left >= 0, CAUSAL or right == 0
    first_query, end_query, _ = masks.make_bounds_of_keys(CAUSAL, WINDOW)
    mask, *_ = make_gradient_functions(BLOCK_M, pack, CAPPED)
    cap_tile = make_cap_tile(BLOCK_M)

    @fragment_function()
    def unit_of(scale):
        return UNIT if CAPPED else scale

    @fragment_function()
    def cap(s, scale):
        if CAPPED:
            cap_tile(s, scale / UNIT)

    @fragment_function()
    def mask_tile(s, m_start, position, seqlen_q, lane):
        first_row = position - (lane >> 2)  # of the warp
        if first_row + 16 > seqlen_q or first_query(first_row + 15) > m_start:
            for h in range(2):
                row = position + 8 * h
                first_seen = first_query(row) - m_start
                mask(s, h, first_seen if row < seqlen_q else BLOCK_M + 8, lane)
        if LEFT and m_start + BLOCK_M > end_query(first_row, seqlen_q):
            for h in range(2):
                end = end_query(position + 8 * h, seqlen_q) - m_start - 2 * (lane & 3)
                for j in range(M8):
                    for c in range(2):
                        if 8 * j + c >= end:
                            s[j, 2 * h + c] = HIDDEN

    @fragment_function()
    def exponentiate(s, p, lse_rows, m_start, position, slope, unit, lane):
        shift = cuda.local.array(2, float32)
        e = cuda.local.array(2, float32)
        first = m_start + 2 * (lane & 3) - position  # distance of this lane's first score
        for j in range(M8):
            load_shared_x2(shift, lse_rows + (lane & 3) * 8 + 32 * j)
            for h in range(2):
                for c in range(2):
                    x = s[j, 2 * h + c]
                    if ALIBI:
                        away = float32(first - 8 * h) + float32(8 * j + c)
                        away = away if ONE_SIDED else abs(away)
                        e[c] = exp2(x * unit - (shift[c] + slope * LOG2_E * away))
                    else:
                        e[c] = exp2(x * unit - shift[c])
                    s[j, 2 * h + c] = e[c] * (ONE - x * x) if CAPPED else e[c]
                if CAPPED:
                    p[j // 2, 2 * (j & 1) + h] = pack(e[0], e[1])

    return unit_of, cap, mask_tile, exponentiate


@functools.cache
def make_store_tile(COLS, pack):
    """store_tile(acc, rows, x_map, n, seqlen_k, head, b, lane, scale): 16 rows of a warp, by TMA.

    acc times scale goes to rows n to n + 15 of the map's array, through shared memory at `rows`,
    the warp's part of a tile of BLOCK_N rows. The copy is on its way when the function returns.
    """
    PANEL_BYTES = BLOCK_N * wgmma.ROW_BYTES

    @fragment_function()
    def store_tile(acc, rows, x_map, n, seqlen_k, head, b, lane, scale):
        fragment = cuda.local.array(4, uint32)
        lane_row = rows + (lane & 15) * wgmma.ROW_BYTES
        for j in range(COLS // 16):
            for i in range(2):
                for h in range(2):
                    x, y = acc[2 * j + i, 2 * h], acc[2 * j + i, 2 * h + 1]
                    fragment[2 * i + h] = pack(x * scale, y * scale)
            chunk = ((2 * j & 7) + (lane >> 4)) ^ (lane & 7)
            stmatrix_x4(lane_row + j // 4 * PANEL_BYTES + (chunk << 4), fragment)
        fence_async_proxy()
        cuda.syncwarp()  # all rows are written: safe to copy
        if lane == 0:
            if n < seqlen_k:
                for panel in range((COLS + 63) // 64):
                    tma_store_4d(x_map, 64 * panel, n, head, b, rows + panel * PANEL_BYTES)
            tma_store_commit()

    return store_tile


@functools.cache
def make_flash_attn_bwd_persistent(
    HEAD_DIM, PARTS, CAUSAL, DTYPE, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False
):
    """The kernel for these compile-time constants: THREADS threads, `shared_bytes` of memory.

    PARTS is ADDED, TURNS or ORDERED, HEAD_DIM a multiple of 8, DTYPE "float16" or "bfloat16". With
    ADDED dq_sum is 0 at first, and the argument counters is not looked at, and may be any scalar;
    else all counters are 0 at first. Without ALIBI alibi_slopes is not looked at.
    """
    BLOCK_M = tile_rows(HEAD_DIM)
    M_SHIFT = BLOCK_M.bit_length() - 1
    COLS = 16 * ceil_div(HEAD_DIM, 16)  # that are multiplied; those from HEAD_DIM on hold 0
    NUM_PANELS = padded(HEAD_DIM) // 64  # of 64 columns, as TMA and wgmma have a tile
    KV_PANEL, Q_PANEL = BLOCK_N * wgmma.ROW_BYTES, BLOCK_M * wgmma.ROW_BYTES  # bytes of one
    KV_BYTES, Q_BYTES = NUM_PANELS * KV_PANEL, NUM_PANELS * Q_PANEL
    DS_BYTES = BLOCK_M // 64 * KV_PANEL  # dSᵀ: its rows are keys, its columns queries
    ROW_BYTES = BLOCK_M * 4  # of lse and delta
    # A warpgroup's half of dQ: half of the columns of K, or half of the rows, dSᵀ's columns.
    BY_COLS = NUM_PANELS == 2
    K_HALF, DS_HALF = (KV_PANEL, 0) if BY_COLS else (0, KV_PANEL)
    BY_ROWS = descriptor_bits()  # rows lie along the sum
    Q_BY_COLUMNS = descriptor_bits(Q_PANEL)  # a row for each term of the sum
    KV_BY_COLUMNS = descriptor_bits(KV_PANEL)
    S_SHAPE, P_SHAPE = (BLOCK_M // 8, 4), (BLOCK_M // 16, 4)
    OUT_SHAPE, DQ_SHAPE = (COLS // 8, 4), (8, 4)
    S_LENGTH, P_LENGTH, OUT_LENGTH = BLOCK_M // 2, BLOCK_M // 4, COLS // 2  # registers
    IN_TURN = PARTS != ADDED
    PAIRED = paired(CAUSAL, WINDOW) and not IN_TURN
    BARRIER = mbarrier.BYTES
    RING = STAGES * BARRIER
    pack = forward.pack_of(DTYPE)
    by_rows, by_columns, by_registers = wgmma_products_of(DTYPE)
    _, _, differentiate, store_ds = make_gradient_functions(BLOCK_M, pack, SOFTCAP > 0)
    unit_of, cap, mask_tile, exponentiate = make_score_functions(
        BLOCK_M, CAUSAL, WINDOW, SOFTCAP, ALIBI, pack
    )
    store_tile = make_store_tile(COLS, pack)
    store_dq = make_store_gradient(HEAD_DIM, 64, pack)
    first_query, end_query, _ = masks.make_bounds_of_keys(CAUSAL, WINDOW)
    first_key, end_key, _ = masks.make_bounds(CAUSAL, WINDOW)
    load_tile = make_load_tile(NUM_PANELS)
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def first_tile_of(position):
        """The first tile of queries that sees keys from this position among them on."""
        return int32(first_query(position) >> M_SHIFT)

    @cuda.jit(device=True, forceinline=True)
    def end_tile_of(position, seqlen_q):
        """The last one, plus 1."""
        end = end_query(position + BLOCK_N - 1, seqlen_q)
        return int32((end + BLOCK_M - 1) >> M_SHIFT)

    @cuda.jit(device=True, forceinline=True)
    def keys_of(m_tile, shift, seqlen_k):
        """First and last of the tiles of keys that some query of a tile sees: its dQ's parts."""
        position = int32(m_tile * BLOCK_M - shift)
        end = end_key(position + BLOCK_M - 1, seqlen_k)
        return int32(first_key(position) >> N_SHIFT), int32(((end + BLOCK_N - 1) >> N_SHIFT) - 1)

    @cuda.jit(device=True, forceinline=True)
    def n_tile_of(step, num_n_tiles):
        """The step-th tile of keys of a head; in pairs the first, the last, ..."""
        if PARTS == ORDERED:
            return int32(num_n_tiles - 1 - step)
        if PAIRED:
            pair = step >> 1
            return int32(num_n_tiles - 1 - pair if step & 1 else pair)
        return int32(step)

    @fragment_function()
    def put_dq(dq_acc, address, is_new, is_done, dq, b, m, head, first_col, lane, softmax_scale):
        """This thread's numbers of a part of dQ: the first part begins sums, the last ends them."""
        if is_done:
            if not is_new:
                before = cuda.local.array(DQ_SHAPE, float32)
                for j in range(8):
                    load_global_x4_relaxed(before[j], address + uint64(2048 * j))
                for j in range(8):
                    for r in range(4):
                        dq_acc[j, r] += before[j, r]
            store_dq(dq_acc, dq, b, m, head, first_col, lane, softmax_scale)
        elif is_new:
            for j in range(8):
                store_global_x4_relaxed(address + uint64(2048 * j), dq_acc[j])
        else:
            for j in range(8):
                atomic_add_x4(address + uint64(2048 * j), dq_acc[j])

    @fragment_function()
    def clear_dq(begin, end, dq, kv_head, group_size, b, dq_row, dq_col, lane):
        """dQ of tiles of queries that see no key."""
        nothing = cuda.local.array(DQ_SHAPE, float32)
        for j in range(8):
            for r in range(4):
                nothing[j, r] = float32(0)
        for head in range(int32(kv_head * group_size), int32((kv_head + 1) * group_size)):
            for m_tile in range(begin, end):
                m = int32(m_tile * BLOCK_M + dq_row)
                store_dq(nothing, dq, b, m, head, dq_col, lane, float32(1))

    # Numba computes in 64 bits wherever a number stands in the source. Registers are short here,
    # so that what lives long is cut to 32.
    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def flash_attn_bwd_persistent_kernel(
        q_map,
        k_map,
        v_map,
        dout_map,
        dk_map,
        dv_map,
        lse_2,
        delta,
        dq_sum,
        dq,
        seqlen_k,
        num_kv_heads,
        group_size,
        scale,
        softmax_scale,
        alibi_slopes,
        counters,
    ):
        """A thread block works through tiles of keys, each with the queries of its heads.

        grid      (at most one per SM,); warpgroup 0 loads, and asks for turns; the others compute
        shared    k_tile (SLOTS, BLOCK_N, HEAD_DIM); v_tile, dv_tile (BLOCK_N, HEAD_DIM); q_tile,
                  dout_tile (STAGES, BLOCK_M, HEAD_DIM); ds_tile (2, BLOCK_N, BLOCK_M), keys by
                  queries, and in the end dK; in panels of 64 columns, swizzled; lse_rows,
                  delta_rows (STAGES, BLOCK_M); work (SLOTS, 4): which keys K are; turn (4,):
                  whose turn a part of dQ is; barriers: full and empty for each stage of Q, and of
                  dout, for each slot of K, and for V; turn asked and there, dQ put
        private   s, dp (BLOCK_M / 8, 4), p, ds (BLOCK_M / 16, 4), dk_acc, dv_acc (HEAD_DIM / 8, 4),
                  dq_acc (8, 4)
        HBM       K, V, dK, dV once; Q, dout, lse, delta once per tile of keys, but for the tiles
                  that see none of them; to dQ's sums as often; counters: the next tile of keys,
                  and for each tile of queries parts begun, and 65536 times those put
        paper     FlashAttention-2, Algorithm 2
        budget    168 registers at the start, CONSUMER_REGISTERS after; one thread block per SM
        """
        work = cuda.shared.array((SLOTS, 4), int32)  # tile of keys, or −1: no more; head, batch
        # Of a part of dQ: tile of dq_sum, or −1; last turn; its turn, where known; NEW, DONE.
        turn = cuda.shared.array(4, int32)
        k_tile = uint32((shared_address(cuda.shared.array(0, uint8)) + 1023) & 0xFFFFFC00)
        v_tile = uint32(k_tile + SLOTS * KV_BYTES)
        dv_tile = uint32(v_tile + KV_BYTES)
        q_tile = uint32(dv_tile + KV_BYTES)
        dout_tile = uint32(q_tile + STAGES * Q_BYTES)
        ds_tile = uint32(dout_tile + STAGES * Q_BYTES)
        lse_rows = uint32(ds_tile + 2 * DS_BYTES)
        delta_rows = uint32(lse_rows + STAGES * ROW_BYTES)
        q_full = uint32(delta_rows + STAGES * ROW_BYTES)
        dout_full = uint32(q_full + RING)
        q_empty = uint32(q_full + 2 * RING)
        dout_empty = uint32(q_full + 3 * RING)
        k_full = uint32(q_full + 4 * RING)
        k_empty = uint32(k_full + SLOTS * BARRIER)
        v_full = uint32(k_empty + SLOTS * BARRIER)
        v_empty = uint32(v_full + BARRIER)
        turn_full = uint32(v_empty + BARRIER)
        turn_asked = uint32(turn_full + BARRIER)
        dq_put = uint32(turn_asked + BARRIER)

        tid = cuda.threadIdx.x
        warpgroup = tid >> 7
        seqlen_q = int32(dq.shape[1])
        num_n_tiles = int32((seqlen_k + BLOCK_N - 1) >> N_SHIFT)
        num_m_tiles = int32((seqlen_q + BLOCK_M - 1) >> M_SHIFT)
        shift = int32(seqlen_q - seqlen_k)  # from a key's number to its place among the queries

        if tid == 0:
            mbarrier_init(v_full, 1)
            mbarrier_init(v_empty, 8)  # a lane of each warp arrives
            mbarrier_init(turn_asked, 1)
            mbarrier_init(turn_full, 1)
            mbarrier_init(dq_put, 8)
            for slot in range(SLOTS):
                mbarrier_init(k_full + slot * BARRIER, 1)
                mbarrier_init(k_empty + slot * BARRIER, 8)
            for stage in range(STAGES):
                mbarrier_init(q_full + stage * BARRIER, 1)
                mbarrier_init(dout_full + stage * BARRIER, 1)
                mbarrier_init(q_empty + stage * BARRIER, 8)
                mbarrier_init(dout_empty + stage * BARRIER, 8)
            fence_mbarrier_init()
        cuda.syncthreads()  # the barriers are made: safe to wait on

        if warpgroup == 0:
            setmaxnreg_dec(PRODUCER_REGISTERS)
            if tid == 0:
                heads, num_blocks = uint32(num_kv_heads), uint32(cuda.gridDim.x)
                # Steps of all heads; in pairs a head has an even number, the last maybe empty.
                steps_per_head = uint32((num_n_tiles + 1 & ~1) if PAIRED else num_n_tiles)
                num_steps = uint32(steps_per_head * heads * dq.shape[0])
                stage, parity = uint32(0), uint32(1)  # "empty" of a new ring has parity 1
                slot, k_parity = uint32(0), uint32(1)
                step = uint32((2 if PAIRED else 1) * cuda.blockIdx.x)
                while step < num_steps:
                    of_head, rest = int32(step % steps_per_head), uint32(step // steps_per_head)
                    kv_head, b = int32(rest % heads), int32(rest // heads)
                    n_tile = n_tile_of(of_head, num_n_tiles)
                    if not PAIRED or of_head < num_n_tiles:
                        n_start = int32(n_tile * BLOCK_N)
                        full, tile = k_full + slot * BARRIER, k_tile + slot * KV_BYTES
                        wait(k_empty + slot * BARRIER, k_parity)
                        work[slot, 0] = n_tile
                        work[slot, 1] = kv_head
                        work[slot, 2] = b
                        mbarrier_arrive_expect_tx(full, KV_BYTES)
                        load_tile(tile, BLOCK_N, k_map, n_start, kv_head, b, full)
                        wait(v_empty, slot ^ 1)  # of two slots: V's parity goes with them
                        mbarrier_arrive_expect_tx(v_full, KV_BYTES)
                        load_tile(v_tile, BLOCK_N, v_map, n_start, kv_head, b, v_full)
                        slot = uint32(slot + 1)
                        if slot == SLOTS:
                            slot, k_parity = uint32(0), uint32(k_parity ^ 1)

                        first_head = int32(kv_head * group_size)
                        first_tile = first_tile_of(n_start + shift)
                        end_tile = end_tile_of(n_start + shift, seqlen_q)
                        for head in range(first_head, int32(first_head + group_size)):
                            lse_source = global_address(lse_2[b, head])
                            delta_source = global_address(delta[b, head])
                            for m_tile in range(first_tile, end_tile):
                                m_start = int32(m_tile * BLOCK_M)
                                full, rows = q_full + stage * BARRIER, stage * ROW_BYTES
                                wait(q_empty + stage * BARRIER, parity)
                                mbarrier_arrive_expect_tx(full, Q_BYTES + ROW_BYTES)
                                tile = q_tile + stage * Q_BYTES
                                load_tile(tile, BLOCK_M, q_map, m_start, head, b, full)
                                source = lse_source + uint64(m_tile * ROW_BYTES)
                                bulk_load(lse_rows + rows, source, ROW_BYTES, full)

                                full = dout_full + stage * BARRIER
                                wait(dout_empty + stage * BARRIER, parity)
                                mbarrier_arrive_expect_tx(full, Q_BYTES + ROW_BYTES)
                                tile = dout_tile + stage * Q_BYTES
                                load_tile(tile, BLOCK_M, dout_map, m_start, head, b, full)
                                source = delta_source + uint64(m_tile * ROW_BYTES)
                                bulk_load(delta_rows + rows, source, ROW_BYTES, full)
                                stage = uint32(stage + 1)
                                if stage == STAGES:
                                    stage, parity = uint32(0), uint32(parity ^ 1)
                    if IN_TURN:  # who is done first goes on first
                        taken = int32(counter_take(global_address(counters), 1))
                        # Shuffled, ptxas takes it for the warp's: that has registers of its own.
                        step = uint32(cuda.shfl_sync(1, taken, 0) + num_blocks)
                    elif PAIRED:
                        step = uint32(step + (2 * num_blocks - 1 if step & 1 else 1))
                    else:
                        step = uint32(step + num_blocks)
                wait(k_empty + slot * BARRIER, k_parity)
                work[slot, 0] = -1
                mbarrier_arrive(k_full + slot * BARRIER)
            elif IN_TURN and tid == 32:  # for each part of dQ, one after the other
                parity = uint32(0)
                while True:
                    wait(turn_asked, parity)
                    tile, last = turn[0], turn[1]
                    if tile < 0:
                        break
                    counter = global_address(counters) + uint64(4 + 4 * tile)
                    if PARTS == ORDERED:  # all before it must be there
                        mine = num_before = turn[2]
                    else:  # the first one must, and all before the last
                        mine = int32(counter_take(counter, 1) & 0xFFFF)
                        num_before = last if mine == last else min(mine, int32(1))
                    while int32(counter_acquire(counter) >> 16) < num_before:
                        pass
                    turn[3] = (NEW if mine == 0 else 0) | (DONE if mine == last else 0)
                    mbarrier_arrive(turn_full)
                    wait(dq_put, parity)
                    counter_release(counter, 1 << 16)
                    parity = uint32(parity ^ 1)
        else:
            setmaxnreg_inc(CONSUMER_REGISTERS)
            s = cuda.local.array(S_SHAPE, float32)
            dp = cuda.local.array(S_SHAPE, float32)
            p = cuda.local.array(P_SHAPE, uint32)
            ds = cuda.local.array(P_SHAPE, uint32)
            dq_acc = cuda.local.array(DQ_SHAPE, float32)
            dk_acc = cuda.local.array(OUT_SHAPE, float32)
            dv_acc = cuda.local.array(OUT_SHAPE, float32)

            lane = int32(tid & 31)
            half = int32(warpgroup - 1)
            warp_row = int32(((tid >> 5) - 4) * 16)  # of the tile of keys
            v_rows = descriptor(BY_ROWS, v_tile + half * (64 * wgmma.ROW_BYTES))
            ds_columns = descriptor(KV_BY_COLUMNS, ds_tile + half * DS_HALF)
            ds_rows = uint32(ds_tile + warp_row * wgmma.ROW_BYTES)
            dq_offset = uint64(half * DQ_BYTES + (tid & 127) * 16)
            dq_row = int32((0 if BY_COLS else 64 * half) + (warp_row & 63) + (lane >> 2))
            dq_col = int32(64 * half if BY_COLS else 0)
            unit = unit_of(scale)  # what one of s is worth

            stage, parity = uint32(0), uint32(0)
            slot, k_parity = uint32(0), uint32(0)  # V's parity is `slot`
            turn_parity = uint32(0)
            while True:
                wait(k_full + slot * BARRIER, k_parity)
                n_tile = work[slot, 0]
                if n_tile < 0:
                    break
                first = int32(n_tile * BLOCK_N + shift)  # where the first key stands
                position = int32(first + warp_row + (lane >> 2))  # this lane's, and 8 further on
                k = uint32(k_tile + slot * KV_BYTES)
                k_rows = descriptor(BY_ROWS, k + half * (64 * wgmma.ROW_BYTES))
                k_columns = descriptor(KV_BY_COLUMNS, k + half * K_HALF)
                first_tile, end_tile = first_tile_of(first), end_tile_of(first, seqlen_q)
                for j in range(COLS // 8):
                    for r in range(4):
                        dk_acc[j, r] = float32(0)
                        dv_acc[j, r] = float32(0)
                if lane == 0:
                    tma_store_wait_read(0)
                cuda.syncwarp()  # dK and dV of the keys before are read: safe to overwrite

                for i in range(group_size):
                    head, b = int32(work[slot, 1] * group_size + i), work[slot, 2]
                    slope = alibi_slopes[head] if ALIBI else float32(0)
                    address = global_address(dq_sum[b, head, first_tile]) + dq_offset
                    for m_tile in range(first_tile, end_tile):
                        m_start = int32(m_tile * BLOCK_M)
                        barrier, rows = uint32(stage * BARRIER), uint32(stage * ROW_BYTES)
                        q = uint32(q_tile + stage * Q_BYTES)
                        dout = uint32(dout_tile + stage * Q_BYTES)

                        wait(q_full + barrier, parity)
                        if IN_TURN and tid == 128:
                            first_n, last_n = keys_of(m_tile, shift, seqlen_k)
                            turn[0] = int32((address - global_address(dq_sum)) >> TILE_SHIFT)
                            turn[1] = int32(last_n - first_n)
                            turn[2] = int32(last_n - n_tile)
                            mbarrier_arrive(turn_asked)
                        wgmma_fence()
                        by_rows(BLOCK_M, COLS, BLOCK_N, s, k_rows, descriptor(BY_ROWS, q))
                        wgmma_commit()  # Sᵀ = K Qᵀ                                   line 10
                        wait(v_full, slot)
                        wait(dout_full + barrier, parity)
                        by_rows(BLOCK_M, COLS, BLOCK_N, dp, v_rows, descriptor(BY_ROWS, dout))
                        wgmma_commit()  # dPᵀ = V doutᵀ                               line 13

                        wgmma_wait(1, s, S_LENGTH)
                        cap(s, scale)
                        mask_tile(s, m_start, position, seqlen_q, lane)
                        lse = uint32(lse_rows + rows)
                        exponentiate(s, p, lse, m_start, position, slope, unit, lane)  # P  line 11
                        wgmma_wait(0, dp, S_LENGTH)
                        differentiate(s, dp, delta_rows + rows, p, ds, lane)  # dS    line 14

                        wgmma_fence()
                        by_registers(COLS, BLOCK_M, dv_acc, p, descriptor(Q_BY_COLUMNS, dout))
                        wgmma_commit()  # dV += Pᵀ dout                               line 12
                        store_ds(ds, ds_rows + stage * DS_BYTES, lane)
                        fence_async_proxy()
                        named_barrier_sync(DS_FULL, 256)  # all of dSᵀ is there
                        wgmma_fence()
                        ds_address = ds_columns + uint64(stage * (DS_BYTES >> 4))
                        by_columns(64, BLOCK_N, dq_acc, ds_address, k_columns)
                        wgmma_commit()  # dQ = dS K, half of it                       line 15
                        # dK last: it runs while the threads put dQ into HBM.
                        by_registers(COLS, BLOCK_M, dk_acc, ds, descriptor(Q_BY_COLUMNS, q))
                        wgmma_commit()  # dK += dSᵀ Q                                 line 16

                        wgmma_wait_with(1, dv_acc, OUT_LENGTH, p, P_LENGTH)
                        if lane == 0:
                            mbarrier_arrive(dout_empty + barrier)
                        hold(dq_acc, 32)
                        if IN_TURN:
                            wait(turn_full, turn_parity)
                            turn_parity = uint32(turn_parity ^ 1)
                            is_new, is_done = (turn[3] & NEW) != 0, (turn[3] & DONE) != 0
                            head, b = int32(work[slot, 1] * group_size + i), work[slot, 2]
                            m = int32(m_start + dq_row)
                            put_dq(
                                dq_acc,
                                address,
                                is_new,
                                is_done,
                                dq,
                                b,
                                m,
                                head,
                                dq_col,
                                lane,
                                softmax_scale,
                            )
                            cuda.syncwarp()  # the whole warp's part is put
                            if lane == 0:
                                mbarrier_arrive(dq_put)
                        else:
                            for j in range(8):
                                atomic_add_x4(address + uint64(2048 * j), dq_acc[j])
                        address += uint64(2 * DQ_BYTES)
                        wgmma_wait_with(0, dk_acc, OUT_LENGTH, ds, P_LENGTH)
                        if lane == 0:
                            mbarrier_arrive(q_empty + barrier)
                        stage = uint32(stage + 1)
                        if stage == STAGES:
                            stage, parity = uint32(0), uint32(parity ^ 1)

                wait(v_full, slot)  # also where no query sees these keys
                n_warp = int32(work[slot, 0] * BLOCK_N + warp_row)
                kv_head, b = work[slot, 1], work[slot, 2]
                if IN_TURN and n_tile == 0:
                    unseen = min(first_tile, num_m_tiles)
                    clear_dq(int32(0), unseen, dq, kv_head, group_size, b, dq_row, dq_col, lane)
                if IN_TURN and n_tile + 1 == num_n_tiles:
                    unseen = max(end_tile, int32(0))
                    clear_dq(unseen, num_m_tiles, dq, kv_head, group_size, b, dq_row, dq_col, lane)
                cuda.syncwarp()  # `work` is read: safe to overwrite
                if lane == 0:
                    mbarrier_arrive(v_empty)
                    mbarrier_arrive(k_empty + slot * BARRIER)
                rows, one = dv_tile + warp_row * wgmma.ROW_BYTES, float32(1)
                store_tile(dv_acc, rows, dv_map, n_warp, seqlen_k, kv_head, b, lane, one)
                named_barrier_sync(DS_FULL, 256)  # dSᵀ is read: safe to overwrite
                store_tile(
                    dk_acc, ds_rows, dk_map, n_warp, seqlen_k, kv_head, b, lane, softmax_scale
                )
                slot = uint32(slot + 1)
                if slot == SLOTS:
                    slot, k_parity = uint32(0), uint32(k_parity ^ 1)
            if IN_TURN and tid == 128:
                turn[0] = -1
                mbarrier_arrive(turn_asked)
            if lane == 0:
                tma_store_wait_read(0)  # shared memory lives as long as the thread block

    return flash_attn_bwd_persistent_kernel


def parts_of(head_dim, num_n_tiles, num_heads, num_sms, mask):
    """How the parts of dQ come together quickest, as an H200 had it.

    In turn where a query sees few keys, or, with half of the work in each tile, under a causal
    mask; and where there are many tiles of keys for each SM, the last of which end about together.
    """
    causal, (left, right), *_ = mask
    keys = num_n_tiles * BLOCK_N
    if left >= 0 and (causal or right >= 0):
        keys = min(keys, left + 1 + (0 if causal else right))
    few = keys <= TURNS_KEYS or (head_dim <= 64 and causal)
    return TURNS if few and num_n_tiles * num_heads >= TURNS_TILES * num_sms else ADDED


@arrays.replayed
def flash_attn_bwd_persistent(
    dout,
    q,
    k,
    v,
    out,
    lse,
    *,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
    deterministic=False,
):
    """FlashAttention, backward, by thread blocks that stay: float16 and bfloat16 on Hopper GPUs.

    Parameters
    ----------
    dout, q, out : GPU arrays of shape (batch, seqlen_q, num_heads, head_dim), float16 or bfloat16
        Any strides that are multiples of 16 bytes, with a contiguous last axis; head_dim a multiple
        of 8, up to 128.
    k, v : GPU arrays of shape (batch, seqlen_k, num_kv_heads, head_dim), dtype of q
    lse : GPU array of shape (batch, num_heads, seqlen_q), float32
        out and lse are what any of the forward kernels returned for q, k, v and the same options.
    causal : bool, default=False
    window_size, softcap, alibi_slopes
        As for `flash_attn_v2`.
    softmax_scale : float, default=1/√head_dim
        Positive.
    deterministic : bool, default=False
        The same bits in every run. By default that is so for dk and dv, while dq is summed in any
        order.

    Returns
    -------
    dq, dk, dv : arrays of the shapes, dtype and library of q, k, v
        0 for a row that sees no key and for a key that no row sees; dk and dv are summed over the
        query heads that share a key head.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it must be, and what it got.
    RuntimeError
        On a GPU that has no wgmma.
    """
    inputs = dout, q, k, v, out, lse
    scale, deterministic = backward.check(
        "flash_attn_bwd_persistent", inputs, softmax_scale, deterministic, HOPPER
    )
    mask, slopes = checks.check_mask(q, causal, window_size, softcap, alibi_slopes)
    causal, *rest = mask
    batch, _, num_heads, head_dim = q.shape
    seqlen_k, num_kv_heads = k.shape[1:3]
    dtype, block_m, size = arrays.dtype_name(q), tile_rows(head_dim), shared_bytes(head_dim)
    n_tiles, heads, num_sms = ceil_div(seqlen_k, BLOCK_N), batch * num_kv_heads, arrays.num_sms(q)
    parts = ORDERED if deterministic else parts_of(head_dim, n_tiles, heads, num_sms, mask)
    (dq, dk, dv), rows, dq_sum = backward.prepare(*inputs, add_dq=parts == ADDED)
    if seqlen_k == 0:
        return arrays.full(q, q.shape, 0, q.dtype), dk, dv

    if parts == ADDED:
        counters = np.int32(0)
        units = heads * ceil_div(n_tiles, 2 if paired(*mask[:2]) else 1)
    else:
        dq_sum = backward.empty_sums(q)
        counters = arrays.full(q, (1 + math.prod(dq_sum.shape[:3]),), 0, np.int32)
        units = heads * n_tiles
    maps = tensor_map(q, block_m), tensor_map(k, BLOCK_N), tensor_map(v, BLOCK_N)
    maps += tensor_map(dout, block_m), tensor_map(dk, 16), tensor_map(dv, 16)
    sizes = np.int32(seqlen_k), np.int32(num_kv_heads), np.int32(num_heads // num_kv_heads)
    scales = np.float32(scale * LOG2_E), scale
    args = *maps, *rows, dq_sum, dq, *sizes, *scales, slopes, counters
    kernel = make_flash_attn_bwd_persistent(head_dim, parts, causal, dtype, *rest)
    arrays.launch(kernel, (min(units, num_sms),), (THREADS,), *args, shared_bytes=size)

    if parts == ADDED:
        backward.convert(dq_sum, dq, scale)
    return dq, dk, dv
