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

### KIND: predict
### HINT 1: Count the products by kernel: forward S and PV; dkdv S, dP, dV and dK; dq S, dP and dQ.
### HINT 2: What a thread block owns is loaded once, what it walks along once for each thread block.
### HINT 2: dkdv owns k and v; it walks along q, dout, lse and delta. dq owns q, dout, lse and
### HINT 2: delta; it walks along k and v.
### HINT 3: With T_r = ceil(N / BLOCK_M), T_c = ceil(N / BLOCK_N): forward N d + 2 N d T_r; delta
### HINT 3: 2 N d; dkdv 2 N d + T_c (2 N d + 2 N); dq 2 N d + 2 N + 2 N d T_r.
### DEBRIEF: 7 products against 2, so 3.5 times the FLOPs; and with equal tiles a bit more than
### DEBRIEF: twice the loads: each of the two large kernels loads about as much as the forward pass.
### DEBRIEF: So there are more FLOPs for each byte than in the forward pass, which suits a GPU.


def product_flops(N, HEAD_DIM):
    """(forward, backward): FLOPs of all products of matrices."""
    ### BEGIN SOLUTION
    product = 2 * N * N * HEAD_DIM
    return 2 * product, (4 + 3) * product
    ### END SOLUTION


def forward_loads(N, HEAD_DIM, BLOCK_M):
    """Elements of q, k and v that the forward pass loads."""
    ### BEGIN SOLUTION
    return N * HEAD_DIM * (1 + 2 * math.ceil(N / BLOCK_M))
    ### END SOLUTION


def backward_loads(N, HEAD_DIM, BLOCK_M, BLOCK_N):
    """(delta, dkdv, dq): elements that each kernel loads."""
    ### BEGIN SOLUTION
    both, rows = 2 * N * HEAD_DIM, 2 * N  # q and dout, or k and v; lse and delta
    dkdv = both + math.ceil(N / BLOCK_N) * (both + rows)
    return both, dkdv, both + rows + math.ceil(N / BLOCK_M) * both
    ### END SOLUTION


def kept(N, HEAD_DIM):
    """Floats of out and lse."""
    ### BEGIN SOLUTION
    return N * HEAD_DIM + N
    ### END SOLUTION
