"""ex15c · Find the bug: the right sums, too slowly

`broken_kernel` adds up the rows of x. A warp has a row, and each of its 32 lanes adds up a part of
it; five shuffles add the parts. The result is right, and the kernel moves eight times as many bytes
through HBM as x has.

Ask the meter which line it is, in a notebook or in a terminal:

    fa-numba trace exercises/ex15c_lanes.py:broken_kernel --grid 8 --block 32,4
        'x=f4[32,512]' 'total=f4[32]:zeros'

(one line). Write `kernel`: copy broken_kernel and mend it. One line changes.

Launch   grid (ceil(rows / 4),), thread block (32, 4): warp ty of a thread block has a row
Arrays   x (rows, cols), total (rows,), float32; any number of columns
HBM      x is loaded once; with 32 or more columns left, each request moves as few sectors as
         it can
"""

from numba import cuda, float32

FULL_WARP = 0xFFFFFFFF


@cuda.jit
def broken_kernel(x, total):
    """Sums of rows, a part of the row in each lane."""
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    if row < x.shape[0]:
        acc = float32(0)
        part = (x.shape[1] + 31) // 32
        for col in range(lane * part, min(lane * part + part, x.shape[1])):
            acc += x[row, col]
        for step in range(5):
            acc += cuda.shfl_xor_sync(FULL_WARP, acc, 16 >> step)
        if lane == 0:
            total[row] = acc


@cuda.jit
def kernel(x, total):
    """Sums of rows; each request moves as few sectors as it can."""
    # YOUR CODE HERE
    raise NotImplementedError("ex15c: kernel")


# Stub 377900a2 of solutions/ex15c_lanes.py: `fa-numba reset ex15c` brings it back.
