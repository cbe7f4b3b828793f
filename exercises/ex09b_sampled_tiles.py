"""ex09b · Find the bug: five points of a tile

A library may let users mark a mask as easy, and then looks at five pairs of each tile: the four
corners and the middle. If the query sees the key in none of them the tile is skipped, if in all of
them the mask is left out. Which mask does that break?

broken_class       the class of a tile by five points, to read and to run. Leave it as it is
fooling_step       for tiles of BLOCK x BLOCK: a step for which broken_class skips the tile of the
                   queries BLOCK .. 2 BLOCK - 1 and the keys 0 .. BLOCK - 1 under the mask
                   n <= m and (m - n) % step == 0, although a query of it sees a key. Any such step
                   is right; 3 <= BLOCK <= 10^6
tile_class         broken_class without the bug: the right class for every mask. What is left to
                   look at, if nothing is known of the mask?

sees               bool array of shape (seqlen_q, seqlen_k): whether query m sees key n. Lengths are
                   multiples of the tile. It is not changed
m_start, n_start   the first query and the first key of the tile, of BLOCK_M x BLOCK_N pairs
returns            HIDDEN, MIXED or WHOLE. In fooling_step an int

No loop: NumPy looks at many pairs at once. About six lines.
"""

HIDDEN, MIXED, WHOLE = 0, 1, 2


def broken_class(sees, m_start, n_start, BLOCK_M, BLOCK_N):
    """The class of a tile by its corners and its middle."""
    m_end, n_end = m_start + BLOCK_M - 1, n_start + BLOCK_N - 1
    middle = m_start + BLOCK_M // 2, n_start + BLOCK_N // 2
    corners = (m_start, n_start), (m_start, n_end), (m_end, n_start), (m_end, n_end)
    seen = [bool(sees[m, n]) for m, n in (*corners, middle)]
    if not any(seen):
        return HIDDEN
    return WHOLE if all(seen) else MIXED


def fooling_step(BLOCK):
    """A step for which broken_class skips a visible tile of the dilated causal mask."""
    # YOUR CODE HERE
    raise NotImplementedError("ex09b: fooling_step")


def tile_class(sees, m_start, n_start, BLOCK_M, BLOCK_N):
    """The class of a tile of any mask."""
    # YOUR CODE HERE
    raise NotImplementedError("ex09b: tile_class")


# Stub fd6bf970 of solutions/ex09b_sampled_tiles.py: `fa-numba reset ex09b` brings it back.
