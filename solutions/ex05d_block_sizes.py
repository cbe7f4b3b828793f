"""ex05d · The largest tiles that fit

A FlashAttention thread block keeps four tiles in SRAM: B_r rows of Q, B_c rows of K, B_c rows of V,
and the scores between them, B_r x B_c. Rows of Q, K and V have d elements of dtype_bytes bytes:

    dtype_bytes * (B_r * d  +  2 * B_c * d  +  B_r * B_c)  <=  sram_bytes

tallest(B_c, d, elements)    the largest B_r that fits beside B_c; elements = sram_bytes //
    dtype_bytes. 0 or less where not even one row fits
calculate_block_sizes(sram_bytes, d, dtype_bytes=2)    (B_r, B_c), both at least 1, with the largest
    product B_r * B_c of all pairs that fit. Any whole numbers, not only powers of two. If several
    pairs reach the largest product, any of them is right. That at least one pair fits is tested
    already.

One loop, not two: even a budget of 64 MiB at d = 64 must answer within a second or two. 1 line and
about 3 lines.
"""

import math

### KIND: fill a line
### HINT 1: Fix B_c. How large can B_r be? The constraint is linear in B_r: solve it, round down.
### HINT 2: B_r * (d + B_c) <= elements - 2 * B_c * d. And B_c ends where elements are used up by K
### HINT 2: and V alone.
### HINT 3: return (elements - 2 * B_c * d) // (d + B_c). Then the pairs (tallest(B_c, d, elements),
### HINT 3: B_c) for B_c in range(1, elements // (2 * d) + 1), and max(pairs, key=math.prod).
### DEBRIEF: Without rounding, the best pair has B_r = 2 B_c: a row of Q costs d elements, a row of
### K and V together 2d, and the optimum spends the same on both: B_c = sqrt(d^2 + budget/2) - d.
### The paper's square tiles are a choice of convenience.


def tallest(B_c, d, elements):
    """The largest B_r whose tiles fit beside B_c rows of K and V."""
    ### BEGIN SOLUTION
    return (elements - 2 * B_c * d) // (d + B_c)
    ### END SOLUTION


def calculate_block_sizes(sram_bytes, d, dtype_bytes=2):
    """Return (B_r, B_c) of the largest product whose four tiles fit into sram_bytes."""
    elements = sram_bytes // dtype_bytes
    if elements < 3 * d + 1:
        raise ValueError(
            f"one row each of Q, K and V needs {dtype_bytes * (3 * d + 1)} bytes, "
            f"got sram_bytes={sram_bytes}"
        )
    ### BEGIN SOLUTION
    pairs = [(tallest(B_c, d, elements), B_c) for B_c in range(1, elements // (2 * d) + 1)]
    return max(pairs, key=math.prod)
    ### END SOLUTION
