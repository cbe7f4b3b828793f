"""ex15e · A budget of sectors: transpose

`broken_kernel` writes y = x.T. It reads along the rows of x and writes down the columns of y, so
that each request of a store touches 32 sectors. Lesson 05 mends that with a tile of 32 x 33 floats.

Write `transpose`: the thread block reads a tile of 32 x 32 along the rows of x, keeps it in shared
memory, and writes it along the rows of y.

Launch   grid (cols / 32, rows / 32), thread block (32, 8): thread block (bx, by) has rows 32 by,
         ... and columns 32 bx, ... of x
Arrays   x (rows, cols), y (cols, rows), float32; both sides are multiples of 32
Budget   sectors   x and y once: 4 sectors for each request
         shared    4224 bytes, no bank conflict; par: 4096 bytes
"""

from numba import cuda, float32

### KIND: beat a budget
### HINT 1: A thread moves four numbers: for i in range(ty, 32, 8). Between the loop that fills the
### HINT 1: tile and the loop that empties it comes a barrier. The thread that stores a number is
### HINT 1: not the one that has loaded it.
### HINT 2: tile[i, tx] = x[row + i, col + tx], where row = 32 * blockIdx.y, col = 32 * blockIdx.x.
### HINT 2: Then y[col + i, row + tx] = tile[tx, i]: that reads down a column of the tile. Which
### HINT 2: banks are these, if a row has 32 floats?
### HINT 3: Rows of 33 floats, cuda.shared.array((32, 33), float32), have no conflict: 4224 bytes.
### HINT 3: For par, store element [i, j] at tile[i, (i + j) % 32].
### DEBRIEF: On the H200 this costs 0.238 ms in place of 0.990 for 8192 x 8192, and 0.373 with the
### DEBRIEF: conflicts. So uncoalesced stores cost more than conflicts, and both cost more than they
### DEBRIEF: look. A plain copy takes 0.129. Par moves each row of the tile by one element more than
### DEBRIEF: the row before: no padding. Tensor cores' tiles do it by XOR, which is called a
### DEBRIEF: swizzle.


@cuda.jit
def broken_kernel(x, y):
    """y = x.T, written down columns."""
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = 32 * cuda.blockIdx.y, 32 * cuda.blockIdx.x
    for i in range(ty, 32, 8):
        y[col + tx, row + i] = x[row + i, col + tx]


@cuda.jit
def transpose(x, y):
    """y = x.T, through a tile in shared memory."""
    ### BEGIN SOLUTION
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = 32 * cuda.blockIdx.y, 32 * cuda.blockIdx.x
    tile = cuda.shared.array((32, 32), float32)
    for i in range(ty, 32, 8):
        tile[i, (i + tx) % 32] = x[row + i, col + tx]
    cuda.syncthreads()  # the tile is complete: safe to read
    for i in range(ty, 32, 8):
        y[col + i, row + tx] = tile[tx, (tx + i) % 32]
    ### END SOLUTION
