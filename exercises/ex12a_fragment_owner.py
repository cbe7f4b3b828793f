"""ex12a · A product by a warp: which lane holds which element?

mma.m16n8k16 multiplies A (16, 16) by B (16, 8) and adds the product to D (16, 8). No lane has a
whole matrix: each of the 32 lanes of a warp holds a few elements, its fragment. Registers are 32
bits wide. A and B are float16, two elements in a register: half 0 is the low one, half 1 the high
one. D is float32, one element in a register. With g = lane // 4 and c = 2 * (lane % 4):

    A, 4 registers                      B, 2 registers            D, 4 registers
             cols c, c+1   c+8, c+9                col g                    col c   col c+1
    row g    a0            a2           row c      b0 half 0      row g     d0      d1
    row g+8  a1            a3           row c+1    b0 half 1      row g+8   d2      d3
                                        row c+8    b1 half 0
    (half 0 is the left one)            row c+9    b1 half 1

place_of_a(lane, register, half)   device function: (row, col) of what the lane holds there
place_of_b(lane, register, half)   the same of B
place_of_d(lane, register)         the same of D
matmul(x, y, out)                  the kernel: out = x y on tensor cores

launch   matmul[(ceil(columns / 32), rows / 16), (32, 4)]: warp threadIdx.y of thread block (i, j)
         has the rows 16 j, ... and the columns 32 i + 8 threadIdx.y, ... of out, if they exist
arrays   x (rows, inner), y (inner, columns) float16; out (rows, columns) float32. rows and inner
         are multiples of 16, columns of 8
mma      mma_f16(d, a, b): d += a b, where a and b are local arrays of 8 and 4 float16, element 2 r
         + h for half h of register r, and d of 4 float32. All lanes of the warp must call it: on a
         GPU it is the instruction, and the CPU engine does what the instruction does
HBM      out is stored once, and not loaded; no shared memory, no barrier

One line for each map, about 20 for the kernel.
"""

import numpy as np
from numba import cuda, float32

from fa_numba.ptx.warp_mma import mma_f16


@cuda.jit(device=True)
def place_of_a(lane, register, half):
    """(row, col) of the element of A in this half of this register of this lane."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12a: place_of_a")


@cuda.jit(device=True)
def place_of_b(lane, register, half):
    """(row, col) of the element of B in this half of this register of this lane."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12a: place_of_b")


@cuda.jit(device=True)
def place_of_d(lane, register):
    """(row, col) of the element of D in this register of this lane."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12a: place_of_d")


@cuda.jit
def matmul(x, y, out):
    """out = x y, a warp for each 16 rows and 8 columns."""
    a = cuda.local.array(8, np.float16)
    b = cuda.local.array(4, np.float16)
    d = cuda.local.array(4, float32)
    lane = cuda.threadIdx.x
    row, col = 16 * cuda.blockIdx.y, 32 * cuda.blockIdx.x + 8 * cuda.threadIdx.y
    # YOUR CODE HERE
    raise NotImplementedError("ex12a: matmul")


# Stub 034bd746 of solutions/ex12a_fragment_owner.py: `fa-numba reset ex12a` brings it back.
