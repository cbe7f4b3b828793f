"""ex12c · P is already where P V wants it

A warp has 16 rows of P in the registers that Q Kᵀ left it in, in the layout of D. P V wants them in
the layout of A (both are in ex12a). No lane has to ask another: what a lane needs, it has. Say
where.

p[j, r]         one lane's P, float32: register d_r of product j, with the columns 8 j .. 8 j + 7;
                (BLOCK_N // 8, 4), BLOCK_N a multiple of 16
the k-th A      the columns 16 k .. 16 k + 15 of P; registers a0 .. a3 of two float16 each

sources(k, i)   ((j_low, r_low), (j_high, r_high)), ints: the two floats of p that go into register
                a_i of the k-th A, into its low half and into its high half
fill(registers, p)   writes registers, (BLOCK_N // 16, 4) uint32: a0 .. a3 of each A. p stays as it
                is. to_operand makes the array, and calls fill.
pack            is given: two float32 as float16 in one uint32

2 and 4 lines.
"""

import numpy as np

### KIND: fill a loop
### HINT 1: Draw the 16 columns of one A: its left half are 8 columns, its right half the next 8.
### Two products of scores lie side by side in it. Which two, for k?
### HINT 2: a0 and a1 are the left half, so product 2 k; a2 and a3 the right half, product 2 k + 1.
### In D the pair d0, d1 is row g, and d2, d3 row g + 8; in A, a0 and a2 are row g, a1 and a3 row g
### + 8.
### HINT 3: j = 2 * k + i // 2, r = 2 * (i % 2): ((j, r), (j, r + 1)). In the loop: low, high =
### sources(k, i), and registers[k, i] = pack(p[low], p[high]).
### DEBRIEF: In lesson 07 the row of scores went through shared memory, with barriers. Here it costs
### one conversion instruction for two elements, and nothing else: no memory, no shuffle, no
### barrier. This is why attention on tensor cores keeps S = Q Kᵀ in this order, and why each warp
### owns whole rows. On Hopper it is the same, for four warps at once.


def pack(low, high):
    """Two float32 as float16 in one uint32."""
    low, high = (
        np.asarray(x, np.float32).astype(np.float16).view(np.uint16).astype(np.uint32)
        for x in (low, high)
    )
    return (high << np.uint32(16)) | low


def sources(k, i):
    """Which two floats of p go into register a_i of the k-th A: the low half's, the high half's."""
    ### BEGIN SOLUTION
    j, r = 2 * k + i // 2, 2 * (i % 2)
    return (j, r), (j, r + 1)
    ### END SOLUTION


def to_operand(p):
    """One lane's P as the registers of A."""
    registers = np.empty((len(p) // 2, 4), np.uint32)
    fill(registers, p)
    return registers


def fill(registers, p):
    """Write every register of every A."""
    ### BEGIN SOLUTION
    for k in range(len(registers)):
        for i in range(4):
            low, high = sources(k, i)
            registers[k, i] = pack(p[low], p[high])
    ### END SOLUTION
