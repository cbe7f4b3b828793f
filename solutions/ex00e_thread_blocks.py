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

### KIND: fill a line
### HINT 1: How many columns lie to the left of the first column of your thread block? As many as
###   the thread blocks to the left of it have threads along x.
### HINT 2: col is blockIdx.x * blockDim.x + threadIdx.x, and row is the same with .y. For the
###   number of thread blocks round up: 1000 elements in 128s are 7 whole ones and a bit.
### HINT 3: Rounding up without a float: (n + threads - 1) // threads, or -(-n // threads). The
###   guard is that of ex00c.
### DEBRIEF: Nearly every kernel of this workbook starts with such lines. `cuda.grid(1)` and
###   `cuda.grid(2)` are short for them; `col, row = cuda.grid(2)`, in this order. Thread blocks are
###   independent: a GPU runs them in any order, many at a time if it has many SMs. That is why the
###   same launch fits a small and a large GPU.


def num_blocks(n, threads):
    """The number of thread blocks, of `threads` threads each, that n elements need."""
    ### BEGIN SOLUTION
    return (n + threads - 1) // threads
    ### END SOLUTION


@cuda.jit
def add_matrices(a, b, out):
    """out = a + b, one thread per element, x along a row."""
    ### BEGIN SOLUTION
    col = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    row = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = a[row, col] + b[row, col]
    ### END SOLUTION
