"""ex12a · Which lane holds which element?

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

element_of_a(lane, register, half)   (row, col) of what the lane holds there
element_of_b(lane, register, half)   the same of B
element_of_d(lane, register)         the same of D
owner_in_a(row, col)                 (lane, register, half) that holds this element: the inverse
owner_in_b(row, col)                 the same of B
owner_in_d(row, col)                 (lane, register)

All arguments are ints within their ranges; return tuples of ints. One to three lines each.
"""

### HINT 1: Take one lane, say lane 6, and write down g and c. Then find its eight elements of A in
### the drawing of the lesson. What do register and half add to row and column?
### HINT 2: A: the low bit of the register adds 8 to the row, its high bit 8 to the column, half
### adds 1 to the column. B: half and register add to the row. D: register % 2 takes the place of
### half.
### HINT 3: A: (lane // 4 + 8 * (register % 2), 2 * (lane % 4) + 8 * (register // 2) + half). Back:
### lane = 4 * (row % 8) + col % 8 // 2, register = row // 8 + 2 * (col // 8), half = col % 2.
### DEBRIEF: A row of D belongs to four lanes, a quad. So the maximum of a row of scores takes two
### shuffles, and no shared memory. And D looks like the left half of A: remember that for ex12c.
### The same map, for four warps under each other, is that of wgmma.


def element_of_a(lane, register, half):
    """(row, col) of the element of A in this half of this register of this lane."""
    ### BEGIN SOLUTION
    row = lane // 4 + 8 * (register % 2)
    col = 2 * (lane % 4) + 8 * (register // 2) + half
    return row, col
    ### END SOLUTION


def element_of_b(lane, register, half):
    """(row, col) of the element of B in this half of this register of this lane."""
    ### BEGIN SOLUTION
    return 2 * (lane % 4) + 8 * register + half, lane // 4
    ### END SOLUTION


def element_of_d(lane, register):
    """(row, col) of the element of D in this register of this lane."""
    ### BEGIN SOLUTION
    return lane // 4 + 8 * (register // 2), 2 * (lane % 4) + register % 2
    ### END SOLUTION


def owner_in_a(row, col):
    """(lane, register, half) that holds element [row, col] of A."""
    ### BEGIN SOLUTION
    lane = 4 * (row % 8) + col % 8 // 2
    return lane, row // 8 + 2 * (col // 8), col % 2
    ### END SOLUTION


def owner_in_b(row, col):
    """(lane, register, half) that holds element [row, col] of B."""
    ### BEGIN SOLUTION
    return 4 * col + row % 8 // 2, row // 8, row % 2
    ### END SOLUTION


def owner_in_d(row, col):
    """(lane, register) that holds element [row, col] of D."""
    ### BEGIN SOLUTION
    return 4 * (row % 8) + col // 2, 2 * (row // 8) + col % 2
    ### END SOLUTION
