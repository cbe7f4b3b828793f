"""ex13b · Who waits for whom?

A producer copies the tiles 0, 1, 2, ... of K into a ring of num_stages stages, tile t into stage
t % num_stages, and consumers, all alike, read each of them. A copy takes its time and nobody knows
how long; so does a read. Each stage has two barriers:

    full[stage]     its phase ends when the copy of a tile to this stage is complete
    empty[stage]    its phase ends when every consumer has arrived at it

A barrier is in phase 0, 1, 2, ...; a wait names the parity of a phase, 0 or 1, and ends when the
last phase that has ended has this parity. At the beginning no phase has ended, and that counts as
parity 1: a wait for parity 1 on a new barrier ends at once.

Write the steps of both, as lists of tuples:

    ("wait", "full", stage, parity)     go on when full[stage] has ended a phase of this parity
    ("wait", "empty", stage, parity)    the same of empty[stage]
    ("load", stage, tile)               producer: start to copy the tile to this stage, and go on
    ("read", stage, tile)               consumer: read the tile in this stage, until that is done
    ("arrive", stage)                   consumer: arrive at empty[stage]: it is done with the stage

producer_steps(num_tiles, num_stages)    the list of the one producer
consumer_steps(num_tiles, num_stages)    the list of each consumer

Whatever the times: every consumer reads every tile, in order, when it is there; no tile is copied
over one that somebody has still to read; nobody waits for ever; and nobody waits without need: the
producer runs ahead until the ring is full. num_tiles >= 0, num_stages >= 1; there may be fewer
tiles than stages. About 6 lines each.
"""


def producer_steps(num_tiles, num_stages):
    """What the producer does, step by step."""
    # YOUR CODE HERE
    raise NotImplementedError("ex13b: producer_steps")


def consumer_steps(num_tiles, num_stages):
    """What each consumer does, step by step."""
    # YOUR CODE HERE
    raise NotImplementedError("ex13b: consumer_steps")


# Stub 3726fe6f of solutions/ex13b_pipeline.py: `fa-numba reset ex13b` brings it back.
