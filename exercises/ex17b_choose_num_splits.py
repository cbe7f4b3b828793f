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


def num_waves(num_splits, thread_blocks, num_sms, blocks_per_sm):
    """Return how many waves a step takes."""
    # YOUR CODE HERE
    raise NotImplementedError("ex17b: num_waves")


def step_time(num_splits, thread_blocks, num_n_tiles, num_sms, blocks_per_sm, overhead=1):
    """Return the time of a step by the cost model, in tiles."""
    # YOUR CODE HERE
    raise NotImplementedError("ex17b: step_time")


def choose_num_splits(thread_blocks, num_n_tiles, num_sms, blocks_per_sm, overhead=1):
    """Return the number of splits with the least step_time, of equals the smallest."""
    # YOUR CODE HERE
    raise NotImplementedError("ex17b: choose_num_splits")


# Stub 10b8e2ee of solutions/ex17b_choose_num_splits.py: `fa-numba reset ex17b` brings it back.
