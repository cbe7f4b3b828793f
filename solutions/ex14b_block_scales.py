"""ex14b · A scale for each block of rows

Before it is rounded to e4m3, a matrix is divided by a scale, so that its largest number becomes
448; afterwards it is multiplied by it again. Write the kernel that gives each block of rows a scale
of its own: the first kernel of every attention in 8 bits.

launch   kernel[ceil(rows / block_rows), NUM_THREADS](x, x8, scales, block_rows): a thread block for
         each block of rows
arrays   x (rows, columns) float32; the last block may have fewer rows
         x8 (rows, columns) float32: round_e4m3(x / scale), the e4m3 numbers. (On a GPU they would
         be one byte each.)
         scales (blocks,) float32: largest absolute value / 448; 1 if all are zeros
HBM      x is loaded twice, x8 stored once; neighbouring threads take neighbouring columns

largest_of and round_e4m3 are given; round_e4m3 saturates: beyond 448 it returns 448. In float32
throughout. About 11 lines.
"""

import math

from numba import cuda, float32

NUM_THREADS = 64
E4M3_MAX = 448.0

### KIND: write
### HINT 1: Which number has to become 448? Signs do not matter. Every thread must know the scale
### HINT 1: before the first number is rounded: two loops, and largest_of between them.
### HINT 2: The rows first ... stop - 1 of a block are (stop - first) * columns numbers in one
### HINT 2: piece: number i is row first + i // columns, column i % columns. Zeros need a scale,
### HINT 2: too: 0 / 0 is NaN.
### HINT 3: stop = min(first + block_rows, x.shape[0]); for i in range(tx, (stop - first) * columns,
### HINT 3: NUM_THREADS): largest = max(largest, abs(x[...])). scale = largest / float32(E4M3_MAX)
### HINT 3: if largest > 0 else float32(1). Thread 0 stores scales[block].
### DEBRIEF: A tile of K has one scale then, which enters softmax_scale: it costs nothing. Of V it
### DEBRIEF: is harder, since P V adds up tiles of different scales: that is ex14c. An outlier
### DEBRIEF: coarsens the numbers of its own block alone; how little that helps with floats, you see
### DEBRIEF: below. The kernel reads x twice because a block of 128 rows of 128 does not fit into
### DEBRIEF: the registers of 64 threads; quantize_fp8 of the package has more threads, and reads it
### DEBRIEF: once.


@cuda.jit(device=True)
def largest_of(part, x):
    """The largest x of the thread block, in every thread. part (NUM_THREADS,) is shared."""
    tx = cuda.threadIdx.x
    part[tx] = x
    step = NUM_THREADS // 2
    while step > 0:
        cuda.syncthreads()  # part is complete up to 2 * step
        if tx < step:
            part[tx] = max(part[tx], part[tx + step])
        step //= 2
    cuda.syncthreads()  # part[0] is complete
    return part[0]


@cuda.jit(device=True)
def round_e4m3(x):
    """The nearest e4m3 number; beyond the largest, the largest."""
    x = min(max(x, float32(-E4M3_MAX)), float32(E4M3_MAX))
    _, exponent = math.frexp(x)  # |x| = f 2^exponent, 1/2 <= f < 1
    step = math.ldexp(float32(1.0), max(exponent - 1, -6) - 3)
    to_even = float32(12582912.0)  # 1.5 2^23: what is added to it is rounded to an integer
    return (x / step + to_even - to_even) * step


@cuda.jit
def kernel(x, x8, scales, block_rows):
    """x in e4m3, with a scale for each block of rows."""
    part = cuda.shared.array(NUM_THREADS, float32)
    tx, block = cuda.threadIdx.x, cuda.blockIdx.x
    ### BEGIN SOLUTION
    first = block * block_rows
    stop = min(first + block_rows, x.shape[0])
    columns = x.shape[1]
    largest = float32(0.0)
    for i in range(tx, (stop - first) * columns, NUM_THREADS):
        largest = max(largest, abs(x[first + i // columns, i % columns]))
    largest = largest_of(part, largest)
    scale = largest / float32(E4M3_MAX) if largest > 0 else float32(1.0)
    for i in range(tx, (stop - first) * columns, NUM_THREADS):
        row, column = first + i // columns, i % columns
        x8[row, column] = round_e4m3(x[row, column] / scale)
    if tx == 0:
        scales[block] = scale
    ### END SOLUTION
