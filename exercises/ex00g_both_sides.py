"""ex00g · Warps: predict what a branch costs

In a kernel with `if ... elif ... else`, each thread takes one side. A warp has one instruction at a
time for its 32 threads, so it runs every side that at least one of its threads takes, one after
the other, while the threads of the other sides are idle. Predict how many instructions the warps of
a thread block issue.

issued(sides, lengths)
    sides      list of int: sides[t] is the side that thread t takes, 0, 1, 2, ...
    lengths    list of int: lengths[s] is the number of instructions on side s
    returns    int: the instructions of all warps together

Warp w has the threads 32 w to 32 w + 31; the last warp may have fewer. Only the instructions inside
of the branch are counted.

Example: with lengths = [10, 3] a warp whose threads all take side 0 issues 10 instructions, a warp
of side 1 issues 3, and a warp with both issues 13.

About 4 lines of plain Python.
"""


def issued(sides, lengths):
    """Instructions that the warps of a thread block issue inside of a branch."""
    # YOUR CODE HERE
    raise NotImplementedError("ex00g: issued")


# Stub de77eac5 of solutions/ex00g_both_sides.py: `fa-numba reset ex00g` brings it back.
