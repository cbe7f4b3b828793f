"""Tiles of keys of a packed batch, backward: which one a thread block claims, and where it is.

Tiles of keys differ in work, and only the GPU knows the lengths. `packed_backward` sorts the
sequences by their number of queries, the longest first. The producer thread claims one tile of keys
after the other in this order from a counter in global memory: short sequences fill the gaps that
long ones leave.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, int32

from fa_numba.tensor_core.backward import tile_rows
from fa_numba.tensor_core.dq_parts import ADDED, N_SHIFT, ORDERED, paired
from fa_numba.tensor_core.gradient_fragments import BLOCK_N
from fa_numba.tensor_core.key_tiles import make_steps
from fa_numba.tensor_core.tile_scheduler import divided, head_and_tile

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
