"""ex12c · P is already where P V wants it

A warp has computed 16 rows of scores and made P of them: BLOCK_N columns, a multiple of 16, in
products of 8 columns each. A lane holds 4 floats of each product, in the layout of D (ex12a), so

    p[j, r]      register d_r of product j, which has the columns 8 j .. 8 j + 7; float32

The next product, P V, wants P as A, 16 columns at a time: the k-th A has the columns 16 k .. 16 k +
15, in 4 registers a0 .. a3 of two float16 each (layout of A, ex12a). No lane has to ask another:
what a lane needs, it has.

sources(k, i)        ((j_low, r_low), (j_high, r_high)): which two floats of p go into register a_i
                     of the k-th A, into its low half and into its high half. Ints.
pack(low, high)      one uint32 (np.uint32): low rounded to float16 in the low half, high in the
                     high half. low and high are float32, or float32 arrays of one shape; the result
                     then is an array of uint32.
to_operand(p)        p: (BLOCK_N // 8, 4) float32, one lane's. Returns (BLOCK_N // 16, 4) uint32:
                     the registers a0 .. a3 of each A. p stays as it is.

Rounding is to the nearest, ties to even, as NumPy's astype(np.float16) does. About 2, 3, 4 lines.
"""

import numpy as np

### HINT 1: Draw the 16 columns of one A: its left half are 8 columns, its right half the next 8.
### Two products of scores lie side by side in it. Which two, for k?
### HINT 2: a0 and a1 are the left half, so product 2 k; a2 and a3 the right half, product 2 k + 1.
### In D the pair d0, d1 is row g, and d2, d3 row g + 8; in A, a0 and a2 are row g, a1 and a3 row g
### + 8.
### HINT 3: j = 2 * k + i // 2, r = 2 * (i % 2): ((j, r), (j, r + 1)). Bits of a float16:
### x.astype(np.float16).view(np.uint16), then astype(np.uint32), and high << 16 | low.
### DEBRIEF: In lesson 07 the row of scores went through shared memory, with barriers. Here it costs
### one conversion instruction for two elements, and nothing else: no memory, no shuffle, no
### barrier. This is why attention on tensor cores keeps S = Q Kᵀ in this order, and why each warp
### owns whole rows. On Hopper it is the same, for four warps at once.


def sources(k, i):
    """Which two floats of p go into register a_i of the k-th A: the low half's, the high half's."""
    ### BEGIN SOLUTION
    j, r = 2 * k + i // 2, 2 * (i % 2)
    return (j, r), (j, r + 1)
    ### END SOLUTION


def pack(low, high):
    """Two float32 as float16 in one uint32."""
    ### BEGIN SOLUTION
    low, high = (
        np.asarray(x, np.float32).astype(np.float16).view(np.uint16).astype(np.uint32)
        for x in (low, high)
    )
    return (high << np.uint32(16)) | low
    ### END SOLUTION


def to_operand(p):
    """One lane's P as the registers of A."""
    ### BEGIN SOLUTION
    registers = np.empty((len(p) // 2, 4), np.uint32)
    for k in range(len(p) // 2):
        for i in range(4):
            low, high = sources(k, i)
            registers[k, i] = pack(p[low], p[high])
    return registers
    ### END SOLUTION
