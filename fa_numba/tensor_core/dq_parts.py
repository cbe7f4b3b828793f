"""Three ways to sum the parts of dQ that tiles of keys compute: added, by arrival, ordered.

Each tile of keys computes a part of dQ of every tile of queries that sees one of its keys. The sums
are in float32 and in the layout of the registers (`backward.make_convert_dq`).

"added"        A kernel before sets the sums to 0, each part is added atomically, and a kernel after
               rounds: `convert_dq`. The parts come in any order, so the last digits of dQ differ
               from run to run. Under a causal mask each thread block takes tiles of keys in pairs,
               a long one and a short one, so that all have the same work.
"by arrival"   No kernel before and none after: the first part to arrive is stored, the next ones
               are added, and the last one reads the sum, adds it to itself and rounds. A counter in
               HBM gives each part its index; a warp of its own asks for it, and waits until the
               parts before it are written. That costs more for each tile and saves two passes over
               dQ, which pays where a query sees few keys.
"ordered"      The same with indices fixed in advance, from the last keys to the first, which is
               also the order in which the tiles of keys begin: the same bits in every run. Under a
               causal mask a tile of keys then reaches each tile of queries just after the next keys
               did, and seldom waits.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from numba import cuda, float32, int32, uint32, uint64

from fa_numba.on_cuda_cores import run_time_masks
from fa_numba.on_cuda_cores.run_time_masks import UNREAD
from fa_numba.ptx import mbarrier
from fa_numba.ptx.counters import counter_acquire, counter_release, counter_take
from fa_numba.ptx.mbarrier import mbarrier_arrive
from fa_numba.ptx.statement import global_address
from fa_numba.ptx.vectors import atomic_add_x4, load_global_x4_relaxed, store_global_x4_relaxed
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.fragments import fragment_function
from fa_numba.tensor_core.gradient_fragments import BLOCK_N, make_store_gradient

ADDED, BY_ARRIVAL, ORDERED = "added", "by arrival", "ordered"
# By arrival if a query sees at most so many keys, and an SM has at least so many tiles of keys.
ARRIVAL_KEYS, ARRIVAL_TILES = 1024, 15
ARRIVAL_KEYS_OF_GROUP = 4096  # divided by the query heads that take turns (`key_tiles.make_order`)
DQ_BYTES = 64 * 64 * 4  # of a warpgroup: half of a tile of dQ, or a third
STEP_BYTES = 128 * 16  # 16 bytes for each of its threads: eight columns
TILE_SHIFT = (2 * DQ_BYTES).bit_length() - 1  # from bytes of dq_sum to tiles
PANEL_SHIFT = TILE_SHIFT - 1  # and to panels of 64 columns
THIRD_COL = 128  # the third panel's first column
N_SHIFT = BLOCK_N.bit_length() - 1

# Elements of `part`, by which consumers and the counting warp name a part of dQ to each other.
TILE = 0  # of dq_sum; −1: no more parts
LAST = 1  # index of the tile's last part
INDEX = 2  # of this part, where ORDERED fixes it; with expressions its tile of keys
FLAGS = 3  # FIRST_PART | LAST_PART
PART_LENGTH = 4
FIRST_PART, LAST_PART = 1, 2

# A tile's counter: parts that have an index in the low 16 bits, parts written in the high 16 bits.
WRITTEN_SHIFT = 16
INDEX_MASK = (1 << WRITTEN_SHIFT) - 1


def paired(CAUSAL, WINDOW):
    """True where tiles of keys are long and short, so that a thread block takes them in pairs."""
    left, right = WINDOW
    return left < 0 and (CAUSAL or right >= 0)


def fastest_order(head_dim, num_n_tiles, num_heads, group_size, num_sms, mask):
    """ADDED or BY_ARRIVAL: the faster one on an H200 and an H100.

    By arrival is faster where a query sees few keys, and under a causal mask with head_dim <= 64,
    where a tile has half of the work; it needs many tiles of keys for each SM, so that the last
    ones end at about the same time. Only with ADDED do the heads of a group take turns. This makes
    ADDED faster, so a group is summed by arrival at fewer keys alone. With expressions the order is
    ADDED: by arrival, the counting warp would look for the place of each part in a table.
    """
    causal, window, *_ = mask
    left, right = window
    keys = num_n_tiles * BLOCK_N
    if left >= 0 and (causal or right >= 0):
        keys = min(keys, left + 1 + (0 if causal else right))
    if group_size > 1 and paired(causal, window):
        few = keys <= min(ARRIVAL_KEYS, ARRIVAL_KEYS_OF_GROUP // group_size)
    else:
        few = keys <= ARRIVAL_KEYS or (head_dim <= 64 and causal)
    return BY_ARRIVAL if few and num_n_tiles * num_heads >= ARRIVAL_TILES * num_sms else ADDED


def has_third(head_dim):
    """True where a tile of dQ has three panels: the warpgroups take turns at the third one."""
    return head_dim > 128


def tile_bytes(head_dim):
    """Bytes of the sums of a tile of dQ."""
    return (3 if has_third(head_dim) else 2) * DQ_BYTES


class Rows(NamedTuple):
    """Part of dQ that a thread has: rows m and m + 8 of a head, 64 columns from `col` on."""

    b: int
    head: int
    m: int
    col: int


class DqFunctions(NamedTuple):
    """Functions that sum parts of dQ.

    `barriers` are asked, ready, written: the addresses of three mbarriers. A consumer arrives at
    `asked` when it has named a part, the counting warp at `ready` when the part may be written,
    and the consumers' warps at `written`.

    Attributes
    ----------
    count_parts(part, counters, barriers, rows)
        The counting warp's loop: for each part find out whether it is the first or the last one,
        and wait until it may be written. rows is read by place_of_part alone.
    name_part(part, tile, m_tile, n_tile, shift, seqlen_k, mask_args)
        Name a part, the one of key tile n_tile for query tile m_tile, to the counting warp.
    put(acc, address, flags, dq, rows, lane, softmax_scale)
        Write this thread's numbers of a part: the first part is stored, the last one goes to dq,
        and the others are added to the sums at `address`.
    clear(begin, end, rows, dq, group_size, lane)
        Set dQ to 0 in the tiles of queries begin to end − 1, which see no key; `rows` are those in
        the first of group_size heads.
    """

    count_parts: Callable
    name_part: Callable
    put: Callable
    clear: Callable


@functools.cache
def make_dq_functions(HEAD_DIM, BLOCK_M, ORDER, CAUSAL, DTYPE, WINDOW, place_of_part=None):
    """`DqFunctions` for ORDER, BY_ARRIVAL or ORDERED; with ADDED a kernel needs none of them.

    ``place_of_part(rows, tile, n_tile)`` returns the index of a tile's last part and that of the
    part of n_tile, where expressions decide them; then consumers name TILE and INDEX alone.
    """
    FOUND = place_of_part is not None
    DQ_SHAPE, THIRD = (8, 4), has_third(HEAD_DIM)
    store_dq = make_store_gradient(HEAD_DIM, 64, forward.pack_of(DTYPE))
    bounds = run_time_masks.make_bounds(CAUSAL, WINDOW)
    first_key, end_key = bounds.first_key, bounds.end_key
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def count_parts(part, counters, barriers, rows):
        asked, ready, written = barriers
        parity = uint32(0)
        while True:
            wait(asked, parity)
            tile, last = part[TILE], part[LAST]
            if tile < 0:
                break
            if FOUND:
                last, index_in_order = place_of_part(rows, tile, part[INDEX])
            counter = global_address(counters) + uint64(4 + 4 * tile)
            if ORDER == ORDERED:  # all parts before it must be written
                index = num_before = index_in_order if FOUND else part[INDEX]
            else:  # the first part must be, and before the last one all of them
                index = int32(counter_take(counter, 1) & INDEX_MASK)
                num_before = last if index == last else min(index, int32(1))
            while int32(counter_acquire(counter) >> WRITTEN_SHIFT) < num_before:
                pass
            part[FLAGS] = (FIRST_PART if index == 0 else 0) | (LAST_PART if index == last else 0)
            mbarrier_arrive(ready)
            wait(written, parity)
            counter_release(counter, 1 << WRITTEN_SHIFT)
            parity = uint32(parity ^ 1)

    @cuda.jit(device=True, forceinline=True)
    def name_part(part, tile, m_tile, n_tile, shift, seqlen_k, mask_args=UNREAD):
        position = int32(m_tile * BLOCK_M - shift)  # of the first query, among the keys
        end = end_key(position + BLOCK_M - 1, seqlen_k, mask_args)
        first_n = int32(first_key(position, mask_args) >> N_SHIFT)
        last_n = int32(((end + BLOCK_N - 1) >> N_SHIFT) - 1)
        part[TILE] = tile
        part[LAST] = int32(last_n - first_n)
        part[INDEX] = int32(last_n - n_tile)

    @fragment_function()
    def put(acc, address, flags, dq, rows, lane, softmax_scale):
        if flags & LAST_PART:
            if not flags & FIRST_PART:
                before = cuda.local.array(DQ_SHAPE, float32)
                for j in range(8):
                    load_global_x4_relaxed(before[j], address + uint64(STEP_BYTES * j))
                for j in range(8):
                    for r in range(4):
                        acc[j, r] += before[j, r]
            store_dq(acc, dq, rows.b, rows.m, rows.head, rows.col, lane, softmax_scale)
        elif flags & FIRST_PART:
            for j in range(8):
                store_global_x4_relaxed(address + uint64(STEP_BYTES * j), acc[j])
        else:
            add_part(acc, address)

    @fragment_function()
    def clear(begin, end, rows, dq, group_size, lane):
        zeros = cuda.local.array(DQ_SHAPE, float32)
        for j in range(8):
            for r in range(4):
                zeros[j, r] = float32(0)
        for head in range(rows.head, int32(rows.head + group_size)):
            for m_tile in range(begin, end):
                m = int32(m_tile * BLOCK_M + rows.m)
                store_dq(zeros, dq, rows.b, m, head, rows.col, lane, float32(1))
                if THIRD and rows.col == 0:
                    store_dq(zeros, dq, rows.b, m, head, THIRD_COL, lane, float32(1))

    return DqFunctions(count_parts, name_part, put, clear)


@fragment_function()
def third_offset(thread):
    """Bytes from a thread's sums in its warpgroup's panel of dQ to those in the third panel."""
    return uint64((2 - thread.half) * DQ_BYTES)


@fragment_function()
def add_part(acc, address):
    """Add this thread's numbers of a part of dQ to the sums at `address`, atomically."""
    for j in range(8):
        atomic_add_x4(address + uint64(STEP_BYTES * j), acc[j])
