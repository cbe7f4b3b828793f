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

### KIND: find the bug
### HINT 1: A request is what the 32 lanes of a warp load at the same time. In the first iteration,
### HINT 1: which columns do lanes 0, 1 and 2 load, if a row has 512?
### HINT 2: 32 floats that are neighbours are 4 sectors. 32 floats that are 16 apart are 32 sectors.
### HINT 2: So in each iteration lane 1 must load the neighbour of what lane 0 loads.
### HINT 3: for col in range(lane, x.shape[1], 32)
### DEBRIEF: A core of a CPU wants a part of its own, in one piece, because its cache is its own.
### DEBRIEF: The lanes of a warp load together, and want neighbours. The meter says so without a
### DEBRIEF: GPU: 32 sectors a request, 12 % of the bytes used. In ncu the same two counters are
### DEBRIEF: l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum over l1tex__t_requests_..., and its rule
### DEBRIEF: "uncoalesced global accesses" names the line.


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
    ### BEGIN SOLUTION
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    if row < x.shape[0]:
        acc = float32(0)
        for col in range(lane, x.shape[1], 32):
            acc += x[row, col]
        for step in range(5):
            acc += cuda.shfl_xor_sync(FULL_WARP, acc, 16 >> step)
        if lane == 0:
            total[row] = acc
    ### END SOLUTION
