"""ex07a · Which tiles does a causal mask leave alive?

A causal mask hides the future: query m sees keys 0 .. last_key(m), and no others. The mask is
bottom-right aligned, so that the last query sees the last key even if there are more keys than
queries (a cache of earlier tokens) or fewer. seqlen_q = 2, seqlen_k = 5 keeps

    1 1 1 1 0
    1 1 1 1 1

A thread block of FlashAttention-2 owns the m-tile of queries m_start = m_tile * BLOCK_M and the
BLOCK_M - 1 after it, as far as they exist, and walks the n-tiles of keys from n_tile = 0. A tile
in which no query of the m-tile sees any key is dead: no need to load it. All others are alive.
As the mask is a staircase, the live tiles of an m-tile are the first few, so a count is enough.

All arguments are ints; seqlen_q, seqlen_k, BLOCK_M, BLOCK_N >= 1, lengths up to 10^12. Return
Python's ints and bools. One to three lines each, and no loop: num_live_tiles, which adds up the
counts of all m-tiles, is given.
"""

import math


def last_key(m, seqlen_q, seqlen_k):
    """Index of the last key that query m sees; negative if it sees none."""
    # YOUR CODE HERE
    raise NotImplementedError("ex07a: last_key")


def num_live_n_tiles(m_tile, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k):
    """How many n-tiles, counted from n_tile = 0, the thread block of `m_tile` must visit."""
    # YOUR CODE HERE
    raise NotImplementedError("ex07a: num_live_n_tiles")


def needs_mask(m_tile, n_tile, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k):
    """True if some query of the live tile (m_tile, n_tile) must not see all of its BLOCK_N keys.

    Columns beyond the last key count as keys that must not be seen.
    """
    # YOUR CODE HERE
    raise NotImplementedError("ex07a: needs_mask")


def num_live_tiles(BLOCK_M, BLOCK_N, seqlen_q, seqlen_k):
    """How many tiles the whole grid visits, all m-tiles together."""
    num_m_tiles = math.ceil(seqlen_q / BLOCK_M)
    return sum(
        num_live_n_tiles(m_tile, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k)
        for m_tile in range(num_m_tiles)
    )


# Stub ac5e92ec of solutions/ex07a_causal_tiles.py: `fa-numba reset ex07a` brings it back.
