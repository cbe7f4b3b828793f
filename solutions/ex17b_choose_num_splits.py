"""ex17b · Into how many splits?

A decoding step has thread_blocks thread blocks without splitting: one for each sequence and K/V
head. Each walks num_n_tiles tiles of keys. With num_splits splits there are num_splits times as
many, and each walks its share of the tiles. A GPU keeps num_sms * blocks_per_sm thread blocks at a
time; the others wait until these are done, and go in a next wave.

The cost model, in units of the time for one tile:

    a thread block   the tiles of the largest share, and `overhead` more for what every thread block
                     does whatever its share: load q, store out and lse, be combined
    a wave           lasts as long as its longest thread block, full or not
    a step           its waves, one after the other

num_waves(num_splits, thread_blocks, num_sms, blocks_per_sm)    waves of a step; 0 without work
step_time(num_splits, thread_blocks, num_n_tiles, num_sms, blocks_per_sm, overhead=1)
choose_num_splits(thread_blocks, num_n_tiles, num_sms, blocks_per_sm, overhead=1)
    the number of splits with the least step_time; of equals the smallest, as each split is a
    partial result more to be stored. At least 1, and never more than there are tiles.

All arguments are ints: thread_blocks, num_n_tiles, overhead >= 0, the others >= 1. Return ints,
exact for large numbers too.
About 8 lines in all.
"""

### KIND: predict
### HINT 1: A share of 7 tiles over 3 splits is 3, 2 and 2: the largest counts. A wave that is not
### HINT 1: full takes as long as a full one. Both round up: -(-a // b).
### HINT 2: step_time is num_waves(...) * (tiles of the largest share + overhead).
### HINT 3: min(range(1, max(1, num_n_tiles) + 1), key=lambda s: step_time(s, ...)) returns the
### HINT 3: first of equals, which is the smallest.
### DEBRIEF: The curve is a saw: time falls while splits fill the wave, and jumps where one thread
### DEBRIEF: block too many opens another. A model is not a clock: it knows nothing of how many
### DEBRIEF: thread blocks it takes to keep the memory busy, of the combine kernel's own launch, of
### DEBRIEF: sequences of different lengths. The package's rule is cruder still. Time yours.


def num_waves(num_splits, thread_blocks, num_sms, blocks_per_sm):
    """Return how many waves a step takes."""
    ### BEGIN SOLUTION
    return -(-num_splits * thread_blocks // (num_sms * blocks_per_sm))
    ### END SOLUTION


def step_time(num_splits, thread_blocks, num_n_tiles, num_sms, blocks_per_sm, overhead=1):
    """Return the time of a step by the cost model, in tiles."""
    ### BEGIN SOLUTION
    tiles = -(-num_n_tiles // num_splits)
    return num_waves(num_splits, thread_blocks, num_sms, blocks_per_sm) * (tiles + overhead)
    ### END SOLUTION


def choose_num_splits(thread_blocks, num_n_tiles, num_sms, blocks_per_sm, overhead=1):
    """Return the number of splits with the least step_time, of equals the smallest."""
    ### BEGIN SOLUTION
    sizes = (thread_blocks, num_n_tiles, num_sms, blocks_per_sm, overhead)
    return min(range(1, max(1, num_n_tiles) + 1), key=lambda splits: step_time(splits, *sizes))
    ### END SOLUTION
