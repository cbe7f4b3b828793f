"""FlashAttention's backward pass over a packed batch, on Hopper's tensor cores.

flash_attn_bwd_persistent  (batch, seqlen, ...)  each sequence as long as the longest
flash_attn_bwd_varlen      (num_tokens, ...)     each as long as it is                <- this file

The tokens of all sequences lie in one row, and cu_seqlens says where each begins: sequence b is
tokens cu_seqlens[b] to cu_seqlens[b + 1]. Tiles and products are those of
flash_attn_bwd_persistent (`gradient_mainloop`), and the three ways to sum dQ (`dq_parts`). Three
things differ.

- Copies that end with the sequence. Tiles begin with a sequence, but seldom end with one. TMA
  copies them by maps of windows (`runtime.tensor_maps.windows_of`), which zero-pad past the end of
  a sequence, and do not store there. So a tile never holds a row of another sequence, not even a
  NaN, and the products are those of a padded batch.
- Rows of float32 that begin with a tile. lse, delta and the sums of dQ have arrays of their own, in
  which each sequence begins at a multiple of the tile: the tiles are numbered as in
  `kernels.sequence_of`, which needs no sum over the sequences before.
- A dynamic tile scheduler. Tiles of keys differ in work, and only the GPU knows the lengths. A
  kernel before sorts the sequences by their number of queries, the longest first. The producer
  thread claims one tile of keys after the other in this order from a counter in global memory:
  short sequences fill the gaps that long ones leave.

Under a causal mask, with head_dim above 64, the query heads that share a head of K and V take turns
at each tile of queries, as in flash_attn_bwd_persistent (`make_scheduler`).

Papers: FlashAttention-2, arXiv:2307.08691, Algorithm 2; Shah et al. 2024, FlashAttention-3,
arXiv:2407.08608, section 3 and appendix B.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32, uint64

from fa_numba import checks
from fa_numba.constants import FULL_WARP, LOG2_E, ONE, ZERO
from fa_numba.expressions import nodes
from fa_numba.expressions.tiles import MIXED
from fa_numba.kernels.sequence_of import make_sequence_of
from fa_numba.on_cuda_cores import run_time_masks
from fa_numba.on_cuda_cores.run_time_masks import MaskArgs
from fa_numba.ptx import mbarrier, vectors
from fa_numba.ptx.barriers import named_barrier_sync, setmaxnreg_dec, setmaxnreg_inc
from fa_numba.ptx.convert import exp2
from fa_numba.ptx.counters import counter_take
from fa_numba.ptx.layouts import ROW_BYTES
from fa_numba.ptx.mbarrier import (
    fence_mbarrier_init,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
)
from fa_numba.ptx.statement import global_address
from fa_numba.ptx.tma import in_window, make_load_tile, tma_store_wait_read
from fa_numba.ptx.vectors import bulk_load, load_global_x4, store_global_x4
from fa_numba.ptx.wgmma import hold
from fa_numba.runtime import arrays
from fa_numba.runtime.tensor_maps import tensor_map
from fa_numba.tensor_core import forward
from fa_numba.tensor_core import gradient_expressions as of_tile
from fa_numba.tensor_core.backward import (
    NOTHING,
    lanes_of_row,
    make_add_block,
    padded,
    sum_of_parts,
    tile_rows,
)
from fa_numba.tensor_core.dq_parts import (
    ADDED,
    BY_ARRIVAL,
    DQ_BYTES,
    FLAGS,
    INDEX,
    N_SHIFT,
    ORDERED,
    PANEL_SHIFT,
    PART_LENGTH,
    THIRD_COL,
    TILE,
    TILE_SHIFT,
    Rows,
    add_part,
    has_third,
    make_dq_functions,
    paired,
    third_offset,
    tile_bytes,
)
from fa_numba.tensor_core.forward import HOPPER
from fa_numba.tensor_core.fragments import fragment_function
from fa_numba.tensor_core.gradient_expressions import (
    CAP_IN_SCORE,
    ExpressedQueries,
    find_run,
    place_of_part,
    run_of,
)
from fa_numba.tensor_core.gradient_fragments import BLOCK_N, make_store_tile
from fa_numba.tensor_core.gradient_mainloop import (
    BARRIER,
    CONSUMER_REGISTERS,
    CONSUMER_WARPS,
    DS_FULL,
    PRODUCER_REGISTERS,
    SLOTS,
    STAGES,
    THREADS,
    Queries,
    Registers,
    make_hide,
    make_plan,
    make_tile_functions,
    shared_bytes,
    slots_of,
)
from fa_numba.tensor_core.key_tiles import make_order, make_query_tiles, make_steps
from fa_numba.tensor_core.run_tables import KEYS, QUERIES, make_packed_table, ranges_of_packed
from fa_numba.tensor_core.shared_plan import init_rings
from fa_numba.tensor_core.tile_scheduler import divided, head_and_tile, sort_sequences
from fa_numba.tiling.block_sizes import ceil_div

# Sequences of a batch that are sorted; a longer batch keeps its order. A thread that finds the rank
# of a sequence reads the lengths of all.
MAX_SORTED = 2048
ARRIVAL_AVERAGE = 512  # keys of a sequence; see fastest_order
STORE_ROWS = 16  # a warp's rows of dK and of dV

# Elements of a row of `slots`: the tile of keys in a slot of K.
K_ROW = 0  # its first key among the tokens; −1: no more
K_END = 1  # the end of its sequence
Q_ROW = 2  # its sequence's first query among the tokens
SEQLEN_Q = 3
M_TILE = 4  # the sequence's first tile of queries, among those of all sequences
KV_HEAD = 5
K_START = 6  # its sequence's first key among the tokens
SEQUENCE = 7  # its sequence's number; from here on with expressions alone
RUNS_ROW = 8  # the tile of keys, among those of all sequences
SEEN = 9  # 0: no query sees these keys
SLOT_LENGTH, EXPRESSED_LENGTH = 7, 10


class Lengths(NamedTuple):
    """Sizes for the products of a tile of queries: the length of its sequence, and the mask."""

    seqlen_q: int
    mask_args: MaskArgs


class ExpressedLengths(NamedTuple):
    """`Lengths`, with two numbers for expressions: shift is seqlen_q − seqlen_k."""

    seqlen_q: int
    mask_args: MaskArgs
    seqlen_k: int
    shift: int


class Batch(NamedTuple):
    """The sequences of a packed batch, in `queue` in the order of processing.

    The first of `counters` counts the claims; the others are those of the tiles of dQ (`dq_parts`).
    num_blocks is the number of thread blocks.
    """

    cu_seqlens_q: Any
    cu_seqlens_k: Any
    queue: Any
    counters: Any
    num_kv_heads: int
    group_size: int
    num_blocks: int


class Maps(NamedTuple):
    """Addresses of maps of windows."""

    q: int
    k: int
    v: int
    dout: int
    dk: int
    dv: int


class Outputs(NamedTuple):
    """Where the consumers add or store dQ, and the factors that they need."""

    dq_sum: Any
    dq: Any
    group_size: int
    scale: float
    softmax_scale: float
    alibi_slopes: Any


@functools.cache
def make_prepare_packed(HEAD_DIM, DTYPE, COUNTED=False, SINKS=False, HEAD_DIM_V=None):
    """The kernel before: 256 threads, 8 to 32 of them for a row.

    With COUNTED it sets the counters of dQ's tiles to 0, otherwise dQ's sums; then `dq` may be any
    scalar, and `dq_sum` otherwise. of_sinks is as of `backward.make_prepare_rows`.
    """
    BLOCK_M, LANES = tile_rows(HEAD_DIM), lanes_of_row(HEAD_DIM)
    add_block = make_add_block(LANES)
    ROWS = 256 // LANES  # a part of a tile's rows
    ROW_OF_SUMS = 4 * padded(HEAD_DIM)  # bytes
    ALL_CLEAR = ROWS * ROW_OF_SUMS == 256 * 32  # each thread clears 32 bytes, or fewer do
    ROW_LENGTH, ONE_LENGTH = HEAD_DIM_V or HEAD_DIM, HEAD_DIM_V in (None, HEAD_DIM)
    unpack = vectors.unpack_bf16x2 if DTYPE == "bfloat16" else vectors.unpack_f16x2
    sequence_of = make_sequence_of(BLOCK_M)

    @cuda.jit(fastmath=True)
    def prepare_packed(
        dout, out, lse, cu_seqlens_q, cu_seqlens_k, lse_2, delta, dq_sum, dq, queue, counters,
        of_sinks,
    ):  # fmt: skip
        """delta = rowsum(dout ∘ out), lse_2 as in `backward`; sorts the sequences.

        With COUNTED it also sets dQ to 0 in sequences without keys, which no tile of keys does.

        grid      (num_m_tiles · BLOCK_M / ROWS, num_heads); 256 threads
        private   8 numbers of dout and of out
        HBM       dout, out, lse, lse_2, delta, dq_sum or counters, queue once; cu_seqlens_q in
                  every thread about log2(batch) times, and once more in each of the `batch` first
                  threads; with SINKS a number of a thread block
        paper     FlashAttention-2, Algorithm 2, line 4
        budget    48 registers
        """
        a = cuda.local.array(4, uint32)
        b = cuda.local.array(4, uint32)
        x = cuda.local.array(2, float32)
        y = cuda.local.array(2, float32)
        x4 = cuda.local.array(4, float32)
        tid, head = cuda.threadIdx.x, cuda.blockIdx.y
        tile = cuda.blockIdx.x * ROWS // BLOCK_M
        first_row = cuda.blockIdx.x * ROWS - tile * BLOCK_M
        row, lane = first_row + tid // LANES, tid % LANES

        for i in range(4):
            x4[i] = float32(0)
        if COUNTED:
            if row == 0 and lane == 0:
                counters[1 + head * lse_2.shape[1] + tile] = 0
        else:
            sums = global_address(dq_sum[head, tile]) + uint64(first_row * ROW_OF_SUMS)
            for i in range(2):
                if ALL_CLEAR or 4096 * i + 16 * tid < ROWS * ROW_OF_SUMS:
                    store_global_x4(sums + uint64(4096 * i + 16 * tid), x4)

        sequence, q_row, seqlen_q, m_start = sequence_of(tile, cu_seqlens_q)
        inside = m_start + row < seqlen_q
        token = q_row + m_start + row
        total = float32(0)
        if inside and 8 * lane < ROW_LENGTH:
            load_global_x4(a, global_address(dout[token, head]) + uint64(16 * lane))
            load_global_x4(b, global_address(out[token, head]) + uint64(16 * lane))
            for i in range(4):
                unpack(x, a[i])
                unpack(y, b[i])
                total += x[0] * y[0] + x[1] * y[1]
            if COUNTED and ONE_LENGTH and cu_seqlens_k[sequence] == cu_seqlens_k[sequence + 1]:
                store_global_x4(global_address(dq[token, head]) + uint64(16 * lane), x4)
        if COUNTED and not ONE_LENGTH and inside and 8 * lane < HEAD_DIM:
            if cu_seqlens_k[sequence] == cu_seqlens_k[sequence + 1]:
                store_global_x4(global_address(dq[token, head]) + uint64(16 * lane), x4)
        step = LANES // 2
        while step > 0:
            total += cuda.shfl_xor_sync(FULL_WARP, total, step)
            step //= 2
        of_sink = float32(0)
        if lane == 0:
            l = NOTHING
            if inside:
                l = lse[head, token] * LOG2_E
                l = l if l > -NOTHING else NOTHING  # −inf: a row that sees no key
            lse_2[head, tile, row] = l
            delta[head, tile, row] = total
            if SINKS:  # the gradient of a score with value 0: P (0 − delta)
                of_sink = -exp2(of_sinks[0][head] * LOG2_E - l) * total
        if SINKS:
            of_sink = add_block(of_sink)
            if tid == 0:
                of_sinks[1][0, head, cuda.blockIdx.x] = of_sink

        if head == 0:
            batch = cu_seqlens_q.shape[0] - 1
            thread, num_threads = cuda.blockIdx.x * 256 + tid, cuda.gridDim.x * 256
            if thread == 0:
                counters[0] = 0
            if batch <= MAX_SORTED:
                sort_sequences(cu_seqlens_q, batch, queue, thread, num_threads)
            else:
                for i in range(thread, batch, num_threads):
                    queue[i] = i

    return prepare_packed


@functools.cache
def make_convert_packed(HEAD_DIM, DTYPE):
    """The kernel after, `backward.make_convert_dq` for a packed batch: 128 threads for a square."""
    BLOCK_M, COLS = tile_rows(HEAD_DIM), padded(HEAD_DIM)
    pack = forward.pack_of(DTYPE)
    sequence_of = make_sequence_of(BLOCK_M)
    SHAPE = (2, 4, 4)

    @cuda.jit(fastmath=True)
    def convert_packed(dq_sum, dq, cu_seqlens_q, softmax_scale):
        """A thread rounds 8 columns of two rows at a time: the sums of four lanes.

        grid      (num_m_tiles, num_heads); 128 threads for a square of 64 × 64
        private   x (2, 4, 4), two (4,)
        HBM       dq_sum, dq once; cu_seqlens_q in every thread about log2(batch) times
        budget    64 registers
        """
        x = cuda.local.array(SHAPE, float32)  # steps, lanes and registers
        two = cuda.local.array(4, uint32)
        tid = cuda.threadIdx.x
        block, j = tid >> 7, tid & 7
        tile, head = cuda.blockIdx.x, cuda.blockIdx.y
        source = global_address(dq_sum[head, tile]) + uint64(block * DQ_BYTES + 2048 * j)
        for i in range(2):
            for n in range(4):
                quad = 16 * i + ((tid & 127) >> 3)  # the four lanes of a row
                load_global_x4(x[i, n], source + uint64(64 * quad + 16 * n))
        _, q_row, seqlen_q, m_start = sequence_of(tile, cu_seqlens_q)  # while they are loaded
        # The next block has the next columns, or with 64 columns the lower rows.
        d = 8 * j + (64 * block if COLS > 64 else 0)
        first = m_start + (0 if COLS > 64 else 64 * block)
        for i in range(2):
            quad = 16 * i + ((tid & 127) >> 3)
            for h in range(2):
                m = first + 16 * (quad >> 3) + 8 * h + (quad & 7)
                for n in range(4):
                    x0, x1 = x[i, n, 2 * h], x[i, n, 2 * h + 1]
                    two[n] = pack(x0 * softmax_scale, x1 * softmax_scale)
                if m < seqlen_q and d < HEAD_DIM:
                    store_global_x4(global_address(dq[q_row + m, head]) + uint64(2 * d), two)

    return convert_packed


class Scheduler(NamedTuple):
    """Functions that find the tile of keys of a claim.

    A unit is a tile of keys of a head of K and V, or with IN_STEP two of them (`make_scheduler`).
    Units are counted through the sequences in the order of `queue`.

    Attributes
    ----------
    find_sequence(unit, index, batch)
        Unit and index of the sequence that has the unit, counted from the first one of the index-th
        sequence on. The index is the number of sequences if there is none.
    describe(slots, slot, unit, second, index, batch)
        Write a tile of keys of a unit of the index-th sequence to a row of `slots`: the first one,
        or with `second` the second one.
    is_first_of_two(slots, slot, index, batch)
        True if the unit of this tile of keys has a second one, which comes next.
    """

    find_sequence: Any
    describe: Any
    is_first_of_two: Any


@functools.cache
def make_scheduler(HEAD_DIM, ORDER, CAUSAL, WINDOW, IN_STEP=False, EXPRESSED=False):
    """The `Scheduler` of these compile-time constants: the tiles of a head after those of another.

    ORDERED takes a head's last keys first, BY_ARRIVAL its first ones. ADDED takes longer to find
    its sums in L2, but may take the tiles of a head at any time.
    Under a causal mask the first keys have the most work. They come first, the first half of them
    in all heads, then the third quarter, then the last one: so the thread blocks end with short
    tiles, at about the same time. The shorter the tiles, the fewer queries they read: those of the
    heads that run at the same time fit in L2.

    With IN_STEP (`key_tiles.make_order`) a unit is a pair of tiles of keys, a long one and a short
    one. All pairs of a sequence have the same work, so thread blocks that begin together are at the
    same queries until the sequence ends. In the last sequence, the shortest one, a unit is a single
    tile, so that the thread blocks end at about the same time. There the tiles of a few heads come
    first, the longest of them first, and then those of the next heads. The long half of a few
    heads' tiles is one for each thread block, about; whichever ends first takes the first of the
    short half: the same pairs again, unless one is late.
    """
    LONG_AND_SHORT = paired(CAUSAL, WINDOW) and ORDER == ADDED and not IN_STEP
    M_SHIFT = tile_rows(HEAD_DIM).bit_length() - 1
    n_tile_of = make_steps(True, False, False).n_tile_of

    @cuda.jit(device=True, forceinline=True)
    def has_pairs(index, batch):
        return IN_STEP and index + 2 < batch.cu_seqlens_k.shape[0]

    @cuda.jit(device=True, forceinline=True)
    def find_sequence(unit, index, batch):
        num_sequences = int32(batch.cu_seqlens_k.shape[0] - 1)
        while index < num_sequences:
            b = batch.queue[index]
            seqlen_k = batch.cu_seqlens_k[b + 1] - batch.cu_seqlens_k[b]
            num_n_tiles = (seqlen_k + BLOCK_N - 1) >> N_SHIFT
            if has_pairs(index, batch):
                num_n_tiles = (num_n_tiles + 1) >> 1
            num_units = int32(num_n_tiles * batch.num_kv_heads)
            if unit < num_units:
                break
            unit, index = int32(unit - num_units), int32(index + 1)
        return unit, index

    @cuda.jit(device=True, forceinline=True)
    def heads_at_a_time(num_n_tiles, batch):
        """Number of heads whose long tiles are one for each thread block, about."""
        num_heads = batch.num_kv_heads
        half = int32((num_n_tiles + 1) >> 1)
        most, _ = divided(batch.num_blocks + (half >> 1), half)
        most = min(max(most, int32(1)), num_heads)
        sections, _ = divided(num_heads + most - 1, most)
        return divided(num_heads + sections - 1, sections)[0]  # about the same in each section

    @cuda.jit(device=True, forceinline=True)
    def describe(slots, slot, unit, second, index, batch):
        b = batch.queue[index]
        q_row, k_row = batch.cu_seqlens_q[b], batch.cu_seqlens_k[b]
        seqlen_q, k_end = batch.cu_seqlens_q[b + 1] - q_row, batch.cu_seqlens_k[b + 1]
        num_n_tiles = int32((k_end - k_row + BLOCK_N - 1) >> N_SHIFT)
        begin, end = int32(0), num_n_tiles
        if LONG_AND_SHORT:
            end = int32(num_n_tiles - (num_n_tiles >> 1))
            if unit >= end * batch.num_kv_heads:
                begin, end = end, int32(num_n_tiles - (num_n_tiles >> 2))
            if unit >= end * batch.num_kv_heads:
                begin, end = end, num_n_tiles
        if has_pairs(index, batch):
            kv_head, pair = divided(unit, (num_n_tiles + 1) >> 1)
            n_tile = n_tile_of(2 * pair + second, num_n_tiles)
        elif IN_STEP:
            section = heads_at_a_time(num_n_tiles, batch)
            kv_head, from_end = head_and_tile(unit, num_n_tiles, batch.num_kv_heads, section)
            n_tile = num_n_tiles - 1 - from_end
        else:
            kv_head, n_tile = divided(unit - begin * batch.num_kv_heads, end - begin)
            n_tile = num_n_tiles - 1 - n_tile if ORDER == ORDERED else begin + n_tile
        slots[slot, K_ROW] = k_row + n_tile * BLOCK_N
        slots[slot, K_END] = k_end
        slots[slot, Q_ROW] = q_row
        slots[slot, SEQLEN_Q] = seqlen_q
        slots[slot, M_TILE] = (q_row >> M_SHIFT) + b
        slots[slot, KV_HEAD] = kv_head
        slots[slot, K_START] = k_row
        if EXPRESSED:
            slots[slot, SEQUENCE] = b
            slots[slot, RUNS_ROW] = (k_row >> N_SHIFT) + b + n_tile

    @cuda.jit(device=True, forceinline=True)
    def is_first_of_two(slots, slot, index, batch):
        k_start = slots[slot, K_START]
        before, length = slots[slot, K_ROW] - k_start, slots[slot, K_END] - k_start
        return has_pairs(index, batch) and 2 * before + BLOCK_N < length

    return Scheduler(find_sequence, describe, is_first_of_two)


@cuda.jit(device=True, forceinline=True)
def position_of(slots, slot):
    """Index among the queries of the first key of a tile: the last key is at the last query."""
    return int32(slots[slot, K_ROW] - slots[slot, K_END] + slots[slot, SEQLEN_Q])


@cuda.jit(device=True, forceinline=True)
def goes_downwards(slots, slot):
    """In step, the first half of a sequence's tiles of keys begins with the last queries."""
    k_start = slots[slot, K_START]
    return 2 * (slots[slot, K_ROW] - k_start) < slots[slot, K_END] - k_start


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
                    flags = int32(of_tile.MASKED_TILE if kind == MIXED else 0)
                    # The next tile first: the message of the last one says that it is.
                    next_tile = int32(next_tile + 1)
                    if next_tile == end:
                        head, r, next_tile, end, kind = find_run(
                            of_keys, int32(0), n_row, head, int32(r + 1), end_head
                        )
                        if end == 0:
                            flags = int32(flags | of_tile.LAST_TILE)
                    dq_tile = int32(tile_head * lse_2.shape[1] + slots[slot, M_TILE] + m_tile)
                    place = slots, slot, stage, parity, m_tile, tile_head
                    load_both(base, *place, rows, needs_v, (dq_tile, flags))
                    needs_v = False
                    stage = uint32(stage + 1)
                    if stage == STAGES:
                        stage, parity = uint32(0), uint32(parity ^ 1)
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
                        stage = uint32(stage + 1)
                        if stage == STAGES:
                            stage, parity = uint32(0), uint32(parity ^ 1)
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
def make_consumer(
    HEAD_DIM, HEAD_DIM_V, ORDER, CAUSAL, DTYPE, WINDOW, SOFTCAP, ALIBI, IN_STEP, EXPRESSIONS=None
):
    """consume(base, slots, part, maps, outputs, mask_args, messages, of_queries, args).

    256 threads compute tile after tile. messages, of_queries and args are those of
    `flash_attn_bwd_persistent.make_consumer`.
    """
    BLOCK_M, AT = tile_rows(HEAD_DIM), make_plan(HEAD_DIM, HEAD_DIM_V).layout
    COLS, COLS_V = (16 * ceil_div(d, 16) for d in (HEAD_DIM, HEAD_DIM_V))
    DK_COLS = min(COLS, 128)  # of dK, through the stages of dS; the rest through dV's region
    S_SHAPE, P_SHAPE = (BLOCK_M // 8, 4), (BLOCK_M // 16, 4)
    DK_SHAPE, DV_SHAPE, DQ_SHAPE = (COLS // 8, 4), (COLS_V // 8, 4), (8, 4)
    ONE_HEAD_DIM, DQ_LENGTH, DQ_TILE_BYTES = COLS == COLS_V, 32, tile_bytes(HEAD_DIM)
    M_SHIFT, COUNTED = BLOCK_M.bit_length() - 1, ORDER != ADDED
    EXPRESSED = EXPRESSIONS is not None
    dq_functions = make_dq_functions(HEAD_DIM, BLOCK_M, ORDER, CAUSAL, DTYPE, WINDOW)
    name_part, put, clear = dq_functions.name_part, dq_functions.put, dq_functions.clear
    THIRD = has_third(HEAD_DIM)
    SUMS_SHIFT = PANEL_SHIFT if THIRD else TILE_SHIFT
    options = WINDOW, SOFTCAP, ALIBI, False, EXPRESSIONS
    tile = make_tile_functions(HEAD_DIM, CAUSAL, DTYPE, *options, HEAD_DIM_V)
    thread_of, keys_of, multiply = tile.thread_of, tile.keys_of, tile.multiply
    multiply_third = tile.multiply_third
    wait_for_dq, wait_for_dk = tile.wait_for_dq, tile.wait_for_dk
    pack = forward.pack_of(DTYPE)
    store_dk, store_dv = make_store_tile(DK_COLS, pack), make_store_tile(COLS_V, pack)
    store_dk_rest = make_store_tile(COLS, pack, DK_COLS)
    query_tiles = make_query_tiles(BLOCK_M, BLOCK_N, CAUSAL, WINDOW)
    ranges, m_tile_of, head_of, dq_step = make_order(IN_STEP)
    hide = make_hide(BLOCK_M, SOFTCAP)
    wait = mbarrier.wait_function()

    @fragment_function()
    def ask(base, slots, slot, part, m_tile, address, outputs, mask_args):
        """Name the part of dQ of a tile of queries to the counting warp."""
        k_start = slots[slot, K_START]
        n_tile = int32((slots[slot, K_ROW] - k_start) >> N_SHIFT)
        seqlen_k = int32(slots[slot, K_END] - k_start)
        shift = int32(slots[slot, SEQLEN_Q] - seqlen_k)
        tile = int32((address - global_address(outputs.dq_sum)) >> SUMS_SHIFT)
        if THIRD:  # of panels
            tile = int32(uint32(tile) // uint32(3))
        name_part(part, tile, m_tile, n_tile, shift, seqlen_k, mask_args)
        mbarrier_arrive(base + AT.asked.start)

    @fragment_function()
    def put_part(x, base, slots, slot, part, parity, address, rows, keys, stage, thread, outputs):
        """This warp's part of dQ, once it may be written."""
        wait(base + AT.ready.start, parity)
        q_row = slots[slot, Q_ROW]
        dq = outputs.dq[:, q_row : q_row + slots[slot, SEQLEN_Q]]  # the sequence's
        put(x.dq, address, part[FLAGS], dq, rows, thread.lane, outputs.softmax_scale)
        if THIRD and stage == thread.half:
            multiply_third(x, keys, thread, stage)
            rows = Rows(rows.b, rows.head, rows.m, THIRD_COL)
            address += third_offset(thread)
            put(x.dq, address, part[FLAGS], dq, rows, thread.lane, outputs.softmax_scale)
        cuda.syncwarp()  # the whole warp's part is written
        if thread.lane == 0:
            mbarrier_arrive(base + AT.written.start)

    @fragment_function()
    def clear_unseen(slots, slot, first_tile, end_tile, thread, outputs):
        """dQ of the tiles of queries before the first and after the last that see a key."""
        head = int32(slots[slot, KV_HEAD] * outputs.group_size)
        rows = Rows(0, head, thread.dq_row, thread.dq_col)
        num_m_tiles = int32((slots[slot, SEQLEN_Q] + BLOCK_M - 1) >> M_SHIFT)
        q_row = slots[slot, Q_ROW]
        dq = outputs.dq[:, q_row : q_row + slots[slot, SEQLEN_Q]]  # the sequence's
        if slots[slot, K_ROW] == slots[slot, K_START]:
            end = min(first_tile, num_m_tiles)
            clear(int32(0), end, rows, dq, outputs.group_size, thread.lane)
        if slots[slot, K_ROW] + BLOCK_N >= slots[slot, K_END]:
            begin = max(end_tile, int32(0))
            clear(begin, num_m_tiles, rows, dq, outputs.group_size, thread.lane)

    @fragment_function()
    def clear_hidden(slots, slot, thread, outputs, of_queries):
        """dQ of the tiles of queries that see no key."""
        first_head = int32(slots[slot, KV_HEAD] * outputs.group_size)
        num_m_tiles = int32((slots[slot, SEQLEN_Q] + BLOCK_M - 1) >> M_SHIFT)
        q_row = slots[slot, Q_ROW]
        dq = outputs.dq[:, q_row : q_row + slots[slot, SEQLEN_Q]]  # the sequence's
        for head in range(first_head, int32(first_head + outputs.group_size)):
            rows = Rows(0, head, thread.dq_row, thread.dq_col)
            for m_tile in range(num_m_tiles):
                row = int32(slots[slot, M_TILE] + m_tile)
                _, end, _ = run_of(of_queries, int32(0), int32(head), row, 0)
                if end == 0:
                    clear(m_tile, m_tile + 1, rows, dq, int32(1), thread.lane)

    @fragment_function()
    def store_keys(x, base, k_row, k_end, kv_head, thread, maps, outputs):
        """dK and dV of the warp's 16 keys, by TMA, through shared memory."""
        lane, scale = thread.lane, outputs.softmax_scale
        row, window = in_window(int32(k_row + thread.warp_row), k_end, STORE_ROWS)
        dv_rows = base + AT.dv.start + thread.warp_row * ROW_BYTES
        store_dv(x.dv, dv_rows, maps.dv, row, STORE_ROWS, kv_head, window, lane, ONE)
        named_barrier_sync(DS_FULL, 256)  # dSᵀ is read: safe to overwrite
        store_dk(x.dk, thread.ds_rows, maps.dk, row, STORE_ROWS, kv_head, window, lane, scale)
        if COLS > DK_COLS:
            if lane == 0:
                tma_store_wait_read(1)
            cuda.syncwarp()  # dV is read: safe to overwrite
            store_dk_rest(x.dk, dv_rows, maps.dk, row, STORE_ROWS, kv_head, window, lane, scale)

    @fragment_function()
    def consume(base, slots, part, maps, outputs, mask_args, messages, of_queries, args):
        s = cuda.local.array(S_SHAPE, float32)
        dp = cuda.local.array(S_SHAPE, float32)
        p = cuda.local.array(P_SHAPE, uint32)
        ds = cuda.local.array(P_SHAPE, uint32)
        dq_acc = cuda.local.array(DQ_SHAPE, float32)
        dk_acc = cuda.local.array(DK_SHAPE, float32)
        dv_acc = cuda.local.array(DV_SHAPE, float32)
        x = Registers(s, dp, p, ds, dq_acc, dk_acc, dv_acc)
        dq_sum, scale = outputs.dq_sum, outputs.scale
        thread = thread_of(base, scale, mask_args)
        lane = thread.lane

        stage, parity = uint32(0), uint32(0)
        slot, k_parity = uint32(0), uint32(0)  # V's parity is `slot`
        part_parity = uint32(0)
        while True:
            wait(base + AT.k_ring.full + slot * BARRIER, k_parity)
            if slots[slot, K_ROW] < 0:
                break
            position = position_of(slots, slot)
            if EXPRESSED:
                position = int32(slots[slot, K_ROW] - slots[slot, K_START])
            keys = keys_of(base, slot, position, thread)
            first_tile, end_tile = query_tiles(position, slots[slot, SEQLEN_Q], mask_args)
            for j in range(COLS // 8):
                for r in range(4):
                    dk_acc[j, r] = ZERO
                    if ONE_HEAD_DIM or j < COLS_V // 8:
                        dv_acc[j, r] = ZERO
            if lane == 0:
                tma_store_wait_read(0)
            cuda.syncwarp()  # dK and dV of the keys before are read: safe to overwrite

            if EXPRESSED:
                more = slots[slot, SEEN] != 0
                while more:
                    barrier = uint32(stage * BARRIER)
                    wait(base + AT.q_ring.full + barrier, parity)
                    if COUNTED and thread.is_first:
                        part[TILE] = messages[stage, of_tile.DQ_TILE]
                        part[INDEX] = int32((slots[slot, K_ROW] - slots[slot, K_START]) >> N_SHIFT)
                        mbarrier_arrive(base + AT.asked.start)
                    m_start = int32(messages[stage, of_tile.M_TILE] * BLOCK_M)
                    head, b = messages[stage, of_tile.HEAD], slots[slot, SEQUENCE]
                    tile = stage, parity, m_start
                    queries = ExpressedQueries(*tile, 0, 0, 0, messages, b, head, args)
                    # The lengths read again: kept, they would take registers.
                    seqlen_q = slots[slot, SEQLEN_Q]
                    seqlen_k = int32(slots[slot, K_END] - slots[slot, K_START])
                    shift = int32(seqlen_q - seqlen_k)
                    lengths = ExpressedLengths(seqlen_q, mask_args, seqlen_k, shift)
                    multiply(x, base, keys, queries, thread, lengths, scale, ZERO)
                    more = messages[stage, of_tile.KIND] & of_tile.LAST_TILE == 0
                    if lane == 0 and not more:
                        mbarrier_arrive(base + AT.v_ring.empty)  # the next V while this tile ends
                    wait_for_dq(x)
                    if lane == 0:
                        mbarrier_arrive(base + AT.dout_ring.empty + barrier)
                    hold(dq_acc, DQ_LENGTH)
                    address = global_address(dq_sum) + thread.dq_offset
                    address += uint64(DQ_TILE_BYTES) * uint64(messages[stage, of_tile.DQ_TILE])
                    if COUNTED:
                        head = messages[stage, of_tile.HEAD]
                        m = int32(messages[stage, of_tile.M_TILE] * BLOCK_M + thread.dq_row)
                        rows = Rows(0, head, m, thread.dq_col)
                        of_part = part, part_parity, address, rows, keys, stage
                        put_part(x, base, slots, slot, *of_part, thread, outputs)
                        part_parity = uint32(part_parity ^ 1)
                    else:
                        add_part(dq_acc, address)
                    more = messages[stage, of_tile.KIND] & of_tile.LAST_TILE == 0
                    wait_for_dk(x)
                    if lane == 0:
                        mbarrier_arrive(base + AT.q_ring.empty + barrier)
                    stage = uint32(stage + 1)
                    if stage == STAGES:
                        stage, parity = uint32(0), uint32(parity ^ 1)
            else:
                loops = ranges(first_tile, end_tile, int32(0), outputs.group_size)
                outer_first, outer_end, inner_first, inner_end = loops
                downwards = goes_downwards(slots, slot)
                for outer in range(outer_first, outer_end):
                    i = head_of(outer, inner_first)
                    m_tile = m_tile_of(outer, inner_first, first_tile, end_tile, downwards)
                    head = int32(slots[slot, KV_HEAD] * outputs.group_size + i)
                    slope = outputs.alibi_slopes[head] if ALIBI else ZERO
                    packed_tile = int32(slots[slot, M_TILE] + m_tile)
                    address = global_address(dq_sum[head, packed_tile]) + thread.dq_offset
                    for inner in range(inner_first, inner_end):
                        i = head_of(outer, inner)
                        m_tile = m_tile_of(outer, inner, first_tile, end_tile, downwards)
                        barrier = uint32(stage * BARRIER)
                        wait(base + AT.q_ring.full + barrier, parity)
                        if COUNTED and thread.is_first:
                            ask(base, slots, slot, part, m_tile, address, outputs, mask_args)
                        m_start = int32(m_tile * BLOCK_M)
                        these = keys
                        if IN_STEP:
                            these, m_start = hide(keys, m_start)
                            if ALIBI:
                                head = int32(slots[slot, KV_HEAD] * outputs.group_size + i)
                                slope = outputs.alibi_slopes[head]
                        queries = Queries(stage, parity, m_start)
                        # The length read again: kept, it would take a register.
                        lengths = Lengths(slots[slot, SEQLEN_Q], mask_args)
                        multiply(x, base, these, queries, thread, lengths, scale, slope)
                        if lane == 0 and inner + 1 == inner_end and outer + 1 == outer_end:
                            # The next V while this tile ends.
                            mbarrier_arrive(base + AT.v_ring.empty)
                        wait_for_dq(x)
                        if lane == 0:
                            mbarrier_arrive(base + AT.dout_ring.empty + barrier)
                        hold(dq_acc, DQ_LENGTH)
                        if COUNTED:
                            # Read again: kept, it would take a register.
                            head = int32(slots[slot, KV_HEAD] * outputs.group_size + i)
                            m = int32(m_tile * BLOCK_M + thread.dq_row)
                            rows = Rows(0, head, m, thread.dq_col)
                            of_part = part, part_parity, address, rows, keys, stage
                            put_part(x, base, slots, slot, *of_part, thread, outputs)
                            part_parity = uint32(part_parity ^ 1)
                        else:
                            add_part(dq_acc, address)
                            if THIRD and stage == thread.half:
                                multiply_third(x, keys, thread, stage)
                                add_part(dq_acc, address + third_offset(thread))
                        address += uint64(DQ_TILE_BYTES) * uint64(dq_step(int32(dq_sum.shape[1])))
                        wait_for_dk(x)
                        if lane == 0:
                            mbarrier_arrive(base + AT.q_ring.empty + barrier)
                        stage = uint32(stage + 1)
                        if stage == STAGES:
                            stage, parity = uint32(0), uint32(parity ^ 1)

            unseen = first_tile >= end_tile
            if EXPRESSED:
                unseen = slots[slot, SEEN] == 0
            if unseen:  # no query sees these keys
                wait(base + AT.v_ring.full, slot)
                if lane == 0:
                    mbarrier_arrive(base + AT.v_ring.empty)
            if COUNTED:
                if not EXPRESSED:
                    clear_unseen(slots, slot, first_tile, end_tile, thread, outputs)
                elif slots[slot, K_ROW] == slots[slot, K_START]:
                    clear_hidden(slots, slot, thread, outputs, of_queries)
            k_row, k_end, kv_head = slots[slot, K_ROW], slots[slot, K_END], slots[slot, KV_HEAD]
            cuda.syncwarp()  # `slots` is read: safe to overwrite
            if lane == 0:
                mbarrier_arrive(base + AT.k_ring.empty + slot * BARRIER)
            store_keys(x, base, k_row, k_end, kv_head, thread, maps, outputs)
            slot = uint32(slot + 1)
            if slot == SLOTS:
                slot, k_parity = uint32(0), uint32(k_parity ^ 1)
        if COUNTED and thread.is_first:
            part[TILE] = -1
            mbarrier_arrive(base + AT.asked.start)
        if lane == 0:
            tma_store_wait_read(0)  # shared memory lives as long as the thread block

    return consume


@functools.cache
def make_flash_attn_bwd_varlen(
    HEAD_DIM,
    ORDER,
    CAUSAL,
    DTYPE,
    WINDOW=(-1, -1),
    SOFTCAP=0.0,
    ALIBI=False,
    IN_STEP=False,
    EXPRESSIONS=None,
    HEAD_DIM_V=None,
):
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
    options = WINDOW, SOFTCAP, ALIBI, IN_STEP, EXPRESSIONS
    consume = make_consumer(*head_dims, ORDER, CAUSAL, DTYPE, *options)
    of_parts = HEAD_DIM, tile_rows(HEAD_DIM), ORDER, CAUSAL, DTYPE, WINDOW
    count_parts = make_dq_functions(*of_parts, place_of_part if EXPRESSED else None).count_parts

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def flash_attn_bwd_varlen_kernel(
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
        cu_seqlens_q,
        cu_seqlens_k,
        queue,
        counters,
        num_kv_heads,
        group_size,
        scale,
        softmax_scale,
        alibi_slopes,
        left,
        right,
        unit,
        inverse_unit,
        runs,
        args,
    ):
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
            init_rings(base, (AT.q_ring, AT.dout_ring), CONSUMER_WARPS)
            init_rings(base, (AT.k_ring,), CONSUMER_WARPS)
            init_rings(base, (AT.v_ring,), CONSUMER_WARPS)
            if COUNTED:
                mbarrier_init(base + AT.asked.start, 1)
                mbarrier_init(base + AT.ready.start, 1)
                mbarrier_init(base + AT.written.start, CONSUMER_WARPS)
            fence_mbarrier_init()
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
            outputs = Outputs(dq_sum, dq, group_size, scale, softmax_scale, alibi_slopes)
            consume(base, slots, part, maps, outputs, mask_args, messages, of_queries, args)

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
def flash_attn_bwd_varlen(
    dout,
    q,
    k,
    v,
    out,
    lse,
    cu_seqlens_q,
    cu_seqlens_k,
    *,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
    deterministic=False,
    mask=None,
    mask_args=(),
    score=None,
    score_args=(),
    sinks=None,
):
    """FlashAttention over a packed batch, backward: float16 and bfloat16 on Hopper GPUs.

    Parameters
    ----------
    q : GPU array of shape (num_tokens_q, num_heads, head_dim), float16 or bfloat16
        Queries of all sequences, end to end. Any strides that are multiples of 16 bytes, with a
        contiguous last axis; head_dim a multiple of 8, up to 128, or up to 192 where v has at most
        128.
    k : GPU array of shape (num_tokens_k, num_kv_heads, head_dim), dtype of q
    v : GPU array of shape (num_tokens_k, num_kv_heads, head_dim_v), dtype of q
        Keys and values of all sequences. num_heads is a multiple of num_kv_heads (MHA, GQA, MQA);
        head_dim_v is a multiple of 8, up to head_dim.
    dout, out : GPU arrays of shape (num_tokens_q, num_heads, head_dim_v), dtype of q
    lse : GPU array of shape (num_heads, num_tokens_q), float32
        out and lse are the results of any forward kernel for packed batches, for q, k, v and the
        same options.
    cu_seqlens_q, cu_seqlens_k : GPU arrays of shape (batch + 1,), int32
        First tokens of the sequences, and the end of the last, as for `flash_attn_varlen`.
    causal : bool, default=False
    window_size, softcap, alibi_slopes
        As for `flash_attn_varlen`.
    softmax_scale : float, default=1/√head_dim
        Positive.
    mask, mask_args, score, score_args, sinks
        As for `flash_attn_varlen`.
    deterministic : bool, default=False
        The same bits in every run. By default dk and dv have the same bits, and dq is summed in
        any order.

    Returns
    -------
    dq, dk, dv : arrays of the shapes, dtype and library of q, k, v
        0 for a row that sees no key and for a key that no row sees; dk and dv are summed over the
        query heads that share a key head.
    dsinks : array of shape (num_heads,), float32
        With sinks alone.

    Raises
    ------
    TypeError, ValueError
        With the argument's name, the rule and its value.
    RuntimeError
        On a GPU without wgmma.

    Notes
    -----
    The contents of cu_seqlens_q and cu_seqlens_k are not checked: that would mean to wait for the
    GPU. Wrong contents read memory outside of the batch, or leave rows of the gradients unwritten.
    """
    checks.check_varlen_bwd_tensor_core(
        dout,
        q,
        k,
        v,
        out,
        lse,
        cu_seqlens_q,
        cu_seqlens_k,
        name="flash_attn_bwd_varlen",
        supported=HOPPER,
        **checks.bwd_limits(v),
    )
    num_tokens_q, num_heads, head_dim = q.shape
    num_tokens_k, num_kv_heads, head_dim_v = v.shape
    batch = cu_seqlens_q.shape[0] - 1
    written = mask, mask_args, score, score_args
    options = causal, window_size, softcap, alibi_slopes
    functions = {"as_options": True, "cap_apart": head_dim > CAP_IN_SCORE}
    scores = checks.check_scores(q, *options, written, sinks, **functions)
    mask, given = scores.mask, scores.given
    scale = checks.check_positive_scale(softmax_scale, head_dim)
    deterministic = checks.check_flag("deterministic", deterministic)
    if num_tokens_q == 0 or num_tokens_k == 0:
        nothing = (scores.sinks,) if scores.has_sinks else ()
        return tuple(arrays.full(q, x.shape, 0, x.dtype) for x in (q, k, v, *nothing))

    dtype, block_m, num_sms = arrays.dtype_name(q), tile_rows(head_dim), arrays.num_sms(q)
    order = ORDERED
    if not deterministic and (given or has_third(head_dim)):
        order = ADDED
    elif not deterministic:
        order = fastest_order(num_tokens_k / batch, mask.causal)
    counted = order != ADDED
    m_tiles = num_tokens_q // block_m + batch  # `sequence_of`
    dq, dk, dv = (arrays.empty(q, x.shape, x.dtype) for x in (q, k, v))
    lse_2, delta = (arrays.empty(q, (num_heads, m_tiles, block_m)) for _ in range(2))
    dq_sum = arrays.empty(q, (num_heads, m_tiles, block_m * padded(head_dim)))
    queue = arrays.empty(q, (batch,), np.int32)
    counters = arrays.empty(q, (1 + (num_heads * m_tiles if counted else 0),), np.int32)

    unread = np.float32(0)
    kernel = make_prepare_packed(head_dim, dtype, counted, scores.has_sinks, head_dim_v)
    grid = m_tiles * block_m * lanes_of_row(head_dim) // 256, num_heads
    starts, rows = (cu_seqlens_q, cu_seqlens_k), (lse_2, delta)
    sums = (unread, dq) if counted else (dq_sum, unread)
    of_sinks, dsinks = (), ()
    if scores.has_sinks:
        of_sinks = scores.sinks, arrays.empty(q, (1, *grid[::-1]))
    prepared = dout, out, lse, *starts, *rows, *sums, queue, counters, of_sinks
    arrays.launch(kernel, grid, (256,), *prepared)
    if scores.has_sinks:
        dsinks = (sum_of_parts(of_sinks[1]),)
    runs = ()
    if given is not None:
        written = nodes.TRUE if given.expressions.mask is None else given.expressions.mask
        problem = num_tokens_q, num_tokens_k, num_heads, block_m, BLOCK_N
        ranges = ranges_of_packed(q, written, given.arguments)
        runs = tuple(
            make_packed_table(q, written, given.arguments, ranges, starts, problem, along)
            for along in ((KEYS, QUERIES) if counted else (KEYS,))
        )

    constants = run_time_masks.constants_of(mask)
    in_step = is_in_step(head_dim, order, mask, num_heads // num_kv_heads)
    kernel = make_flash_attn_bwd_varlen(
        head_dim,
        order,
        mask.causal,
        dtype,
        *constants[1:],
        in_step,
        None if given is None else given.expressions,
        head_dim_v,
    )
    # A sequence has at most one tile of keys that is not full.
    most_units = (num_tokens_k // BLOCK_N + batch) * num_kv_heads
    boxes = (q, block_m), (k, BLOCK_N), (v, BLOCK_N), (dout, block_m)
    boxes += (dk, STORE_ROWS), (dv, STORE_ROWS)
    arrays.launch(
        kernel,
        (min(most_units, num_sms),),
        (THREADS,),
        *(tensor_map(*box, windows=True) for box in boxes),
        *rows,
        dq_sum,
        arrays.with_axis(dq) if counted else unread,
        *starts,
        queue,
        counters,
        np.int32(num_kv_heads),
        np.int32(num_heads // num_kv_heads),
        np.float32(scale * LOG2_E),
        scale,
        scores.slopes,
        *run_time_masks.arguments_of(mask),
        runs,
        scores.expression_args,
        shared_bytes=shared_bytes(head_dim, head_dim_v),
    )

    if not counted:
        kernel = make_convert_packed(head_dim, dtype)
        threads = block_m * padded(head_dim) // (64 * 64) * 128
        arrays.launch(kernel, (m_tiles, num_heads), (threads,), dq_sum, dq, cu_seqlens_q, scale)
    return dq, dk, dv, *dsinks
