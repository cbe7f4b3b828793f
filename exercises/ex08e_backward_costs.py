"""ex08e · Predict: what the backward pass costs

For one head with N queries, N keys and no mask, in tiles of BLOCK_M queries and BLOCK_N keys, write
down what the meter will show for the kernels of this lesson. Ints; N, HEAD_DIM and tiles >= 1, N up
to 10^12; ceil where a last tile is not full.

product_flops    (forward, backward): FLOPs of the products of matrices, S = Q K^T and so on. A
                 product of (N, d) by (d, N) is 2 N N d FLOPs, for any of them
forward_loads    elements that FlashAttention-2 loads from HBM
backward_loads   (delta, dkdv, dq): elements that each of the three kernels loads
kept             floats that the forward pass leaves for the backward pass, beside q, k and v: out
                 and lse

No loop. One or two lines each.
"""

import math


def product_flops(N, HEAD_DIM):
    """(forward, backward): FLOPs of all products of matrices."""
    # YOUR CODE HERE
    raise NotImplementedError("ex08e: product_flops")


def forward_loads(N, HEAD_DIM, BLOCK_M):
    """Elements of q, k and v that the forward pass loads."""
    # YOUR CODE HERE
    raise NotImplementedError("ex08e: forward_loads")


def backward_loads(N, HEAD_DIM, BLOCK_M, BLOCK_N):
    """(delta, dkdv, dq): elements that each kernel loads."""
    # YOUR CODE HERE
    raise NotImplementedError("ex08e: backward_loads")


def kept(N, HEAD_DIM):
    """Floats of out and lse."""
    # YOUR CODE HERE
    raise NotImplementedError("ex08e: kept")


# Stub 1f473ff4 of solutions/ex08e_backward_costs.py: `fa-numba reset ex08e` brings it back.
