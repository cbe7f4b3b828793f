"""ex16b · Which query is this row?

The query heads of a group need the same keys, so they share a tile: its rows are all the queries of
all heads of the group. A decoding step has one query per head, a chunk of a prompt has more. Say
which query a row is.

rows       row = m * group_size + g: query m of the group's head g. The heads of one query are
           neighbours, and query 0 comes first
heads      K/V head kv_head serves the query heads kv_head * group_size and the group_size - 1 after
           it
positions  the seqlen_q new tokens are the last of seqlen_k: query m is token
           seqlen_k - seqlen_q + m

owner(row, kv_head, group_size) -> (m, head)
           device function: the query of this row, and its head among all query heads
last_key(row, group_size, seqlen_q, seqlen_k) -> n
           device function: the last key that this row may see under a causal mask, its own

All arguments are ints; group_size >= 1. Rows that are no query are not asked for. Three lines.
"""

from numba import cuda


@cuda.jit(device=True)
def owner(row, kv_head, group_size):
    """The query and the query head of a row of the tile."""
    # YOUR CODE HERE
    raise NotImplementedError("ex16b: owner")


@cuda.jit(device=True)
def last_key(row, group_size, seqlen_q, seqlen_k):
    """The last key that a row sees under a causal mask."""
    # YOUR CODE HERE
    raise NotImplementedError("ex16b: last_key")


# Stub a79ae894 of solutions/ex16b_rows_of_a_tile.py: `fa-numba reset ex16b` brings it back.
