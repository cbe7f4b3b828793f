"""Which tiles of one side a tile of the other side loads under a mask."""

from fa_numba.tiling.block_sizes import ceil_div


def key_rows_walked(problem):
    """Rows of K that the thread blocks of one head load, each for its tile of queries."""
    left, right = problem.sides
    side = (problem.seqlen_q, problem.block_m, problem.seqlen_k, problem.block_n)
    return sum(min(problem.seqlen_k, stop) - start for start, stop in walks(*side, left, right))


def query_rows_walked(problem):
    """Rows of Q that the thread blocks of one head load, each for its tile of keys."""
    return sum(min(problem.seqlen_q, stop) - start for start, stop in walks_of_keys(problem))


def walks_of_keys(problem):
    """For each tile of keys, the range of queries that its thread block walks."""
    left, right = problem.sides
    side = (problem.seqlen_k, problem.block_n, problem.seqlen_q, problem.block_m)
    return walks(*side, right, left)  # a key is seen from where it is within a query's window


def walks(seqlen, block, seqlen_other, block_other, before, after):
    """For each tile of one side, the range of the other side that its thread block walks.

    A thread block walks whole tiles, from the one with the first row seen by the first row of its
    own tile to the one with the last row seen by its last row. Row i of one side has position
    i + seqlen_other − seqlen on the other (bottom-right alignment). It sees `before` rows before
    that position, the row at it, and `after` rows after it; −1 means all.

    Six queries in tiles of 3, ten keys in tiles of 4, before = 3, after = 0:

              keys   0 1 2 3   4 5 6 7   8 9
        query 0      . # # #   # . . .   . .
        query 1      . . # #   # # . .   . .     walks keys 0 to 8: two tiles
        query 2      . . . #   # # # .   . .

        query 3      . . . .   # # # #   . .
        query 4      . . . .   . # # #   # .     walks keys 4 to 12: two tiles,
        query 5      . . . .   . . # #   # #     the last one with two keys

    >>> list(walks(6, 3, 10, 4, before=3, after=0))
    [(0, 8), (4, 12)]

    For a causal mask `before` is −1, so each walk starts at 0: a staircase. For the backward pass
    the sides change places, and so do `before` and `after`.

    Parameters
    ----------
    seqlen, block : int
        Length and tile size of the side that is divided among the thread blocks.
    seqlen_other, block_other : int
        Length and tile size of the side that is walked.
    before, after : int
        Rows of the other side that a row sees before and after its position; −1 for all.

    Yields
    ------
    start, stop : int
        Multiples of block_other: stop can lie after seqlen_other.
    """
    for first_row in range(0, seqlen, block):
        position = first_row + seqlen_other - seqlen
        start = max(0, position - before) if before >= 0 else 0
        stop = min(seqlen_other, position + block + after) if after >= 0 else seqlen_other
        start = start // block_other * block_other
        yield start, max(start, ceil_div(stop, block_other) * block_other)
