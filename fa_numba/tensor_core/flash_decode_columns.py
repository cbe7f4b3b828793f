"""Flash-Decoding at a head_dim up to 512, on tensor cores: the warps divide the columns of out.

flash_decode_wide     arithmetic limits it as soon as a K/V head has several rows of queries
flash_decode_mma      8 rows of out in the registers of each warp: up to 256 columns
mla_decode_mma        16 rows, a row of the cache is key and value; 8 warps divide out's columns
flash_decode_columns  the same with K and V: one barrier for each tile of keys  <- this file

A thread block has 16 rows of a K/V head. `mla_decode_mma` says how its 8 warps divide S and out,
and why nothing is merged at the end. These are the differences:

- a stage of the ring has K of a tile, and V of the tile before it: between two barriers the warps
  compute S of the next tile and P V of this one, so both are read at once and free at once. A stage
  is in use, and all others are in flight, where two tiles of `mla_decode_mma` are in use;
- a lane copies the same row of K and, a stage later, of V. It keeps V's address meanwhile;
- the softmax, with masks and scores, is that of the other decoders: of a row in 16 keys.

Source: as for flash_decode.
"""

import functools

from numba import cuda, float32, int32, uint32, uint64

from fa_numba import checks
from fa_numba.constants import NEG_INF, ONE, ZERO
from fa_numba.expressions.functions import NO_EXPRESSIONS
from fa_numba.on_cuda_cores.decode_problem import Pages, divide, launch
from fa_numba.on_cuda_cores.run_time_masks import MaskArgs
from fa_numba.ptx.cp_async import cp_async_commit, cp_async_wait
from fa_numba.ptx.layouts import ROW_BYTES
from fa_numba.ptx.statement import global_address
from fa_numba.runtime import arrays
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.decoding import (
    AHEAD_LENGTH,
    KEYS,
    KV_HEAD,
    N_END,
    UNIT,
    N,
    Sizes,
    check_on_tensor_cores,
    make_advance,
    make_keys_of_split,
    make_online_softmax,
    splits_and_grid,
    unit_of,
    warp_of,
)
from fa_numba.tensor_core.divided_columns import (
    ROWS,
    SCORE_BYTES,
    THREADS,
    Tiling,
    make_columns,
    make_places,
    tile_bytes,
)
from fa_numba.tensor_core.shared_plan import SharedPlan

RING_BYTES = 192 * 1024  # at most: three stages of 32 keys of 512 numbers
LEAST_STAGES = 3  # with 32 keys; with two the memory would wait in each iteration


def choose_tiling(head_dim, limit):
    """The `Tiling` for `limit` bytes of shared memory: at least 2 stages."""
    for block_n in (32, 16):
        room = min(RING_BYTES, limit - make_plan(head_dim, block_n, 0).bytes)
        stages = room // (2 * tile_bytes(head_dim, block_n))
        if stages >= LEAST_STAGES:
            break
    return Tiling(block_n, stages)


@functools.cache
def make_plan(HEAD_DIM, BLOCK_N, STAGES):
    """The `SharedPlan` of a thread block."""
    plan = SharedPlan(align=ROW_BYTES)
    plan.RING = plan.tiles(STAGES, 2 * tile_bytes(HEAD_DIM, BLOCK_N))  # K, then V
    plan.SCORES = plan.tiles(2, SCORE_BYTES)
    return plan


@functools.cache
def make_flash_decode_columns(
    HEAD_DIM, DTYPE, PAGE_SIZE, BLOCK_N, STAGES, CAUSAL, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False,
    EXPRESSIONS=NO_EXPRESSIONS,
):  # fmt: skip
    """The first kernel, attention split by split: THREADS threads, `make_plan`'s bytes of memory.

    HEAD_DIM is a multiple of 8, DTYPE "float16" or "bfloat16", BLOCK_N 16 or 32, STAGES at least 2.
    PAGE_SIZE is 0 for a contiguous cache; it, WINDOW and SOFTCAP may be AT_RUN_TIME
    (`run_time_masks`). block_table is unused for a contiguous cache, alibi_slopes without ALIBI:
    each may then be any scalar. EXPRESSIONS, the user's mask and score, are evaluated for each
    pair, by every warp.
    """
    page_of, place_of = make_places(PAGE_SIZE)
    plan = make_plan(HEAD_DIM, BLOCK_N, STAGES)
    RING, SCORES, shared_base = plan.RING, plan.SCORES, plan.shared_base
    STAGE_BYTES, V_START = RING.bytes // STAGES, RING.bytes // STAGES // 2
    PENDING = STAGES - 2  # stages that may be in flight: not the one that is read, nor the last one
    PENDING_FIRST = STAGES - 1  # the first time only K of the first tile is read
    KEYS_16 = BLOCK_N // 16
    columns = make_columns(HEAD_DIM, HEAD_DIM, DTYPE, BLOCK_N)
    LANES, Q_SHAPE, OUT_SHAPE, S_SHAPE, copy_row, load_queries, k_row_of, *more = columns
    multiply_keys, store_scores, load_scores, add_values, store_rows = more
    ACC_8 = OUT_SHAPE[0]
    advance = make_advance(ROWS, BLOCK_N // KEYS, CAUSAL, WINDOW)
    keys_of_split = make_keys_of_split(ROWS, BLOCK_N, CAUSAL, WINDOW)
    online_softmax = make_online_softmax(
        DTYPE, CAUSAL, WINDOW, SOFTCAP, ALIBI, EXPRESSIONS=EXPRESSIONS
    )

    @cuda.jit(device=True, forceinline=True)
    def row_of(cache, page, n, kv_head):
        return global_address(cache[uint64(page), uint64(n), uint64(kv_head)])

    @cuda.jit(device=True, forceinline=True)
    def load_stage(stage, ahead, page, v_row, caches, table, tid, seq_lens, sizes):
        """Copy K of the tile at `ahead`, and V of the tile before, whose row is at v_row.

        Returns the page of this lane's key in the next tile, and the address of V's row in this
        one: 0 where there is none.
        """
        row, first = tid // LANES, tid % LANES
        if v_row != uint64(0):
            copy_row(stage + V_START, v_row, row, first)
        v_row = uint64(0)
        if ahead[UNIT] < sizes.num_units:
            k_cache, v_cache = caches
            n = place_of(ahead, row, table)
            copy_row(stage, row_of(k_cache, page, n, ahead[KV_HEAD]), row, first)
            v_row = row_of(v_cache, page, n, ahead[KV_HEAD])
            advance(ahead, 0, seq_lens, sizes)
        cp_async_commit()  # an empty group at the end, too: stages are counted
        return page_of(ahead, row, table, sizes), v_row

    @cuda.jit(launch_bounds=(THREADS, 1), fastmath={"contract"})
    def flash_decode_columns_kernel(
        q, k_cache, v_cache, block_table, seq_lens, out_partial, lse_partial, softmax_scale,
        alibi_slopes, page_size, page_multiplier, page_shift, left, right, unit, inverse_unit, args,
    ):  # fmt: skip
        """A thread block owns 16 rows of a K/V head in one split, and then those of other units.

        A row is a query of a query head; the heads of a group are neighbours.

        grid      (at most num_m_tiles · num_kv_heads · num_splits · batch,); 256 threads
        shared    ring (STAGES, 2, BLOCK_N, HEAD_DIM), in panels of 64 columns, swizzled; parts of
                  the scores of two tiles, (2, 8 warps, 32 lanes, 4)
        private   Q (HEAD_DIM / 64, 2, 4), acc (HEAD_DIM / 64, 4), s_part (2, 4), k (2, 2),
                  v (2, 2), s (BLOCK_N / 8, 4); of 16 keys s_16 (2, 4), p_16 (2,), p (4,); m_i, l_i
        HBM       K and V once per tile of rows, except the tiles that none of them sees; Q,
                  out_partial, lse_partial once per split; block_table once per key and tile of
                  rows, in the lanes that copy its row
        paper     FlashAttention-2, Algorithm 1, over a part of the keys;
                  PagedAttention, section 4.1
        budget    255 registers; 201 KiB shared, one thread block per SM (HEAD_DIM=512)
        """
        q_reg = cuda.local.array(Q_SHAPE, uint32)
        acc = cuda.local.array(OUT_SHAPE, float32)  # rows of out, not yet divided by l_i
        s_part = cuda.local.array((2, 4), float32)
        s = cuda.local.array(S_SHAPE, float32)
        s_16 = cuda.local.array((2, 4), float32)
        p_16 = cuda.local.array(2, uint32)
        p = cuda.local.array(4, uint32)
        k = cuda.local.array((2, 2), uint32)
        v = cuda.local.array((2, 2), uint32)
        x = cuda.local.array(4, float32)
        m_i = cuda.local.array(2, float32)
        l_i = cuda.local.array(2, float32)
        slopes = cuda.local.array(2, float32)
        ahead = cuda.local.array(AHEAD_LENGTH, int32)  # the tile whose keys are copied next

        page_args = Pages(page_size, page_multiplier, page_shift)
        mask_args = MaskArgs(left, right, unit, inverse_unit)
        caches, table = (k_cache, v_cache), (block_table, page_args)
        tid = cuda.threadIdx.x
        lane, warp = tid & 31, warp_of(tid)
        base = shared_base()
        ring, scores = base + RING.start, base + SCORES.start
        batch, seqlen_q, num_heads, _ = q.shape
        num_kv_heads, num_splits = k_cache.shape[2], lse_partial.shape[0]
        group_size, _ = divide(num_heads, num_kv_heads)
        num_m_tiles, _ = divide(seqlen_q * group_size + ROWS - 1, ROWS)
        num_units = num_m_tiles * num_kv_heads * num_splits * batch
        sizes = Sizes(
            seqlen_q, group_size, num_m_tiles, num_kv_heads, num_splits, num_units, mask_args
        )

        part, k_row = k_row_of(warp, lane)
        ahead[UNIT] = int32(cuda.blockIdx.x) - int32(cuda.gridDim.x)
        ahead[N], ahead[N_END] = 0, 0
        advance(ahead, 0, seq_lens, sizes)
        page, v_row = page_of(ahead, tid // LANES, table, sizes), uint64(0)
        for i in range(STAGES):
            stage = ring + i * STAGE_BYTES
            page, v_row = load_stage(stage, ahead, page, v_row, caches, table, tid, seq_lens, sizes)
        cp_async_wait(PENDING_FIRST)
        cuda.syncthreads()  # all copies of the first tile's K are there

        this, buffer = 0, 0  # offset of the stage with K of the next S; whose scores are which
        for index in range(cuda.blockIdx.x, num_units, cuda.gridDim.x):
            at = unit_of(index, sizes)
            seqlen_k = seq_lens[at.b]
            n_first, n_end = keys_of_split(
                at.split, num_splits, at.m_tile, seqlen_q, seqlen_k, group_size, mask_args
            )
            first_row = at.m_tile * ROWS + (lane >> 2)
            first_head = at.kv_head * group_size
            (m_0, head_0), (m_8, head_8) = (
                divide(first_row, group_size),
                divide(first_row + 8, group_size),
            )
            rows = (m_0, first_head + head_0), (m_8, first_head + head_8)
            load_queries(q_reg, q, at.b, rows, part, lane)
            for h in range(2):
                m, head = rows[h]
                slopes[h] = alibi_slopes[head] if ALIBI and m < seqlen_q else ZERO
                m_i[h] = NEG_INF
                l_i[h] = ZERO  # of this lane's keys alone
            for j in range(ACC_8):
                for r in range(4):
                    acc[j, r] = ZERO

            # Around the loop, too: in its passes no product then waits for loads of Q, nor, as
            # there are few counters of loads, for that of the next page.
            if n_first < n_end:
                multiply_keys(s_part, k, q_reg, ring + this + k_row, part)
                store_scores(scores + buffer, s_part, tid)
                for n_start in range(n_first, n_end, BLOCK_N):
                    cp_async_wait(PENDING)
                    # S of this tile and copies of the next stage are there; the one before is read.
                    cuda.syncthreads()
                    page, v_row = load_stage(
                        ring + this, ahead, page, v_row, caches, table, tid, seq_lens, sizes
                    )
                    this = this + STAGE_BYTES if this < RING.bytes - STAGE_BYTES else 0
                    more = n_start + BLOCK_N < n_end
                    if more:  # S = Q Kᵀ of the next tile                                 line 8
                        multiply_keys(s_part, k, q_reg, ring + this + k_row, part)
                    load_scores(s, x, scores + buffer, ONE, lane)
                    for i in range(KEYS_16):
                        for h in range(2):
                            for t in range(2):
                                for c in range(2):
                                    s_16[t, c] = s[2 * i + t, 2 * h + c]
                            m, head = rows[h]
                            of_row = at.b, head, m + seqlen_k - seqlen_q
                            m_i[h], l_i[h], alpha = online_softmax(  #                    line 9
                                s_16, p_16, m_i[h], l_i[h], n_start + 16 * i, of_row, seqlen_k,
                                slopes[h], softmax_scale, lane, mask_args, args,
                            )  # fmt: skip
                            for t in range(2):
                                p[2 * t + h] = p_16[t]
                            for j in range(ACC_8):
                                for c in range(2):
                                    acc[j, 2 * h + c] *= alpha
                        # out <- alpha out + P V                                          line 10
                        add_values(acc, v, p, i, ring + this + V_START, warp, lane)
                    buffer ^= SCORE_BYTES
                    if more:
                        store_scores(scores + buffer, s_part, tid)

            store_rows(out_partial, lse_partial, acc, m_i, l_i, at, rows, warp, lane)

    return flash_decode_columns_kernel


@arrays.replayed
@checks.takes(checks.DECODING)
def flash_decode_columns(q, k_cache, v_cache, seq_lens, **options):
    """Flash-Decoding of a contiguous or paged 16-bit KV cache, on GPUs since Ampere.

    Parameters
    ----------
    q, k_cache, v_cache, num_splits
        As for `flash_decode_gather`, without scales; head_dim up to 512.
    seq_lens, block_table, causal, window_size, softcap, alibi_slopes, softmax_scale, mask, \
    mask_args, score, score_args, sinks
        As for `flash_decode_wide`.

    Returns
    -------
    out, lse : arrays
        As of `flash_decode`.
    """
    given, options["head_dims"] = (q, k_cache, v_cache, seq_lens), checks.WIDE_HEAD_DIM
    problem = check_on_tensor_cores("flash_decode_columns", forward.AMPERE, *given, **options)
    head_dim, (page_size, *constants) = q.shape[3], problem.constants
    tiling = choose_tiling(head_dim, arrays.shared_bytes_per_block(q))
    constants += (problem.scores.expressions,)
    kernel = make_flash_decode_columns(
        head_dim, arrays.dtype_name(q), page_size, *tiling, *constants
    )
    num_splits, grid = splits_and_grid(problem, ROWS, tiling.block_n // KEYS)
    size = make_plan(head_dim, *tiling).bytes
    more = (problem.scores.expression_args,)
    return launch(problem, kernel, grid, THREADS, num_splits, shared_bytes=size, more=more)
