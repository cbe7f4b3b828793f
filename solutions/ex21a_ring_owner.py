"""ex21a · Who has whose keys?

W ranks form a ring. Each rank has queries of its own, and they stay where they are. Keys and values
travel. In every step, each rank r

    1. attends to the keys that it has in this step,
    2. sends them to rank r + 1 and receives the next ones from rank r - 1.

After rank W - 1 comes rank 0. In step 0 every rank has its own keys.

owner(rank, step, world_size)      whose keys this rank has in this step
step_of(rank, owner, world_size)   in which step this rank has the keys of `owner`

All numbers are whole: 0 <= rank, step, owner < world_size. One line each.
"""

### KIND: fill a line
### HINT 1: Draw 4 ranks and move the keys by hand: whose keys does rank 0 have in step 1? And in
### HINT 1: step 2?
### HINT 2: In each step the keys of a rank come from one rank further back. Python's % of a
### HINT 2: negative number is already what you want: -1 % 4 is 3.
### HINT 3: owner = (rank - step) % world_size. Solve that for step.
### DEBRIEF: Each rank has each owner's keys exactly once: for a fixed step, `owner` is a
### DEBRIEF: permutation of the ranks, and for a fixed rank it runs through all of them. So W steps
### DEBRIEF: are enough, and no key is ever at two ranks. The mask of a step needs `owner`: it says
### DEBRIEF: at which positions these keys are. A wrong owner is a wrong mask.


def owner(rank, step, world_size):
    """Whose keys this rank has in this step."""
    ### BEGIN SOLUTION
    return (rank - step) % world_size
    ### END SOLUTION


def step_of(rank, owner, world_size):
    """The step in which this rank has the keys of `owner`."""
    ### BEGIN SOLUTION
    return (rank - owner) % world_size
    ### END SOLUTION
