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

### KIND: fill a line
### HINT 1: Two lines name the numbers: one for row, one for col. Then the guard, then the store.
### HINT 2: An array's index goes (row, col), a thread's number goes (x, y), and x belongs to col:
###   the two orders are opposite.
### HINT 3: The guard asks two things, joined by `and`: row < out.shape[0], col < out.shape[1].
### DEBRIEF: Any assignment of threads to elements gives the right answer, so why x along a row?
###   Threads with neighbouring x belong to the same warp, and neighbours in a row are neighbours in
###   memory. Lesson 01 counts what the other choice costs: eight times the memory traffic.


@cuda.jit
def subtract_matrices(a, b, out):
    """out = a - b, one thread per element, x along a row."""
    ### BEGIN SOLUTION
    row = cuda.threadIdx.y
    col = cuda.threadIdx.x
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = a[row, col] - b[row, col]
    ### END SOLUTION
