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


def calculate_block_sizes(sram_bytes, d, dtype_bytes=2):
    """Return (B_r, B_c) of the largest product whose four tiles fit into sram_bytes."""
    # YOUR CODE HERE
    raise NotImplementedError("ex05d: calculate_block_sizes")


# Stub 7882cce3 of solutions/ex05d_block_sizes.py: `fa-numba reset ex05d` brings it back.
