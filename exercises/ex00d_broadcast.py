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


@cuda.jit
def rescale(x, shift, scale, out):
    """Each row minus its shift, each column times its scale."""
    col, row = cuda.threadIdx.x, cuda.threadIdx.y
    if row < out.shape[0] and col < out.shape[1]:
        # YOUR CODE HERE
        raise NotImplementedError("ex00d: rescale")


# Stub 643dbd80 of solutions/ex00d_broadcast.py: `fa-numba reset ex00d` brings it back.
