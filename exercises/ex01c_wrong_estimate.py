"""ex01c · Find the bug: somebody's estimate

`wrong_estimate` is meant to return the least time, in seconds, for a product of matrices in
float16. A and B come from the CPU's memory over PCIe, the product is computed on the GPU, and C
goes back over PCIe. The three steps follow each other. A, B and C move through HBM once.

It was checked against a table of a vendor's talk, where it was "about right". Write `estimate`, the
same with its mistakes mended; four lines change. The grader tries cases in which one of them alone
decides.

estimate(m, n, k, peak, bandwidth, pcie)    C (m, n) = A (m, k) @ B (k, n)
    peak         FLOP/s in float16; a fused multiply-add (FMA) is two FLOPs
    bandwidth    bytes per second of HBM
    pcie         bytes per second of PCIe as data sheets print it: both directions added
    returns      seconds
"""


def wrong_estimate(m, n, k, peak, bandwidth, pcie):
    """Seconds for a product of matrices, copies included; four lines are wrong."""
    flops = m * n * k
    loaded, stored = 4 * (m * k + k * n), 4 * m * n
    product = flops / peak + (loaded + stored) / bandwidth
    copies = (loaded + stored) / pcie
    return copies + product


def estimate(m, n, k, peak, bandwidth, pcie):
    """Seconds for a product of matrices, copies included."""
    # YOUR CODE HERE
    raise NotImplementedError("ex01c: estimate")


# Stub 728739cc of solutions/ex01c_wrong_estimate.py: `fa-numba reset ex01c` brings it back.
