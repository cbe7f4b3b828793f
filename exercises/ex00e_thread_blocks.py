"""ex00e · Thread blocks: more elements than one of them has threads

Add two matrices of any size. A thread block has at most 1024 threads, so the matrix is cut into
pieces of the thread block's shape, and each thread block of the grid gets one of them.

num_blocks(n, threads)       how many thread blocks, of `threads` threads each, n elements need: the
                             smallest whole number; n is at least 1
add_matrices(a, b, out)      out = a + b, one thread per element

Launch   grid (num_blocks(num_cols, threads_x), num_blocks(num_rows, threads_y)),
         thread blocks (threads_x, threads_y)
Arrays   a, b, out (num_rows, num_cols) float32
Rules    x along a row; a thread without an element does nothing

About 5 lines in all. The numbers of a thread block are cuda.blockIdx.x and .y, its sizes
cuda.blockDim.x and .y.
"""

from numba import cuda


def num_blocks(n, threads):
    """The number of thread blocks, of `threads` threads each, that n elements need."""
    # YOUR CODE HERE
    raise NotImplementedError("ex00e: num_blocks")


@cuda.jit
def add_matrices(a, b, out):
    """out = a + b, one thread per element, x along a row."""
    # YOUR CODE HERE
    raise NotImplementedError("ex00e: add_matrices")


# Stub da6d61ce of solutions/ex00e_thread_blocks.py: `fa-numba reset ex00e` brings it back.
