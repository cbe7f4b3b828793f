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


def element_of_a(lane, register, half):
    """(row, col) of the element of A in this half of this register of this lane."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12a: element_of_a")


def element_of_b(lane, register, half):
    """(row, col) of the element of B in this half of this register of this lane."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12a: element_of_b")


def element_of_d(lane, register):
    """(row, col) of the element of D in this register of this lane."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12a: element_of_d")


def owner_in_a(row, col):
    """(lane, register, half) that holds element [row, col] of A."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12a: owner_in_a")


def owner_in_b(row, col):
    """(lane, register, half) that holds element [row, col] of B."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12a: owner_in_b")


def owner_in_d(row, col):
    """(lane, register) that holds element [row, col] of D."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12a: owner_in_d")


# Stub b90b27b1 of solutions/ex12a_fragment_owner.py: `fa-numba reset ex12a` brings it back.
