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

There is one thread block per SM, and it loops over tiles of keys. Three roles, each a function; the
second is in `dq_parts`, the third in `gradient_consumer`:

`produce`       a thread of warpgroup 0 loads by TMA: the next tile's K, V and Q while the consumers
                still compute this one
`count_parts`   a thread of another warp of warpgroup 0 finds out in which order the parts of dQ
                are summed (`dq_parts`: "by arrival" and "ordered"; "added" does without)
`consume`       warpgroups 1 and 2 compute; they store dK and dV by TMA, through shared memory,
                while the next tile begins

Where the tiles of keys are too few for all SMs, several thread blocks divide the query heads that
share a head of K and V (`group_parts`). Under a causal mask these heads take turns at each tile of
queries, so that thread blocks need the same tiles at the same time (`key_tiles.make_order`).

A user's mask and score (`gradient_expressions`): `produce` walks the tiles of queries that see a
tile of keys, and tells `consume` which they are. A thread block that is done takes the next tile of
keys, because any tile may be a long one.

Dropout (`dropout_fragments`): a warpgroup calls Philox while the tensor cores compute S, and keeps
one bit for each entry. dV takes the kept entries of P, and dP counts in them alone. Their factor
multiplies the sums dQ, dK and dV in the end.

A head_dim is zero-padded to a multiple of 64. V, dV, dout and out may have a smaller one than Q and
K, which then have up to 192 (`multiply_in_turn`): prompts of DeepSeek's models have 192 and 128. A
tile of dQ has three panels of 64 columns there, and the warpgroups take turns at the third one.

On an H200 it ran at 1.01 to 1.52 times the speed of cuDNN: float16, head_dim 64 and 128, n = 512 to
16384, full and causal (benchmarks/results/tensor_core_bwd.json). A thread block for each tile of
keys, not persistent, was 1.02 to 1.06 times slower at n = 8192 in three of four cases, 1.02 times
faster in one, and 1.03 to 1.31 times slower at n = 512 and 2048.

Papers: FlashAttention-2, arXiv:2307.08691, Algorithm 2; Shah et al. 2024, FlashAttention-3,
arXiv:2407.08608, section 3 and appendix B.
"""

import functools
import math

import numpy as np
from numba import cuda, int32, uint32, uint64

from fa_numba import checks
from fa_numba.constants import LOG2_E, ONE
from fa_numba.kernels.dropout import LARGEST_ON_TENSOR_CORES
from fa_numba.on_cuda_cores import run_time_masks
from fa_numba.on_cuda_cores.run_time_masks import MaskArgs
from fa_numba.ptx import mbarrier
from fa_numba.ptx.barriers import setmaxnreg_dec, setmaxnreg_inc
from fa_numba.ptx.mbarrier import mbarrier_arrive, mbarrier_arrive_expect_tx
from fa_numba.ptx.statement import global_address
from fa_numba.ptx.tma import make_load_tile
from fa_numba.ptx.vectors import bulk_load
from fa_numba.runtime import arrays
from fa_numba.runtime.tensor_maps import tensor_map
from fa_numba.tensor_core import backward, group_parts
from fa_numba.tensor_core.backward import Maps, padded, tile_rows
from fa_numba.tensor_core.dq_parts import (
    ADDED,
    N_SHIFT,
    ORDERED,
    PART_LENGTH,
    fastest_order,
    has_third,
    make_dq_functions,
    paired,
)
from fa_numba.tensor_core.dropout_fragments import NO_DROPOUT, Dropout, dropout_arguments
from fa_numba.tensor_core.gradient_consumer import Outputs, make_consumer
from fa_numba.tensor_core.gradient_expressions import (
    CAP_IN_SCORE,
    DQ_TILE,
    HEAD,
    KIND,
    M_TILE,
    MESSAGE_LENGTH,
    find_run,
    next_of_run,
    place_of_part,
    runs_of_keys,
    step_of_keys,
)
from fa_numba.tensor_core.gradient_fragments import BLOCK_N
from fa_numba.tensor_core.gradient_mainloop import (
    BARRIER,
    CONSUMER_REGISTERS,
    PRODUCER_REGISTERS,
    SLOTS,
    STAGES,
    THREADS,
    init_barriers,
    make_plan,
    next_stage,
    shared_bytes,
    slots_of,
)
from fa_numba.tensor_core.key_tiles import (
    BATCH,
    KV_HEAD,
    N_TILE,
    SEEN,
    SLOT_LENGTH,
    Sizes,
    make_order,
    make_query_tiles,
    make_steps,
)
from fa_numba.tiling.block_sizes import ceil_div

# Numba computes in 64 bits with every number in the source. Registers are short here, so variables
# that live long are cut to 32.


@functools.cache
def make_producer(
    HEAD_DIM, ORDER, CAUSAL, WINDOW, GROUP_PARTS, IN_STEP, EXPRESSED=False, HEAD_DIM_V=None
):
    """produce(base, slots, maps, lse_2, delta, sizes, counters, messages, tables): one thread.

    It loads tile after tile. A step is a tile of keys of a head. A thread block takes every
    gridDim.x-th step, or as many as it asks for; in pairs, every gridDim.x-th pair.

    A head of K and V counts as GROUP_PARTS heads: each of them has a part of its query heads.
    messages and tables are read with EXPRESSED alone.
    """
    HEAD_DIM_V, K_SLOTS = HEAD_DIM_V or HEAD_DIM, slots_of(HEAD_DIM)
    BLOCK_M, AT = tile_rows(HEAD_DIM), make_plan(HEAD_DIM, HEAD_DIM_V).layout
    K_BYTES, V_BYTES = AT.k.bytes // K_SLOTS, AT.v.bytes
    Q_BYTES, DOUT_BYTES = AT.q.bytes // STAGES, AT.dout.bytes // STAGES
    FLOATS_BYTES = BLOCK_M * 4  # of lse, and of delta
    PAIRED = paired(CAUSAL, WINDOW) and ORDER == ADDED
    TAKEN = ORDER != ADDED or EXPRESSED
    query_tiles = make_query_tiles(BLOCK_M, BLOCK_N, CAUSAL, WINDOW)
    n_tile_of, step_after = make_steps(PAIRED, ORDER == ORDERED, TAKEN)
    order = make_order(IN_STEP)
    ranges, m_tile_of, head_of = order.ranges, order.m_tile_of, order.head_of
    load_k_tile = make_load_tile(padded(HEAD_DIM) // 64)  # also one of Q
    load_v_tile = make_load_tile(padded(HEAD_DIM_V) // 64)  # also one of dout
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def load_keys(base, slots, slot, parity, maps, n_tile, kv_head, b, seen):
        """K to a slot, once it is empty, and then V."""
        n_start = int32(n_tile * BLOCK_N)
        full, v_full = base + AT.k_ring.full + slot * BARRIER, base + AT.v_ring.full
        wait(base + AT.k_ring.empty + slot * BARRIER, parity)
        if K_SLOTS == 1:  # both slots are the same memory
            wait(base + AT.k_ring.empty + (slot ^ 1) * BARRIER, parity ^ slot)
        slots[slot, N_TILE] = n_tile
        slots[slot, KV_HEAD] = kv_head
        slots[slot, BATCH] = b
        if EXPRESSED:
            slots[slot, SEEN] = seen
        mbarrier_arrive_expect_tx(full, K_BYTES)
        tile = base + AT.k.start + slot * (K_BYTES if K_SLOTS > 1 else 0)
        if GROUP_PARTS > 1:
            kv_head = int32(kv_head // GROUP_PARTS)
        load_k_tile(tile, BLOCK_N, maps.k, n_start, kv_head, b, full)
        wait(base + AT.v_ring.empty, slot ^ 1)  # of two slots: V's parity goes with them
        mbarrier_arrive_expect_tx(v_full, V_BYTES)
        load_v_tile(base + AT.v.start, BLOCK_N, maps.v, n_start, kv_head, b, v_full)

    @cuda.jit(device=True, forceinline=True)
    def load_queries(
        base, stage, parity, maps, lse_row, delta_row, m_tile, head, b, messages, dq_tile, flags
    ):
        """Q with lse to a stage, once it is empty, and then dout with delta."""
        m_start, offset = int32(m_tile * BLOCK_M), uint64(m_tile * FLOATS_BYTES)
        floats, barrier = stage * FLOATS_BYTES, stage * BARRIER
        full = base + AT.q_ring.full + barrier
        wait(base + AT.q_ring.empty + barrier, parity)
        if EXPRESSED:
            messages[stage, M_TILE] = m_tile
            messages[stage, HEAD] = head
            messages[stage, DQ_TILE] = dq_tile
            messages[stage, KIND] = flags
        mbarrier_arrive_expect_tx(full, Q_BYTES + FLOATS_BYTES)
        tile = base + AT.q.start + stage * Q_BYTES
        load_k_tile(tile, BLOCK_M, maps.q, m_start, head, b, full)
        bulk_load(base + AT.lse.start + floats, lse_row + offset, FLOATS_BYTES, full)

        full = base + AT.dout_ring.full + barrier
        wait(base + AT.dout_ring.empty + barrier, parity)
        mbarrier_arrive_expect_tx(full, DOUT_BYTES + FLOATS_BYTES)
        tile = base + AT.dout.start + stage * DOUT_BYTES
        load_v_tile(tile, BLOCK_M, maps.dout, m_start, head, b, full)
        bulk_load(base + AT.delta.start + floats, delta_row + offset, FLOATS_BYTES, full)

    @cuda.jit(device=True, forceinline=True)
    def produce(base, slots, maps, lse_2, delta, sizes, counters, messages, tables):
        num_n_tiles = sizes.num_n_tiles
        heads, num_blocks = uint32(sizes.num_kv_heads), uint32(cuda.gridDim.x)
        num_heads = int32(sizes.num_kv_heads * sizes.group_size)
        # In pairs a head has an even number of steps; the last one may be empty.
        steps_per_head = uint32((num_n_tiles + 1 & ~1) if PAIRED else num_n_tiles)
        num_steps = uint32(steps_per_head * heads * sizes.batch)
        stage, parity = uint32(0), uint32(1)  # "empty" of a new ring has parity 1
        slot, k_parity = uint32(0), uint32(1)
        step = uint32((2 if PAIRED else 1) * cuda.blockIdx.x)
        while step < num_steps:
            of_head, of_all = int32(step % steps_per_head), uint32(step // steps_per_head)
            kv_head, b = int32(of_all % heads), int32(of_all // heads)
            n_tile = n_tile_of(of_head, num_n_tiles)
            if EXPRESSED:
                runs = tables[0]
                if ORDER == ADDED:
                    n_tile, of_all = step_of_keys(
                        step, tables[1], num_n_tiles, int32(heads * sizes.batch)
                    )
                    kv_head, b = int32(uint32(of_all) % heads), int32(uint32(of_all) // heads)
            if not PAIRED or of_head < num_n_tiles:
                seen = 0
                if EXPRESSED:
                    end_head = int32((kv_head + 1) * sizes.group_size)
                    head, r = int32(kv_head * sizes.group_size), int32(0)
                    head, r, next_tile, end, kind = find_run(runs, b, n_tile, head, r, end_head)
                    seen = end
                load_keys(base, slots, slot, k_parity, maps, n_tile, kv_head, b, seen)
                slot = uint32(slot + 1)
                if slot == SLOTS:
                    slot, k_parity = uint32(0), uint32(k_parity ^ 1)
                if EXPRESSED:
                    while end > 0:
                        m_tile, tile_head = next_tile, head
                        run = head, r, next_tile, end, kind
                        run, flags = next_of_run(runs, b, n_tile, run, end_head)
                        head, r, next_tile, end, kind = run
                        lse_row = global_address(lse_2[b, tile_head])
                        delta_row = global_address(delta[b, tile_head])
                        rows = lse_row, delta_row, m_tile, tile_head, b
                        row = int32(b * num_heads + tile_head)
                        message = messages, int32(row * sizes.num_m_tiles + m_tile), flags
                        load_queries(base, stage, parity, maps, *rows, *message)
                        stage, parity = next_stage(stage, parity)
                else:
                    first_head = int32(kv_head * sizes.group_size)
                    position = int32(n_tile * BLOCK_N) + sizes.shift
                    first_tile, end_tile = query_tiles(position, sizes.seqlen_q, sizes.mask_args)
                    end_head = int32(first_head + sizes.group_size)
                    loops = ranges(first_tile, end_tile, first_head, end_head)
                    outer_first, outer_end, inner_first, inner_end = loops
                    downwards = 2 * n_tile < num_n_tiles
                    for outer in range(outer_first, outer_end):
                        head = head_of(outer, inner_first)
                        lse_row = global_address(lse_2[b, head])
                        delta_row = global_address(delta[b, head])
                        for inner in range(inner_first, inner_end):
                            m_tile = m_tile_of(outer, inner, first_tile, end_tile, downwards)
                            if IN_STEP:
                                head = head_of(outer, inner)
                                lse_row = global_address(lse_2[b, head])
                                delta_row = global_address(delta[b, head])
                            rows = lse_row, delta_row
                            load_queries(base, stage, parity, maps, *rows, m_tile, head, b, 0, 0, 0)
                            stage, parity = next_stage(stage, parity)
            step = step_after(step, num_blocks, counters)
        wait(base + AT.k_ring.empty + slot * BARRIER, k_parity)
        slots[slot, N_TILE] = -1
        mbarrier_arrive(base + AT.k_ring.full + slot * BARRIER)

    return produce


@functools.cache
def make_flash_attn_bwd_persistent(
    HEAD_DIM, ORDER, CAUSAL, DTYPE, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False, DROPOUT=False,
    GRAD_FLOAT32=False, GROUP_PARTS=1, IN_STEP=False, EXPRESSIONS=None, HEAD_DIM_V=None,
):  # fmt: skip
    """The kernel for these compile-time constants: THREADS threads, `shared_bytes` of memory.

    ORDER is ADDED, BY_ARRIVAL or ORDERED, HEAD_DIM a multiple of 8, DTYPE "float16" or "bfloat16".
    With ADDED dq_sum is 0 at first, and counters may be any scalar; otherwise all counters are 0 at
    first. Without ALIBI alibi_slopes may be any scalar. WINDOW and SOFTCAP may be AT_RUN_TIME
    (`run_time_masks`); otherwise left, right, unit and inverse_unit are not read. With DROPOUT the
    kernel has more arguments, `dropout_fragments.dropout_arguments`. With GRAD_FLOAT32, which needs
    ADDED, the arguments dk_map and dv_map are dk and dv themselves, float32.

    GROUP_PARTS is the number of parts of a group of query heads; more than one need GRAD_FLOAT32.
    Each part has its own dk and dv: num_kv_heads counts the parts of all groups, and group_size the
    query heads of a part. IN_STEP (`key_tiles.make_order`) needs ADDED and pairs of tiles of keys.

    With EXPRESSIONS the mask and the score are the user's alone, or their mask and SOFTCAP; args is
    the tuple of their arguments. runs is a tuple of tables, `gradient_expressions.Runs`: of_keys
    and turns with ADDED, of_keys and of_queries with ORDERED. counters is an array with ADDED too;
    IN_STEP is not read. Otherwise both are empty.

    HEAD_DIM_V, of V and out, is a multiple of 8 up to HEAD_DIM, and that by default. HEAD_DIM may
    be 136 to 192 where HEAD_DIM_V is at most 128, with ADDED or ORDERED, and without DROPOUT and
    EXPRESSIONS.
    """
    HEAD_DIM_V = HEAD_DIM_V or HEAD_DIM
    plan, BLOCK_M = make_plan(HEAD_DIM, HEAD_DIM_V), tile_rows(HEAD_DIM)
    AT, shared_base = plan.layout, plan.shared_base
    M_SHIFT = BLOCK_M.bit_length() - 1
    COUNTED = ORDER != ADDED
    SLOTS_SHAPE = (SLOTS, SLOT_LENGTH)
    EXPRESSED = EXPRESSIONS is not None
    MESSAGES_SHAPE = (STAGES, MESSAGE_LENGTH)
    of_producer = HEAD_DIM, ORDER, CAUSAL, WINDOW, GROUP_PARTS, IN_STEP, EXPRESSED
    produce = make_producer(*of_producer, HEAD_DIM_V)
    constants = HEAD_DIM, ORDER, CAUSAL, DTYPE, WINDOW, SOFTCAP, ALIBI, DROPOUT, GRAD_FLOAT32
    consume = make_consumer(*constants, IN_STEP, EXPRESSIONS, HEAD_DIM_V)
    of_parts = HEAD_DIM, BLOCK_M, ORDER, CAUSAL, DTYPE, WINDOW
    count_parts = make_dq_functions(*of_parts, place_of_part if EXPRESSED else None).count_parts

    @cuda.jit(device=True, inline="always", fastmath=True)
    def run(
        q_map, k_map, v_map, dout_map, dk_map, dv_map, lse_2, delta, dq_sum, dq, seqlen_k,
        num_kv_heads, group_size, scale, softmax_scale, alibi_slopes, counters,
        left, right, unit, inverse_unit, dropout, runs, args,
    ):  # fmt: skip
        """The kernel, with dropout or without."""
        slots = cuda.shared.array(SLOTS_SHAPE, int32)  # the tiles of keys in the slots of K
        part = cuda.shared.array(PART_LENGTH, int32)  # the part of dQ that comes next
        messages = ()
        if EXPRESSED:
            messages = cuda.shared.array(MESSAGES_SHAPE, int32)  # the tiles in the stages of Q
        base = uint32(shared_base())
        tid = cuda.threadIdx.x
        seqlen_q = int32(dq.shape[1])
        sizes = Sizes(
            batch=int32(dq.shape[0]), num_kv_heads=num_kv_heads, group_size=group_size,
            seqlen_q=seqlen_q, seqlen_k=seqlen_k,
            num_m_tiles=int32((seqlen_q + BLOCK_M - 1) >> M_SHIFT),
            num_n_tiles=int32((seqlen_k + BLOCK_N - 1) >> N_SHIFT),
            shift=int32(seqlen_q - seqlen_k), mask_args=MaskArgs(left, right, unit, inverse_unit),
        )  # fmt: skip
        maps = Maps(q_map, k_map, v_map, dout_map, dk_map, dv_map)
        if tid == 0:
            init_barriers(base, AT, True)
        cuda.syncthreads()  # the barriers are made: safe to wait on

        if tid >> 7 == 0:
            setmaxnreg_dec(PRODUCER_REGISTERS)
            if tid == 0:
                produce(base, slots, maps, lse_2, delta, sizes, counters, messages, runs)
            elif COUNTED and tid == 32:
                barriers = base + AT.asked.start, base + AT.ready.start, base + AT.written.start
                rows = ()
                if EXPRESSED:
                    num_heads = int32(num_kv_heads * group_size)
                    rows = runs[1], num_heads, sizes.num_m_tiles
                count_parts(part, counters, barriers, rows)
        else:
            setmaxnreg_inc(CONSUMER_REGISTERS)
            outputs = Outputs(dq_sum, dq, scale, softmax_scale, alibi_slopes, dropout)
            of_queries = ()
            if EXPRESSED and COUNTED:
                of_queries = runs[1]
            consume(base, slots, part, maps, outputs, sizes, messages, of_queries, args)

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def flash_attn_bwd_persistent_kernel(
        q_map, k_map, v_map, dout_map, dk_map, dv_map, lse_2, delta, dq_sum, dq, seqlen_k,
        num_kv_heads, group_size, scale, softmax_scale, alibi_slopes, counters, left, right, unit,
        inverse_unit, runs, args,
    ):  # fmt: skip
        """A thread block loops over tiles of keys, each with the queries of its heads.

        grid      (at most one per SM,); warpgroup 0 loads and counts parts; the others compute
        shared    k (SLOTS, BLOCK_N, HEAD_DIM), above 128 one slot; v, dv (BLOCK_N, HEAD_DIM_V); q
                  (STAGES, BLOCK_M, HEAD_DIM); dout (STAGES, BLOCK_M, HEAD_DIM_V); ds (STAGES,
                  BLOCK_N, BLOCK_M), keys by queries, and in the end dK; in panels of 64 columns,
                  swizzled; lse, delta (STAGES, BLOCK_M); barriers: full and empty for each stage of
                  Q, and of dout, for each slot of K, and for V; asked, ready and written for parts
                  of dQ; slots (SLOTS, 4), part (4,)
        private   s, dp (BLOCK_M / 8, 4), p, ds (BLOCK_M / 16, 4), dk_acc (HEAD_DIM / 8, 4), dv_acc
                  (HEAD_DIM_V / 8, 4), dq_acc (8, 4)
        HBM       K, V, dK, dV once; Q, dout, lse, delta once per tile of keys, other than the tiles
                  that see none of them; dQ's sums as often; counters: the next tile of keys, and
                  for each tile of queries the number of parts that have begun and that are written
        paper     FlashAttention-2, Algorithm 2
        budget    168 registers at the start, CONSUMER_REGISTERS after; one thread block per SM
        """
        run(
            q_map, k_map, v_map, dout_map, dk_map, dv_map, lse_2, delta, dq_sum, dq, seqlen_k,
            num_kv_heads, group_size, scale, softmax_scale, alibi_slopes, counters,
            left, right, unit, inverse_unit, NO_DROPOUT, runs, args,
        )  # fmt: skip

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def flash_attn_bwd_persistent_dropout_kernel(
        q_map, k_map, v_map, dout_map, dk_map, dv_map, lse_2, delta, dq_sum, dq, seqlen_k,
        num_kv_heads, group_size, scale, softmax_scale, alibi_slopes, counters,
        left, right, unit, inverse_unit,
        key_0, key_1, key_2, key_3, key_4, key_5, key_6, limits, keep_scale, runs, args,
    ):  # fmt: skip
        """flash_attn_bwd_persistent_kernel with dropout: the same budget."""
        keys = key_0, key_1, key_2, key_3, key_4, key_5, key_6
        run(
            q_map, k_map, v_map, dout_map, dk_map, dv_map, lse_2, delta, dq_sum, dq, seqlen_k,
            num_kv_heads, group_size, scale, softmax_scale, alibi_slopes, counters,
            left, right, unit, inverse_unit,
            Dropout(keys, limits, keep_scale), runs, args,
        )  # fmt: skip

    if DROPOUT:
        return flash_attn_bwd_persistent_dropout_kernel
    return flash_attn_bwd_persistent_kernel


@arrays.replayed
@checks.takes(checks.SCORES)
def flash_attn_bwd_persistent(
    dout, q, k, v, out, lse, *, dropout_p=0.0, seed=0, deterministic=False, grad_dtype=None,
    **options,
):  # fmt: skip
    """FlashAttention, backward, with persistent thread blocks: float16 and bfloat16 on Hopper GPUs.

    Parameters
    ----------
    q : GPU array of shape (batch, seqlen_q, num_heads, head_dim), float16 or bfloat16
        Any strides that are multiples of 16 bytes, with a contiguous last axis; head_dim a multiple
        of 8, up to 128, or up to 192 where v has at most 128.
    k : GPU array of shape (batch, seqlen_k, num_kv_heads, head_dim), dtype of q
    v : GPU array of shape (batch, seqlen_k, num_kv_heads, head_dim_v), dtype of q
        head_dim_v is a multiple of 8, up to head_dim.
    dout, out : GPU arrays of shape (batch, seqlen_q, num_heads, head_dim_v), dtype of q
    lse : GPU array of shape (batch, num_heads, seqlen_q), float32
        out and lse are the results of any forward kernel for q, k, v and the same options.
    causal, window_size, softcap, alibi_slopes
        As for `flash_attn_v2`.
    softmax_scale : float, default=1/√head_dim
        Positive.
    dropout_p, seed
        As for `flash_attn_v2`, with the same mask; dropout_p at most 31/32, and 0 for a head_dim
        above 128.
    mask, mask_args, score, score_args, sinks
        As for `flash_attn_v2`; mask and score None for a head_dim above 128.
    deterministic : bool, default=False
        The same bits in every run. By default dk and dv have the same bits, and dq is summed in
        any order.
    grad_dtype : "float32", default=None
        Dtype of the gradients; None is that of q. Contributions of other keys or queries can be
        added to float32 gradients without a loss. Not with deterministic.

    Returns
    -------
    dq, dk, dv : arrays of the shapes and library of q, k, v
        0 for a row that sees no key and for a key that no row sees; dk and dv are summed over the
        query heads that share a key head.
    dsinks : array of shape (num_heads,), float32
        With sinks alone.
    """
    inputs = dout, q, k, v, out, lse
    name, functions = "flash_attn_bwd_persistent", (options.get("mask"), options.get("score"))
    options["cap_apart"] = q.shape[3] > CAP_IN_SCORE
    scores, deterministic = backward.check(name, inputs, deterministic, **options)
    in_float32 = checks.check_grad_dtype(grad_dtype, deterministic) is not None
    dropout_p, seed = checks.check_dropout(dropout_p, seed, largest=LARGEST_ON_TENSOR_CORES)
    checks.check_bwd_over_v(name, q.shape[3], dropout_p, *functions)
    mask, given, scale = scores.mask, scores.given, scores.softmax_scale
    gradient_scale, delta_scale, drops = scale, ONE, ()
    if dropout_p > 0:
        *_, keep_scale = drops = dropout_arguments(dropout_p, seed)
        gradient_scale, delta_scale = scale * keep_scale, ONE / keep_scale
    batch, seqlen_q, num_heads, head_dim = q.shape
    seqlen_k, num_kv_heads = k.shape[1:3]
    head_dim_v = v.shape[3]
    dtype, block_m = arrays.dtype_name(q), tile_rows(head_dim)
    size = shared_bytes(head_dim, head_dim_v)
    n_tiles, heads, num_sms = ceil_div(seqlen_k, BLOCK_N), batch * num_kv_heads, arrays.num_sms(q)
    order = ORDERED
    group_size = num_heads // num_kv_heads
    if 0 in (seqlen_q, seqlen_k):
        given = None  # there is no tile
    runs = None
    if given is not None:
        runs = runs_of_keys(q, k, given, block_m, BLOCK_N, both=deterministic)
    if not deterministic:
        order = fastest_order(head_dim, n_tiles, heads, group_size, num_sms, mask)
    if in_float32 or ((given is not None or has_third(head_dim)) and not deterministic):
        order = ADDED  # the other orders round dQ within the kernel
    in_pairs = order == ADDED and paired(mask.causal, mask.window_size)
    parts = 1 if order != ADDED else group_parts.fastest(q, k, mask, num_sms)
    grad_dtype = np.float32 if in_float32 else None
    (dq, dk, dv), rows, dq_sum, *dsinks = backward.prepare(
        *inputs, order == ADDED, grad_dtype, delta_scale, scores.sinks_if_any
    )
    if seqlen_k == 0:
        return arrays.full(q, q.shape, 0, dq.dtype), dk, dv, *dsinks

    if order == ADDED:
        counters = np.int32(0) if runs is None else arrays.full(q, (1,), 0, np.int32)
        units = parts * heads * ceil_div(n_tiles, 2 if in_pairs else 1)
    else:
        dq_sum = backward.empty_sums(q)
        counters = arrays.full(q, (1 + math.prod(dq_sum.shape[:3]),), 0, np.int32)
        units = heads * n_tiles
    maps = [tensor_map(*x) for x in ((q, block_m), (k, BLOCK_N), (v, BLOCK_N), (dout, block_m))]
    stored = [group_parts.empty(x, parts) for x in (dk, dv)] if parts > 1 else [dk, dv]
    in_float32 = in_float32 or parts > 1
    maps += stored if in_float32 else [tensor_map(x, 16) for x in stored]
    kv_heads = parts * num_kv_heads
    sizes = np.int32(seqlen_k), np.int32(kv_heads), np.int32(num_heads // kv_heads)
    scales = np.float32(scale * LOG2_E), gradient_scale
    args = *maps, *rows, dq_sum, dq, *sizes, *scales, scores.slopes, counters
    constants = run_time_masks.constants_of(mask)
    kernel = make_flash_attn_bwd_persistent(
        head_dim, order, mask.causal, dtype, *constants[1:], dropout_p > 0, in_float32, parts,
        in_pairs and num_heads > kv_heads, None if given is None else given.expressions, head_dim_v,
    )  # fmt: skip
    args += *run_time_masks.arguments_of(mask), *drops
    if given is None:
        args += (), ()
    else:
        args += (runs.of_keys, runs.turns if order == ADDED else runs.of_queries), given.arguments
    arrays.launch(kernel, (min(units, num_sms),), (THREADS,), *args, shared_bytes=size)

    if order == ADDED:
        backward.convert(dq_sum, dq, gradient_scale)
    if parts > 1:
        group_parts.add(stored, (dk, dv))
    return dq, dk, dv, *dsinks
