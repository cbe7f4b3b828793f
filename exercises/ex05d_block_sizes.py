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


def tallest(B_c, d, elements):
    """The largest B_r whose tiles fit beside B_c rows of K and V."""
    # YOUR CODE HERE
    raise NotImplementedError("ex05d: tallest")


def calculate_block_sizes(sram_bytes, d, dtype_bytes=2):
    """Return (B_r, B_c) of the largest product whose four tiles fit into sram_bytes."""
    elements = sram_bytes // dtype_bytes
    if elements < 3 * d + 1:
        raise ValueError(
            f"one row each of Q, K and V needs {dtype_bytes * (3 * d + 1)} bytes, "
            f"got sram_bytes={sram_bytes}"
        )
    # YOUR CODE HERE
    raise NotImplementedError("ex05d: calculate_block_sizes")


# Stub 50e46f04 of solutions/ex05d_block_sizes.py: `fa-numba reset ex05d` brings it back.
