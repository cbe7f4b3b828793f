"""ex02c · Find the bugs: one barrier misplaced, one missing

`broken_kernel` is a layer norm, the other operation of a transformer that works row by row:

    y[row, n] = (x[row, n] - mean) / sqrt(variance + EPS)

with the mean and the variance of the row, variance = mean of (x[row, n] - mean)^2. Like softmax it
reduces twice, and it uses `partial` for both. Its arithmetic is right. One barrier is in the wrong
place, one is missing.

Write `kernel`, the same without the bugs. Copy broken_kernel as it is, grade it, and read the
reports: they name the lines. About three lines change.

x, y      (num_rows, num_cols) float32 in HBM; any num_cols >= 1
launch    kernel[num_rows, NUM_THREADS](x, y): thread block `row` owns row `row`
memory    one shared array of NUM_THREADS float32; x is read three times, y written once
barriers  at most 17 per row, with the 14 of the two calls of fold_sum
"""

import math

from numba import cuda, float32

NUM_THREADS = 128  # leave it as it is
EPS = float32(1e-5)


@cuda.jit(device=True)
def fold_sum(partial, tid):
    """Leave the sum of partial's numbers in partial[0], ready for every thread to read."""
    stride = NUM_THREADS // 2
    while stride > 0:
        if tid < stride:
            partial[tid] += partial[tid + stride]
        cuda.syncthreads()
        stride //= 2


@cuda.jit
def broken_kernel(x, y):
    """Layer norm of each row, with the bugs. Leave it as it is."""
    partial = cuda.shared.array(NUM_THREADS, float32)
    row = cuda.blockIdx.x
    tid = cuda.threadIdx.x
    num_cols = float32(x.shape[1])

    total = float32(0.0)
    for n in range(tid, x.shape[1], NUM_THREADS):
        total += x[row, n]
        partial[tid] = total
        cuda.syncthreads()
    fold_sum(partial, tid)
    mean = partial[0] / num_cols

    total = float32(0.0)
    for n in range(tid, x.shape[1], NUM_THREADS):
        distance = x[row, n] - mean
        total += distance * distance
    partial[tid] = total
    cuda.syncthreads()
    fold_sum(partial, tid)
    deviation = math.sqrt(partial[0] / num_cols + EPS)

    for n in range(tid, x.shape[1], NUM_THREADS):
        y[row, n] = (x[row, n] - mean) / deviation


@cuda.jit
def kernel(x, y):
    """Layer norm of each row; a thread block owns one row."""
    # YOUR CODE HERE
    raise NotImplementedError("ex02c: kernel")


# Stub b079730f of solutions/ex02c_barriers.py: `fa-numba reset ex02c` brings it back.
