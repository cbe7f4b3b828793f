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

### HINT 1: A thread block is a row of seats. How many seats stand before the first seat of your
###   thread block? `cuda.blockIdx`, `cuda.blockDim` and `cuda.threadIdx` hold what you need.
### HINT 2: The place in the whole grid is `blockIdx.x * blockDim.x + threadIdx.x`, and the same
###   with `.y` for rows. The last thread block reaches past the end: compare with `out.shape`
###   before touching an element. `cuda.grid(1)` and `cuda.grid(2)` are the same; grid(2) is (x, y).
### HINT 3: `i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x`, then
###   `if i < out.shape[0]: out[i] = factor * x[i]`. In the second kernel `col` comes from `.x`,
###   `row` from `.y`, and the test is `row < out.shape[0] and col < out.shape[1]`.
### DEBRIEF: Every kernel of this workbook starts with these lines. The guard is not optional: a GPU
###   does not check indices, and a thread past the end reads or overwrites somebody else's data.
###   And x along a row is no matter of taste: 32 neighbours in one request lie in 4 sectors of 32
###   bytes, 32 elements of a column in 32. The meter of the lesson shows both.


@cuda.jit
def scale_vector(x, out, factor):
    """out[i] = factor * x[i], one thread per element."""
    ### BEGIN SOLUTION
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < out.shape[0]:
        out[i] = factor * x[i]
    ### END SOLUTION


@cuda.jit
def add_matrices(a, b, out):
    """out[row, col] = a[row, col] + b[row, col], one thread per element, x along a row."""
    ### BEGIN SOLUTION
    col = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    row = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = a[row, col] + b[row, col]
    ### END SOLUTION
