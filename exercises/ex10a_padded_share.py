"""ex10a · Predict what padding costs

Sequences of these lengths are one batch. Padded, each of them becomes as long as the longest;
packed, they lie end to end. Attention has no mask but the ends of the sequences: every query of a
sequence sees every key of it.

padding_of_tokens(lengths)          share of the padded batch's tokens that are padding
padding_of_pairs(lengths)           share of the padded batch's pairs of a query and a key that are
                                    padding: the query, the key or both
waste_of_tiles(lengths, tile)       packed: share of the computed pairs that are no pairs. Each
                                    sequence is cut into tiles of `tile` queries by `tile` keys of
                                    its own, and a tile is computed as a whole

    lengths   a list of ints, at least one, each at least 1
    result    a float: 0.0 is no waste

Derive them on paper, for [3, 1] first. The grader counts pair by pair. One or two lines each.
"""

import math


def padding_of_tokens(lengths):
    """The share of tokens that are padding."""
    # YOUR CODE HERE
    raise NotImplementedError("ex10a: padding_of_tokens")


def padding_of_pairs(lengths):
    """The share of pairs that are padding."""
    # YOUR CODE HERE
    raise NotImplementedError("ex10a: padding_of_pairs")


def waste_of_tiles(lengths, tile):
    """The share of computed pairs that are no pairs, packed."""
    # YOUR CODE HERE
    raise NotImplementedError("ex10a: waste_of_tiles")


# Stub 109cc497 of solutions/ex10a_padded_share.py: `fa-numba reset ex10a` brings it back.
