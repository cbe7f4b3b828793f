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


def pack(low, high):
    """Two float32 as float16 in one uint32."""
    low, high = (
        np.asarray(x, np.float32).astype(np.float16).view(np.uint16).astype(np.uint32)
        for x in (low, high)
    )
    return (high << np.uint32(16)) | low


def sources(k, i):
    """Which two floats of p go into register a_i of the k-th A: the low half's, the high half's."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12c: sources")


def to_operand(p):
    """One lane's P as the registers of A."""
    registers = np.empty((len(p) // 2, 4), np.uint32)
    fill(registers, p)
    return registers


def fill(registers, p):
    """Write every register of every A."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12c: fill")


# Stub c9f3698c of solutions/ex12c_accumulator_to_operand.py: `fa-numba reset ex12c` brings it back.
