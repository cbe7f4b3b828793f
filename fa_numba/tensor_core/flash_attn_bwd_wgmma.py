"""FlashAttention's backward pass on Hopper's tensor cores: wgmma, fed by the copy engine.

flash_attn_bwd_registers         a thread computes tiles in registers; S and dP once
flash_attn_bwd_mma          a warp multiplies tiles in registers; cp.async fetches
flash_attn_bwd_wgmma        four warps multiply tiles in shared memory; TMA fetches <- this file
flash_attn_bwd_persistent   the next keys are on their way before these are done

A thread block owns 128 keys, each of two warpgroups 64 of them, and the tiles of queries pass by.
For each tile a warpgroup multiplies five times:

    Sᵀ = K Qᵀ       dPᵀ = V doutᵀ       with its keys as the rows, so that what comes of it,
    dV += Pᵀ dout   dK += dSᵀ Q         Pᵀ and dSᵀ, lies in registers as these two want their A
    dQ = dS K                           sums over the keys of both warpgroups: dSᵀ goes through
                                        shared memory, and each computes one half of dQ

Q and dout are read by rows for the first two products and by columns for the next two, dSᵀ and K by
columns for the last: wgmma does both, nothing is transposed. The half of dQ is added to HBM in
float32, atomically, in the order in which the registers hold it, 16 bytes to a thread: only
`convert_dq`, which rounds it in the end, knows which element is where.

Atomic sums come in any order, so the last digits of dQ differ from run to run. With
deterministic=True dQ has a kernel of its own, in which a thread block owns a tile of queries.

A head_dim below 64, or between 64 and 128, is padded to that with zeros.

Papers: FlashAttention-2, arXiv:2307.08691, Algorithm 2; Shah et al. 2024, FlashAttention-3,
arXiv:2407.08608, section 3 and appendix B.
"""

import functools

import numpy as np
from numba import cuda, float32, uint8, uint32, uint64

from fa_numba import checks
from fa_numba.constants import LOG2_E
from fa_numba.kernels import masks
from fa_numba.ptx import mbarrier, wgmma
from fa_numba.ptx.barriers import (
    fence_async_proxy,
    named_barrier_sync,
    setmaxnreg_dec,
    setmaxnreg_inc,
)
from fa_numba.ptx.convert import exp2
from fa_numba.ptx.mbarrier import (
    fence_mbarrier_init,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
)
from fa_numba.ptx.statement import global_address, shared_address
from fa_numba.ptx.tma import make_load_tile
from fa_numba.ptx.vectors import atomic_add_x4, bulk_load
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
    DQ_BYTES,
    NOTHING,
    make_gradient_functions,
    make_store_gradient,
    padded,
    tile_rows,
)
from fa_numba.tensor_core.forward import HOPPER
from fa_numba.tensor_core.fragments import make_fragment_functions
from fa_numba.tiling.block_sizes import ceil_div

THREADS = 384  # two warpgroups compute, each 64 of the BLOCK_N keys; a third one loads
DQ_BLOCK_N = 64  # keys of a tile, where dQ has a kernel of its own
STAGES = 2  # tiles of Q, and of dout: one is multiplied, the next one is on its way
# A producer's and two consumers' are together no more than the three begin with, 168 each: a
# warpgroup that asked for more would wait for ever.
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 24, 240
DS_FULL = 1  # the named barrier of the 256 threads that compute


def shared_bytes(HEAD_DIM):
    """Shared memory that a thread block asks for."""
    BLOCK_M, COLS = tile_rows(HEAD_DIM), padded(HEAD_DIM)
    tiles = 2 * (2 * BLOCK_N * COLS + 2 * STAGES * BLOCK_M * COLS + 2 * BLOCK_M * BLOCK_N)
    rows = 2 * STAGES * BLOCK_M * 4
    return tiles + rows + mbarrier.BYTES * (1 + 4 * STAGES) + wgmma.GROUP_BYTES


def dq_shared_bytes(HEAD_DIM):
    """Shared memory that a thread block asks for, where dQ has a kernel of its own."""
    tiles = 2 * padded(HEAD_DIM) * (2 * 128 + 2 * STAGES * DQ_BLOCK_N)
    return tiles + mbarrier.BYTES * (1 + STAGES) + wgmma.GROUP_BYTES


def products_of(DTYPE):
    """The products of a warpgroup: A Bᵀ, Aᵀ B, and d += A B with A in registers."""
    _, registers = forward.wgmma_of(DTYPE)
    if DTYPE == "bfloat16":
        return wgmma.wgmma_rows_bf16, wgmma.wgmma_columns_bf16, registers
    return wgmma.wgmma_rows_f16, wgmma.wgmma_columns_f16, registers


@functools.cache
def make_flash_attn_bwd_wgmma(HEAD_DIM, CAUSAL, DTYPE, ADD_DQ=True):
    """The kernel for these compile-time constants: THREADS threads, `shared_bytes` of memory.

    HEAD_DIM is a multiple of 8, DTYPE "float16" or "bfloat16". Without ADD_DQ, dK and dV alone.
    """
    BLOCK_M, COLS = tile_rows(HEAD_DIM), padded(HEAD_DIM)
    NUM_PANELS = COLS // 64  # of 64 columns, as TMA and wgmma have a tile
    KV_PANEL, Q_PANEL = BLOCK_N * wgmma.ROW_BYTES, BLOCK_M * wgmma.ROW_BYTES  # bytes of one
    KV_BYTES, Q_BYTES = NUM_PANELS * KV_PANEL, NUM_PANELS * Q_PANEL
    DS_BYTES = BLOCK_M // 64 * KV_PANEL  # dSᵀ: its rows are keys, its columns queries
    ROW_BYTES = BLOCK_M * 4  # of lse and delta
    # A warpgroup's half of dQ: half of the columns of K, or half of the rows, dSᵀ's columns.
    K_HALF, DS_HALF = (KV_PANEL, 0) if COLS == 128 else (0, KV_PANEL)
    BY_ROWS = descriptor_bits()  # rows lie along the sum
    Q_BY_COLUMNS = descriptor_bits(Q_PANEL)  # a row for each term of the sum
    KV_BY_COLUMNS = descriptor_bits(KV_PANEL)
    S_SHAPE, P_SHAPE = (BLOCK_M // 8, 4), (BLOCK_M // 16, 4)
    OUT_SHAPE, DQ_SHAPE = (COLS // 8, 4), (8, 4)
    S_LENGTH, P_LENGTH, OUT_LENGTH = BLOCK_M // 2, BLOCK_M // 4, COLS // 2  # registers
    RING = STAGES * mbarrier.BYTES
    pack = forward.pack_of(DTYPE)
    by_rows, by_columns, by_registers = products_of(DTYPE)
    mask, exponentiate, differentiate, store_ds = make_gradient_functions(BLOCK_M, pack)
    store_gradient = make_store_gradient(HEAD_DIM, COLS, pack)
    first_query, _, _ = masks.make_bounds_of_keys(CAUSAL, (-1, -1))
    load_tile = make_load_tile(NUM_PANELS)
    wait = mbarrier.wait_function()

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def flash_attn_bwd_wgmma_kernel(
        q_map,
        k_map,
        v_map,
        dout_map,
        lse_2,
        delta,
        dq_sum,
        dk,
        dv,
        seqlen_q,
        group_size,
        scale,
        softmax_scale,
    ):
        """A thread block owns BLOCK_N keys and walks the queries of every head that uses them.

        grid      (num_n_tiles, num_kv_heads, batch); warpgroup 0 loads, the others compute
        shared    k_tile, v_tile (BLOCK_N, HEAD_DIM); q_tile, dout_tile (STAGES, BLOCK_M, HEAD_DIM);
                  ds_tile (2, BLOCK_N, BLOCK_M), keys by queries; in panels of 64 columns, swizzled;
                  lse_rows, delta_rows (STAGES, BLOCK_M); barriers: K and V full; full and empty for
                  each stage of Q, and of dout
        private   s, dp (BLOCK_M / 8, 4), p, ds (BLOCK_M / 16, 4), dk_acc, dv_acc (HEAD_DIM / 8, 4),
                  dq (8, 4)
        HBM       K, V, dK, dV once; Q, dout, lse, delta once per tile of keys; to dQ as often
        paper     FlashAttention-2, Algorithm 2
        budget    168 registers at the start, CONSUMER_REGISTERS after; one thread block per SM
        """
        k_tile = (shared_address(cuda.shared.array(0, uint8)) + 1023) & 0xFFFFFC00
        v_tile = k_tile + KV_BYTES
        q_tile = v_tile + KV_BYTES
        dout_tile = q_tile + STAGES * Q_BYTES
        ds_tile = dout_tile + STAGES * Q_BYTES
        lse_rows = ds_tile + 2 * DS_BYTES
        delta_rows = lse_rows + STAGES * ROW_BYTES
        q_full = delta_rows + STAGES * ROW_BYTES
        dout_full, q_empty, dout_empty = q_full + RING, q_full + 2 * RING, q_full + 3 * RING
        kv_full = q_full + 4 * RING

        tid = cuda.threadIdx.x
        warpgroup = tid >> 7
        n_start = cuda.blockIdx.x * BLOCK_N  # the first keys are seen by the most queries
        kv_head, b = cuda.blockIdx.y, cuda.blockIdx.z
        seqlen_k = dk.shape[1]
        shift = seqlen_q - seqlen_k  # from a key's number to its place among the queries
        first_tile = first_query(n_start + shift) // BLOCK_M
        num_m_tiles = (seqlen_q + BLOCK_M - 1) // BLOCK_M
        first_head = kv_head * group_size

        if tid == 0:
            mbarrier_init(kv_full, 1)
            for stage in range(STAGES):
                offset = stage * mbarrier.BYTES
                mbarrier_init(q_full + offset, 1)
                mbarrier_init(dout_full + offset, 1)
                mbarrier_init(q_empty + offset, 8)  # a lane of each warp arrives
                mbarrier_init(dout_empty + offset, 8)
            fence_mbarrier_init()
        cuda.syncthreads()  # the barriers are made: safe to wait on

        if warpgroup == 0:
            setmaxnreg_dec(PRODUCER_REGISTERS)
            if tid == 0:
                mbarrier_arrive_expect_tx(kv_full, 2 * KV_BYTES)
                load_tile(k_tile, BLOCK_N, k_map, n_start, kv_head, b, kv_full)
                load_tile(v_tile, BLOCK_N, v_map, n_start, kv_head, b, kv_full)
                stage, parity = 0, 1  # "empty" of a new ring has parity 1
                for head in range(first_head, first_head + group_size):
                    lse_source = global_address(lse_2[b, head])
                    delta_source = global_address(delta[b, head])
                    for m_tile in range(first_tile, num_m_tiles):
                        m_start = m_tile * BLOCK_M
                        full, rows = q_full + stage * mbarrier.BYTES, stage * ROW_BYTES
                        wait(q_empty + stage * mbarrier.BYTES, parity)
                        mbarrier_arrive_expect_tx(full, Q_BYTES + ROW_BYTES)
                        tile = q_tile + stage * Q_BYTES
                        load_tile(tile, BLOCK_M, q_map, m_start, head, b, full)
                        source = lse_source + uint64(m_tile * ROW_BYTES)
                        bulk_load(lse_rows + rows, source, ROW_BYTES, full)

                        full = dout_full + stage * mbarrier.BYTES
                        wait(dout_empty + stage * mbarrier.BYTES, parity)
                        mbarrier_arrive_expect_tx(full, Q_BYTES + ROW_BYTES)
                        tile = dout_tile + stage * Q_BYTES
                        load_tile(tile, BLOCK_M, dout_map, m_start, head, b, full)
                        source = delta_source + uint64(m_tile * ROW_BYTES)
                        bulk_load(delta_rows + rows, source, ROW_BYTES, full)
                        stage += 1
                        if stage == STAGES:
                            stage, parity = 0, parity ^ 1
        else:
            setmaxnreg_inc(CONSUMER_REGISTERS)
            s = cuda.local.array(S_SHAPE, float32)
            dp = cuda.local.array(S_SHAPE, float32)
            p = cuda.local.array(P_SHAPE, uint32)
            ds = cuda.local.array(P_SHAPE, uint32)
            dq = cuda.local.array(DQ_SHAPE, float32)
            dk_acc = cuda.local.array(OUT_SHAPE, float32)
            dv_acc = cuda.local.array(OUT_SHAPE, float32)
            for j in range(COLS // 8):
                for r in range(4):
                    dk_acc[j, r] = float32(0)
                    dv_acc[j, r] = float32(0)

            lane = tid & 31
            half = warpgroup - 1
            warp_row = ((tid >> 5) - 4) * 16  # of the tile of keys
            n_warp = n_start + warp_row
            n = n_warp + (lane >> 2)  # this lane's keys: n and n + 8
            k_rows = descriptor(BY_ROWS, k_tile + half * (64 * wgmma.ROW_BYTES))
            v_rows = descriptor(BY_ROWS, v_tile + half * (64 * wgmma.ROW_BYTES))
            k_columns = descriptor(KV_BY_COLUMNS, k_tile + half * K_HALF)
            ds_columns = descriptor(KV_BY_COLUMNS, ds_tile + half * DS_HALF)
            ds_rows = ds_tile + warp_row * wgmma.ROW_BYTES
            dq_offset = uint64(half * DQ_BYTES + (tid & 127) * 16)
            wait(kv_full, 0)

            stage, parity = 0, 0
            ds_buffer = 0  # one is multiplied by the other warpgroup while the next is written
            for head in range(first_head, first_head + group_size):
                for m_tile in range(first_tile, num_m_tiles):
                    m_start = m_tile * BLOCK_M
                    barrier, rows = stage * mbarrier.BYTES, stage * ROW_BYTES
                    q, dout = q_tile + stage * Q_BYTES, dout_tile + stage * Q_BYTES

                    wait(q_full + barrier, parity)
                    wgmma_fence()
                    by_rows(BLOCK_M, COLS, BLOCK_N, s, k_rows, descriptor(BY_ROWS, q))
                    wgmma_commit()  # Sᵀ = K Qᵀ                                       line 10
                    wait(dout_full + barrier, parity)
                    by_rows(BLOCK_M, COLS, BLOCK_N, dp, v_rows, descriptor(BY_ROWS, dout))
                    wgmma_commit()  # dPᵀ = V doutᵀ                                   line 13

                    wgmma_wait(1, s, S_LENGTH)
                    if n_warp + 16 > seqlen_k or first_query(n_warp + 15 + shift) > m_start:
                        for h in range(2):
                            row = n + 8 * h
                            first_seen = first_query(row + shift) - m_start
                            mask(s, h, first_seen if row < seqlen_k else BLOCK_M + 8, lane)
                    exponentiate(s, lse_rows + rows, scale, lane)  # P = exp(S - lse)  line 11
                    wgmma_wait(0, dp, S_LENGTH)
                    differentiate(s, dp, delta_rows + rows, p, ds, lane)  # dS         line 14

                    wgmma_fence()
                    by_registers(COLS, BLOCK_M, dv_acc, p, descriptor(Q_BY_COLUMNS, dout))
                    wgmma_commit()  # dV += Pᵀ dout                                   line 12
                    if ADD_DQ:
                        store_ds(ds, ds_rows + ds_buffer * DS_BYTES, lane)
                        fence_async_proxy()
                        named_barrier_sync(DS_FULL, 256)  # all of dSᵀ is there
                        wgmma_fence()
                        ds_address = ds_columns + uint64(ds_buffer * (DS_BYTES >> 4))
                        by_columns(64, BLOCK_N, dq, ds_address, k_columns)
                        wgmma_commit()  # dQ = dS K, half of it                       line 15
                    # dK last: it runs while the threads add dQ to HBM.
                    by_registers(COLS, BLOCK_M, dk_acc, ds, descriptor(Q_BY_COLUMNS, q))
                    wgmma_commit()  # dK += dSᵀ Q                                     line 16

                    wgmma_wait_with(1, dv_acc, OUT_LENGTH, p, P_LENGTH)
                    if lane == 0:
                        mbarrier_arrive(dout_empty + barrier)
                    if ADD_DQ:
                        hold(dq, 32)
                        address = global_address(dq_sum[b, head, m_tile]) + dq_offset
                        for j in range(8):
                            atomic_add_x4(address + uint64(2048 * j), dq[j])
                        ds_buffer ^= 1
                    wgmma_wait_with(0, dk_acc, OUT_LENGTH, ds, P_LENGTH)
                    if lane == 0:
                        mbarrier_arrive(q_empty + barrier)
                    stage += 1
                    if stage == STAGES:
                        stage, parity = 0, parity ^ 1

            store_gradient(dk_acc, dk, b, n, kv_head, 0, lane, softmax_scale)
            store_gradient(dv_acc, dv, b, n, kv_head, 0, lane, float32(1))

    return flash_attn_bwd_wgmma_kernel


@functools.cache
def make_dq_wgmma(HEAD_DIM, CAUSAL, DTYPE):
    """dQ alone, in which no two thread blocks add to the same number: 256 threads.

    `dq_shared_bytes` of shared memory; HEAD_DIM and DTYPE as for `make_flash_attn_bwd_wgmma`.
    """
    COLS = padded(HEAD_DIM)
    NUM_PANELS = COLS // 64
    Q_BYTES = NUM_PANELS * 64 * wgmma.ROW_BYTES  # of one warpgroup
    KV_BYTES = NUM_PANELS * DQ_BLOCK_N * wgmma.ROW_BYTES
    BY_ROWS, BY_COLUMNS = descriptor_bits(), descriptor_bits(DQ_BLOCK_N * wgmma.ROW_BYTES)
    S_SHAPE, DS_SHAPE = (DQ_BLOCK_N // 8, 4), (DQ_BLOCK_N // 16, 4)
    S_LENGTH, DS_LENGTH, OUT_LENGTH = DQ_BLOCK_N // 2, DQ_BLOCK_N // 4, COLS // 2
    OUT_SHAPE = (COLS // 8, 4)
    pack = forward.pack_of(DTYPE)
    by_rows, _, by_registers = products_of(DTYPE)
    _, mask, _, _, _ = make_fragment_functions(DQ_BLOCK_N, COLS, pack)
    store_gradient = make_store_gradient(HEAD_DIM, COLS, pack)
    _, end_key, _ = masks.make_bounds(CAUSAL, (-1, -1))
    load_tile = make_load_tile(NUM_PANELS)
    wait = mbarrier.wait_function()

    @cuda.jit(fastmath=True, launch_bounds=(256, 1))
    def dq_wgmma_kernel(
        q_map, k_map, v_map, dout_map, lse_2, delta, dq, seqlen_k, group_size, scale, softmax_scale
    ):
        """A thread block owns 128 query rows and walks the tiles of K and V.

        grid      (num_m_tiles, num_heads, batch); 256 threads, two warpgroups of 64 rows
        shared    q_tile, dout_tile (2, 64, HEAD_DIM); k_tile, v_tile (STAGES, DQ_BLOCK_N,
                  HEAD_DIM), in panels of 64 columns, swizzled; a barrier for Q and dout and one for
                  each stage
        private   s, dp (DQ_BLOCK_N / 8, 4), ds (DQ_BLOCK_N / 16, 4), acc (HEAD_DIM / 8, 4); lse and
                  delta of two rows
        HBM       Q, dout, lse, delta, dQ once; K and V once per tile of queries
        paper     FlashAttention, Algorithm 4, lines 11-21, dQ alone
        budget    255 registers, one thread block per SM
        """
        q_tile = (shared_address(cuda.shared.array(0, uint8)) + 1023) & 0xFFFFFC00
        dout_tile = q_tile + 2 * Q_BYTES
        k_tile = dout_tile + 2 * Q_BYTES
        v_tile = k_tile + STAGES * KV_BYTES
        q_full = v_tile + STAGES * KV_BYTES
        kv_full = q_full + mbarrier.BYTES  # STAGES of them

        s = cuda.local.array(S_SHAPE, float32)
        dp = cuda.local.array(S_SHAPE, float32)
        ds = cuda.local.array(DS_SHAPE, uint32)
        acc = cuda.local.array(OUT_SHAPE, float32)
        lse_i = cuda.local.array(2, float32)
        delta_i = cuda.local.array(2, float32)

        tid = cuda.threadIdx.x
        lane = tid & 31
        head, b = cuda.blockIdx.y, cuda.blockIdx.z
        kv_head = head // group_size
        seqlen_q = dq.shape[1]
        # The last rows see the most keys under a causal mask: begun first, they do not end last.
        m_start = (cuda.gridDim.x - 1 - cuda.blockIdx.x) * 128
        m = m_start + (tid >> 5) * 16 + (lane >> 2)  # this lane's first row; the second is m + 8
        position = m + seqlen_k - seqlen_q
        n_end = end_key(m_start + 127 + seqlen_k - seqlen_q, seqlen_k)
        num_tiles = (max(n_end, 0) + DQ_BLOCK_N - 1) // DQ_BLOCK_N

        if tid == 0:
            mbarrier_init(q_full, 1)
            for stage in range(STAGES):
                mbarrier_init(kv_full + stage * mbarrier.BYTES, 1)
            fence_mbarrier_init()
        cuda.syncthreads()  # the barriers are made: safe to wait on
        if tid == 0:
            mbarrier_arrive_expect_tx(q_full, 4 * Q_BYTES)
            for w in range(2):
                load_tile(q_tile + w * Q_BYTES, 64, q_map, m_start + 64 * w, head, b, q_full)
                load_tile(dout_tile + w * Q_BYTES, 64, dout_map, m_start + 64 * w, head, b, q_full)
            if num_tiles > 0:
                mbarrier_arrive_expect_tx(kv_full, 2 * KV_BYTES)
                load_tile(k_tile, DQ_BLOCK_N, k_map, 0, kv_head, b, kv_full)
                load_tile(v_tile, DQ_BLOCK_N, v_map, 0, kv_head, b, kv_full)
        for j in range(COLS // 8):
            for r in range(4):
                acc[j, r] = float32(0)
        for h in range(2):
            inside = m + 8 * h < seqlen_q
            lse_i[h] = lse_2[b, head, m + 8 * h] if inside else NOTHING
            delta_i[h] = delta[b, head, m + 8 * h] if inside else float32(0)
        q = descriptor(BY_ROWS, q_tile + (tid >> 7) * Q_BYTES)
        dout = descriptor(BY_ROWS, dout_tile + (tid >> 7) * Q_BYTES)
        wait(q_full, 0)

        for n_tile in range(num_tiles):
            n_start = n_tile * DQ_BLOCK_N
            stage = n_tile & 1
            if tid == 0 and n_tile + 1 < num_tiles:
                full = kv_full + (stage ^ 1) * mbarrier.BYTES
                offset, n_next = (stage ^ 1) * KV_BYTES, n_start + DQ_BLOCK_N
                mbarrier_arrive_expect_tx(full, 2 * KV_BYTES)
                load_tile(k_tile + offset, DQ_BLOCK_N, k_map, n_next, kv_head, b, full)
                load_tile(v_tile + offset, DQ_BLOCK_N, v_map, n_next, kv_head, b, full)
            k, v = k_tile + stage * KV_BYTES, v_tile + stage * KV_BYTES
            wait(kv_full + stage * mbarrier.BYTES, (n_tile >> 1) & 1)

            wgmma_fence()
            by_rows(DQ_BLOCK_N, COLS, 64, s, q, descriptor(BY_ROWS, k))
            wgmma_commit()  # S = Q Kᵀ                                                line 11
            by_rows(DQ_BLOCK_N, COLS, 64, dp, dout, descriptor(BY_ROWS, v))
            wgmma_commit()  # dP = dout Vᵀ                                            line 17
            wgmma_wait(1, s, S_LENGTH)
            if n_start + DQ_BLOCK_N > end_key(position - (lane >> 2), seqlen_k):
                for h in range(2):
                    mask(s, h, end_key(position + 8 * h, seqlen_k) - n_start, lane)
            for j in range(DQ_BLOCK_N // 8):
                for h in range(2):
                    for c in range(2):  # P = exp(S - lse)                            line 13
                        s[j, 2 * h + c] = exp2(s[j, 2 * h + c] * scale - lse_i[h])
            wgmma_wait(0, dp, S_LENGTH)
            for j in range(DQ_BLOCK_N // 8):
                for h in range(2):  # dS = P ∘ (dP - delta)                           line 20
                    ds0 = s[j, 2 * h] * (dp[j, 2 * h] - delta_i[h])
                    ds1 = s[j, 2 * h + 1] * (dp[j, 2 * h + 1] - delta_i[h])
                    ds[j // 2, 2 * (j & 1) + h] = pack(ds0, ds1)

            wgmma_fence()
            by_registers(COLS, DQ_BLOCK_N, acc, ds, descriptor(BY_COLUMNS, k))
            wgmma_commit()  # dQ += dS K                                              line 21
            wgmma_wait_with(0, acc, OUT_LENGTH, ds, DS_LENGTH)
            cuda.syncthreads()  # both warpgroups are done with this stage: safe to overwrite

        store_gradient(acc, dq, b, m, head, 0, lane, softmax_scale)

    return dq_wgmma_kernel


@arrays.replayed
def flash_attn_bwd_wgmma(
    dout, q, k, v, out, lse, *, causal=False, softmax_scale=None, deterministic=False
):
    """FlashAttention, backward, by wgmma: float16 and bfloat16 on Hopper GPUs.

    Parameters
    ----------
    dout, q, out : GPU arrays of shape (batch, seqlen_q, num_heads, head_dim), float16 or bfloat16
        Any strides that are multiples of 16 bytes, with a contiguous last axis; head_dim a multiple
        of 8, up to 128.
    k, v : GPU arrays of shape (batch, seqlen_k, num_kv_heads, head_dim), dtype of q
    lse : GPU array of shape (batch, num_heads, seqlen_q), float32
        out and lse are what any of the forward kernels returned for q, k, v and the same options.
    causal : bool, default=False
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
        "flash_attn_bwd_wgmma", inputs, softmax_scale, deterministic, HOPPER
    )
    causal = checks.check_causal(causal)
    batch, seqlen_q, num_heads, head_dim = q.shape
    seqlen_k, num_kv_heads = k.shape[1:3]
    dtype, block_m = arrays.dtype_name(q), tile_rows(head_dim)
    (dq, dk, dv), rows, dq_sum = backward.prepare(*inputs, add_dq=not deterministic)
    sizes = np.int32(num_heads // num_kv_heads), np.float32(scale * LOG2_E), scale

    maps = tensor_map(q, block_m), tensor_map(k, BLOCK_N), tensor_map(v, BLOCK_N)
    args = *maps, tensor_map(dout, block_m), *rows, dq_sum, dk, dv, np.int32(seqlen_q), *sizes
    kernel = make_flash_attn_bwd_wgmma(head_dim, causal, dtype, not deterministic)
    grid = ceil_div(seqlen_k, BLOCK_N), num_kv_heads, batch
    arrays.launch(kernel, grid, (THREADS,), *args, shared_bytes=shared_bytes(head_dim))

    if deterministic:
        maps = tensor_map(q, 64), tensor_map(k, DQ_BLOCK_N), tensor_map(v, DQ_BLOCK_N)
        args = *maps, tensor_map(dout, 64), *rows, dq, np.int32(seqlen_k), *sizes
        kernel, size = make_dq_wgmma(head_dim, causal, dtype), dq_shared_bytes(head_dim)
        grid = ceil_div(seqlen_q, 128), num_heads, batch
        arrays.launch(kernel, grid, (256,), *args, shared_bytes=size)
    else:
        backward.convert(dq_sum, dq, scale)
    return dq, dk, dv
