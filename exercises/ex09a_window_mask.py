"""ex09a · A sliding window, and the tiles that it leaves

Query m stands at position p = m + seqlen_k - seqlen_q among the keys: the last query stands at the
last key (bottom-right aligned, as in ex07a). With a window (left, right) it sees the keys

    p - left .. p + right       both included, as far as they exist: 0 .. seqlen_k - 1

-1 is no limit on that side. Causal is right = 0, and a causal window of W tokens, the query's own
included, is left = W - 1, right = 0. seqlen_q = 3, seqlen_k = 6, left = 2, right = 0 keeps

    0 1 1 1 0 0
    0 0 1 1 1 0
    0 0 0 1 1 1

Four device functions, which a kernel calls to know its way:

first_key(m, seqlen_q, seqlen_k, left)     the keys that query m sees are n with
end_key(m, seqlen_q, seqlen_k, right)      first_key <= n < end_key; none if end_key <= first_key
tile_range(m_tile, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k, left, right) -> (first_tile, end_tile)
    the n-tiles that the thread block of this m-tile must visit, first_tile <= n_tile < end_tile;
    none if end_tile <= first_tile. A tile in which no query of the m-tile sees any key is not
    visited: the number of visited tiles is the least possible
needs_mask(m_tile, n_tile, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k, left, right)
    for a visited tile: True if some query of the m-tile does not see all BLOCK_N keys of the tile.
    Columns beyond the last key count as keys that are not seen; queries beyond the last one do not
    count

All arguments are ints: seqlen_q, seqlen_k, BLOCK_M, BLOCK_N >= 1, left, right >= -1, and m or
m_tile is one that exists. Lengths go up to 10^12. With more queries than keys, positions may be
negative.
One to five lines each, without a loop.
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


# Stub 39b1a03d of solutions/ex09a_window_mask.py: `fa-numba reset ex09a` brings it back.
