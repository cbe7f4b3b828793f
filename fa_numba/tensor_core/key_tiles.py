"""Tiles of keys of a persistent backward kernel: their order, and the queries that see them.

A step is a tile of keys of a head of K and V. Thread blocks take steps in three ways, so that all
end at about the same time (`dq_parts`):

all alike        every gridDim.x-th step
in pairs         every gridDim.x-th pair: the first tile of keys and the last one, the second and
                 the last but one, ...; under a causal mask one is long and the other is short
one by one       the thread block that is done first takes the next step, from a counter in HBM
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from numba import cuda, int32, uint32

from fa_numba.on_cuda_cores import run_time_masks
from fa_numba.on_cuda_cores.run_time_masks import MaskArgs
from fa_numba.ptx.counters import counter_take
from fa_numba.ptx.statement import global_address

# Elements by which the producer names a tile of keys to the consumers.
N_TILE = 0  # tile of keys; −1: no more
KV_HEAD = 1
BATCH = 2
SEEN = 3  # with expressions: whether a query sees the keys
SLOT_LENGTH = 4


class Sizes(NamedTuple):
    """A problem's sizes. `shift` leads from a key's index to its index among the queries."""

    batch: int
    num_kv_heads: int
    group_size: int
    seqlen_q: int
    seqlen_k: int
    num_m_tiles: int
    num_n_tiles: int
    shift: int
    mask_args: MaskArgs


@functools.cache
def make_query_tiles(BLOCK_M, BLOCK_N, CAUSAL, WINDOW):
    """query_tiles(position, seqlen_q, mask_args): first and end of some tiles of queries.

    They see one of the BLOCK_N keys from `position` on, an index among the queries.
    """
    M_SHIFT = BLOCK_M.bit_length() - 1
    bounds = run_time_masks.make_bounds_of_keys(CAUSAL, WINDOW)
    first_query, end_query = bounds.first_query, bounds.end_query

    @cuda.jit(device=True, forceinline=True)
    def query_tiles(position, seqlen_q, mask_args):
        first = first_query(position, mask_args)
        end = end_query(position + BLOCK_N - 1, seqlen_q, mask_args)
        return int32(first >> M_SHIFT), int32((end + BLOCK_M - 1) >> M_SHIFT)

    return query_tiles


class OrderFunctions(NamedTuple):
    """Functions of `make_order`, for two nested loops over the queries that see a tile of keys.

    Attributes
    ----------
    ranges(first, end, first_head, end_head)
        First and end of the outer loop, and of the inner loop, for the tiles of queries first to
        end − 1 and the query heads first_head to end_head − 1.
    m_tile_of(outer, inner, first, end, downwards)
        The tile of queries.
    head_of(outer, inner)
        The query head.
    dq_step(num_m_tiles)
        The number of tiles from a tile of dQ to that of the next inner step; a head has
        num_m_tiles.
    """

    ranges: Callable
    m_tile_of: Callable
    head_of: Callable
    dq_step: Callable


@functools.cache
def make_order(IN_STEP):
    """`OrderFunctions`: the heads of a group are the outer loop, and with IN_STEP the inner one.

    IN_STEP needs pairs. The first tile of keys begins with the last queries and goes downwards,
    and the second one goes upwards and ends with them. So thread blocks that have tiles of keys of
    the same head of K and V are at the same queries at the same time. A tile of Q or dout comes
    from HBM for one of them, and from L2 for the others; so does the sum of a tile of dQ. With the
    heads as the outer loop a thread block with few queries would soon be heads ahead of the others.
    """

    @cuda.jit(device=True, forceinline=True)
    def ranges(first, end, first_head, end_head):
        if IN_STEP:
            return first, end, first_head, end_head
        return first_head, end_head, first, end

    @cuda.jit(device=True, forceinline=True)
    def m_tile_of(outer, inner, first, end, downwards):
        if not IN_STEP:
            return int32(inner)
        return int32(first + end - 1 - outer) if downwards else int32(outer)

    @cuda.jit(device=True, forceinline=True)
    def head_of(outer, inner):
        return int32(inner if IN_STEP else outer)

    @cuda.jit(device=True, forceinline=True)
    def dq_step(num_m_tiles):
        return num_m_tiles if IN_STEP else int32(1)

    return OrderFunctions(ranges, m_tile_of, head_of, dq_step)


class StepFunctions(NamedTuple):
    """Functions of `make_steps`.

    Attributes
    ----------
    n_tile_of(step, num_n_tiles)
        The tile of keys of a head's step-th step.
    step_after(step, num_blocks, counters)
        The thread block's next step.
    """

    n_tile_of: Callable
    step_after: Callable


@functools.cache
def make_steps(PAIRED, BACKWARD, TAKEN):
    """`StepFunctions`: in pairs, from a head's last keys on, or taken one by one."""

    @cuda.jit(device=True, forceinline=True)
    def n_tile_of(step, num_n_tiles):
        """The step-th tile of keys of a head; in pairs the first, the last, ..."""
        if BACKWARD:
            return int32(num_n_tiles - 1 - step)
        if PAIRED:
            pair = step >> 1
            return int32(num_n_tiles - 1 - pair if step & 1 else pair)
        return int32(step)

    @cuda.jit(device=True, forceinline=True)
    def step_after(step, num_blocks, counters):
        if TAKEN:  # the thread block that is done first takes the next step
            taken = int32(counter_take(global_address(counters), 1))
            # Shuffled, ptxas takes it for the warp's: that has registers of its own.
            return uint32(cuda.shfl_sync(1, taken, 0) + num_blocks)
        if PAIRED:
            return uint32(step + (2 * num_blocks - 1 if step & 1 else 1))
        return uint32(step + num_blocks)

    return StepFunctions(n_tile_of, step_after)
