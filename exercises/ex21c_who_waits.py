"""ex21c · Predict who waits

A ring of W ranks, c tokens on each, a causal mask. No rank can begin step t + 1 before its
neighbour has finished step t. So a step takes as long as its busiest rank, and the others wait.
Measure time in pairs (query, key): a rank computes one pair per unit of time.

busiest(layout, step, c)       pairs of the busiest rank in this step, an int
busy(layout, world_size, c)    the fraction of their time in which ranks compute, a float: the pairs
                               of the whole mask, divided by W times the time of all W steps

layout is "contiguous", "striped" or "zigzag", as in ex21b; c is even; in step 0 every rank has its
own keys.

Derive the numbers on paper: draw the mask of two ranks. The grader counts pair by pair. About 4
lines and 3 lines.
"""


def busiest(layout, step, c):
    """Pairs of the rank that has the most of them in this step."""
    # YOUR CODE HERE
    raise NotImplementedError("ex21c: busiest")


def busy(layout, world_size, c):
    """The fraction of rank-time in which ranks compute."""
    # YOUR CODE HERE
    raise NotImplementedError("ex21c: busy")


# Stub 4b0ab8fd of solutions/ex21c_who_waits.py: `fa-numba reset ex21c` brings it back.
