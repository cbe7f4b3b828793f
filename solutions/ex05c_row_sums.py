"""ex05c · Row sums on a budget

y[m] = the sum of row m of x, the l of a softmax. `broken_kernel` is right, and slow: thread m walks
along row m, so that the 32 threads of a warp always read a column. Each of their floats lies in a
sector of its own, and 8 times as much is fetched as is asked for.

Write `kernel`, the same sums for a fraction of the price. The meter counts

    price = sectors of x that are fetched  +  wavefronts of shared memory, loads and stores

Launch   grid (M / 32,), thread block (32,), which is one warp: it owns 32 rows
Arrays   x (M, N), y (M,), float32; M and N are multiples of 32
Price    for M = N = 64: broken_kernel 4096; budget 1200; par 768. Less than par is possible.
HBM      each element of x is loaded once, each y stored once
Shared   at most 4224 bytes, which is one tile of 32 x 33 floats
Compute  in float32

About 9 lines. The lesson prints your price.
"""

from numba import cuda, float32

### KIND: beat a budget
### HINT 1: The transposition of the lesson has the same trouble, and its cure: a tile. Load it
### HINT 1: along rows of x, 32 neighbours at a time; then each thread walks along a row of it.
### HINT 2: Thread t reads tile[t, c]: the warp reads down a column of the tile, and with rows of 32
### HINT 2: floats all 32 threads want the same bank. How long must the rows be? And where do
### HINT 2: barriers go?
### HINT 3: tile = cuda.shared.array((32, 33), float32). For each start in range(0, N, 32): for r in
### HINT 3: range(32): tile[r, t] = x[first + r, start + t]; cuda.syncwarp(); for c in range(32):
### HINT 3: total += tile[t, c]; cuda.syncwarp().
### DEBRIEF: 512 sectors, which is every byte of x once, and 256 wavefronts: 768 in place of 4096.
### DEBRIEF: Under par: let the warp add up a row by shuffles (lesson 03), five for each row; then
### DEBRIEF: there are no wavefronts at all, and the price is 512.
### DEBRIEF: A shuffle is not free, though: it passes through the same unit as a wavefront. A price
### DEBRIEF: that leaves something out can be gamed; on a GPU, measure.


@cuda.jit
def broken_kernel(x, y):
    """Row sums, a thread for each row: every load reads down a column."""
    m = cuda.grid(1)
    total = float32(0)
    for n in range(x.shape[1]):
        total += x[m, n]
    y[m] = total


@cuda.jit
def kernel(x, y):
    """Row sums, a warp for 32 rows."""
    t, first = cuda.threadIdx.x, cuda.blockIdx.x * 32
    total = float32(0)
    ### BEGIN SOLUTION
    tile = cuda.shared.array((32, 33), float32)  # an odd row length: no bank conflicts
    for start in range(0, x.shape[1], 32):
        for r in range(32):
            tile[r, t] = x[first + r, start + t]
        cuda.syncwarp()  # the tile is complete: safe to read
        for c in range(32):
            total += tile[t, c]
        cuda.syncwarp()  # every thread has read its row: safe to overwrite
    y[first + t] = total
    ### END SOLUTION
