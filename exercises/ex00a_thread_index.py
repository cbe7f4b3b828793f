"""ex00a · Which element is mine?

A kernel is one function that thousands of threads run at once. Each thread finds its own piece of
the work from two numbers: which thread block it is in, and which place it has there.

Write two kernels. Every thread handles one element, neighbouring threads neighbouring elements, and
a thread without an element does nothing.

scale_vector(x, out, factor)    x, out (n,) float32: out[i] = factor * x[i]
    grid (num_blocks,), thread blocks (threads,); there may be more threads than elements

add_matrices(a, b, out)         a, b, out (num_rows, num_cols) float32: out = a + b
    grid (blocks_x, blocks_y), thread blocks (threads_x, threads_y); x runs along a row, so that the
    threads of a warp touch neighbours in memory, and y runs down the rows

Write nothing but `out`, each element once; read each element of x, a and b once; use no shared
memory and no local arrays.
About 3 lines each.
"""

from numba import cuda


@cuda.jit
def scale_vector(x, out, factor):
    """out[i] = factor * x[i], one thread per element."""
    # YOUR CODE HERE
    raise NotImplementedError("ex00a: scale_vector")


@cuda.jit
def add_matrices(a, b, out):
    """out[row, col] = a[row, col] + b[row, col], one thread per element, x along a row."""
    # YOUR CODE HERE
    raise NotImplementedError("ex00a: add_matrices")


# Stub 7af13ecd of solutions/ex00a_thread_index.py: `fa-numba reset ex00a` brings it back.
