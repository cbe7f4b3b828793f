"""Tiles of flash_attn_split, and the number of parts into which it splits the keys.

With few queries there are fewer tiles of queries than SMs, so most of the GPU is idle. Then the
keys of a tile are divided among several thread blocks, or tiles are smaller. The times below are a
model of an H200, from the rates that docs/notes/forward.md and docs/notes/decoding.md state; they
need not be exact, because they are only compared with each other.
"""

import functools
from typing import NamedTuple

from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.persistent_tiling import (
    ROWS,
    WARP_ROWS,
    PersistentTiling,
    choose_num_slices,
    longest_work,
    persistent_tiling,
    tiles_of_keys,
)

# For head_dim <= 64, <= 128 and more: floating-point operations of an SM in a microsecond, with 1,
# 2 and 3 warpgroups. One warpgroup has no other to fill its gaps; its rates are estimates.
RATES = {64: (2.2e6, 3.3e6, 4.1e6), 128: (3.2e6, 5.0e6), 256: (None, 5.3e6)}
SM_BYTES = 32e3  # bytes of HBM that an SM reads in a microsecond, while all of them read
GPU_BYTES = 3e6  # bytes that the GPU writes and reads in a microsecond
START_UP = 2.5  # microseconds: start of a thread block, its first loads, its stores
MERGE = 4.0  # microseconds: the second kernel
SMALL_TILES = 2.5  # microseconds: loss of a call without splits, measured at 512 and 1000 keys
SHARED_BYTES = 228 * 1024  # of an SM, for all its thread blocks
SPARE_BYTES = 3584  # of a thread block: the system's 1024, alignment, barriers, the ramp of ALiBi


class SplitTiling(NamedTuple):
    """How flash_attn_split cuts a problem."""

    tiles: PersistentTiling
    heads: int  # query heads of a group that share a tile of queries: each has as many of its rows
    blocks_per_sm: int  # thread blocks that run on an SM at a time

    @property
    def head_rows(self):
        """Rows of a tile that belong to one head."""
        return ROWS * self.tiles.consumers // self.heads

    def num_tiles(self, seqlen_q, num_heads):
        """Tiles of queries of a sequence, over all heads."""
        return ceil_div(seqlen_q, self.head_rows) * (num_heads // self.heads)


def make_tiling(head_dim, consumers, heads=1):
    """The `SplitTiling` of so many warpgroups and heads, with the longest rings that fit.

    A warpgroup that is alone in its thread block has no other that computes during its softmax.
    For head_dim <= 64, where the products are short, it has one in a second thread block.
    """
    blocks_per_sm = 2 if consumers == 1 and head_dim <= 64 else 1
    block_n = persistent_tiling(head_dim, 1 << 16, False).block_n
    row_bytes = 128 * ceil_div(head_dim, 64)
    room = SHARED_BYTES // blocks_per_sm - SPARE_BYTES - ROWS * consumers * row_bytes
    stages = min(4, room // (2 * block_n * row_bytes))
    tiles = PersistentTiling(consumers, block_n, stages=stages, slots=1)
    return SplitTiling(tiles, heads, blocks_per_sm)


def tilings_of(head_dim, seqlen_q, group_size, alibi):
    """The tilings to choose from.

    A tile of few queries may hold the rows of several heads of a group, 16, 32 or 64 each, which
    then read a tile of keys once; but not with ALiBi, where each head has a slope of its own.
    """
    # Three warpgroups need few columns for their registers. One gains nothing with many columns,
    # whose loads take longer than the products.
    warpgroups = (1, 2, 3) if head_dim <= 64 else (1, 2) if head_dim <= 128 else (2,)
    for consumers in warpgroups:
        for heads in (1, 2, 4, 8):
            tiling = make_tiling(head_dim, consumers, heads)
            rows = tiling.head_rows
            whole = rows in (WARP_ROWS, 2 * WARP_ROWS, ROWS)
            together = whole and group_size % heads == 0 and seqlen_q <= rows and not alibi
            if heads == 1 or together:
                yield tiling


def time_of_blocks(head_dim, tiling, num_blocks, num_n_tiles, tiles_of_group, num_sms):
    """Microseconds until the last of the thread blocks has done its tiles of keys.

    Parameters
    ----------
    head_dim : int
    tiling : SplitTiling
    num_blocks : int
    num_n_tiles : float
        Tiles of keys of a thread block.
    tiles_of_group : int
        Tiles of queries that read the same keys, at about the same time: one of them reads HBM.
    num_sms : int
    """
    _, block_n, *_ = tiling.tiles
    rates = next(rates for most, rates in RATES.items() if head_dim <= most)
    loads = 4 * block_n * head_dim / SM_BYTES / tiles_of_group

    def time_of_round(blocks):
        """Of thread blocks that run on an SM at a time."""
        warpgroups = blocks * tiling.tiles.consumers
        products = 4 * ROWS * warpgroups * block_n * head_dim / rates[warpgroups - 1]
        return START_UP + num_n_tiles * max(products, blocks * loads)

    rounds, rest = divmod(ceil_div(num_blocks, num_sms), tiling.blocks_per_sm)
    return rounds * time_of_round(tiling.blocks_per_sm) + (time_of_round(rest) if rest else 0)


class SplitProblem(NamedTuple):
    """The sizes of a forward call, and the mask as far as time depends on it."""

    head_dim: int
    batch: int
    seqlen_q: int
    seqlen_k: int
    num_heads: int
    num_kv_heads: int
    causal: bool = False
    window_size: tuple = (-1, -1)
    alibi: bool = False

    @property
    def group_size(self):
        """Query heads for each head of K and V."""
        return self.num_heads // self.num_kv_heads

    def num_n_tiles(self, tiling):
        """The largest number of tiles of keys that a tile of queries sees, at least 1."""
        cut = tiling.head_rows, tiling.tiles.block_n, self.causal, self.window_size
        return int(max(tiles_of_keys(self.seqlen_q, self.seqlen_k, *cut), default=1))

    def num_blocks(self, tiling):
        """Thread blocks without splitting."""
        return self.batch * tiling.num_tiles(self.seqlen_q, self.num_heads)


def time_of(problem, tiling, num_splits, num_n_tiles, num_sms):
    """Microseconds of a call, by the model.

    Parameters
    ----------
    problem : SplitProblem
    tiling : SplitTiling
    num_splits : int
    num_n_tiles : int
        Tiles of keys without splitting.
    num_sms : int
    """
    time = time_of_blocks(
        problem.head_dim,
        tiling,
        problem.num_blocks(tiling) * num_splits,
        ceil_div(num_n_tiles, num_splits),
        max(1, tiling.num_tiles(problem.seqlen_q, problem.group_size)),
        num_sms,
    )
    if num_splits > 1:
        rows = problem.batch * problem.seqlen_q * problem.num_heads
        time += MERGE + 2 * num_splits * 4 * rows * problem.head_dim / GPU_BYTES
    return time


@functools.lru_cache(1024)
def choose_split(problem, num_sms, num_splits=0):
    """The tiling and the number of splits for which flash_attn_split is fastest.

    Parameters
    ----------
    problem : SplitProblem
    num_sms : int
    num_splits : int, default=0
        Other than 0: the number is given.

    Returns
    -------
    SplitTiling, int
        Of choices within 2 % of the best, that with the fewest splits: at most one for each tile of
        keys. With one, the keys need not be split. Of its tilings the fastest, and of equally fast
        ones that with the fewest tiles, then with the fewest rows in a tile.
    """
    times = {}
    for tiling in tilings_of(problem.head_dim, problem.seqlen_q, problem.group_size, problem.alibi):
        num_n_tiles = problem.num_n_tiles(tiling)
        enough = ceil_div(8 * num_sms, max(1, problem.num_blocks(tiling)))
        most = max(1, min(num_n_tiles, enough))
        for splits in (num_splits,) if num_splits else range(1, most + 1):
            time = time_of(problem, tiling, splits, num_n_tiles, num_sms)
            times[tiling, splits] = round(time, 3)
    near = 1.02 * min(times.values())

    def preference(choice):
        tiling, splits = choice
        num_blocks = problem.num_blocks(tiling)
        return times[choice] > near, splits, times[choice], num_blocks, tiling.tiles.consumers

    return min(times, key=preference)


@functools.lru_cache(1024)
def gain_of_splitting(problem, num_sms):
    """How many times as fast flash_attn_split is as flash_attn_persistent, by the model.

    Returns
    -------
    float
        1 if the keys need not be split and head_dim is above 64: smaller tiles alone gain nothing.
    """
    tiling, num_splits = choose_split(problem, num_sms)
    if num_splits == 1 and problem.head_dim > 64:
        return 1.0
    tiles = persistent_tiling(
        problem.head_dim, problem.seqlen_k, problem.causal, seqlen_q=problem.seqlen_q
    )
    whole = SplitTiling(tiles, heads=1, blocks_per_sm=1)
    cut = problem.seqlen_q, problem.seqlen_k, whole.head_rows, tiles.block_n
    mask_and_parts = problem.causal, problem.window_size, tiles.consumers
    num_heads = problem.batch * problem.num_heads
    num_slices = choose_num_slices(num_heads, num_sms, *cut, *mask_and_parts)
    num_blocks = min(num_slices * num_heads, num_sms)
    longest = longest_work(num_slices, tiles_of_keys(*cut, *mask_and_parts), num_heads, num_blocks)
    alone = time_of_blocks(problem.head_dim, whole, num_blocks, longest, 1, num_sms)
    time = time_of(problem, tiling, num_splits, problem.num_n_tiles(tiling), num_sms)
    return alone / (time if num_splits > 1 else time + SMALL_TILES)
