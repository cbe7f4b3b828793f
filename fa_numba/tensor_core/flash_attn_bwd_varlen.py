"""FlashAttention's backward pass over a packed batch, on Hopper's tensor cores.

flash_attn_bwd_persistent  (batch, seqlen, ...)  each sequence as long as the longest
flash_attn_bwd_varlen      (num_tokens, ...)     each as long as it is                <- this file

The tokens of all sequences lie in one row, and cu_seqlens says where each begins: sequence b is
tokens cu_seqlens[b] to cu_seqlens[b + 1]. Tiles and products are those of
flash_attn_bwd_persistent (`gradient_mainloop`), the three ways to sum dQ (`dq_parts`), and the loop
of the consumers (`gradient_consumer`). Three things differ.

- Copies that end with the sequence. Tiles begin with a sequence, but seldom end with one. TMA
  copies them by maps of windows (`runtime.tensor_maps.windows_of`), which zero-pad past the end of
  a sequence, and do not store there. So a tile never holds a row of another sequence, not even a
  NaN, and the products are those of a padded batch.
- Rows of float32 that begin with a tile (`packed_backward`): lse, delta and the sums of dQ have
  arrays of their own, in which each sequence begins at a multiple of the tile.
- A dynamic tile scheduler (`packed_key_tiles`): the producer thread claims one tile of keys after
  the other, those of the longest sequences first.

Under a causal mask, with head_dim above 64, the query heads that share a head of K and V take turns
at each tile of queries, as in flash_attn_bwd_persistent.

Papers: FlashAttention-2, arXiv:2307.08691, Algorithm 2; Shah et al. 2024, FlashAttention-3,
arXiv:2407.08608, section 3 and appendix B.
"""

import functools

import numpy as np
from numba import cuda, int32, uint32

from fa_numba import checks
from fa_numba.constants import LOG2_E
from fa_numba.expressions import nodes
from fa_numba.on_cuda_cores import run_time_masks
from fa_numba.on_cuda_cores.run_time_masks import MaskArgs
from fa_numba.ptx import mbarrier
from fa_numba.ptx.barriers import setmaxnreg_dec, setmaxnreg_inc
from fa_numba.ptx.counters import counter_take
from fa_numba.ptx.mbarrier import mbarrier_arrive, mbarrier_arrive_expect_tx
from fa_numba.ptx.statement import global_address
from fa_numba.ptx.tma import in_window, make_load_tile
from fa_numba.ptx.vectors import bulk_load
from fa_numba.runtime import arrays
from fa_numba.runtime.tensor_maps import tensor_map
from fa_numba.tensor_core import gradient_expressions as of_tile
from fa_numba.tensor_core import packed_backward
from fa_numba.tensor_core.backward import Maps, padded, tile_rows
from fa_numba.tensor_core.dq_parts import (
    ADDED,
    BY_ARRIVAL,
    ORDERED,
    PART_LENGTH,
    has_third,
    make_dq_functions,
    paired,
)
from fa_numba.tensor_core.dropout_fragments import NO_DROPOUT
from fa_numba.tensor_core.gradient_consumer import STORE_ROWS, Outputs, PackedSizes, make_consumer
from fa_numba.tensor_core.gradient_expressions import (
    CAP_IN_SCORE,
    find_run,
    next_of_run,
    place_of_part,
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
from fa_numba.tensor_core.key_tiles import make_order, make_query_tiles
from fa_numba.tensor_core.packed_key_tiles import (
    EXPRESSED_LENGTH,
    K_END,
    K_ROW,
    KV_HEAD,
    M_TILE,
    Q_ROW,
    RUNS_ROW,
    SEEN,
    SEQLEN_Q,
    SLOT_LENGTH,
    Batch,
    goes_downwards,
    make_scheduler,
    position_of,
)
from fa_numba.tensor_core.run_tables import KEYS, QUERIES, make_packed_table, ranges_of_packed

ARRIVAL_AVERAGE = 512  # keys of a sequence; see fastest_order


# Numba computes in 64 bits with every number in the source. Registers are short here, so variables
# that live long are cut to 32.


@functools.cache
def make_loads(HEAD_DIM, BLOCK_M):
    """load_keys and load_queries, for tiles of HEAD_DIM columns: K and Q, or V and dout."""
    load_tile = make_load_tile(padded(HEAD_DIM) // 64)
    ROW, FLOATS_BYTES = 2 * padded(HEAD_DIM), BLOCK_M * 4

    @cuda.jit(device=True, forceinline=True)
    def load_keys(full, tile, slots, slot, kv_map):
        """The tile of K or V of a slot."""
        row, window = in_window(slots[slot, K_ROW], slots[slot, K_END], BLOCK_N)
        mbarrier_arrive_expect_tx(full, BLOCK_N * ROW)
        load_tile(tile, BLOCK_N, kv_map, row, slots[slot, KV_HEAD], window, full)

    @cuda.jit(device=True, forceinline=True)
    def load_queries(full, tile, floats, slots, slot, m_tile, head, map_and_rows):
        """A tile of Q and of lse, or of dout and of delta."""
        query_map, rows = map_and_rows
        q_row = slots[slot, Q_ROW]
        m, end = int32(q_row + m_tile * BLOCK_M), int32(q_row + slots[slot, SEQLEN_Q])
        row, window = in_window(m, end, BLOCK_M)
        mbarrier_arrive_expect_tx(full, BLOCK_M * ROW + FLOATS_BYTES)
        load_tile(tile, BLOCK_M, query_map, row, head, window, full)
        source = global_address(rows[head, slots[slot, M_TILE] + m_tile])
        bulk_load(floats, source, FLOATS_BYTES, full)

    return load_keys, load_queries


@functools.cache
def make_producer(HEAD_DIM, HEAD_DIM_V, ORDER, CAUSAL, WINDOW, IN_STEP, EXPRESSED=False):
    """produce(base, slots, maps, lse_2, delta, batch, mask_args, messages, of_keys): load tiles.

    With EXPRESSED of_keys is the table of the runs of each tile of keys, and messages name the
    tiles of queries to the consumers; otherwise neither is read.
    """
    BLOCK_M, AT = tile_rows(HEAD_DIM), make_plan(HEAD_DIM, HEAD_DIM_V).layout
    K_SLOTS = slots_of(HEAD_DIM)
    K_STRIDE = AT.k.bytes // K_SLOTS if K_SLOTS > 1 else 0  # from a slot to the next
    Q_BYTES, DOUT_BYTES = AT.q.bytes // STAGES, AT.dout.bytes // STAGES
    FLOATS_BYTES = BLOCK_M * 4  # of lse, and of delta
    scheduler = make_scheduler(HEAD_DIM, ORDER, CAUSAL, WINDOW, IN_STEP, EXPRESSED)
    find_sequence, describe, is_first_of_two = scheduler
    order = make_order(IN_STEP)
    ranges, m_tile_of, head_of = order.ranges, order.m_tile_of, order.head_of
    query_tiles = make_query_tiles(BLOCK_M, BLOCK_N, CAUSAL, WINDOW)
    load_k, load_q = make_loads(HEAD_DIM, BLOCK_M)
    load_v, load_dout = make_loads(HEAD_DIM_V, BLOCK_M)
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def load_next_v(base, slots, slot, maps):
        """V, once it is empty: of two slots, so V's parity goes with them."""
        wait(base + AT.v_ring.empty, slot ^ 1)
        load_v(base + AT.v_ring.full, base + AT.v.start, slots, slot, maps.v)

    @cuda.jit(device=True, forceinline=True)
    def load_both(base, slots, slot, stage, parity, m_tile, head, rows, needs_v, message):
        """Q and dout to a stage; V between them, in the order in which the consumers need them."""
        maps, lse_2, delta, messages = rows
        barrier = stage * BARRIER
        q_tile, dout_tile = stage * Q_BYTES, stage * DOUT_BYTES
        floats = stage * FLOATS_BYTES
        wait(base + AT.q_ring.empty + barrier, parity)
        if EXPRESSED:
            messages[stage, of_tile.M_TILE] = m_tile
            messages[stage, of_tile.HEAD] = head
            messages[stage, of_tile.DQ_TILE], messages[stage, of_tile.KIND] = message
        load_q(
            base + AT.q_ring.full + barrier, base + AT.q.start + q_tile,
            base + AT.lse.start + floats, slots, slot, m_tile, head, (maps.q, lse_2),
        )  # fmt: skip
        if needs_v:
            load_next_v(base, slots, slot, maps)
        wait(base + AT.dout_ring.empty + barrier, parity)
        load_dout(
            base + AT.dout_ring.full + barrier, base + AT.dout.start + dout_tile,
            base + AT.delta.start + floats, slots, slot, m_tile, head, (maps.dout, delta),
        )  # fmt: skip

    @cuda.jit(device=True, forceinline=True)
    def produce(base, slots, maps, lse_2, delta, batch, mask_args, messages, of_keys):
        """The role of the producer thread."""
        rows = maps, lse_2, delta, messages
        num_sequences = int32(batch.cu_seqlens_k.shape[0] - 1)
        stage, parity = uint32(0), uint32(1)  # "empty" of a new ring has parity 1
        slot, k_parity = uint32(0), uint32(1)
        claim = int32(cuda.blockIdx.x)
        unit, index = find_sequence(claim, int32(0), batch)
        second = False
        while index < num_sequences:
            wait(base + AT.k_ring.empty + slot * BARRIER, k_parity)
            if K_SLOTS == 1:  # both slots are the same memory
                wait(base + AT.k_ring.empty + (slot ^ 1) * BARRIER, k_parity ^ slot)
            describe(slots, slot, unit, second, index, batch)
            second = is_first_of_two(slots, slot, index, batch)
            if EXPRESSED:
                first_head = int32(slots[slot, KV_HEAD] * batch.group_size)
                end_head = int32(first_head + batch.group_size)
                n_row = slots[slot, RUNS_ROW]
                head, r, next_tile, end, kind = find_run(
                    of_keys, int32(0), n_row, first_head, int32(0), end_head
                )
                slots[slot, SEEN] = end
            full = base + AT.k_ring.full + slot * BARRIER
            load_k(full, base + AT.k.start + slot * K_STRIDE, slots, slot, maps.k)
            needs_v = True
            if EXPRESSED:
                while end > 0:
                    m_tile, tile_head = next_tile, head
                    run = head, r, next_tile, end, kind
                    run, flags = next_of_run(of_keys, int32(0), n_row, run, end_head)
                    head, r, next_tile, end, kind = run
                    dq_tile = int32(tile_head * lse_2.shape[1] + slots[slot, M_TILE] + m_tile)
                    place = slots, slot, stage, parity, m_tile, tile_head
                    load_both(base, *place, rows, needs_v, (dq_tile, flags))
                    needs_v = False
                    stage, parity = next_stage(stage, parity)
            else:
                position, seqlen_q = position_of(slots, slot), slots[slot, SEQLEN_Q]
                first_tile, end_tile = query_tiles(position, seqlen_q, mask_args)
                first_head = int32(slots[slot, KV_HEAD] * batch.group_size)
                end_head = int32(first_head + batch.group_size)
                loops = ranges(first_tile, end_tile, first_head, end_head)
                outer_first, outer_end, inner_first, inner_end = loops
                for outer in range(outer_first, outer_end):
                    for inner in range(inner_first, inner_end):
                        head = head_of(outer, inner)
                        downwards = goes_downwards(slots, slot)
                        m_tile = m_tile_of(outer, inner, first_tile, end_tile, downwards)
                        place = slots, slot, stage, parity, m_tile, head
                        load_both(base, *place, rows, needs_v, (0, 0))
                        needs_v = False
                        stage, parity = next_stage(stage, parity)
            if needs_v:  # no query sees these keys
                load_next_v(base, slots, slot, maps)
            slot = uint32(slot + 1)
            if slot == SLOTS:
                slot, k_parity = uint32(0), uint32(k_parity ^ 1)
            if not second:
                # The thread block that is done first claims next.
                taken = int32(counter_take(global_address(batch.counters), 1))
                # Shuffled, ptxas takes it for the warp's: that has registers of its own.
                next_claim = int32(cuda.shfl_sync(1, taken, 0) + cuda.gridDim.x)
                unit, index = find_sequence(int32(unit + next_claim - claim), index, batch)
                claim = next_claim
        wait(base + AT.k_ring.empty + slot * BARRIER, k_parity)
        slots[slot, K_ROW] = -1
        mbarrier_arrive(base + AT.k_ring.full + slot * BARRIER)

    return produce


@functools.cache
def make_flash_attn_bwd_varlen(
    HEAD_DIM, ORDER, CAUSAL, DTYPE, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False, IN_STEP=False,
    EXPRESSIONS=None, HEAD_DIM_V=None,
):  # fmt: skip
    """The kernel for these compile-time constants: THREADS threads, `shared_bytes` of memory.

    ORDER is ADDED, BY_ARRIVAL or ORDERED, HEAD_DIM a multiple of 8, DTYPE "float16" or "bfloat16".
    With ADDED dq_sum is 0 at first, and dq may be any scalar; otherwise dq has an axis of length 1
    in front. Without ALIBI alibi_slopes may be any scalar. WINDOW and SOFTCAP may be AT_RUN_TIME
    (`run_time_masks`); otherwise left, right, unit and inverse_unit are not read. IN_STEP
    (`key_tiles.make_order`) needs ADDED and a mask under which tiles of keys are long and short
    (`dq_parts.paired`). HEAD_DIM_V is as for `make_flash_attn_bwd_persistent`.

    With EXPRESSIONS the mask and the score are the user's alone, or their mask and SOFTCAP; args is
    the tuple of their arguments. runs is a tuple of tables (`run_tables.make_packed_table`), along
    KEYS and with ORDERED, the only other order, along QUERIES. Otherwise both are empty.
    """
    HEAD_DIM_V = HEAD_DIM_V or HEAD_DIM
    plan = make_plan(HEAD_DIM, HEAD_DIM_V)
    AT, shared_base = plan.layout, plan.shared_base
    EXPRESSED, COUNTED = EXPRESSIONS is not None, ORDER != ADDED
    SLOTS_SHAPE = SLOTS, EXPRESSED_LENGTH if EXPRESSED else SLOT_LENGTH
    MESSAGES_SHAPE = STAGES, of_tile.MESSAGE_LENGTH
    head_dims = HEAD_DIM, HEAD_DIM_V
    produce = make_producer(*head_dims, ORDER, CAUSAL, WINDOW, IN_STEP, EXPRESSED)
    options = WINDOW, SOFTCAP, ALIBI, False, False, IN_STEP, EXPRESSIONS, HEAD_DIM_V
    consume = make_consumer(HEAD_DIM, ORDER, CAUSAL, DTYPE, *options, PACKED=True)
    of_parts = HEAD_DIM, tile_rows(HEAD_DIM), ORDER, CAUSAL, DTYPE, WINDOW
    count_parts = make_dq_functions(*of_parts, place_of_part if EXPRESSED else None).count_parts

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def flash_attn_bwd_varlen_kernel(
        q_map, k_map, v_map, dout_map, dk_map, dv_map, lse_2, delta, dq_sum, dq, cu_seqlens_q,
        cu_seqlens_k, queue, counters, num_kv_heads, group_size, scale, softmax_scale, alibi_slopes,
        left, right, unit, inverse_unit, runs, args,
    ):  # fmt: skip
        """A thread block loops over tiles of keys, each with the queries of its heads.

        grid      (at most one per SM,); warpgroup 0 loads and counts parts; the others compute
        shared    k (SLOTS, BLOCK_N, HEAD_DIM), above 128 one slot; v, dv (BLOCK_N, HEAD_DIM_V); q
                  (STAGES, BLOCK_M, HEAD_DIM); dout (STAGES, BLOCK_M, HEAD_DIM_V); ds (STAGES,
                  BLOCK_N, BLOCK_M), keys by queries, and in the end dK; in panels of 64 columns,
                  swizzled; lse, delta (STAGES, BLOCK_M); barriers: full and empty for each stage of
                  Q, and of dout, for each slot of K, and for V; asked, ready and written for parts
                  of dQ; slots (SLOTS, 7), part (4,)
        private   s, dp (BLOCK_M / 8, 4), p, ds (BLOCK_M / 16, 4), dk_acc (HEAD_DIM / 8, 4), dv_acc
                  (HEAD_DIM_V / 8, 4), dq_acc (8, 4)
        HBM       K, V, dK, dV once; Q, dout, lse, delta once per tile of keys, other than the tiles
                  that see none of them; dQ's sums as often; queue, cu_seqlens in every thread
                  block; counters: the number of claims, and for each tile of queries the number of
                  parts that have begun and that are written
        paper     FlashAttention-2, Algorithm 2
        budget    168 registers at the start, CONSUMER_REGISTERS after; one thread block per SM
        """
        slots = cuda.shared.array(SLOTS_SHAPE, int32)  # the tiles of keys in the slots of K
        part = cuda.shared.array(PART_LENGTH, int32)  # the part of dQ that comes next
        messages, of_keys, of_queries = (), (), ()
        if EXPRESSED:
            messages = cuda.shared.array(MESSAGES_SHAPE, int32)  # the tiles in the stages of Q
            of_keys = runs[0]
            if COUNTED:
                of_queries = runs[1]
        base = uint32(shared_base())
        tid = cuda.threadIdx.x
        maps = Maps(q_map, k_map, v_map, dout_map, dk_map, dv_map)
        mask_args = MaskArgs(left, right, unit, inverse_unit)
        if tid == 0:
            init_barriers(base, AT, COUNTED)
        cuda.syncthreads()  # the barriers are made: safe to wait on

        if tid >> 7 == 0:
            setmaxnreg_dec(PRODUCER_REGISTERS)
            if tid == 0:
                sequences = cu_seqlens_q, cu_seqlens_k, queue, counters
                batch = Batch(*sequences, num_kv_heads, group_size, int32(cuda.gridDim.x))
                produce(base, slots, maps, lse_2, delta, batch, mask_args, messages, of_keys)
            elif COUNTED and tid == 32:
                barriers = base + AT.asked.start, base + AT.ready.start, base + AT.written.start
                rows = ()
                if EXPRESSED:
                    rows = of_queries, int32(num_kv_heads * group_size), int32(lse_2.shape[1])
                count_parts(part, counters, barriers, rows)
        else:
            setmaxnreg_inc(CONSUMER_REGISTERS)
            outputs = Outputs(dq_sum, dq, scale, softmax_scale, alibi_slopes, NO_DROPOUT)
            sizes = PackedSizes(group_size, mask_args)
            consume(base, slots, part, maps, outputs, sizes, messages, of_queries, args)

    return flash_attn_bwd_varlen_kernel


def fastest_order(average, causal):
    """ADDED or BY_ARRIVAL: the faster one on an H200 for sequences of this average length.

    The passes before and after the kernel, which ADDED alone needs, weigh only where a sequence
    has few keys.
    """
    return BY_ARRIVAL if causal and average <= ARRIVAL_AVERAGE else ADDED


def is_in_step(head_dim, order, mask, group_size):
    """Should the heads of a group take turns? Up to head_dim 64 that was slower on an H200."""
    in_pairs = order == ADDED and paired(mask.causal, mask.window_size)
    return in_pairs and group_size > 1 and head_dim > 64


@arrays.replayed
@checks.takes(checks.SCORES)
def flash_attn_bwd_varlen(
    dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, *, deterministic=False, **options
):
    """FlashAttention over a packed batch, backward: float16 and bfloat16 on Hopper GPUs.

    Parameters
    ----------
    q, k, v, softmax_scale
        As for `flash_attn_persistent_varlen`; head_dim up to 128, or up to 192 where v has at most
        128.
    dout, out : GPU arrays of shape (num_tokens_q, num_heads, head_dim_v), dtype of q
    lse : GPU array of shape (num_heads, num_tokens_q), float32
        out and lse are the results of any forward kernel for packed batches, for q, k, v and the
        same options.
    cu_seqlens_q, cu_seqlens_k, causal, window_size, softcap, alibi_slopes, mask, mask_args, \
    score, score_args, sinks
        As for `flash_attn_varlen`.
    deterministic : bool, default=False
        As for `flash_attn_bwd_persistent`.

    Returns
    -------
    dq, dk, dv, dsinks : arrays
        As of `flash_attn_bwd_persistent`.

    Notes
    -----
    The contents of cu_seqlens_q and cu_seqlens_k are not checked, as in
    `flash_attn_persistent_varlen`.
    """
    requirements = checks.KERNELS["flash_attn_bwd_varlen"]
    requirements.check_packed_gradients(dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k)
    num_tokens_q, num_heads, head_dim = q.shape
    num_tokens_k, num_kv_heads, head_dim_v = v.shape
    batch = cu_seqlens_q.shape[0] - 1
    form = {"as_options": True, "cap_apart": head_dim > CAP_IN_SCORE, "positive_scale": True}
    scores = checks.check_scores(q, **form, **options)
    mask, given, scale = scores.mask, scores.given, scores.softmax_scale
    deterministic = checks.check_flag("deterministic", deterministic)
    if num_tokens_q == 0 or num_tokens_k == 0:
        return tuple(arrays.full(q, x.shape, 0, x.dtype) for x in (q, k, v, *scores.sink_args))

    dtype, block_m, num_sms = arrays.dtype_name(q), tile_rows(head_dim), arrays.num_sms(q)
    order = ORDERED
    if not deterministic and (given or has_third(head_dim)):
        order = ADDED
    elif not deterministic:
        order = fastest_order(num_tokens_k / batch, mask.causal)
    counted, starts = order != ADDED, (cu_seqlens_q, cu_seqlens_k)
    dq, dk, dv = (arrays.empty(q, x.shape, x.dtype) for x in (q, k, v))
    prepared = packed_backward.prepare(dout, out, lse, starts, dq, counted, scores.sinks_if_any)
    runs = ()
    if given is not None:
        written = nodes.TRUE if given.expressions.mask is None else given.expressions.mask
        problem = num_tokens_q, num_tokens_k, num_heads, block_m, BLOCK_N
        ranges = ranges_of_packed(q, written, given.arguments)
        runs = tuple(
            make_packed_table(
                q, written, given.arguments, ranges, starts, problem, along, all_runs=counted
            )
            for along in ((KEYS, QUERIES) if counted else (KEYS,))
        )

    constants = run_time_masks.constants_of(mask)
    in_step = is_in_step(head_dim, order, mask, num_heads // num_kv_heads)
    kernel = make_flash_attn_bwd_varlen(
        head_dim, order, mask.causal, dtype, *constants[1:], in_step,
        scores.expressions_if_any, head_dim_v,
    )  # fmt: skip
    # A sequence has at most one tile of keys that is not full.
    most_units = (num_tokens_k // BLOCK_N + batch) * num_kv_heads
    boxes = (q, block_m), (k, BLOCK_N), (v, BLOCK_N), (dout, block_m)
    boxes += (dk, STORE_ROWS), (dv, STORE_ROWS)
    arrays.launch(
        kernel, (min(most_units, num_sms),), (THREADS,),
        *(tensor_map(*box, windows=True) for box in boxes), *prepared.rows, prepared.dq_sum,
        arrays.with_axis(dq) if counted else np.float32(0), *starts, prepared.queue,
        prepared.counters, np.int32(num_kv_heads), np.int32(num_heads // num_kv_heads),
        np.float32(scale * LOG2_E), scale, scores.slopes, *run_time_masks.arguments_of(mask), runs,
        scores.expression_args, shared_bytes=shared_bytes(head_dim, head_dim_v),
    )  # fmt: skip

    if not counted:
        packed_backward.convert(prepared.dq_sum, dq, cu_seqlens_q, scale)
    return dq, dk, dv, *prepared.dsinks
