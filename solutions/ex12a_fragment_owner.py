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

### KIND: write
### HINT 1: Take one lane, say lane 6, and write down g and c. Then find its eight elements of A in
### HINT 1: the drawing of the lesson. What do register and half add to row and column?
### HINT 2: A: the low bit of the register adds 8 to the row, its high bit 8 to the column, half
### HINT 2: adds 1 to the column. B: half and register add to the row. D: register % 2 takes the
### HINT 2: place of half. The kernel: d = 0; for each 16 of inner fill a and b, and call mma_f16;
### HINT 2: store d.
### HINT 3: A: (lane // 4 + 8 * (register % 2), 2 * (lane % 4) + 8 * (register // 2) + half). In the
### HINT 3: kernel: for r in range(4): for h in range(2): i, j = place_of_a(lane, r, h); a[2 * r +
### HINT 3: h] = x[row + i, k + j]. The same for b with 2 registers.
### DEBRIEF: A row of D belongs to four lanes, a quad. So the maximum of a row of scores takes two
### DEBRIEF: shuffles, and no shared memory. And D looks like the left half of A: remember that for
### DEBRIEF: ex12c. The same map, for four warps under each other, is that of wgmma. Your kernel
### DEBRIEF: loads each element by itself, two bytes at a time; ldmatrix and a tile in shared memory
### DEBRIEF: come next, and are worth more than the product.


@cuda.jit(device=True)
def place_of_a(lane, register, half):
    """(row, col) of the element of A in this half of this register of this lane."""
    ### BEGIN SOLUTION
    row = lane // 4 + 8 * (register % 2)
    return row, 2 * (lane % 4) + 8 * (register // 2) + half
    ### END SOLUTION


@cuda.jit(device=True)
def place_of_b(lane, register, half):
    """(row, col) of the element of B in this half of this register of this lane."""
    ### BEGIN SOLUTION
    return 2 * (lane % 4) + 8 * register + half, lane // 4
    ### END SOLUTION


@cuda.jit(device=True)
def place_of_d(lane, register):
    """(row, col) of the element of D in this register of this lane."""
    ### BEGIN SOLUTION
    return lane // 4 + 8 * (register // 2), 2 * (lane % 4) + register % 2
    ### END SOLUTION


@cuda.jit
def matmul(x, y, out):
    """out = x y, a warp for each 16 rows and 8 columns."""
    a = cuda.local.array(8, np.float16)
    b = cuda.local.array(4, np.float16)
    d = cuda.local.array(4, float32)
    lane = cuda.threadIdx.x
    row, col = 16 * cuda.blockIdx.y, 32 * cuda.blockIdx.x + 8 * cuda.threadIdx.y
    ### BEGIN SOLUTION
    if col < out.shape[1]:  # the whole warp has columns, or none of it
        for r in range(4):
            d[r] = float32(0.0)
        for k in range(0, x.shape[1], 16):
            for r in range(4):
                for h in range(2):
                    i, j = place_of_a(lane, r, h)
                    a[2 * r + h] = x[row + i, k + j]
            for r in range(2):
                for h in range(2):
                    i, j = place_of_b(lane, r, h)
                    b[2 * r + h] = y[k + i, col + j]
            mma_f16(d, a, b)
        for r in range(4):
            i, j = place_of_d(lane, r)
            out[row + i, col + j] = d[r]
    ### END SOLUTION
