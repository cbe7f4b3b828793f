"""ex23a · Find the bug: fluent, and not the model's text

A server reads the tokens of a sequence in steps: the prompt in one or several chunks, then each
token of the answer. tokens[:num_cached] have been read in earlier steps; their keys and values are
in the pages. The others are new. For a step the model needs

    positions   (num_new,) int: the position of each new token in the sequence, from 0; the rotary
                embedding turns its query and its key by it
    slots       (num_new,) int: where its key and value go: token t into page pages[t // page_size],
                with offset t % page_size; slot = page * page_size + offset
    seq_len     int: the number of keys that the last new token sees, its own included

`published` below reads a whole prompt rightly, and the first token of each answer is right. The
rest of the text reads well, but it is not what the model says to the same tokens in one pass.

Write `mended`: the same results, without the bug. About 3 lines.

    tokens      list of int, at least one new one among them
    num_cached  int, 0 <= num_cached < len(tokens)
    pages       (num_pages_of_the_sequence,) int array, pages for all tokens
    page_size   int
"""

import numpy as np


def published(tokens, num_cached, pages, page_size):
    """The program with the bug, to read and to run. Leave it as it is."""
    seq_len = len(tokens)
    num_new = seq_len - num_cached
    t = np.arange(num_cached, seq_len)
    slots = pages[t // page_size] * page_size + t % page_size
    first = seq_len if num_cached else 0  # an answer goes on where the sequence ends
    positions = np.arange(first, first + num_new)
    return positions, slots, seq_len


def mended(tokens, num_cached, pages, page_size):
    """Positions and slots of the new tokens, and the number of keys in the end."""
    # YOUR CODE HERE
    raise NotImplementedError("ex23a: mended")


# Stub 1029fd67 of solutions/ex23a_cached_position.py: `fa-numba reset ex23a` brings it back.
