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


@cuda.jit(device=True)
def first_key(m, seqlen_q, seqlen_k, left):
    """The first key that query m sees, if it sees any."""
    # YOUR CODE HERE
    raise NotImplementedError("ex09a: first_key")


@cuda.jit(device=True)
def end_key(m, seqlen_q, seqlen_k, right):
    """The key after the last one that query m sees, if it sees any."""
    # YOUR CODE HERE
    raise NotImplementedError("ex09a: end_key")


@cuda.jit(device=True)
def tile_range(m_tile, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k, left, right):
    """(first_tile, end_tile) of the n-tiles that an m-tile must visit."""
    # YOUR CODE HERE
    raise NotImplementedError("ex09a: tile_range")


@cuda.jit(device=True)
def needs_mask(m_tile, n_tile, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k, left, right):
    """True if some query of the m-tile must not see all of the n-tile."""
    # YOUR CODE HERE
    raise NotImplementedError("ex09a: needs_mask")


# Stub efe4bf89 of solutions/ex09a_window_mask.py: `fa-numba reset ex09a` brings it back.
