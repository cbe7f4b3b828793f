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

### KIND: predict
### HINT 1: How many thread blocks would each resource allow if there were enough of the others?
### HINT 1: The smallest of these numbers is how many there are.
### HINT 2: Registers: a warp takes 32 times the registers of a thread, rounded up to a multiple of
### HINT 2: 8. Divide 16,384 by it, rounding down: warps of a quarter. Four quarters; then whole
### HINT 2: blocks.
### HINT 3: by_registers = 4 * (16384 // (32 * 8 * math.ceil(registers / 8))) // warps, where warps
### HINT 3: = math.ceil(threads / 32). The other limits: 64 // warps, 233472 // (shared_bytes +
### HINT 3: 1024), 32.
### DEBRIEF: A thread with 255 registers leaves room for 8 warps of 64: 12 %. Volkov's point: that
### DEBRIEF: is enough. Warps hide latency, but so do independent instructions within a warp, and
### DEBRIEF: 64 sums in a thread are 64 independent FMAs. `fa_numba.analysis.occupancy` has the
### DEBRIEF: rules of all devices, and says which resource is the limit.


def warps_per_sm(threads, registers, shared_bytes):
    """Warps that an SM of an H200 holds at a time."""
    ### BEGIN SOLUTION
    warps = math.ceil(threads / 32)
    by_warps = 64 // warps
    by_registers = 4 * (16384 // (32 * 8 * math.ceil(registers / 8))) // warps
    by_shared = 233472 // (shared_bytes + 1024)
    return warps * min(by_warps, by_registers, by_shared, 32)
    ### END SOLUTION
