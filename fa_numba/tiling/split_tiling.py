"""Tiles of flash_attn_split, and the number of parts into which it splits the keys.

With few queries there are few tiles of queries, and a GPU of which each SM computes one is nearly
idle. So the keys of a tile are divided among several thread blocks. The times below are a model:
one tile of keys on one SM, from the rates that docs/notes/forward.md and docs/notes/decoding.md
state for an H200; they need not be exact, because only comparisons are drawn from them.
"""

import functools
from typing import NamedTuple

from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.persistent_tiling import (
    ROWS,
    WARP_ROWS,
    PersistentTiling,
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
SHARED_BYTES = 228 * 1024  # of an SM, for all its thread blocks
SPARE_BYTES = 3584  # of a thread block: the system's 1024, alignment, barriers, the ramp of ALiBi


class SplitTiling(NamedTuple):
    """How flash_attn_split cuts a problem.

    Attributes
    ----------
    tiles : PersistentTiling
    heads : int
        Query heads of a group that share a tile of queries: each has as many of its rows.
    blocks_per_sm : int
        Thread blocks that run on an SM at a time.
    """

    tiles: PersistentTiling
    heads: int
    blocks_per_sm: int

    @property
    def head_rows(self):
        """Rows of a tile that belong to one head."""
        return ROWS * self.tiles.consumers // self.heads

    def num_tiles(self, seqlen_q, num_heads):
        """Tiles of queries of a sequence, over all heads."""
        return ceil_div(seqlen_q, self.head_rows) * (num_heads // self.heads)


def tile_time(head_dim, tiling):
    """Microseconds of a thread block for the products with a tile of keys."""
    warpgroups = tiling.tiles.consumers * tiling.blocks_per_sm
    rates = next(rates for most, rates in RATES.items() if head_dim <= most)
    return 4 * ROWS * warpgroups * tiling.tiles.block_n * head_dim / rates[warpgroups - 1]


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


@functools.lru_cache(1024)
def split_tiling(head_dim, seqlen_q, group_size, alibi=False):
    """The tiles with which all queries of a group of heads take the least time to compute.

    A tile of few queries may hold the rows of several heads of a group, 16, 32 or 64 each, which
    then read a tile of keys once; but not with ALiBi, where each head has a slope of its own.
    Of equal times that of the largest tile is chosen, which loads the fewest keys.

    Parameters
    ----------
    head_dim, seqlen_q : int
    group_size : int
        Query heads for each head of K and V.
    alibi : bool, default=False

    Returns
    -------
    SplitTiling
    """
    choices = []
    # Three need few columns for their registers; one gains nothing with many, as loads take longer.
    for consumers in (1, 2, 3) if head_dim <= 64 else (1, 2) if head_dim <= 128 else (2,):
        for heads in (1, 2, 4, 8):
            tiling = make_tiling(head_dim, consumers, heads)
            rows = tiling.head_rows
            whole = rows in (WARP_ROWS, 2 * WARP_ROWS, ROWS)
            together = whole and group_size % heads == 0 and seqlen_q <= rows and not alibi
            if heads == 1 or together:
                # Two thread blocks of an SM each take half of its tiles.
                time = tile_time(head_dim, tiling) / tiling.blocks_per_sm
                time *= tiling.num_tiles(seqlen_q, group_size)
                choices.append((round(time, 3), -consumers, heads, tiling))
    return min(choices)[-1]


@functools.lru_cache(1024)
def choose_parts(
    head_dim, tiling, batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, num_sms, causal, window
):
    """The number of parts of the keys for which flash_attn_split is fastest.

    Parameters
    ----------
    head_dim : int
    tiling : SplitTiling
    batch, seqlen_q, seqlen_k, num_heads, num_kv_heads : int
    num_sms : int
    causal : bool
    window : (int, int)

    Returns
    -------
    int
        1: the keys need not be split. Else the smallest number whose time is within 2 % of the
        best; at most the number of tiles of keys.
    """
    block_n, blocks_per_sm = tiling.tiles.block_n, tiling.blocks_per_sm
    counts = tiles_of_keys(seqlen_q, seqlen_k, tiling.head_rows, block_n, causal, window)
    num_n_tiles = int(max(counts, default=1))
    # Tiles of queries that read the same keys, at about the same time: one of them reads HBM.
    tiles_of_group = max(1, tiling.num_tiles(seqlen_q, num_heads // num_kv_heads))
    work = batch * num_kv_heads * tiles_of_group
    loads = 4 * block_n * head_dim * blocks_per_sm / SM_BYTES / tiles_of_group
    time_of_tile = max(tile_time(head_dim, tiling), loads)
    bytes_of_part = 4 * batch * seqlen_q * num_heads * head_dim

    def time_of(parts):
        rounds = ceil_div(work * parts, num_sms * blocks_per_sm)
        merge = MERGE + 2 * parts * bytes_of_part / GPU_BYTES if parts > 1 else 0
        return rounds * (ceil_div(num_n_tiles, parts) * time_of_tile + START_UP) + merge

    most = max(1, min(num_n_tiles, ceil_div(8 * num_sms, max(1, work))))
    times = [time_of(parts) for parts in range(1, most + 1)]
    return 1 + next(i for i, time in enumerate(times) if time <= 1.02 * min(times))
