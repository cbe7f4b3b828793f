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

### KIND: predict
### HINT 1: Go through the threads in pieces of 32: for first in range(0, len(sides), 32).
### HINT 2: How often a side occurs in a warp does not matter, only whether it does: set(...) of the
###   piece has each side once.
### HINT 3: Add up lengths[side] for each side in set(sides[first : first + 32]), over all pieces.
### DEBRIEF: A warp whose threads take different sides **diverges**. It costs the sum of the sides
###   where it could cost one of them. A branch is not slow in itself: if all threads of a warp
###   agree, the other side is skipped. So ask of each branch what it depends on: on the thread's
###   number, on the warp's, or on the thread block's. Only the first one diverges.


def issued(sides, lengths):
    """Instructions that the warps of a thread block issue inside of a branch."""
    ### BEGIN SOLUTION
    total = 0
    for first in range(0, len(sides), 32):
        warp = sides[first : first + 32]
        total += sum(lengths[side] for side in set(warp))
    return total
    ### END SOLUTION
