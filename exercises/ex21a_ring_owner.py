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


def owner(rank, step, world_size):
    """Whose keys this rank has in this step."""
    # YOUR CODE HERE
    raise NotImplementedError("ex21a: owner")


def step_of(rank, owner, world_size):
    """The step in which this rank has the keys of `owner`."""
    # YOUR CODE HERE
    raise NotImplementedError("ex21a: step_of")


# Stub 23f054c3 of solutions/ex21a_ring_owner.py: `fa-numba reset ex21a` brings it back.
