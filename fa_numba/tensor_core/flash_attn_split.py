"""FlashAttention-3 forward with split keys: few queries, long keys, on Hopper GPUs.

flash_attn_persistent   a thread block has a tile of queries, and all of its keys
flash_attn_split        a thread block has a tile of queries, a part of its keys    <- this file
flash_decode_mma        the same for few queries, by mma.sync: 8 rows of a product

With few queries there are fewer tiles of them than SMs: 128 queries of 16 heads are 16 tiles, so
116 SMs of an H200 would be idle. Here several thread blocks share a tile of queries and divide its
keys. Each stores out and lse of its part in float32, and a second kernel merges them, as in
Flash-Decoding (`merge_states` explains the ⊕).

A consumer warpgroup computes as in flash_attn_persistent (`mainloop`). The differences:

- A thread block has one work item: no loop over tiles of queries, no second slot for Q, no memory
  for out. The memory that this leaves makes the rings of K and V longer.
- The tiles of keys are processed in descending order. So the last tile, which may extend past the
  end of the keys, is the first; without causal, window and ALiBi no other tile needs a mask.
  With ALiBi the keys near the queries, which have the largest scores, come first too.
- For few queries a thread block has one consumer warpgroup (`tiling.split_tiling`).
- A user's mask and score (`expression_tiles`): the splits divide the tiles of keys that are seen,
  and each has its own runs of them, in ascending order.
- With a block table K and V are pages, and a tile of keys is several boxes: TMA copies the rows of
  a page to where they are in the tile. The swizzle repeats after 8 rows, so that a box may begin
  there.
- With GQA, a tile of few queries holds the rows of several heads, which read the same keys:

      row      0 … 31     32 … 63    64 … 95    96 … 127       17 queries of 4 heads
      head        0          1          2           3
      query    0 … 16     0 … 16     0 … 16      0 … 16        rows past the last query: no query

Papers: Shah et al. 2024, FlashAttention-3, arXiv:2407.08608; Dao, Haziza, Massa, Sizov 2023,
Flash-Decoding for long-context inference (a blog post of Stanford CRFM).
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32, uint64

from fa_numba import checks
from fa_numba.checks import HOPPER, TensorCores
from fa_numba.constants import FULL_WARP, ONE
from fa_numba.expressions import nodes, tiles
from fa_numba.expressions.interval_source import NoIntervalError
from fa_numba.on_cuda_cores import run_time_masks
from fa_numba.on_cuda_cores.decode_problem import parts_for
from fa_numba.on_cuda_cores.run_time_masks import MaskArgs
from fa_numba.ptx import mbarrier
from fa_numba.ptx.barriers import setmaxnreg_dec, setmaxnreg_inc
from fa_numba.ptx.dependent_launch import let_next_kernel_begin
from fa_numba.ptx.layouts import PANEL_COLS, ROW_BYTES
from fa_numba.ptx.mbarrier import fence_mbarrier_init, mbarrier_arrive_expect_tx
from fa_numba.ptx.tma import make_load_tile
from fa_numba.ptx.wgmma import descriptor, descriptor_bits
from fa_numba.runtime import arrays
from fa_numba.runtime.tensor_maps import tensor_map
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.alibi import alibi_flags, ramp_bytes, write_ramp
from fa_numba.tensor_core.expression_tiles import (
    ExpressionArgs,
    add_sink,
    has_unknown_work,
    make_run_functions,
    make_tile_functions,
    tables_of,
)
from fa_numba.tensor_core.fragments import (
    make_fragment_functions,
    make_score_mod,
    make_store_tile,
)
from fa_numba.tensor_core.lazy_rescaling import LEAST_CAP
from fa_numba.tensor_core.mainloop import (
    KVRings,
    Registers,
    make_mainloop,
    make_plan,
    make_ring,
    make_tiles_of,
    make_walk,
    tile_bytes,
)
from fa_numba.tensor_core.merge_splits import launch_merge
from fa_numba.tensor_core.run_tables import (
    make_split_table,
    ranges_of,
    require_positive_divisors,
)
from fa_numba.tensor_core.shared_plan import init_rings
from fa_numba.tensor_core.tile_scheduler import divided
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.persistent_tiling import ROWS, WARP_ROWS
from fa_numba.tiling.split_tiling import SplitProblem, choose_split

REQUIREMENTS = TensorCores("flash_attn_split", HOPPER)
# Registers per thread set by setmaxnreg: {consumer warpgroups: (producer, consumer)}. The sum over
# all threads of a block must not exceed the registers with which the block starts. These are 65536
# with 2 and 3 consumers. With one consumer, two blocks share an SM: 128 · (24 + 232) = 32768.
REGISTERS = {1: (24, 232), 2: (40, 232), 3: (32, 160)}


class Part(NamedTuple):
    """The work of a thread block: a tile of queries, and a part of the keys that it sees.

    Attributes
    ----------
    b, split : int32
    head, kv_head : int32
        The first of the tile's query heads, and their head of K and V.
    m_start : int32
        First query.
    begin, end : int32
        The tiles of keys range(begin, end); there may be none.
    """

    b: Any
    split: Any
    head: Any
    kv_head: Any
    m_start: Any
    begin: Any
    end: Any


@functools.cache
def make_part_of(BLOCK_N, HEAD_ROWS, HEADS, CAUSAL, WINDOW):
    """part_of(index, lse_shape, seqlen_k, group_size, mask_args): the `Part` of a thread block.

    lse_shape is (num_splits, batch, num_heads, seqlen_q). Neighbours share keys: the index runs
    over the tiles of a head's queries, the last one first, then over heads, splits, batch entries.
    The splits divide the tiles of keys that a tile of queries sees evenly; with more splits than
    tiles some splits have none.
    """
    tiles_of = make_tiles_of(BLOCK_N, CAUSAL, WINDOW)

    @cuda.jit(device=True, forceinline=True)
    def part_of(index, lse_shape, seqlen_k, group_size, mask_args):
        num_splits, _, num_heads, seqlen_q = lse_shape
        num_m_tiles = int32((int32(seqlen_q) + HEAD_ROWS - 1) // HEAD_ROWS)
        index, m_tile = divided(index, num_m_tiles)
        index, head_tile = divided(index, int32(num_heads) // HEADS)
        b, split = divided(index, num_splits)
        m_start = int32((num_m_tiles - 1 - m_tile) * HEAD_ROWS)
        first, end = tiles_of(m_start, HEAD_ROWS, seqlen_q, seqlen_k, mask_args)
        each, more = divided(end - first, num_splits)
        begin = int32(first + split * each + min(split, more))
        end = int32(begin + each + (int32(1) if split < more else int32(0)))
        head = int32(head_tile * HEADS)
        kv_head, _ = divided(head, group_size)
        return Part(b, split, head, kv_head, m_start, begin, end)

    return part_of


@functools.cache
def make_query_of(HEAD_ROWS):
    """query_of(part, row): the query, and its head, of a row in the tile of queries."""

    @cuda.jit(device=True, forceinline=True)
    def query_of(part, row):
        return int32(part.m_start + row % HEAD_ROWS), int32(part.head + row // HEAD_ROWS)

    return query_of


@functools.cache
def make_load_pages(HEAD_DIM, TILES, PAGE_SIZE):
    """load_pages(kv_map, n_start, head, pages, kv_tile, kv_full, stage, empty_parity).

    As load_kv of `mainloop.make_ring`, for K or V in pages: key n is in page pages[n // PAGE_SIZE].
    A box is `page_rows` rows; keys past the last page are 0.
    """
    BLOCK_N, ROWS_OF_BOX = TILES.block_n, page_rows(PAGE_SIZE, TILES)
    NUM_BYTES, EMPTY = tile_bytes(HEAD_DIM, BLOCK_N), TILES.stages * mbarrier.BYTES
    load_tile = make_load_tile(ceil_div(HEAD_DIM, PANEL_COLS))
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def load_pages(kv_map, n_start, head, pages, kv_tile, kv_full, stage, empty_parity):
        full = kv_full + stage * mbarrier.BYTES
        box = kv_tile + stage * NUM_BYTES
        wait(full + EMPTY, empty_parity)
        mbarrier_arrive_expect_tx(full, NUM_BYTES)
        n = n_start
        while n < n_start + BLOCK_N:  # one page at a time: the producer has few registers
            index, row = divided(n, PAGE_SIZE)
            page = int32(0)
            if index < int32(pages.shape[0]):
                page = pages[uint64(index)]
            else:
                row = int32(PAGE_SIZE)  # outside of a page: TMA writes zeros
            load_tile(box, BLOCK_N, kv_map, row, head, page, full)
            n, box = int32(n + ROWS_OF_BOX), box + ROWS_OF_BOX * ROW_BYTES

    return load_pages


def page_rows(page_size, tiles):
    """Rows of a box of K or V in pages: as many as divide a page and a tile of keys."""
    return math.gcd(page_size, tiles.block_n)


@functools.cache
def make_store_part(HEAD_DIM):
    """store_part(acc, inverse, out_partial, part, m, head, lane): store a warp's 16 rows.

    acc times `inverse` goes to the rows from query m on of out_partial, (num_splits, batch,
    seqlen_q, num_heads, HEAD_DIM), float32 or 16 bits. HEAD_DIM is a multiple of 8.
    """

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def store_part(acc, inverse, out_partial, part, m, head, lane):
        for h in range(2):
            row = int32(m + (lane >> 2) + 8 * h)
            if row < out_partial.shape[2]:
                x = out_partial[part.split, part.b, row, head]
                col = uint64(2 * (lane & 3))
                for j in range(HEAD_DIM // 8):
                    for c in range(2):
                        x[col + uint64(8 * j + c)] = acc[j, 2 * h + c] * inverse[h]

    return store_part


@functools.cache
def make_flash_attn_split(
    HEAD_DIM,
    TILING,
    CAUSAL,
    DTYPE,
    WINDOW=(-1, -1),
    SOFTCAP=0.0,
    ALIBI=False,
    EXPRESSIONS=None,
    SINKS=False,
    PAGE_SIZE=0,
):
    """The kernel for these compile-time constants; `mainloop.make_plan` lays out its memory.

    128 threads for the producer warpgroup and for each consumer warpgroup of TILING
    (`SplitTiling`). HEAD_DIM is a multiple of 8, DTYPE "float16" or "bfloat16". Without ALIBI the
    argument alibi_slopes is not read, and may be any scalar. WINDOW and SOFTCAP may be AT_RUN_TIME
    (`run_time_masks`); otherwise left, right, unit and inverse_unit are not read.

    With EXPRESSIONS the mask and the score are the user's alone, runs is that of `runs_of_splits`
    and args the tuple of their arguments; sinks is that of the sinks, with SINKS. Otherwise empty.

    With a PAGE_SIZE, which is a multiple of 8, K and V are pages; without EXPRESSIONS. Then runs is
    (block_table,).
    """
    EXPRESSED, PAGED = EXPRESSIONS is not None, PAGE_SIZE > 0
    TILES, HEADS, HEAD_ROWS = TILING.tiles, TILING.heads, TILING.head_rows
    CONSUMERS, BLOCK_N = TILES.consumers, TILES.block_n
    THREADS = TILES.num_threads
    # A box of Q has rows of one head; the boxes of a warpgroup are its ROWS rows.
    BOX_ROWS, NUM_BOXES = min(ROWS, HEAD_ROWS), ROWS * CONSUMERS // min(ROWS, HEAD_ROWS)
    COLS = 16 * ceil_div(HEAD_DIM, 16)  # a multiple of 16, as wgmma needs; extra columns are 0
    NUM_PANELS = ceil_div(HEAD_DIM, PANEL_COLS)
    Q_BYTES = NUM_PANELS * ROWS * ROW_BYTES  # rows of Q of one consumer warpgroup
    K_MAJOR_DESC = descriptor_bits()  # Q: head_dim, the reduction dimension, is contiguous
    S_SHAPE, P_SHAPE, OUT_SHAPE = (BLOCK_N // 8, 4), (BLOCK_N // 16, 4), (COLS // 8, 4)
    plan = make_plan(HEAD_DIM, TILES, ALIBI)
    Q, K, V, RAMP = plan.Q, plan.K, plan.V, plan.RAMP
    Q_RING, K_RING, V_RING = plan.Q_RING, plan.K_RING, plan.V_RING
    shared_base = plan.shared_base
    BARRIER = mbarrier.BYTES
    PRODUCER_REGISTERS, CONSUMER_REGISTERS = REGISTERS[CONSUMERS]
    LEAST_BLOCKS = 2 if CONSUMERS == 1 else 1  # in an SM, for which REGISTERS leaves room
    ALIBI_BY_WGMMA = alibi_flags(CAUSAL, WINDOW, SOFTCAP, ALIBI).by_wgmma
    RAMP_BYTES = ramp_bytes(BLOCK_N)
    MASKED = CAUSAL or ALIBI or WINDOW != (-1, -1)  # not only the last tile of keys
    pack = forward.pack_of(DTYPE)
    clear = make_fragment_functions(BLOCK_N, COLS, pack).clear
    exponent_scale_of = make_score_mod(BLOCK_N, CAUSAL, WINDOW, SOFTCAP, ALIBI).exponent_scale_of
    part_of = make_part_of(BLOCK_N, HEAD_ROWS, HEADS, CAUSAL, WINDOW)
    query_of = make_query_of(HEAD_ROWS)
    next_stage, load_kv, skip_tiles = make_ring(HEAD_DIM, TILES)
    load_pages = make_load_pages(HEAD_DIM, TILES, PAGE_SIZE) if PAGED else None
    options = DTYPE, WINDOW, SOFTCAP, ALIBI
    loop = make_mainloop(
        HEAD_DIM, TILES, CAUSAL, *options, MASK_IN_LOOP=MASKED, EXPRESSIONS=EXPRESSIONS
    )
    run_of, walk = make_run_functions(1).run_of, make_walk(1, BLOCK_N, loop, skip_tiles)
    softmax_scale_of = make_tile_functions(BLOCK_N, EXPRESSIONS).exponent_scale_of
    score_mod_args_of, unmasked_range_of = loop.score_mod_args_of, loop.unmasked_range_of
    first_iteration, iterate = loop.first_iteration, loop.iterate
    add_last_product, finish_product = loop.add_last_product, loop.finish_product
    load_tile = make_load_tile(NUM_PANELS)
    finish_rows, _ = make_store_tile(HEAD_DIM, pack)
    store_part = make_store_part(HEAD_DIM)
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def load_queries(q_map, base, part):
        """Start the TMA loads of the tile of queries."""
        full = base + Q_RING.full
        mbarrier_arrive_expect_tx(full, CONSUMERS * Q_BYTES)
        for box in range(NUM_BOXES):
            row = box * BOX_ROWS
            rows = base + Q.start + row // ROWS * Q_BYTES + row % ROWS * ROW_BYTES
            m, head = query_of(part, row)
            # A panel of the tile has ROWS rows, and a box has some of these.
            load_tile(rows, ROWS, q_map, m, head, part.b, full)

    @cuda.jit(device=True, forceinline=True)
    def place_of(part, num_splits):
        """Where a part's runs are in their table."""
        row = int32(part.m_start // HEAD_ROWS * num_splits + part.split)
        return part.b, int32(part.head // HEADS), row

    @cuda.jit(device=True, forceinline=True)
    def produce(loads_k, base, q_map, k_map, v_map, part, num_splits, runs):
        """The role of a producer thread: one loads Q and K, another one V."""
        if (EXPRESSED or part.begin < part.end) and loads_k:
            load_queries(q_map, base, part)
        kv_map = k_map if loads_k else v_map
        kv_tile = base + K.start if loads_k else base + V.start
        kv_full = base + K_RING.full if loads_k else base + V_RING.full
        # A wait with parity 1 on a new mbarrier returns at once, so the first loads do not block.
        stage, empty_parity = int32(0), int32(1)
        if EXPRESSED:
            place, r = place_of(part, num_splits), int32(0)
            tile, end, _ = run_of(runs[0], *place, r)
            while tile < end:
                n_start, head = int32(tile * BLOCK_N), part.kv_head
                load_kv(kv_map, n_start, head, part.b, kv_tile, kv_full, stage, empty_parity)
                stage, empty_parity = next_stage(stage, empty_parity)
                tile = int32(tile + 1)
                if tile == end:
                    r = int32(r + 1)
                    tile, end, _ = run_of(runs[0], *place, r)
            return
        tile = int32(part.end - 1)
        while tile >= part.begin:
            n_start = int32(tile * BLOCK_N)
            place = kv_tile, kv_full, stage, empty_parity
            if PAGED:
                load_pages(kv_map, n_start, part.kv_head, runs[0][part.b], *place)
            else:
                load_kv(kv_map, n_start, part.kv_head, part.b, *place)
            stage, empty_parity = next_stage(stage, empty_parity)
            tile = int32(tile - 1)

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def consume(
        tid, base, out_partial, lse_partial, seqlen_k, scale, alibi_slopes, part, mask_args,
        sinks, runs, expression_args,
    ):  # fmt: skip
        """The role of a consumer warpgroup: attention of its ROWS rows to the part's keys."""
        s = cuda.local.array(S_SHAPE, float32)
        p = cuda.local.array(P_SHAPE, uint32)
        acc = cuda.local.array(OUT_SHAPE, float32)
        m_i = cuda.local.array(2, float32)
        l_i = cuda.local.array(2, float32)
        alpha = cuda.local.array(2, float32)
        inverse = cuda.local.array(2, float32)
        offset = cuda.local.array(2, float32)
        seqlen_q = int32(lse_partial.shape[3])
        warpgroup, lane = tid >> 7, tid & 31
        warp_row = int32((tid >> 5 & 3) * WARP_ROWS)  # first of this warp's rows in the warpgroup's
        # The shuffle makes the warpgroup's index warp-uniform, so ptxas can use uniform registers.
        wg_index = int32(cuda.shfl_sync(FULL_WARP, warpgroup, 0) - 1)
        wg_row = int32(wg_index * ROWS)  # first of the warpgroup's rows in the tile of queries
        # If a warpgroup has rows of several heads, all of them begin at query 0: then this is the
        # smallest of its rows' positions, and the masks below hold for more rows than there are.
        m, _ = query_of(part, wg_row)
        wg_position = int32(m + seqlen_k - seqlen_q)
        m_warp, head = query_of(part, wg_row + warp_row)
        position = int32(m_warp + seqlen_k - seqlen_q + (lane >> 2))
        ramp = uint32(base + RAMP.start)
        score_mod_args = score_mod_args_of(
            alibi_slopes, part.head, scale, ramp, wg_position, lane, mask_args
        )
        q_desc = descriptor(K_MAJOR_DESC, uint32(base + Q.start + wg_index * Q_BYTES))
        # P = exp2((s − m_i) · exponent_scale)
        exponent_scale = exponent_scale_of(scale, mask_args)
        if EXPRESSED:
            exponent_scale = softmax_scale_of(scale)
        registers = Registers(s, p, acc, m_i, l_i, alpha, offset)
        k_full, v_full = base + K_RING.full, base + V_RING.full
        rings = KVRings(base + K.start, k_full, base + V.start, v_full)
        unmasked_range = unmasked_range_of(wg_position, seqlen_k, mask_args)
        clear(acc, m_i, l_i)

        if EXPRESSED:
            place = place_of(part, lse_partial.shape[0])
            args = ExpressionArgs(scale, 0, 0, True, part.b, head, expression_args, runs[1:])
            first_run = run_of(runs[0], *place, int32(0))
            wait(base + Q_RING.full, 0)
            stage, parity, remaining, _ = walk(
                registers, rings, int32(0), int32(0), q_desc, first_run, runs[0], place, wg_index,
                position, seqlen_k, args, lane,
            )  # fmt: skip
            add_last_product(registers, rings, stage, parity)
            finish_product(acc, p, base + V_RING.empty + stage * BARRIER, lane)
            stage, parity = next_stage(stage, parity)
            skip_tiles(remaining, stage, parity, k_full, v_full, lane)
        elif part.begin < part.end:
            stage, parity = int32(0), int32(0)  # of the tile whose S is computed, P V is not
            wait(base + Q_RING.full, 0)
            n_start = int32((part.end - 1) * BLOCK_N)
            n_first = int32(part.begin * BLOCK_N)
            first_iteration(
                registers, rings, stage, parity, q_desc, n_start,
                position, seqlen_k, score_mod_args, lane,
            )  # fmt: skip
            while n_start > n_first:
                n_start = int32(n_start - BLOCK_N)
                stage, parity = iterate(
                    registers, rings, stage, parity, q_desc, n_start,
                    unmasked_range, position, seqlen_k, score_mod_args, lane,
                )  # fmt: skip
            add_last_product(registers, rings, stage, parity)
            finish_product(acc, p, base + V_RING.empty + stage * BARRIER, lane)
        lse = lse_partial[part.split]
        if SINKS:
            alpha[0] = alpha[1] = ONE
            if part.split == 0:  # once
                add_sink(m_i, l_i, alpha, sinks[0][head], exponent_scale, lane)
        finish_rows(m_i, l_i, inverse, lse, part.b, head, m_warp, lane, exponent_scale)
        if SINKS:
            for h in range(2):
                inverse[h] *= alpha[h]
        store_part(acc, inverse, out_partial, part, m_warp, head, lane)

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, LEAST_BLOCKS))
    def flash_attn_split_kernel(
        q_map, k_map, v_map, out_partial, lse_partial, seqlen_k, group_size, scale, alibi_slopes,
        left, right, unit, inverse_unit, sinks, runs, args,
    ):  # fmt: skip
        """A thread block owns a tile of queries, and walks a part of the tiles of K and V.

        The maps are addresses (`tensor_maps`), with boxes of min(64, head_rows) rows of q and
        BLOCK_N of k and v; of pages `page_rows`. scale is softmax_scale · log2 e; left, right,
        unit, inverse_unit are `run_time_masks.MaskArgs`.

        grid      (tiles of queries · num_splits · batch,); warpgroup 0 is the producer, the others
                  are consumers
        shared    Q (CONSUMERS, 64, HEAD_DIM); K, V (STAGES, BLOCK_N, HEAD_DIM); in swizzled panels
                  of 64 columns. Q_RING.full; K_RING, V_RING: barriers "full" and "empty" of each
                  stage. With ALIBI the RAMP: the key columns 0, 1, 2, … that wgmma multiplies by
                  the ALiBi slope (`alibi`)
        private   s (BLOCK_N / 8, 4), p (BLOCK_N / 16, 4), acc (HEAD_DIM / 8, 4); m_i, l_i, alpha,
                  inverse, offset for two rows
        HBM       K and V once per tile of queries, except the key tiles that none of its queries
                  attends to; Q, out_partial, lse_partial once per split. With one split
                  out_partial may be out, of any dtype; otherwise it is float32
        paper     FlashAttention-3, Algorithm 2, over a part of the keys
        budget    168 registers at the start with 2 consumers, 128 with 1 and 3; then REGISTERS
        """
        base = shared_base()
        tid = cuda.threadIdx.x
        mask_args = MaskArgs(left, right, unit, inverse_unit)
        if tid == 0:
            # Arrivals that complete a phase of "empty": one lane of each consumer warp.
            init_rings(base, (Q_RING,), 4 * CONSUMERS)
            init_rings(base, (K_RING, V_RING), 4 * CONSUMERS)
            fence_mbarrier_init()
        if ALIBI_BY_WGMMA:
            write_ramp(uint32(base + RAMP.start), RAMP_BYTES, int32(tid), THREADS)
        cuda.syncthreads()  # the barriers are initialized: safe to wait on
        if PAGED:  # of a cascade, whose second kernel begins while this one ends
            let_next_kernel_begin()

        index = int32(cuda.blockIdx.x)
        part = part_of(index, lse_partial.shape, seqlen_k, group_size, mask_args)
        if tid >> 7 == 0:
            setmaxnreg_dec(PRODUCER_REGISTERS)
            if tid == 0 or tid == 32:  # one thread in each of two warps
                num_splits = lse_partial.shape[0]
                produce(tid == 0, base, q_map, k_map, v_map, part, num_splits, runs)
        else:
            setmaxnreg_inc(CONSUMER_REGISTERS)
            parts = out_partial, lse_partial
            more = sinks, runs, args
            consume(tid, base, *parts, seqlen_k, scale, alibi_slopes, part, mask_args, *more)

    return flash_attn_split_kernel


@arrays.replayed
@checks.takes(checks.SCORES)
def flash_attn_split(q, k, v, *, num_splits=0, out_dtype=None, block_table=None, **options):
    """FlashAttention-3, forward, with the keys split among thread blocks: for few queries.

    Parameters
    ----------
    q, k, v, causal, window_size, softcap, alibi_slopes, softmax_scale, mask, mask_args, score, \
    score_args, sinks, out_dtype
        As for `flash_attn_persistent`, all of one head_dim.
    num_splits : int, default=0
        Parts of the keys. 0: `fa_numba.tiling.split_tiling.choose_split` chooses it.
    block_table : array of shape (batch, max_pages), int32, default=None
        Then k and v are pages, (num_pages, page_size, num_kv_heads, head_dim), with a page_size
        that is a multiple of 8, and key n of entry b is in page block_table[b, n // page_size]. All
        pages in it are whole: seqlen_k is max_pages * page_size. Not with a mask or a score.

    Returns
    -------
    out, lse : arrays
        As of `flash_attn_persistent`.

    Raises
    ------
    RuntimeError
        On a GPU that has no wgmma.
    """
    num_splits = checks.check_num_splits(num_splits)
    keys = k, v
    if block_table is not None:
        keys = checks.keys_of_pages(k, v, block_table, options.get("mask"), options.get("score"))
    call = checks.forward_call(q, *keys, on=REQUIREMENTS, out_dtype=out_dtype, **options)
    if 0 in (call.seqlen_q, call.seqlen_k):
        return call.results_without_keys()
    tiling, num_splits = tiling_of(call, num_splits)
    parts = parts_for(call.out, call.lse, num_splits, num_splits > 1)
    launch_parts(call, tiling, num_splits, k, v, parts, block_table)
    if num_splits > 1:
        launch_merge(*parts, call.out, call.lse)
    return call.out, call.lse


def tiling_of(call, num_splits=0):
    """The `SplitTiling` of a call, and its number of splits, which it chooses if it is 0."""
    sizes = call.batch, call.seqlen_q, call.seqlen_k, call.num_heads, call.num_kv_heads
    mask = call.mask.causal, call.mask.window_size, call.mask.alibi
    return choose_split(
        SplitProblem(call.head_dim, *sizes, *mask), arrays.num_sms(call.q), num_splits
    )


def launch_parts(call, tiling, num_splits, k, v, parts, block_table=None):
    """Launch the first kernel: attention to each part of the keys.

    Parameters
    ----------
    call : Call
        Its out and lse are not read, nor the contents of its k and v.
    tiling, num_splits
        As of `tiling_of`.
    k, v, block_table
        As for `flash_attn_split`.
    parts : (out_partial, lse_partial)
    """
    options, head_dim, tiles = call.mask, call.head_dim, tiling.tiles
    constants = run_time_masks.constants_of(options, LEAST_CAP)
    score_mod = constants.window_size, constants.softcap, options.alibi
    more = None if call.given is None else call.expressions, call.has_sinks
    page_size = 0 if block_table is None else k.shape[1]
    constants = head_dim, tiling, options.causal, call.dtype, *score_mod, *more, page_size
    kernel = make_flash_attn_split(*constants)
    grid = (tiling.num_tiles(call.seqlen_q, call.num_heads) * num_splits * call.batch,)
    box_rows = page_rows(page_size, tiles) if page_size else tiles.block_n
    # L2 fetches 128 bytes for a copy: with 256, reads of HBM are slower (docs/notes/decoding.md).
    boxes = (call.q, min(ROWS, tiling.head_rows)), (k, box_rows, 128), (v, box_rows, 128)
    maps = tuple(tensor_map(*box) for box in boxes)
    rest = np.int32(call.seqlen_k), np.int32(call.group_size), call.scale_log2, call.slopes
    rest += run_time_masks.arguments_of(options)
    runs = () if call.given is None else runs_of_splits(call, tiling, num_splits)
    if page_size:
        runs = (block_table,)
    rest += (call.sinks,) if call.has_sinks else (), runs, call.expression_args
    size = make_plan(head_dim, tiles, ALIBI=options.alibi).bytes
    threads = (tiles.num_threads,)
    arrays.launch(kernel, grid, threads, *maps, *parts, *rest, shared_bytes=size)


def runs_of_splits(call, tiling, num_splits):
    """The runs of each part, as of `expression_tiles.runs_of`, with the ranges of groups.

    The splits divide the tiles of keys that a tile of queries sees evenly; with more splits than
    tiles some have none, and walk the tile behind the last key, in which nothing is seen.
    """
    mask = nodes.TRUE if call.expressions.mask is None else call.expressions.mask
    require_positive_divisors(mask, call.expression_args)
    sizes, ranges = (call.seqlen_q, call.seqlen_k, call.batch, call.num_heads), ()
    if has_unknown_work(call.expressions):
        try:
            ranges = ranges_of(call.q, mask, call.expression_args)
            given = mask, call.expression_args, ranges
            return make_split_table(call.q, *given, sizes, tiling, num_splits), *ranges
        except NoIntervalError:
            pass
    given = call.expressions, call.expression_args
    (table,) = tables_of(call.q, given, _runs_of_splits, *sizes, tiling, num_splits)
    return table, *ranges


def _runs_of_splits(mask, arguments, seqlen_q, seqlen_k, batch, num_heads, tiling, num_splits):
    parts, block_n = tiling.tiles.consumers, tiling.tiles.block_n
    rows = ROWS if tiling.heads == 1 else tiling.head_rows
    sizes = seqlen_q, seqlen_k
    classes = tiles.tile_classes(mask, sizes, rows, block_n, arguments, batch, num_heads)
    if tiling.heads > 1:  # a tile has the rows of several heads: any of them in any warpgroup
        of_batch, heads, *of_head = classes.shape
        of_tile = classes.reshape(of_batch, -1, min(heads, tiling.heads), *of_head)
        least, most = of_tile.min(axis=2), of_tile.max(axis=2)
        classes = np.repeat(np.where(least == most, least, tiles.MIXED), parts, axis=2)
    blocks = ceil_div(classes.shape[2], parts)
    padding = (0, 0), (0, 0), (0, blocks * parts - classes.shape[2]), (0, 0)
    classes = np.pad(classes, padding).reshape(*classes.shape[:2], blocks, 1, parts, -1)
    seen = (classes != tiles.HIDDEN).any(axis=-2, keepdims=True)
    number = np.cumsum(seen, axis=-1) - 1  # of a tile among those that are seen
    each, more = np.divmod(number[..., -1:] + 1, num_splits)
    split = np.arange(num_splits)[:, None, None]
    begin = split * each + np.minimum(split, more)
    mine = (number >= begin) & (number < begin + each + (split < more))
    classes = np.where(mine, classes, tiles.HIDDEN)
    nothing = (classes == tiles.HIDDEN).all(axis=(-2, -1), keepdims=True)
    behind = np.where(nothing, tiles.MIXED, tiles.HIDDEN).repeat(parts, axis=-2)
    classes = np.concatenate((classes, behind), axis=-1).astype(np.int8)
    classes = classes.reshape(*classes.shape[:2], -1, classes.shape[-1])
    return (tiles.runs_of_warpgroups(classes, seqlen_k, block_n, parts),)
