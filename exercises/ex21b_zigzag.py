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


def contiguous(rank, world_size, seqlen):
    """The tokens of a rank: one part of the sequence."""
    count = seqlen // world_size
    return np.arange(rank * count, (rank + 1) * count)


def striped(rank, world_size, seqlen):
    """The tokens of a rank: every world_size-th."""
    return np.arange(rank, seqlen, world_size)


def zigzag(rank, world_size, seqlen):
    """The tokens of a rank: a chunk from the beginning and one from the end."""
    # YOUR CODE HERE
    raise NotImplementedError("ex21b: zigzag")


def pairs(tokens):
    """Number of pairs (query, key) of a rank that holds these tokens."""
    # YOUR CODE HERE
    raise NotImplementedError("ex21b: pairs")


# Stub 6e8cdf5f of solutions/ex21b_zigzag.py: `fa-numba reset ex21b` brings it back.
