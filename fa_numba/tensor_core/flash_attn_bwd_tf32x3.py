"""FlashAttention's backward pass in float32 on tensor cores: three TF32 products for each one.

flash_attn_bwd_registers   a thread computes tiles in registers; S and dP once
flash_attn_bwd_tf32x3      mma.sync of TF32, each operand in two parts                <- this file
flash_attn_bwd_mma         the same structure in 16 bits: one product, half the bytes

A thread block owns BLOCK_N keys, each warp 16 of them, and walks the tiles of queries. For each
tile a warp computes Sᵀ and dPᵀ with its keys as the rows, so Pᵀ and dSᵀ are in registers in the
layout of A in the products Pᵀ dout and dSᵀ Q. dQ = dS K sums over the keys of all warps: dS goes
through shared memory, and each warp computes a part of dQ and adds it to HBM, atomically, in any
order. With deterministic=True dQ has its own kernel. `tf32_tiles` explains how a warp multiplies.

measured   1.52 and 1.39 times the speed of PyTorch's memory-efficient backward at head_dim 64 and
           128, which uses three TF32 products, too (H200, n = 8192; benchmarks/results/ladder.json)

Papers: FlashAttention-2, arXiv:2307.08691, Algorithm 2; Ootomo and Yokota 2022, arXiv:2203.03341.
"""

import functools
from typing import NamedTuple

from numba import cuda, float32, int32, uint32, uint64

from fa_numba import checks
from fa_numba.constants import LOG2_E, NEG_INF, ONE, ZERO
from fa_numba.expressions.functions import NO_EXPRESSIONS
from fa_numba.expressions.tiles import MIXED, WHOLE
from fa_numba.kernels import flash_attn_bwd, masks
from fa_numba.on_cuda_cores.user_scores import make_user_scores
from fa_numba.ptx.convert import exp2
from fa_numba.ptx.cp_async import cp_async_4, cp_async_commit, cp_async_wait
from fa_numba.ptx.layouts import ROW_BYTES
from fa_numba.ptx.ldmatrix import ldmatrix_x4
from fa_numba.ptx.statement import global_address
from fa_numba.ptx.tf32 import HALF, mma_m16n8k8_tf32x3, split_tf32
from fa_numba.ptx.vectors import atomic_add, atomic_add_x4, load_shared_x4, store_shared_b32
from fa_numba.runtime import arrays
from fa_numba.tensor_core import backward, tf32_tiles
from fa_numba.tensor_core.expression_tiles import make_run_functions, runs_of
from fa_numba.tensor_core.gradient_expressions import (
    MASKED_TILE,
    find_run,
    next_of_run,
    number_of_tiles,
    runs_of_keys,
)
from fa_numba.tensor_core.shared_plan import LEAST_ALIGN, Region, SharedPlan
from fa_numba.tensor_core.tf32_tiles import num_panels
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.persistent_tiling import ROWS

WARPS, THREADS, BLOCK_N = 8, 256, 128  # a warp has 16 keys; in the kernel for dQ, 16 queries
DS_ROW = BLOCK_N + 4  # numbers in a row of dS: more than it needs, so no bank conflicts
STAGES = 2  # tiles of each kind in the loop: one is multiplied while the next one is in flight
SUMMED_ROWS = 32  # on the tensor core, which truncates: with 64 dV was too far off
RED_X4 = (9, 0)  # since this compute capability one instruction adds four numbers


class Layout(NamedTuple):
    """Regions of shared memory; `half` has the number HALF, which the compiler must not know."""

    k: Region
    v: Region
    q: Region
    dout: Region
    ds: Region
    lse: Region
    delta: Region
    half: Region


def tile_rows(head_dim):
    """Rows of the tiles in the loop: queries, or in the kernel for dQ keys."""
    return 64 if head_dim <= 64 else 32


@functools.cache
def make_plan(HEAD_DIM):
    """The `SharedPlan` of a thread block, with a `Layout`."""
    BLOCK_M, ROW = tile_rows(HEAD_DIM), num_panels(HEAD_DIM) * ROW_BYTES
    plan = SharedPlan(align=LEAST_ALIGN)
    plan.layout = Layout(
        k=plan.tiles(1, BLOCK_N * ROW),
        v=plan.tiles(1, BLOCK_N * ROW),
        q=plan.tiles(STAGES, BLOCK_M * ROW),
        dout=plan.tiles(STAGES, BLOCK_M * ROW),
        ds=plan.region(4 * BLOCK_M * DS_ROW),
        lse=plan.region(STAGES * 4 * BLOCK_M),
        delta=plan.region(STAGES * 4 * BLOCK_M),
        half=plan.region(LEAST_ALIGN),
    )
    return plan


def shared_bytes(HEAD_DIM):
    """Dynamic shared memory of a thread block."""
    return make_plan(HEAD_DIM).bytes


@functools.cache
def make_dq_plan(HEAD_DIM):
    """The `SharedPlan` of the kernel for dQ alone; HALF as in `Layout`."""
    ROW = num_panels(HEAD_DIM) * ROW_BYTES
    Q_BYTES, KV_BYTES = BLOCK_N * ROW, tile_rows(HEAD_DIM) * ROW
    plan = SharedPlan(align=LEAST_ALIGN)
    plan.Q, plan.DOUT = plan.tiles(1, Q_BYTES), plan.tiles(1, Q_BYTES)
    plan.K, plan.V = plan.tiles(STAGES, KV_BYTES), plan.tiles(STAGES, KV_BYTES)
    plan.HALF = plan.region(LEAST_ALIGN)
    return plan


def dq_shared_bytes(HEAD_DIM):
    """Dynamic shared memory of a thread block of the kernel for dQ alone."""
    return make_dq_plan(HEAD_DIM).bytes


@functools.cache
def make_multiply_ds():
    """multiply_ds(dq, ds, k, lane): dq = dS K, of 16 rows of dS and one panel of K's columns.

    A row of dS has DS_ROW numbers; of each 8 keys it has those of even index first.
    """
    PART_SHAPE = (4, 4)

    @cuda.jit(device=True, forceinline=True)
    def multiply_ds(dq, ds, k, lane):
        x = cuda.local.array(4, uint32)
        four = cuda.local.array(4, float32)
        a_big = cuda.local.array(4, uint32)
        a_small = cuda.local.array(4, uint32)
        even_big = cuda.local.array(4, uint32)
        even_small = cuda.local.array(4, uint32)
        odd_big = cuda.local.array(4, uint32)
        odd_small = cuda.local.array(4, uint32)
        part = cuda.local.array(PART_SHAPE, float32)
        even, odd = tf32_tiles.two_rows(k, lane)
        ds_row = ds + (lane & 15) * (4 * DS_ROW) + ((lane >> 4) << 4)
        for j in range(4):
            for r in range(4):
                dq[j, r] = ZERO
        for first in range(0, BLOCK_N, SUMMED_ROWS):
            for j in range(4):
                for r in range(4):
                    part[j, r] = ZERO
            for n in range(0, SUMMED_ROWS, 8):
                ldmatrix_x4(x, ds_row + 4 * (first + n))
                split_tf32(a_big, a_small, x, HALF, 4)
                load_shared_x4(four, even + (first + n) * ROW_BYTES)
                split_tf32(even_big, even_small, four, HALF, 4)
                load_shared_x4(four, odd + (first + n) * ROW_BYTES)
                split_tf32(odd_big, odd_small, four, HALF, 4)
                for j in range(4):
                    mma_m16n8k8_tf32x3(
                        part[j],
                        a_big,
                        a_small,
                        even_big[j],
                        odd_big[j],
                        even_small[j],
                        odd_small[j],
                    )
            for j in range(4):
                for r in range(4):
                    dq[j, r] += part[j, r]

    return multiply_ds


@functools.cache
def make_flash_attn_bwd_tf32x3(
    HEAD_DIM,
    CAUSAL,
    WINDOW=(-1, -1),
    SOFTCAP=0.0,
    ALIBI=False,
    ADD_DQ=True,
    RED_X4=True,
    EXPRESSIONS=None,
):
    """The kernel for dK, dV and, with ADD_DQ, dQ: THREADS threads, `shared_bytes` of memory.

    HEAD_DIM is a multiple of 4. Without ALIBI alibi_slopes may be any scalar. With RED_X4 an
    instruction adds four numbers of dQ.

    With EXPRESSIONS the mask and the score are the user's alone, runs is
    `gradient_expressions.Runs.of_keys` and args the tuple of their arguments. Otherwise both are
    empty.
    """
    EXPRESSED = EXPRESSIONS is not None
    EXPRESSIONS = EXPRESSIONS or NO_EXPRESSIONS
    SCORE = EXPRESSIONS.score is not None
    user_scores = make_user_scores(EXPRESSIONS)
    modify, user_slope = user_scores.modified, user_scores.slope
    plan = make_plan(HEAD_DIM)
    AT, shared_base = plan.layout, plan.shared_base
    first_query, end_query, sees = masks.make_bounds_of_keys(CAUSAL, WINDOW)
    score, score_bwd = masks.make_score(SOFTCAP, ALIBI), masks.make_score_bwd(SOFTCAP)
    BLOCK_M = tile_rows(HEAD_DIM)
    NUM_PANELS, WHOLE_PANELS = num_panels(HEAD_DIM), HEAD_DIM % 32 == 0
    Q_BYTES = AT.q.bytes // STAGES
    # Indices of numbers in shared memory.
    DS_START, LSE_START, DELTA_START = (x.start // 4 for x in (AT.ds, AT.lse, AT.delta))
    M8, OUT8 = BLOCK_M // 8, 4 * NUM_PANELS
    S_SHAPE, OUT_SHAPE, DQ_SHAPE = (1, M8, 4), (1, OUT8, 4), (4, 4)
    PARTS = BLOCK_M // 16 * NUM_PANELS  # of dQ: 16 rows, 32 columns
    copy_tile = tf32_tiles.make_copy_tile(HEAD_DIM, THREADS)
    multiply_rows = tf32_tiles.make_multiply_rows(HEAD_DIM, 1, BLOCK_N, BLOCK_M)
    add_product = tf32_tiles.make_add_product(
        HEAD_DIM, 1, BLOCK_M, SUMMED_ROWS, panels_at_once(HEAD_DIM)
    )
    multiply_ds = make_multiply_ds()
    store_row = tf32_tiles.make_store_row(HEAD_DIM)

    @cuda.jit(device=True, forceinline=True)
    def copy_number(destination, x, b, head, m):
        """Start to copy x[b, head, m]; 0 past the end of x."""
        source = global_address(x[b, head]) + uint64(m * x.strides[2])
        cp_async_4(destination, source, 4 if m < x.shape[2] else 0)

    @cuda.jit(device=True, forceinline=True)
    def add_to_row(dq_part, h, dq, b, m, head, panel, lane, factor):
        """Add row h of a part of dQ, times factor, to a panel of a row in HBM."""
        four = cuda.local.array(4, float32)
        address = global_address(dq[b, m, head])
        for c in range(2):
            d = 32 * panel + 8 * (lane & 3) + 4 * c
            for j in range(4):
                four[j] = dq_part[j, 2 * h + c] * factor
            if WHOLE_PANELS or d < HEAD_DIM:
                if RED_X4:
                    atomic_add_x4(address + uint64(4 * d), four)
                else:
                    for j in range(4):
                        atomic_add(address + uint64(4 * (d + j)), four[j])

    @cuda.jit(launch_bounds=(THREADS, 1), fastmath={"contract"})
    def flash_attn_bwd_tf32x3_kernel(
        dout, q, k, v, lse, delta, dq, dk, dv, softmax_scale, alibi_slopes, runs, args
    ):
        """A thread block owns BLOCK_N keys and walks the queries of every head that uses them.

        grid      (num_n_tiles, num_kv_heads, batch); 256 threads, a warp has 16 keys
        shared    k_tile, v_tile (BLOCK_N, HEAD_DIM); q_tile, dout_tile (STAGES, BLOCK_M, HEAD_DIM),
                  in panels of 32 columns, swizzled; ds_tile (BLOCK_M, BLOCK_N), of each 8 keys
                  those of even index first; lse_rows, delta_rows (STAGES, BLOCK_M)
        private   s, dp (BLOCK_M / 8, 4), dk_acc, dv_acc (HEAD_DIM / 8, 4), dq_part (4, 4),
                  fragments in two parts
        HBM       K, V, dK, dV once; Q, dout, lse, delta once per tile of keys, except the tiles
                  that see none of them; dQ as often, atomically; with ALIBI alibi_slopes in every
                  thread, for each tile
        paper     FlashAttention-2, Algorithm 2
        budget    255 registers, and up to 72 bytes of local memory; up to 256 bytes with softcap,
                  or with ALiBi and a mask, for HEAD_DIM <= 64; one thread block per SM
        """
        floats = cuda.shared.array(0, float32)
        base = shared_base()
        k_tile, v_tile = base + AT.k.start, base + AT.v.start
        q_tile, dout_tile = base + AT.q.start, base + AT.dout.start
        ds_tile, half_at = base + AT.ds.start, base + AT.half.start

        s = cuda.local.array(S_SHAPE, float32)
        dp = cuda.local.array(S_SHAPE, float32)
        dk_acc = cuda.local.array(OUT_SHAPE, float32)
        dv_acc = cuda.local.array(OUT_SHAPE, float32)
        dq_part = cuda.local.array(DQ_SHAPE, float32)

        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        n_start = cuda.blockIdx.x * BLOCK_N  # the first keys are seen by the most queries
        kv_head, b = cuda.blockIdx.y, cuda.blockIdx.z
        seqlen_q, seqlen_k = q.shape[1], k.shape[1]
        group_size = q.shape[2] // k.shape[2]
        first_position = n_start - seqlen_k + seqlen_q  # of the tile's keys, among the queries
        last_position = first_position + BLOCK_N - 1
        first_tile = first_query(first_position) // BLOCK_M
        end_tile = (end_query(last_position, seqlen_q) + BLOCK_M - 1) // BLOCK_M
        n = n_start + 16 * warp + (lane >> 2)  # this lane's keys: n and n + 8
        warp_rows = 16 * warp * ROW_BYTES
        ds_index = DS_START + 16 * warp + (lane >> 3) + (lane & 4)  # of key n in a row of ds_tile

        store_shared_b32(half_at, uint32(HALF))
        copy_tile(k_tile, BLOCK_N, k, b, n_start, kv_head)
        copy_tile(v_tile, BLOCK_N, v, b, n_start, kv_head)
        for j in range(OUT8):
            for r in range(4):
                dk_acc[0, j, r] = ZERO
                dv_acc[0, j, r] = ZERO

        # One iteration more than tiles: it only copies the first one.
        head, m_tile, stage = kv_head * group_size, first_tile, 0
        next_head, next_tile = head, first_tile
        num_tiles = group_size * max(end_tile - first_tile, 0)
        if EXPRESSED:
            of_keys, end_head = (runs, int32(b), int32(cuda.blockIdx.x)), int32(head + group_size)
            num_tiles = number_of_tiles(*of_keys, int32(head), end_head)
            run, flags = find_run(*of_keys, int32(head), int32(0), end_head), int32(0)
            next_head, next_tile = run[0], run[2]
        for i_tile in range(num_tiles + 1):
            cp_async_wait(0)
            cuda.syncthreads()  # this stage is complete; everyone is done with the other and dS
            next_stage = stage ^ 1
            if i_tile < num_tiles:
                m = next_tile * BLOCK_M
                copy_tile(q_tile + next_stage * Q_BYTES, BLOCK_M, q, b, m, next_head)
                copy_tile(dout_tile + next_stage * Q_BYTES, BLOCK_M, dout, b, m, next_head)
                if tid < BLOCK_M:
                    row = 4 * (next_stage * BLOCK_M + tid)
                    copy_number(base + AT.lse.start + row, lse, b, next_head, m + tid)
                    copy_number(base + AT.delta.start + row, delta, b, next_head, m + tid)
                cp_async_commit()
            if i_tile > 0:
                slope = alibi_slopes[head] if ALIBI else ZERO
                m_start = m_tile * BLOCK_M
                q_rows, dout_rows = q_tile + stage * Q_BYTES, dout_tile + stage * Q_BYTES
                multiply_rows(s, k_tile + warp_rows, q_rows, lane)  # Sᵀ = K Qᵀ        line 10
                multiply_rows(dp, v_tile + warp_rows, dout_rows, lane)  # dPᵀ = V doutᵀ  line 13
                # Does every key of the tile see every query of it?
                seen_from = first_query(last_position)
                seen_to = end_query(first_position, seqlen_q)
                whole = m_start >= seen_from and m_start + BLOCK_M <= seen_to
                whole = whole and n_start + BLOCK_N <= seqlen_k
                if EXPRESSED:  # in loops of their own, which the compiler can unroll
                    tile_class = MIXED if flags & MASKED_TILE else WHOLE
                    for j in range(M8):
                        for c in range(2):
                            column = 8 * j + 2 * (lane & 3) + c
                            m_at = m_start + column + seqlen_k - seqlen_q  # among the keys
                            delta_j = floats[DELTA_START + uint64(stage * BLOCK_M + column)]
                            for h in range(2):
                                at = int32(b), int32(head), m_at, n + 8 * h, seqlen_k
                                s[0, j, 2 * h + c] *= softmax_scale
                                if SCORE:
                                    dp[0, j, 2 * h + c] -= delta_j
                                    dp[0, j, 2 * h + c] *= user_slope(s[0, j, 2 * h + c], *at, args)
                    for j in range(M8):
                        for c in range(2):
                            m_at = m_start + 8 * j + 2 * (lane & 3) + c + seqlen_k - seqlen_q
                            for h in range(2):
                                at = int32(b), int32(head), m_at, n + 8 * h, seqlen_k
                                x = modify(s[0, j, 2 * h + c], *at, tile_class, args)
                                s[0, j, 2 * h + c] = x
                for j in range(M8):
                    for c in range(2):
                        column = 8 * j + 2 * (lane & 3) + c
                        m = m_start + column
                        row = uint64(stage * BLOCK_M + column)
                        lse_j, delta_j = floats[LSE_START + row], floats[DELTA_START + row]
                        if EXPRESSED and lse_j == NEG_INF:  # -inf - -inf is NaN
                            lse_j = ZERO
                        for h in range(2):
                            position = n + 8 * h - seqlen_k + seqlen_q
                            scaled = s[0, j, 2 * h + c]
                            if not EXPRESSED:
                                scaled *= softmax_scale
                            modified = score(scaled, position - m, slope)
                            p = exp2((modified - lse_j) * LOG2_E)  # P = exp(S - lse)       line 11
                            if not whole:
                                seen = sees(position, m, seqlen_q) and n + 8 * h < seqlen_k
                                p = p if seen else ZERO
                            if SCORE:  # delta and slope are in dp
                                ds = p * dp[0, j, 2 * h + c] if p > ZERO else ZERO
                            else:
                                ds = p * (dp[0, j, 2 * h + c] - delta_j)
                            ds = score_bwd(ds, scaled)  #                               line 14
                            s[0, j, 2 * h + c] = p
                            dp[0, j, 2 * h + c] = ds
                            if ADD_DQ:
                                floats[uint64(ds_index + column * DS_ROW + 8 * h)] = ds
                add_product(dv_acc, s, dout_rows, half_at, lane)  # dV += Pᵀ dout      line 12
                add_product(dk_acc, dp, q_rows, half_at, lane)  # dK += dSᵀ Q          line 16
                if ADD_DQ:
                    cuda.syncthreads()  # ds_tile is complete: safe to read
                    for part in range(warp, PARTS, WARPS):
                        m, panel = part // NUM_PANELS * 16, part % NUM_PANELS
                        k_panel = k_tile + panel * BLOCK_N * ROW_BYTES
                        multiply_ds(dq_part, ds_tile + 4 * DS_ROW * m, k_panel, lane)
                        m += m_start + (lane >> 2)
                        for h in range(2):
                            if m + 8 * h < seqlen_q:  # dQ += dS K                     line 15
                                add_to_row(
                                    dq_part, h, dq, b, m + 8 * h, head, panel, lane, softmax_scale
                                )
            head, m_tile, stage = next_head, next_tile, next_stage
            if EXPRESSED:
                run, flags = next_of_run(*of_keys, run, end_head)
                next_head, next_tile = run[0], run[2]
            else:
                next_tile += 1
                if next_tile == end_tile:
                    next_head, next_tile = next_head + 1, first_tile

        for h in range(2):
            if n + 8 * h < seqlen_k:
                store_row(dk_acc, 0, h, dk, b, n + 8 * h, kv_head, lane, softmax_scale)
                store_row(dv_acc, 0, h, dv, b, n + 8 * h, kv_head, lane, ONE)

    return flash_attn_bwd_tf32x3_kernel


def panels_at_once(head_dim):
    """Panels of out for which P is split once: as many as leave everything in registers."""
    return num_panels(head_dim) if head_dim <= 64 else 1


@functools.cache
def make_dq_tf32x3(HEAD_DIM, CAUSAL, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False, EXPRESSIONS=None):
    """The kernel for dQ alone: no two thread blocks add to the same number. THREADS threads.

    `dq_shared_bytes` of shared memory; constants as for `make_flash_attn_bwd_tf32x3`. With
    EXPRESSIONS runs is that of `expression_tiles.runs_of`.
    """
    EXPRESSED = EXPRESSIONS is not None
    EXPRESSIONS = EXPRESSIONS or NO_EXPRESSIONS
    SCORE = EXPRESSIONS.score is not None
    user_scores = make_user_scores(EXPRESSIONS)
    modify, user_slope = user_scores.modified, user_scores.slope
    class_of = make_run_functions(BLOCK_N).class_of
    plan = make_dq_plan(HEAD_DIM)
    Q, DOUT, K, V, HALF_REGION = plan.Q, plan.DOUT, plan.K, plan.V, plan.HALF
    shared_base = plan.shared_base
    first_key, end_key, sees = masks.make_bounds(CAUSAL, WINDOW)
    score, score_bwd = masks.make_score(SOFTCAP, ALIBI), masks.make_score_bwd(SOFTCAP)
    DQ_BLOCK_M, DQ_BLOCK_N = BLOCK_N, tile_rows(HEAD_DIM)
    KV_BYTES = K.bytes // STAGES
    N8, OUT8 = DQ_BLOCK_N // 8, 4 * num_panels(HEAD_DIM)
    S_SHAPE, OUT_SHAPE = (1, N8, 4), (1, OUT8, 4)
    copy_tile = tf32_tiles.make_copy_tile(HEAD_DIM, THREADS)
    multiply_rows = tf32_tiles.make_multiply_rows(HEAD_DIM, 1, DQ_BLOCK_M, DQ_BLOCK_N)
    add_product = tf32_tiles.make_add_product(
        HEAD_DIM, 1, DQ_BLOCK_N, SUMMED_ROWS, panels_at_once(HEAD_DIM)
    )
    store_row = tf32_tiles.make_store_row(HEAD_DIM)

    @cuda.jit(launch_bounds=(THREADS, 1), fastmath={"contract"})
    def dq_tf32x3_kernel(dout, q, k, v, lse, delta, dq, softmax_scale, alibi_slopes, runs, args):
        """A thread block owns 128 query rows and walks the tiles of K and V.

        grid      (num_m_tiles, num_heads, batch); 256 threads, a warp has 16 rows
        shared    q_tile, dout_tile (128, HEAD_DIM); k_tile, v_tile (STAGES, DQ_BLOCK_N, HEAD_DIM),
                  in panels of 32 columns, swizzled
        private   s, dp (DQ_BLOCK_N / 8, 4), acc (HEAD_DIM / 8, 4), fragments in two parts; lse and
                  delta of two rows
        HBM       Q, dout, lse, delta, dQ once; K and V once per tile of queries, except the tiles
                  that none of them sees; with ALIBI alibi_slopes in every thread
        paper     FlashAttention, Algorithm 4, lines 11-21, dQ alone
        budget    255 registers, one thread block per SM
        """
        base = shared_base()
        q_tile, dout_tile = base + Q.start, base + DOUT.start
        k_tile, v_tile = base + K.start, base + V.start
        half_at = base + HALF_REGION.start

        s = cuda.local.array(S_SHAPE, float32)
        dp = cuda.local.array(S_SHAPE, float32)
        acc = cuda.local.array(OUT_SHAPE, float32)
        lse_i = cuda.local.array(2, float32)
        delta_i = cuda.local.array(2, float32)

        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        head, b = cuda.blockIdx.y, cuda.blockIdx.z
        kv_head = head // (q.shape[2] // k.shape[2])
        seqlen_q, seqlen_k = q.shape[1], k.shape[1]
        # The last rows see the most keys under a causal mask: begun first, they do not end last.
        m_start = (cuda.gridDim.x - 1 - cuda.blockIdx.x) * DQ_BLOCK_M
        m = m_start + 16 * warp + (lane >> 2)  # this lane's first row; the second is m + 8
        first_position = m_start + seqlen_k - seqlen_q  # of the tile's rows, among the keys
        last_position = first_position + DQ_BLOCK_M - 1
        n_first = first_key(first_position) // DQ_BLOCK_N * DQ_BLOCK_N
        n_end = end_key(last_position, seqlen_k)
        slope = alibi_slopes[head] if ALIBI else ZERO
        warp_rows = 16 * warp * ROW_BYTES

        store_shared_b32(half_at, uint32(HALF))
        copy_tile(q_tile, DQ_BLOCK_M, q, b, m_start, head)
        copy_tile(dout_tile, DQ_BLOCK_M, dout, b, m_start, head)
        for j in range(OUT8):
            for r in range(4):
                acc[0, j, r] = ZERO
        for h in range(2):
            inside = m + 8 * h < seqlen_q
            lse_i[h] = lse[b, head, m + 8 * h] if inside else ZERO
            delta_i[h] = delta[b, head, m + 8 * h] if inside else ZERO
            if EXPRESSED and lse_i[h] == NEG_INF:  # -inf - -inf is NaN
                lse_i[h] = ZERO
        if EXPRESSED:
            of_queries = runs[0], int32(b), int32(m_start // DQ_BLOCK_M)
            here, end_head = int32(head), int32(head + 1)
            n_end = number_of_tiles(*of_queries, here, end_head) * DQ_BLOCK_N
            run, n_here, classes = find_run(*of_queries, here, int32(0), end_head), 0, int32(0)

        # One iteration more than tiles: it only copies the first one.
        stage = 0
        for turn in range(n_first - DQ_BLOCK_N, n_end, DQ_BLOCK_N):
            n_start, n_next, next_stage = turn, turn + DQ_BLOCK_N, stage ^ 1
            if EXPRESSED:
                n_start, n_next = n_here, run[2] * DQ_BLOCK_N
            cp_async_wait(0)
            cuda.syncthreads()  # this stage is complete; everyone is done with the other
            if turn + DQ_BLOCK_N < n_end:
                copy_tile(k_tile + next_stage * KV_BYTES, DQ_BLOCK_N, k, b, n_next, kv_head)
                copy_tile(v_tile + next_stage * KV_BYTES, DQ_BLOCK_N, v, b, n_next, kv_head)
                cp_async_commit()
            if turn >= n_first:
                k_rows, v_rows = k_tile + stage * KV_BYTES, v_tile + stage * KV_BYTES
                multiply_rows(s, q_tile + warp_rows, k_rows, lane)  # S = Q Kᵀ         line 11
                multiply_rows(dp, dout_tile + warp_rows, v_rows, lane)  # dP = dout Vᵀ  line 17
                # Does every row of the tile see every key of it?
                seen_from = first_key(last_position)
                seen_to = end_key(first_position, seqlen_k)
                whole = n_start >= seen_from and n_start + DQ_BLOCK_N <= seen_to
                whole = whole and m_start + DQ_BLOCK_M <= seqlen_q
                if EXPRESSED:  # in loops of their own, which the compiler can unroll
                    seen_whole = class_of(classes, 16 * warp // ROWS) == WHOLE
                    tile_class = WHOLE if seen_whole else MIXED
                    for j in range(N8):
                        for c in range(2):
                            n = n_start + 8 * j + 2 * (lane & 3) + c
                            for h in range(2):
                                m_at = m + 8 * h + seqlen_k - seqlen_q
                                at = int32(b), int32(head), m_at, n, seqlen_k
                                s[0, j, 2 * h + c] *= softmax_scale
                                if SCORE:
                                    dp[0, j, 2 * h + c] -= delta_i[h]
                                    dp[0, j, 2 * h + c] *= user_slope(s[0, j, 2 * h + c], *at, args)
                    for j in range(N8):
                        for c in range(2):
                            n = n_start + 8 * j + 2 * (lane & 3) + c
                            for h in range(2):
                                m_at = m + 8 * h + seqlen_k - seqlen_q
                                at = int32(b), int32(head), m_at, n, seqlen_k
                                x = modify(s[0, j, 2 * h + c], *at, tile_class, args)
                                s[0, j, 2 * h + c] = x
                for j in range(N8):
                    for c in range(2):
                        n = n_start + 8 * j + 2 * (lane & 3) + c
                        for h in range(2):
                            position = m + 8 * h + seqlen_k - seqlen_q
                            scaled = s[0, j, 2 * h + c]
                            if not EXPRESSED:
                                scaled *= softmax_scale
                            modified = score(scaled, position - n, slope)
                            p = exp2((modified - lse_i[h]) * LOG2_E)  # P = exp(S - lse)    line 13
                            if not whole:
                                seen = sees(position, n, seqlen_k) and m + 8 * h < seqlen_q
                                p = p if seen else ZERO
                            if SCORE:  # delta and slope are in dp
                                ds = p * dp[0, j, 2 * h + c] if p > ZERO else ZERO
                            else:
                                ds = p * (dp[0, j, 2 * h + c] - delta_i[h])  # dS      line 20
                            dp[0, j, 2 * h + c] = score_bwd(ds, scaled)
                add_product(acc, dp, k_rows, half_at, lane)  # dQ += dS K              line 21
            stage = next_stage
            if EXPRESSED:
                n_here, classes = n_next, run[4]
                run, _ = next_of_run(*of_queries, run, end_head)

        for h in range(2):
            if m + 8 * h < seqlen_q:
                store_row(acc, 0, h, dq, b, m + 8 * h, head, lane, softmax_scale)

    return dq_tf32x3_kernel


@arrays.replayed
@checks.takes(checks.SCORES)
def flash_attn_bwd_tf32x3(dout, q, k, v, out, lse, *, deterministic=False, **options):
    """FlashAttention, backward, in float32 on tensor cores, by 3xTF32: GPUs since Ampere.

    Parameters
    ----------
    dout, q, k, v, out, lse : GPU arrays, float32
        As for `flash_attn_bwd`; out and lse of any forward pass with the same options. dout, q, k
        and v as `flash_attn_tf32x3` takes them, with a head_dim up to 128.
    causal, window_size, softcap, alibi_slopes, softmax_scale, mask, mask_args, score, score_args, \
    sinks
        As for `flash_attn_tf32x3`.
    deterministic : bool, default=False
        As for `flash_attn_bwd_persistent`.

    Returns
    -------
    dq, dk, dv, dsinks : arrays
        As of `flash_attn_bwd`.
    """
    name, inputs = "flash_attn_bwd_tf32x3", (dout, q, k, v, out, lse)
    scores, deterministic = backward.check(name, inputs, deterministic, **options)
    batch, seqlen_q, num_heads, head_dim = q.shape
    seqlen_k, num_kv_heads = k.shape[1:3]
    size, block = shared_bytes(head_dim), (THREADS,)
    checks.check_shared_bytes(name, q, size)
    delta = flash_attn_bwd.delta_of(dout, out)
    dk, dv = (arrays.empty(q, x.shape, x.dtype) for x in (k, v))
    dq = arrays.empty(q, q.shape, q.dtype) if deterministic else arrays.full(q, q.shape, 0)

    expressions = scores.expressions if scores.given is not None and seqlen_q and seqlen_k else None
    runs = ()
    if expressions is not None:
        block_m = tile_rows(head_dim)
        runs = runs_of_keys(q, k, scores.given, block_m, BLOCK_N, both=False).of_keys
    scalars = scores.softmax_scale, scores.slopes
    args = dout, q, k, v, lse, delta, dq, dk, dv, *scalars, runs, scores.expression_args
    red_x4 = arrays.compute_capability(q) >= RED_X4
    kernel = make_flash_attn_bwd_tf32x3(
        head_dim, *scores.mask, not deterministic, red_x4, expressions
    )
    grid = ceil_div(seqlen_k, BLOCK_N), num_kv_heads, batch
    arrays.launch(kernel, grid, block, *args, shared_bytes=size)

    if deterministic:
        if expressions is not None:
            runs = runs_of(scores, q, k, tile_rows(head_dim), BLOCK_N // ROWS)[0]
        args = dout, q, k, v, lse, delta, dq, *scalars, runs, scores.expression_args
        kernel = make_dq_tf32x3(head_dim, *scores.mask, expressions)
        grid, size = (ceil_div(seqlen_q, BLOCK_N), num_heads, batch), dq_shared_bytes(head_dim)
        arrays.launch(kernel, grid, block, *args, shared_bytes=size)
    return dq, dk, dv, *flash_attn_bwd.dsinks_of(options.get("sinks"), scores, lse, delta)
