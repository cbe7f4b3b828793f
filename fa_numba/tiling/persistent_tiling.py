"""How `flash_attn_persistent` cuts its work into tiles, and deals them out to thread blocks.

There is one thread block for each SM, and it stays. What it does at once is a share of one head:
some tiles of queries, each with all tiles of keys that its rows see. Shares are dealt out as cards
are, but in every other round from the last thread block to the first: who had the least of one
round then has the most of the next.
"""

import functools
from typing import NamedTuple

import numpy as np

from fa_numba.tiling.block_sizes import ceil_div

ROWS = 64  # of queries, of a warpgroup
# What begins and ends a tile of queries takes as long as so many tiles of keys: measured, see
# benchmarks/NOTES.md.
FIXED_TILES = 1.5
MAX_TILES = 1 << 16  # of queries in a call, for which shares are compared; in more the best is lost


class PersistentTiling(NamedTuple):
    """Constants of a kernel.

    Attributes
    ----------
    consumers : int
        Warpgroups that compute, `ROWS` rows of queries each.
    block_n : int
        Keys in a tile.
    stages : int
        Tiles of K, and of V, for which there is room.
    slots : int
        Tiles of Q for which there is room; where there is one, out takes its place.
    overlap : bool
        Is a warpgroup's softmax beside its own P V, or beside other warpgroups' products alone?
    """

    consumers: int
    block_n: int
    stages: int = 2
    slots: int = 2
    overlap: bool = True


def persistent_tiling(head_dim, seqlen_k, causal, packed=False):
    """The tiles with which an H200 was quickest, of those in benchmarks/NOTES.md.

    Up to a head_dim of 64 three warpgroups have registers enough, and fill each other's gaps.

    In a packed batch with few tiles of keys a wait for P V before the softmax frees V's place
    sooner, for the next queries' V.
    """
    if head_dim <= 64:
        return PersistentTiling(3, 128, stages=3)
    if head_dim <= 128:
        few = packed and seqlen_k <= (512 if causal else 4096)
        return PersistentTiling(2, 128, overlap=not few)
    return PersistentTiling(2, 112 if head_dim <= 192 else 80, slots=1)


def tiles_of_keys(seqlen_q, seqlen_k, block_m, block_n, causal, window_size, parts=1):
    """How many tiles of keys each tile of queries sees; one where it sees none.

    Parameters
    ----------
    seqlen_q, seqlen_k, block_m, block_n : int
    causal : bool
    window_size : (int, int)
    parts : int, default=1
        Into so many parts, of a warpgroup each, a tile of queries is cut, none of which does what
        it does not see: the mean over them.

    Returns
    -------
    list of float
    """
    left, right = window_size
    right = 0 if causal else right
    rows = block_m // parts
    counts = []
    for m_start in range(0, ceil_div(seqlen_q, block_m) * block_m, rows):
        position = min(m_start, seqlen_q - 1) + seqlen_k - seqlen_q  # of the first row, in the keys
        n_start = max(0, position - left) if left >= 0 else 0
        n_end = min(seqlen_k, position + rows + right) if right >= 0 else seqlen_k
        n_end = n_end if m_start < seqlen_q else n_start + 1
        counts.append(ceil_div(max(n_end, 1), block_n) - n_start // block_n)
    return [sum(counts[i : i + parts]) / parts for i in range(0, len(counts), parts)]


def share_of(num_shares, num_m_tiles):
    """For each tile of queries, beginning with the last one, whose share of the head it is.

    To and fro, so that under a causal mask each share has long ones and short ones.
    """
    tile = np.arange(num_m_tiles)
    step, place = tile // num_shares, tile % num_shares
    return np.where(step % 2, num_shares - 1 - place, place)


def longest_work(num_shares, counts, num_heads, num_blocks):
    """What the thread block with the most to do has to do, in tiles of keys.

    Parameters
    ----------
    num_shares : int
        Of a head.
    counts : list of float
        Tiles of keys of each tile of queries, as `tiles_of_keys` gives them.
    num_heads : int
        In all sequences of the batch.
    num_blocks : int

    Returns
    -------
    float
    """
    work = np.array(counts[::-1]) + FIXED_TILES
    share = np.bincount(share_of(num_shares, len(counts)), work, num_shares)
    rounds = np.zeros((ceil_div(num_shares * num_heads, num_blocks), num_blocks))
    rounds.ravel()[: num_shares * num_heads] = np.tile(share, num_heads)
    rounds[1::2] = rounds[1::2, ::-1].copy()
    return float(rounds.sum(axis=0).max())


@functools.lru_cache(1024)
def choose_num_shares(num_heads, num_blocks, seqlen_q, seqlen_k, *mask_and_tile):
    """Shares of a head with which the last thread block is done first.

    Parameters
    ----------
    num_heads, num_blocks : int
        As for `longest_work`.
    seqlen_q, seqlen_k, *mask_and_tile
        As for `tiles_of_keys`.

    Returns
    -------
    int
        Of equally good ones the most: then the fewest heads' K and V are read at once.
    """
    counts = tiles_of_keys(seqlen_q, seqlen_k, *mask_and_tile)
    if len(counts) * num_heads > MAX_TILES:
        return ceil_div(len(counts), 2)
    choices = range(1, len(counts) + 1)
    return min(choices, key=lambda n: (longest_work(n, counts, num_heads, num_blocks), -n))
