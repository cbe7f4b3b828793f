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

### KIND: find the bug
### HINT 1: Go through the lines with a unit for each number: FLOP, elements, bytes, bytes per
###   second of one direction.
### HINT 2: A multiplication and an addition for each of m n k terms. Two bytes in a float16. Copies
###   to the GPU and back do not overlap here, so each has one direction of the bus.
### HINT 3: Arithmetic and HBM traffic overlap inside of a kernel: the product takes the longer of
###   the two, max(...), not their sum.
### DEBRIEF: Two of these mistakes make an estimate shorter, two make it longer, so the sum may well
###   look right: "about right" is no test. One case for each term is. The factor of two of PCIe and
###   NVLink is the one most often met in print: 64 GB/s of PCIe 4.0 and 600 GB/s of NVLink 3 are
###   sums of both directions.


def wrong_estimate(m, n, k, peak, bandwidth, pcie):
    """Seconds for a product of matrices, copies included; four lines are wrong."""
    flops = m * n * k
    loaded, stored = 4 * (m * k + k * n), 4 * m * n
    product = flops / peak + (loaded + stored) / bandwidth
    copies = (loaded + stored) / pcie
    return copies + product


def estimate(m, n, k, peak, bandwidth, pcie):
    """Seconds for a product of matrices, copies included."""
    ### BEGIN SOLUTION
    flops = 2 * m * n * k
    loaded, stored = 2 * (m * k + k * n), 2 * m * n
    product = max(flops / peak, (loaded + stored) / bandwidth)
    copies = (loaded + stored) / (pcie / 2)
    return copies + product
    ### END SOLUTION
