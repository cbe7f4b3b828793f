"""ex11e · How many warps fit

An SM starts a thread block when all that it needs is free: slots for its warps, registers, shared
memory. Write the number of warps that an SM of an H200 then holds.

warps_per_sm(threads, registers, shared_bytes)

threads       of a thread block, 1 to 1024. They count in whole warps of 32.
registers     of a thread, 1 to 255. The SM has four quarters with 16,384 each. A warp has all its
              registers in one quarter; the warps of a thread block may lie in any quarters. A
              thread gets registers in eights: 33 cost as many as 40.
shared_bytes  of a thread block, 0 to 232,448, a multiple of 128. CUDA takes 1,024 more for itself.
              The SM has 233,472.
result        warps of all thread blocks that fit at a time, an int; 0 if not even one does.
              At most 32 thread blocks, and at most 64 warps.

Plain Python, about 6 lines.
"""

import math


def warps_per_sm(threads, registers, shared_bytes):
    """Warps that an SM of an H200 holds at a time."""
    # YOUR CODE HERE
    raise NotImplementedError("ex11e: warps_per_sm")


# Stub f7966ab1 of solutions/ex11e_occupancy.py: `fa-numba reset ex11e` brings it back.
