"""ex10b · Where each sequence begins

cu_seqlens(lengths) returns the array that packed kernels get: the number of tokens before each
sequence, and at the end the number of all. Sequence b is tokens cu_seqlens[b] to cu_seqlens[b + 1].
"cu" stands for cumulative.

    lengths   a list of ints, each at least 0; it may be empty
    returns   a NumPy array of shape (len(lengths) + 1,), int32: [4, 0, 3] gives 0, 4, 4, 7

positions(starts) returns for each token of a packed batch its position in its own sequence: a model
with rotary or learned positions needs it, and 0, 1, 2, ... through the batch would be wrong.

    starts    as cu_seqlens returns it
    returns   a NumPy array of shape (starts[-1],), integers: for 0, 4, 4, 7 it is 0 1 2 3 0 1 2

One line and two lines.
"""

import numpy as np


def cu_seqlens(lengths):
    """The starts of the sequences, and the number of all tokens."""
    # YOUR CODE HERE
    raise NotImplementedError("ex10b: cu_seqlens")


def positions(starts):
    """The position of each token in its own sequence."""
    # YOUR CODE HERE
    raise NotImplementedError("ex10b: positions")


# Stub cb280821 of solutions/ex10b_starts.py: `fa-numba reset ex10b` brings it back.
