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

### KIND: fill a line
### HINT 1: Draw a small mask on paper with seqlen_k = seqlen_q + 3 and 4 x 4 tiles. In an m-tile
### HINT 1: the last query sees the most keys, the first query the fewest.
### HINT 2: last_key(m) = m + (seqlen_k - seqlen_q); negative where a query sees nothing. A tile is
### HINT 2: alive if its first key is at most last_key of the last query that exists. It needs the
### HINT 2: mask if its last key is beyond last_key of the first query.
### HINT 3: last_m = min(m_tile * BLOCK_M + BLOCK_M, seqlen_q) - 1; keys = last_key(last_m) + 1;
### HINT 3: live = max(0, ceil(keys / BLOCK_N)). A ragged last n-tile needs the mask by the same
### HINT 3: rule, because last_key is never beyond seqlen_k - 1.
### DEBRIEF: Half of the tiles of a long square problem are dead, so causal attention does half of
### DEBRIEF: the work and half of the traffic. Most live tiles need no mask: only those that the
### DEBRIEF: staircase crosses. Real kernels run two loops, one without the test, one with.


def last_key(m, seqlen_q, seqlen_k):
    """Index of the last key that query m sees; negative if it sees none."""
    ### BEGIN SOLUTION
    return m + seqlen_k - seqlen_q
    ### END SOLUTION


def num_live_n_tiles(m_tile, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k):
    """How many n-tiles, counted from n_tile = 0, the thread block of `m_tile` must visit."""
    ### BEGIN SOLUTION
    last_m = min((m_tile + 1) * BLOCK_M, seqlen_q) - 1
    num_keys = last_key(last_m, seqlen_q, seqlen_k) + 1
    return max(0, math.ceil(num_keys / BLOCK_N))
    ### END SOLUTION


def needs_mask(m_tile, n_tile, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k):
    """True if some query of the live tile (m_tile, n_tile) must not see all of its BLOCK_N keys.

    Columns beyond the last key count as keys that must not be seen.
    """
    ### BEGIN SOLUTION
    last_n = (n_tile + 1) * BLOCK_N - 1
    return last_n > last_key(m_tile * BLOCK_M, seqlen_q, seqlen_k)
    ### END SOLUTION


def num_live_tiles(BLOCK_M, BLOCK_N, seqlen_q, seqlen_k):
    """How many tiles the whole grid visits, all m-tiles together."""
    num_m_tiles = math.ceil(seqlen_q / BLOCK_M)
    return sum(
        num_live_n_tiles(m_tile, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k)
        for m_tile in range(num_m_tiles)
    )
