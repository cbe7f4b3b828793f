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

### KIND: find the bug
### HINT 1: Call `published` for the tokens of one sequence: once with all of them new, then token
### HINT 1: by token. Which of the three results differ?
### HINT 2: seq_len counts the new tokens, too. So where do the new ones begin?
### HINT 3: Token t of the sequence has position t, whoever reads it and when: the new ones are
### HINT 3: np.arange(num_cached, len(tokens)).
### DEBRIEF: In decoding every position is one too large. The rotary embedding sees differences of
### DEBRIEF: positions alone. Among the tokens of the answer they are right, and so they are among
### DEBRIEF: those of the prompt; from the answer to the prompt they are one too large. So the text
### DEBRIEF: stays fluent, and no test of "looks like English" finds it. A test that does: the
### DEBRIEF: cached logits equal those of a whole pass, token by token.


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
    ### BEGIN SOLUTION
    positions = np.arange(num_cached, len(tokens))
    slots = pages[positions // page_size] * page_size + positions % page_size
    return positions, slots, len(tokens)
    ### END SOLUTION
