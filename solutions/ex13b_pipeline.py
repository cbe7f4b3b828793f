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

### KIND: fill a line
### HINT 1: Write down for 2 stages and tiles 0 to 5 the stage and the use of each. What must have
### HINT 1: happened in a stage before each use?
### HINT 2: The consumer's read in this use needs the copy of this use: phase `use` of full. The
### HINT 2: producer's copy needs the reads of the use before: phase use - 1 of empty, and phase -1
### HINT 2: counts as ended.
### HINT 3: The consumer waits for ("full", stage, use % 2), reads, arrives. The producer waits for
### HINT 3: ("empty", stage, (use + 1) % 2), loads.
### DEBRIEF: A stage and one bit of parity are all that a loop must carry: count the stage up, and
### DEBRIEF: flip the parity when it wraps, as flash_attn_ws does. One parity bit is enough because
### DEBRIEF: nobody can be two uses ahead: the other side would have had to arrive in between. That
### DEBRIEF: the producer begins with parity 1 is the usual trick for "empty at the beginning".


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
    ### BEGIN SOLUTION
    return [("wait", "empty", stage, (use + 1) % 2), ("load", stage, tile)]
    ### END SOLUTION


def consumer_tile(tile, use, stage):
    """What each consumer does for a tile."""
    ### BEGIN SOLUTION
    return [("wait", "full", stage, use % 2), ("read", stage, tile), ("arrive", stage)]
    ### END SOLUTION
