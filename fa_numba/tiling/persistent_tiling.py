"""Tiles of the persistent kernels, and the work slices that their thread blocks take.

A persistent kernel launches one thread block per SM, which loops over work slices. A work slice is
a part of one head: some of its tiles of queries, each with every tile of keys that its rows see.
Work slices are assigned in snake order (0 … n−1, n−1 … 0), so that the thread block with the least
work in one round gets the most in the next.
"""

import functools
from typing import NamedTuple

import numpy as np

from fa_numba.tiling.block_sizes import ceil_div

ROWS = 64  # queries of a warpgroup
WARP_ROWS = 16  # queries of a warp
# The prologue and the epilogue of a tile of queries take as long as this many tiles of keys
# (measured: docs/notes/forward.md).
FIXED_TILES = 1.5
SHORT = 256  # up to so many queries and keys, tiles are chosen for their number
SHORT_TILES = 80, 112, 128  # keys of a tile, for as many: few, because each is a kernel of its own
MAX_TILES = 1 << 16  # tiles of queries in a call: in larger calls slices are not compared


class PersistentTiling(NamedTuple):
    """Compile-time constants of a persistent kernel."""

    consumers: int  # warpgroups that compute, with `ROWS` rows of queries each
    block_n: int  # keys in a tile
    stages: int = 2  # tiles of K in its ring, and tiles of V in its ring
    slots: int = 2  # tiles of Q in its ring. With one slot, out reuses the memory of Q.
    # True: a warpgroup's softmax overlaps with its own P V. False: it overlaps only with the
    # products of the other warpgroups.
    overlap: bool = True

    @property
    def num_threads(self):
        """Threads of a thread block: the producer warpgroup and the consumer warpgroups."""
        return 128 * (1 + self.consumers)


def persistent_tiling(head_dim, seqlen_k, causal, packed=False, seqlen_q=None, head_dim_v=None):
    """The fastest tiles on an H200, of those in docs/notes/forward.md.

    Up to head_dim 64 the registers suffice for three warpgroups, which fill each other's gaps. With
    few queries and few keys smaller tiles are faster: fewer of their rows and columns lie past the
    end, and the memory that they leave holds tiles of more heads ahead.

    Above head_dim 128 there is room for one tile of Q. Larger tiles of keys fit, too, but 512 keys
    are whole tiles of 64. Where `head_dim_v`, of V and out (by default head_dim), is at most 128,
    out leaves the registers for more keys: as many as fit into shared memory.

    In a packed batch with few tiles of keys, waiting for P V before the softmax is faster: the slot
    of V becomes free earlier for the V of the next queries.
    """
    if head_dim <= 64:
        if not packed and seqlen_q is not None and max(seqlen_q, seqlen_k) <= SHORT:
            return PersistentTiling(2, least_padding(seqlen_k), stages=4, slots=4)
        return PersistentTiling(3, 128, stages=3)
    if head_dim <= 128:
        few = packed and seqlen_k <= (512 if causal else 4096)
        return PersistentTiling(2, 128, overlap=not few)
    if head_dim_v is not None and head_dim_v <= 128:
        return PersistentTiling(2, 128 if head_dim <= 192 else 96, slots=1)
    return PersistentTiling(2, 64, stages=3 if head_dim <= 192 else 2, slots=1)


def least_padding(seqlen_k):
    """The keys of a tile, of SHORT_TILES, with the fewest past the end; of equal ones the most."""
    return min(SHORT_TILES, key=lambda n: (ceil_div(max(seqlen_k, 1), n) * n, -n))


def tiles_of_keys(seqlen_q, seqlen_k, block_m, block_n, causal, window_size, parts=1):
    """Number of tiles of keys that each tile of queries sees; 1 for a tile that sees none.

    Parameters
    ----------
    seqlen_q, seqlen_k, block_m, block_n : int
    causal : bool
    window_size : (int, int)
    parts : int, default=1
        Warpgroups that share a tile of queries. Each skips the tiles of keys that its own rows do
        not see, so the number is the mean over the warpgroups.

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


def slice_of(num_slices, num_m_tiles):
    """The slice of each tile of queries of a head, beginning with the last tile.

    In snake order, so that under a causal mask each slice has long tiles and short tiles.
    """
    tile = np.arange(num_m_tiles)
    step, index = tile // num_slices, tile % num_slices
    return np.where(step % 2, num_slices - 1 - index, index)


def longest_work(num_slices, counts, num_heads, num_blocks):
    """Work of the thread block that has the most, in tiles of keys.

    Parameters
    ----------
    num_slices : int
        Work slices of a head.
    counts : list of float
        Tiles of keys of each tile of queries, as `tiles_of_keys` returns them.
    num_heads : int
        Heads in all sequences of the batch.
    num_blocks : int
        Thread blocks.
    """
    work = np.array(counts[::-1]) + FIXED_TILES
    work_of_slices = np.bincount(slice_of(num_slices, len(counts)), work, num_slices)
    rounds = np.zeros((ceil_div(num_slices * num_heads, num_blocks), num_blocks))
    rounds.ravel()[: num_slices * num_heads] = np.tile(work_of_slices, num_heads)
    rounds[1::2] = rounds[1::2, ::-1].copy()
    return float(rounds.sum(axis=0).max())


@functools.lru_cache(1024)
def choose_num_slices(num_heads, num_blocks, seqlen_q, seqlen_k, *mask_and_tile, nearest=None):
    """The number of work slices per head for which the last thread block finishes earliest.

    Parameters
    ----------
    num_heads, num_blocks : int
        As for `longest_work`.
    seqlen_q, seqlen_k, *mask_and_tile
        As for `tiles_of_keys`.
    nearest : int, default=None
        Of equally good numbers the one nearest to this; None is the largest.

    Returns
    -------
    int
        With a larger number the GPU reads K and V of fewer heads at once.
    """
    counts = tiles_of_keys(seqlen_q, seqlen_k, *mask_and_tile)
    return num_slices_for(tuple(counts), num_heads, num_blocks, nearest)


@functools.lru_cache(1024)
def num_slices_for(counts, num_heads, num_blocks, nearest=None):
    """`choose_num_slices` for the tiles of keys of each tile of queries."""
    if len(counts) * num_heads > MAX_TILES:
        return ceil_div(len(counts), 2)
    choices = range(1, len(counts) + 1)
    return min(
        choices,
        key=lambda n: (
            longest_work(n, counts, num_heads, num_blocks),
            -n if nearest is None else abs(n - nearest),
        ),
    )
