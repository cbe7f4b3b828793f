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

### KIND: fill a line
### HINT 1: np.cumsum gives the end of each sequence. Where does the first one begin?
### HINT 2: np.cumsum([0, *lengths]), and mind the type. For positions: np.arange over all tokens,
### HINT 2: minus the start of each token's sequence.
### HINT 3: np.repeat(starts[:-1], np.diff(starts)) has each start as often as its sequence is long.
### DEBRIEF: One array more than a padded batch needs, of batch + 1 numbers, in place of a mask. The
### DEBRIEF: number of tokens is its last element and the longest sequence its largest difference.
### DEBRIEF: It counts tokens, so that int32 is enough; counted in elements it would not be, and
### DEBRIEF: lesson 15 has a kernel that shows it. FlashAttention has the same name, FlashInfer says
### DEBRIEF: indptr, vLLM query_start_loc.


def cu_seqlens(lengths):
    """The starts of the sequences, and the number of all tokens."""
    ### BEGIN SOLUTION
    return np.cumsum([0, *lengths]).astype(np.int32)
    ### END SOLUTION


def positions(starts):
    """The position of each token in its own sequence."""
    ### BEGIN SOLUTION
    of_token = np.repeat(starts[:-1], np.diff(starts))
    return np.arange(starts[-1]) - of_token
    ### END SOLUTION
