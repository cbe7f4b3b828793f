"""ex01a · Arithmetic intensity and the roofline

A GPU does two things at once: it computes, and it moves bytes between HBM and the chip. The slower
of the two sets the pace. Arithmetic intensity, FLOP per byte of HBM traffic, says which it will be.

Count so: an addition, a multiplication, an exp, a comparison is one FLOP each; every input is read
from HBM once, every output is written once, unless the docstring says otherwise. `dtype_bytes` is
the size of one element. Return plain numbers, by a formula: no loop, no array. About one line each.

vector_add           out[i] = a[i] + b[i], n elements
matmul               C = A @ B with A (m, k), B (k, n): a multiplication and an addition for each
                     of the m * n * k terms
standard_attention   S = Q K^T, P = softmax(S), O = P V with Q, K, V, O (N, d): count the FLOPs of
                     the two products only. S is written once and read once, and so is P
fused_attention      the same FLOPs; S and P never leave the chip
ridge_point          the intensity at which moving the bytes takes as long as the arithmetic
attainable_flops     FLOP/s that the roofline allows: no more than the peak, no more than the
                     memory can feed
"""


def vector_add(n, dtype_bytes):
    """FLOP per byte of out = a + b over n elements."""
    # YOUR CODE HERE
    raise NotImplementedError("ex01a: vector_add")


def matmul(m, n, k, dtype_bytes):
    """FLOP per byte of C (m, n) = A (m, k) @ B (k, n)."""
    # YOUR CODE HERE
    raise NotImplementedError("ex01a: matmul")


def standard_attention(N, d, dtype_bytes):
    """FLOP per byte of attention that keeps S and P in HBM."""
    # YOUR CODE HERE
    raise NotImplementedError("ex01a: standard_attention")


def fused_attention(N, d, dtype_bytes):
    """FLOP per byte of attention that keeps S and P on the chip."""
    # YOUR CODE HERE
    raise NotImplementedError("ex01a: fused_attention")


def ridge_point(peak_flops, bandwidth):
    """FLOP per byte at which a GPU's arithmetic and its memory are equally busy."""
    # YOUR CODE HERE
    raise NotImplementedError("ex01a: ridge_point")


def attainable_flops(intensity, peak_flops, bandwidth):
    """FLOP/s that the roofline allows at this arithmetic intensity."""
    # YOUR CODE HERE
    raise NotImplementedError("ex01a: attainable_flops")


# Stub 1bd662b0 of solutions/ex01a_arithmetic_intensity.py: `fa-numba reset ex01a` brings it back.
