"""ex05d · The largest tiles that fit

A FlashAttention thread block keeps four tiles in SRAM: B_r rows of Q, B_c rows of K, B_c rows of V,
and the scores between them, B_r x B_c. Rows of Q, K and V have d elements of dtype_bytes bytes:

    dtype_bytes * (B_r * d  +  2 * B_c * d  +  B_r * B_c)  <=  sram_bytes

Return (B_r, B_c), two Python ints, both at least 1, that satisfy the constraint and have the
largest product B_r * B_c of all pairs that do. Not only powers of two: any whole numbers. If
several pairs reach the largest product, any of them is right. If not even B_r = B_c = 1 fits,
raise ValueError with a message that says how many bytes that needs.

One loop, not two: even a budget of 64 MiB at d = 64 must answer within a second or two. About 8
lines.
"""

### HINT 1: Fix B_c. How large can B_r be? The constraint is linear in B_r: solve it, round down.
### HINT 2: budget = sram_bytes // dtype_bytes elements. B_r * (d + B_c) <= budget - 2 * B_c * d.
### HINT 3: for B_c in range(1, budget // (2 * d) + 1): B_r = (budget - 2 * B_c * d) // (d + B_c);
### skip B_r < 1, keep the pair with the largest B_r * B_c.
### DEBRIEF: Without rounding, the best pair has B_r = 2 B_c: a row of Q costs d elements, a row of
### K and V together 2d, and the optimum spends the same on both: B_c = sqrt(d^2 + budget/2) - d.
### The paper's square tiles are a choice of convenience.


def calculate_block_sizes(sram_bytes, d, dtype_bytes=2):
    """Return (B_r, B_c) of the largest product whose four tiles fit into sram_bytes."""
    ### BEGIN SOLUTION
    budget = sram_bytes // dtype_bytes  # elements
    best = (0, 0)
    for B_c in range(1, budget // (2 * d) + 1):
        B_r = (budget - 2 * B_c * d) // (d + B_c)
        if B_r >= 1 and B_r * B_c > best[0] * best[1]:
            best = (B_r, B_c)
    if best == (0, 0):
        raise ValueError(
            f"one row each of Q, K and V needs {dtype_bytes * (3 * d + 1)} bytes, "
            f"got sram_bytes={sram_bytes}"
        )
    return best
    ### END SOLUTION
