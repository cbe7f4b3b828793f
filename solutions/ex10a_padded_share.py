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

### KIND: predict
### HINT 1: [3, 1]: the rectangle has 2 x 3 tokens, of which 4 are real. The pairs are two squares
### HINT 1: of 3 x 3, and real are 9 and 1.
### HINT 2: 1 - real / computed. Computed are len(lengths) * max(lengths) tokens, and len(lengths) *
### HINT 2: max(lengths) ** 2 pairs.
### HINT 3: In tiles a sequence of n tokens has ceil(n / tile) tiles of queries and as many of keys:
### HINT 3: (tile * ceil(n / tile)) ** 2 pairs are computed, n * n are real.
### DEBRIEF: Pairs are squares, so padding costs more of them than of tokens: with lengths between 0
### DEBRIEF: and the longest, all equally likely, half of the tokens but two thirds of the pairs are
### DEBRIEF: padding. Packing does not remove all waste: every sequence has a last tile. With tiles
### DEBRIEF: of 128 that is much for a sequence of 129 tokens, three quarters, and nothing for one
### DEBRIEF: of 128.


def padding_of_tokens(lengths):
    """The share of tokens that are padding."""
    ### BEGIN SOLUTION
    return 1 - sum(lengths) / (len(lengths) * max(lengths))
    ### END SOLUTION


def padding_of_pairs(lengths):
    """The share of pairs that are padding."""
    ### BEGIN SOLUTION
    return 1 - sum(n * n for n in lengths) / (len(lengths) * max(lengths) ** 2)
    ### END SOLUTION


def waste_of_tiles(lengths, tile):
    """The share of computed pairs that are no pairs, packed."""
    ### BEGIN SOLUTION
    computed = sum((tile * math.ceil(n / tile)) ** 2 for n in lengths)
    return 1 - sum(n * n for n in lengths) / computed
    ### END SOLUTION
