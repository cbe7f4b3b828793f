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

### HINT 1: Write down for num_stages = 2 and tiles 0 to 5 which stage each uses, and whether that
### is the stage's first, second or third use. What must have happened in a stage before each use?
### HINT 2: turn, stage = divmod(tile, num_stages). The consumer's read in this turn needs the copy
### of this turn: phase `turn` of full. The producer's copy needs the reads of the turn before:
### phase turn - 1 of empty, and phase -1 counts as ended.
### HINT 3: The consumer waits for ("full", stage, turn % 2), reads, arrives. The producer waits for
### ("empty", stage, (turn + 1) % 2), loads.
### DEBRIEF: A stage and one bit of parity are all that a loop must carry: count the stage up, and
### flip the parity when it wraps, as flash_attn_ws does. One parity bit is enough because nobody
### can be two turns ahead: the other side would have had to arrive in between. That the producer
### begins with parity 1 is the usual trick for "empty at the beginning".


def producer_steps(num_tiles, num_stages):
    """What the producer does, step by step."""
    ### BEGIN SOLUTION
    steps = []
    for tile in range(num_tiles):
        turn, stage = divmod(tile, num_stages)
        steps.append(("wait", "empty", stage, (turn + 1) % 2))
        steps.append(("load", stage, tile))
    return steps
    ### END SOLUTION


def consumer_steps(num_tiles, num_stages):
    """What each consumer does, step by step."""
    ### BEGIN SOLUTION
    steps = []
    for tile in range(num_tiles):
        turn, stage = divmod(tile, num_stages)
        steps.append(("wait", "full", stage, turn % 2))
        steps.append(("read", stage, tile))
        steps.append(("arrive", stage))
    return steps
    ### END SOLUTION
