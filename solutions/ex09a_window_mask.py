"""ex09a · A sliding window, and the tiles that it leaves

Which tiles of keys must a thread block visit under a sliding window, and which of them need the
test pair by pair? Write four device functions, which a kernel calls to know its way.

Query m is at position p = m + seqlen_k - seqlen_q among the keys, as in ex07a. With a window
(left, right) it sees the keys p - left to p + right, both included, as far as they exist; -1 is no
limit on that side. seqlen_q = 3, seqlen_k = 6, left = 2, right = 0 keeps

    0 1 1 1 0 0
    0 0 1 1 1 0
    0 0 0 1 1 1

first_key, end_key   query m sees the keys n with first_key <= n < end_key, none if end <= first
tile_range           (first_tile, end_tile): the m-tile's thread block visits first_tile <= n_tile <
                     end_tile, none if end <= first. A tile in which no query of the m-tile
                     sees a key is not visited
needs_mask           of a visited tile: True if some query of the m-tile does not see all BLOCK_N
                     keys. Columns beyond the last key count as not seen; queries beyond the last
                     one do not count

All arguments are ints: lengths and BLOCK_M, BLOCK_N >= 1, up to 10^12; left, right >= -1; m or
m_tile exists. Positions may be negative. One to five lines each, without a loop.
"""

from numba import cuda

### HINT 1: Draw the mask: two staircases, one below and one above. As m grows by one, both steps
### move one key to the right. So within an m-tile the first query sees the earliest key, and the
### last query that exists sees the latest.
### HINT 2: first_key is max(0, p - left), end_key is min(seqlen_k, p + right + 1), unless there is
### no limit. A range of keys first .. end - 1 lies in the tiles first // BLOCK_N .. (end - 1) //
### BLOCK_N.
### HINT 3: tile_range: first_tile = first_key(of the m-tile's first query) // BLOCK_N, end_tile =
### (end_key(of its last query) + BLOCK_N - 1) // BLOCK_N, where the last query is
### min((m_tile + 1) * BLOCK_M, seqlen_q) - 1. A tile is whole where its first key is at least the
### first_key of the LAST query, and its end at most the end_key of the FIRST.
### DEBRIEF: With a window the tiles per row of tiles do not depend on the length of the sequence:
### work and traffic grow as N times W, not as N squared. Causal masks skip at the end of the walk,
### windows at its start as well, and only the tiles on the two staircases pay for the test.


@cuda.jit(device=True)
def first_key(m, seqlen_q, seqlen_k, left):
    """The first key that query m sees, if it sees any."""
    ### BEGIN SOLUTION
    position = m + seqlen_k - seqlen_q
    return max(0, position - left) if left >= 0 else 0
    ### END SOLUTION


@cuda.jit(device=True)
def end_key(m, seqlen_q, seqlen_k, right):
    """The key after the last one that query m sees, if it sees any."""
    ### BEGIN SOLUTION
    position = m + seqlen_k - seqlen_q
    return min(seqlen_k, position + right + 1) if right >= 0 else seqlen_k
    ### END SOLUTION


@cuda.jit(device=True)
def tile_range(m_tile, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k, left, right):
    """(first_tile, end_tile) of the n-tiles that an m-tile must visit."""
    ### BEGIN SOLUTION
    first_m = m_tile * BLOCK_M
    last_m = min(first_m + BLOCK_M, seqlen_q) - 1
    first = first_key(first_m, seqlen_q, seqlen_k, left)
    end = end_key(last_m, seqlen_q, seqlen_k, right)
    return first // BLOCK_N, (end + BLOCK_N - 1) // BLOCK_N
    ### END SOLUTION


@cuda.jit(device=True)
def needs_mask(m_tile, n_tile, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k, left, right):
    """True if some query of the m-tile must not see all of the n-tile."""
    ### BEGIN SOLUTION
    first_m = m_tile * BLOCK_M
    last_m = min(first_m + BLOCK_M, seqlen_q) - 1
    n_start = n_tile * BLOCK_N
    starts_late = first_key(last_m, seqlen_q, seqlen_k, left) > n_start
    ends_early = end_key(first_m, seqlen_q, seqlen_k, right) < n_start + BLOCK_N
    return starts_late or ends_early
    ### END SOLUTION
