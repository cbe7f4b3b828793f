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

### KIND: find the bug
### HINT 1: Run broken_kernel on 4 rows with 2 thread blocks and read the report: which line reads,
### which line writes? In which iteration of the loop over rows is the one, and in which the other?
### HINT 2: Take two arrays, one for even iterations and one for odd ones. The next row is then
### written where no thread reads. And the row after it: which barriers come before that write?
### HINT 3: buffers = cuda.shared.array((2, THREADS), float32) before the loop over rows, and in it,
### first of all, partial = buffers[row // cuda.gridDim.x % 2]. The rest stays as it is.
### DEBRIEF: A barrier separates a write from the reads that need it (RAW), and also a read from the
### write that overwrites the same element (WAR). People forget the second kind: the first iteration
### of a loop is right without it. Two buffers need no barrier for it: between the read of a
### buffer and the next write to it lie all barriers of the next iteration. This is **double
### buffering**. It costs shared memory and saves a wait. FlashAttention protects its tiles of K and
### V by a barrier (lesson 07) or by several buffers, so that the next tile can be loaded while this
### one is used (lesson 13).


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
    ### BEGIN SOLUTION
    buffers = cuda.shared.array((2, THREADS), float32)  # for even and odd iterations
    tid = cuda.threadIdx.x
    for row in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
        partial = buffers[row // cuda.gridDim.x % 2]  # not the one of the row before
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
    ### END SOLUTION
