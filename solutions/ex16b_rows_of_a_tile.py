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

### KIND: fill a line
### HINT 1: Write the rows of two queries and a group of three heads on paper: (0, head 0), (0, head
### HINT 1: 1), (0, head 2), (1, head 0), ...
### HINT 2: A division by group_size gives the query, its remainder the head within the group. The
### HINT 2: K/V head says where the group begins.
### HINT 3: m = row // group_size; head = kv_head * group_size + row % group_size. The last key is
### HINT 3: the token's own number, seqlen_k - seqlen_q + m.
### DEBRIEF: A tile of the kernel has rows, and nothing in the loop over keys asks what they are:
### DEBRIEF: queries of one head in FlashAttention-2, heads of one query in ex16c, both at once in
### DEBRIEF: flash_decode. With heads as neighbours, a tile that is cut short by its size holds
### DEBRIEF: few different queries, and so few different last keys.


@cuda.jit(device=True)
def owner(row, kv_head, group_size):
    """The query and the query head of a row of the tile."""
    ### BEGIN SOLUTION
    return row // group_size, kv_head * group_size + row % group_size
    ### END SOLUTION


@cuda.jit(device=True)
def last_key(row, group_size, seqlen_q, seqlen_k):
    """The last key that a row sees under a causal mask."""
    ### BEGIN SOLUTION
    m = row // group_size
    return seqlen_k - seqlen_q + m
    ### END SOLUTION
