"""ex05a · Find the race

`broken_kernel` subtracts from every row its largest element: y = x - max(row of x), the first step
of a safe softmax. x and y are (num_rows, num_cols) float32. A thread block takes the rows
blockIdx.x, blockIdx.x + gridDim.x, ... one after the other: its threads reduce a row to its maximum
in the shared array `partial`, read it, subtract it, and go on to their next row.

It passes every test with one thread block per row. Launch fewer thread blocks than rows, and it
races. On a GPU the answer is then wrong now and then, which is the worst way to be wrong; the CPU
engine names the two lines. One more barrier per row would end the race, as in ex02c, and make all
threads wait once more.

Write `kernel`, the same without the race and without a further barrier. Shared memory may be twice
as large. Copy broken_kernel and mend it, or find your own way.

Launch   any grid (num_blocks,), also fewer thread blocks than rows; thread block (THREADS,)
Rows     shared out among the thread blocks, and columns among the threads, as before. Any finite
         number may be the largest of a row, -3e38 as well
HBM      x is loaded at most twice, y stored once, neighbours by neighbouring threads, as before
Shared   at most 2 * THREADS float32, no local array
Barriers at most 7 per row, as broken_kernel has
"""

import math

from numba import cuda, float32

THREADS = 64  # leave it as it is


@cuda.jit
def broken_kernel(x, y):
    """y = x - row maximum, with a race."""
    partial = cuda.shared.array(THREADS, float32)
    tid = cuda.threadIdx.x
    for row in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
        best = float32(-math.inf)
        for col in range(tid, x.shape[1], THREADS):
            best = max(best, x[row, col])
        partial[tid] = best
        cuda.syncthreads()  # every thread's maximum is there: safe to compare
        half = THREADS // 2
        while half > 0:
            if tid < half:
                partial[tid] = max(partial[tid], partial[tid + half])
            cuda.syncthreads()  # this step's maxima are there: safe to take the next step
            half //= 2
        row_max = partial[0]
        for col in range(tid, x.shape[1], THREADS):
            y[row, col] = x[row, col] - row_max


@cuda.jit
def kernel(x, y):
    """y = x - row maximum."""
    # YOUR CODE HERE
    raise NotImplementedError("ex05a: kernel")


# Stub 3afd8edc of solutions/ex05a_find_the_race.py: `fa-numba reset ex05a` brings it back.
