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
    # YOUR CODE HERE
    raise NotImplementedError("ex15e: transpose")


# Stub c486481e of solutions/ex15e_transpose.py: `fa-numba reset ex15e` brings it back.
