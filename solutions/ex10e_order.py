"""ex10e · A budget of waiting: the order of thread blocks

A GPU with num_sms SMs starts thread blocks in the order of the list: one on each SM, and each next
one on the SM that becomes free first. A thread block has one tile of queries, and takes as long as
the number of its tiles of keys. The launch ends with its last thread block: its makespan.

order(lengths, tile, causal)   returns the thread blocks in the order in which they start, a list
                               of pairs (sequence, tile of queries), each exactly once
    lengths   of the sequences, ints >= 1; the tiles of a sequence have the numbers 0, 1, ...
    tile      queries of a tile, and keys of a tile
    causal    whether query m of a sequence sees only keys 0 ... m

key_tiles(lengths, b, t, tile, causal) is given: the time of the thread block (b, t).

Budget    the makespan is at most 1.05 times the bound, for each batch of the grader: 32 SMs, tiles
          of 64. The bound is the mean time of an SM, or the longest thread block if that is
          longer. Par: 1.02 on average

About 3 lines.
"""

import math

### KIND: beat a budget
### HINT 1: Draw it with two SMs and thread blocks of 1, 1, 1, 1 and 4 tiles, in this order and in
### HINT 1: the reverse. When does the last one end?
### HINT 2: A long thread block that starts last runs alone. Those that start last should be short.
### HINT 3: List all (b, t), and sort them by key_tiles, the longest first: key=lambda x:
### HINT 3: -key_tiles(lengths, *x, tile, causal).
### DEBRIEF: Longest first is Graham's rule of 1969: at most 4/3 of the best possible, and much
### DEBRIEF: better if most thread blocks are short. The scheduler of a GPU does the rest, it takes
### DEBRIEF: the next thread block where an SM is free; but it knows nothing of their lengths. That
### DEBRIEF: is why "the scheduler loads the next block" is half of an answer to load imbalance.
### DEBRIEF: flash_attn_persistent_varlen sorts the sequences on the GPU, since the host does not
### DEBRIEF: know their lengths.


def key_tiles(lengths, b, t, tile, causal):
    """Tiles of keys that tile t of the queries of sequence b must visit."""
    return t + 1 if causal else math.ceil(lengths[b] / tile)


def order(lengths, tile, causal):
    """The thread blocks (sequence, tile of queries) in the order in which they start."""
    ### BEGIN SOLUTION
    blocks = [(b, t) for b, n in enumerate(lengths) for t in range(math.ceil(n / tile))]
    return sorted(blocks, key=lambda block: -key_tiles(lengths, *block, tile, causal))
    ### END SOLUTION
