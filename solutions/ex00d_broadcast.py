"""ex00d · Broadcast: one number for a whole row

Fill in the line that shifts each row of a matrix by a number of its own, and scales each column by
another. In NumPy it is `(x - shift[:, None]) * scale`; NumPy calls it broadcasting. In a kernel
nothing has to be stretched: every thread looks up the two numbers that it needs.

    out[row, col] = (x[row, col] - shift[row]) * scale[col]

Launch   grid (1,), thread block (threads_x, threads_y), at least one thread per element
Arrays   x, out (num_rows, num_cols); shift (num_rows,); scale (num_cols,); all float32
Rules    x, shift and scale are read once per thread that has an element, and not written

About 1 line.
"""

from numba import cuda

### KIND: fill a line
### HINT 1: shift has an element for each row, scale one for each column.
### HINT 2: The thread knows its row and its col: shift[row], scale[col].
### HINT 3: out[row, col] is assigned the difference of x[row, col] and shift[row], in brackets,
###   times scale[col].
### DEBRIEF: shift has one number per row, and is read once per element of the row: the meter of the
###   lesson shows it. The 32 threads of a warp mostly ask for the same number, which costs one
###   piece of memory and not 32. With the maximum of the row as shift this is the first step of a
###   softmax, the subject of lesson 02.


@cuda.jit
def rescale(x, shift, scale, out):
    """Each row minus its shift, each column times its scale."""
    col, row = cuda.threadIdx.x, cuda.threadIdx.y
    if row < out.shape[0] and col < out.shape[1]:
        ### BEGIN SOLUTION
        out[row, col] = (x[row, col] - shift[row]) * scale[col]
        ### END SOLUTION
