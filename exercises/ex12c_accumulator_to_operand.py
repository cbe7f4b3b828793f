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


def sources(k, i):
    """Which two floats of p go into register a_i of the k-th A: the low half's, the high half's."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12c: sources")


def pack(low, high):
    """Two float32 as float16 in one uint32."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12c: pack")


def to_operand(p):
    """One lane's P as the registers of A."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12c: to_operand")


# Stub 80650b8f of solutions/ex12c_accumulator_to_operand.py: `fa-numba reset ex12c` brings it back.
