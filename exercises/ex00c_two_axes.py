"""ex00c · Two axes: rows and columns

Write a kernel that subtracts two matrices. A thread block may have two axes: a thread then has two
numbers, `cuda.threadIdx.x` and `cuda.threadIdx.y`. Let x count along a row, which makes it the
column, and y down the rows.

    out[row, col] = a[row, col] - b[row, col]

Launch   grid (1,), thread block (threads_x, threads_y): at least one thread per element, and often
         more than that along x, along y, or along both
Arrays   a, b, out (num_rows, num_cols) float32
Rules    a thread without an element does nothing; the threads of a warp touch neighbours in memory

About 4 lines.
"""

from numba import cuda


@cuda.jit
def subtract_matrices(a, b, out):
    """out = a - b, one thread per element, x along a row."""
    # YOUR CODE HERE
    raise NotImplementedError("ex00c: subtract_matrices")


# Stub df34aa33 of solutions/ex00c_two_axes.py: `fa-numba reset ex00c` brings it back.
