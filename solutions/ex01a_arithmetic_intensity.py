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

### KIND: predict
### HINT 1: For each function write down two numbers first: how many FLOPs, and how many elements
###   cross the HBM boundary. Then divide.
### HINT 2: A product of (m, k) and (k, n) is 2 m n k FLOPs, so the two of attention are 4 N^2 d.
###   Q, K, V, O are 4 N d elements. S and P have N^2 elements each, and each moves twice.
### HINT 3: standard_attention: `4 * N * N * d / (dtype_bytes * (4 * N * d + 4 * N * N))`.
###   ridge_point: time for F FLOPs is F / peak_flops, time for B bytes is B / bandwidth; they are
###   equal when F / B = peak_flops / bandwidth. attainable_flops is the smaller of two numbers.
### DEBRIEF: The intensity of standard attention tends to d / dtype_bytes however long the sequence:
###   with d = 64 in float16 that is 32, and a tensor core wants 200 on an A100. Fused, it is
###   N / dtype_bytes and grows without bound. FlashAttention is between the two. Lesson 04
###   counts its bytes: it cannot keep all of K and V on the chip, so it reads them once per tile
###   of queries.


def vector_add(n, dtype_bytes):
    """FLOP per byte of out = a + b over n elements."""
    ### BEGIN SOLUTION
    return n / (3 * n * dtype_bytes)
    ### END SOLUTION


def matmul(m, n, k, dtype_bytes):
    """FLOP per byte of C (m, n) = A (m, k) @ B (k, n)."""
    ### BEGIN SOLUTION
    return 2 * m * n * k / (dtype_bytes * (m * k + k * n + m * n))
    ### END SOLUTION


def standard_attention(N, d, dtype_bytes):
    """FLOP per byte of attention that keeps S and P in HBM."""
    ### BEGIN SOLUTION
    return 4 * N * N * d / (dtype_bytes * (4 * N * d + 4 * N * N))
    ### END SOLUTION


def fused_attention(N, d, dtype_bytes):
    """FLOP per byte of attention that keeps S and P on the chip."""
    ### BEGIN SOLUTION
    return 4 * N * N * d / (dtype_bytes * 4 * N * d)
    ### END SOLUTION


def ridge_point(peak_flops, bandwidth):
    """FLOP per byte at which a GPU's arithmetic and its memory are equally busy."""
    ### BEGIN SOLUTION
    return peak_flops / bandwidth
    ### END SOLUTION


def attainable_flops(intensity, peak_flops, bandwidth):
    """FLOP/s that the roofline allows at this arithmetic intensity."""
    ### BEGIN SOLUTION
    return min(peak_flops, intensity * bandwidth)
    ### END SOLUTION
