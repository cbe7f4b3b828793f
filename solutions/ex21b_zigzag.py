"""ex21b · A fair layout

With a causal mask token m sees the keys 0 to m: that is m + 1 pairs (query, key). A layout says
which tokens a rank holds:

    contiguous   the sequence in W equal parts; rank r holds part r
    striped      rank r holds the tokens r, r + W, r + 2 W, ...
    zigzag       the sequence in 2 W equal chunks; rank r holds chunk r from the beginning and
                 chunk r from the end

`contiguous` and `striped` are given. Write the third one, and the count:

zigzag(rank, world_size, seqlen)   the tokens of this rank in ascending order: an integer array of
                                   length seqlen / world_size
pairs(tokens)                      number of pairs of a rank that holds these tokens, whichever they
                                   are, in all steps of the ring: an int

seqlen is a multiple of 2 * world_size. About 3 lines in all.
"""

import numpy as np

### KIND: fill a line
### HINT 1: 16 tokens on 4 ranks are 8 chunks of 2. Rank 0 holds 0 1 and 14 15. Which tokens does
### HINT 1: rank 1 hold?
### HINT 2: np.arange(seqlen) in the shape (2 W, -1) has a row for each chunk. Rows count from the
### HINT 2: beginning, and from the end with negative numbers.
### HINT 3: chunks[rank] and chunks[-1 - rank], joined by np.concatenate. A query at position m has
### HINT 3: m + 1 pairs, so a rank has the sum of tokens + 1.
### DEBRIEF: A token r places from the beginning and a token r places from the end have seqlen + 1
### DEBRIEF: pairs together, whatever r is. So all ranks of the zigzag have equally many pairs. On
### DEBRIEF: striped ranks neighbours differ by one pair for each query. Of contiguous ranks the
### DEBRIEF: last has almost 2 W - 1 times as many pairs as the first.


def contiguous(rank, world_size, seqlen):
    """The tokens of a rank: one part of the sequence."""
    count = seqlen // world_size
    return np.arange(rank * count, (rank + 1) * count)


def striped(rank, world_size, seqlen):
    """The tokens of a rank: every world_size-th."""
    return np.arange(rank, seqlen, world_size)


def zigzag(rank, world_size, seqlen):
    """The tokens of a rank: a chunk from the beginning and one from the end."""
    ### BEGIN SOLUTION
    chunks = np.arange(seqlen).reshape(2 * world_size, -1)
    return np.concatenate([chunks[rank], chunks[-1 - rank]])
    ### END SOLUTION


def pairs(tokens):
    """Number of pairs (query, key) of a rank that holds these tokens."""
    ### BEGIN SOLUTION
    return int(np.sum(tokens + 1))
    ### END SOLUTION
