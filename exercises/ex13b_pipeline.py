"""ex13b · Who waits for whom?

A producer copies the tiles 0, 1, 2, ... into a ring, tile t to stage t % num_stages. Consumers, all
alike, read each of them. Write what each does for one tile, whatever the times of copies and reads.

    full[stage]     a barrier: its phase ends when the copy of a tile to this stage is complete
    empty[stage]    its phase ends when every consumer has arrived at it

A barrier is in phase 0, 1, 2, ... A wait names a parity, 0 or 1, and ends when the last phase that
has ended has it. On a new barrier, parity 1 counts as ended. The steps are tuples:

    ("wait", "full", stage, parity)     or "empty": go on when a phase of this parity has ended
    ("load", stage, tile)               producer: start to copy the tile to this stage, and go on
    ("read", stage, tile)               consumer: read the tile in this stage, until that is done
    ("arrive", stage)                   consumer: arrive at empty[stage]

producer_tile(tile, use, stage)    the producer's steps for a tile, a list
consumer_tile(tile, use, stage)    each consumer's; tile is the use-th in its stage: 0, 1, 2, ...

No tile is read before it is there, or copied over one that somebody has still to read. Nobody waits
for ever, or without need: the producer runs ahead until the ring is full. 2 and 3 steps.
"""


def producer_steps(num_tiles, num_stages):
    """What the producer does, step by step."""
    return steps_of(producer_tile, num_tiles, num_stages)


def consumer_steps(num_tiles, num_stages):
    """What each consumer does, step by step."""
    return steps_of(consumer_tile, num_tiles, num_stages)


def steps_of(make, num_tiles, num_stages):
    """The steps that make returns for each tile, one after the other."""
    steps = []
    for tile in range(num_tiles):
        use, stage = divmod(tile, num_stages)
        steps += make(tile, use, stage)
    return steps


def producer_tile(tile, use, stage):
    """What the producer does for a tile."""
    # YOUR CODE HERE
    raise NotImplementedError("ex13b: producer_tile")


def consumer_tile(tile, use, stage):
    """What each consumer does for a tile."""
    # YOUR CODE HERE
    raise NotImplementedError("ex13b: consumer_tile")


# Stub 53927b74 of solutions/ex13b_pipeline.py: `fa-numba reset ex13b` brings it back.
