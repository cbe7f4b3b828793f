"""The functions of `rows` and AdamW as kernels, for a GPU: one pass over their arrays each.

CuPy's expressions would read and write an array for every operation in them. All sums are float32.
"""

import math

from numba import cuda, float32

from fa_numba.constants import FULL_WARP, WARP_SIZE

ROWS = 4  # rows of the norm, or heads, and warps, of a thread block
BLOCK = WARP_SIZE, ROWS
THREADS = 256
WARPS = THREADS // WARP_SIZE
PARTS = 528  # of a sum of squares: 4 thread blocks for each SM of an H200
EACH = 8  # numbers of a thread of the squared ReLU


@cuda.jit(device=True)
def warp_sum(x):
    """The sum of x over the lanes of a warp, in each of them."""
    for step in range(5):
        x += cuda.shfl_xor_sync(FULL_WARP, x, 16 >> step)
    return x


@cuda.jit
def normalize_kernel(x, y, epsilon):
    """y = x / √(mean(x²) + ε), a warp per row.

    grid      (⌈rows / ROWS⌉,); threads (32, ROWS)
    shared    none
    private   total
    HBM       x twice, the second time from a cache; y once
    budget    32 registers, 0 bytes shared
    """
    row, lane, width = cuda.blockIdx.x * ROWS + cuda.threadIdx.y, cuda.threadIdx.x, x.shape[1]
    if row < x.shape[0]:
        total = float32(0.0)
        for d in range(lane, width, WARP_SIZE):
            total += float32(x[row, d]) * float32(x[row, d])
        inverse_rms = float32(1.0) / math.sqrt(warp_sum(total) / float32(width) + epsilon)
        for d in range(lane, width, WARP_SIZE):
            y[row, d] = float32(x[row, d]) * inverse_rms


@cuda.jit
def normalize_grad_kernel(dy, x, added, dx, epsilon):
    """dx = added + (dy − y · mean(dy ∘ y)) / √(mean(x²) + ε), a warp per row.

    With r = 1 / √(mean(x²) + ε): y = r x, so that y · mean(dy ∘ y) = r² x · mean(dy ∘ x).

    grid      (⌈rows / ROWS⌉,); threads (32, ROWS)
    shared    none
    private   squares, products
    HBM       dy and x twice, the second time from a cache; added, dx once
    budget    40 registers, 0 bytes shared
    """
    row, lane, width = cuda.blockIdx.x * ROWS + cuda.threadIdx.y, cuda.threadIdx.x, x.shape[1]
    if row < x.shape[0]:
        squares, products = float32(0.0), float32(0.0)
        for d in range(lane, width, WARP_SIZE):
            squares += float32(x[row, d]) * float32(x[row, d])
            products += float32(x[row, d]) * float32(dy[row, d])
        r = float32(1.0) / math.sqrt(warp_sum(squares) / float32(width) + epsilon)
        of_x = r * r * (warp_sum(products) / float32(width))
        for d in range(lane, width, WARP_SIZE):
            change = r * (float32(dy[row, d]) - of_x * float32(x[row, d]))
            dx[row, d] = float32(added[row, d]) + change


@cuda.jit
def rotate_kernel(x, y, positions, cos, sin, sign):
    """y has the pairs (x[d], x[d + half]) of each head, turned by the angles of a position.

    y may be x: a thread reads a pair before it writes it, and no other thread has that pair.

    grid      (rows,); threads (32, ROWS), one per pair, then the pairs 32 and heads ROWS further on
    shared    none
    private   none
    HBM       x read and y written once; cos, sin from a cache
    budget    64 registers, 0 bytes shared
    """
    row, half = cuda.blockIdx.x, x.shape[2] // 2
    position = positions[row]
    for d in range(cuda.threadIdx.x, half, WARP_SIZE):
        c, s = cos[position, d], sign * sin[position, d]
        for head in range(cuda.threadIdx.y, x.shape[1], ROWS):
            left, right = float32(x[row, head, d]), float32(x[row, head, d + half])
            y[row, head, d] = left * c - right * s
            y[row, head, d + half] = right * c + left * s


@cuda.jit
def square_relu_kernel(x, y):
    """y = max(x, 0)², of arrays with one axis.

    grid      (⌈numbers / (THREADS · EACH)⌉,); threads (THREADS,), each for EACH numbers: it loads
              all of them before it stores one, so that many loads are in flight
    shared    none
    private   positive (EACH,)
    HBM       x, y once
    budget    32 registers, 0 bytes shared
    """
    first = cuda.blockIdx.x * (THREADS * EACH) + cuda.threadIdx.x
    positive = cuda.local.array(EACH, float32)
    for j in range(EACH):
        i = first + j * THREADS
        positive[j] = max(float32(x[i]), float32(0.0)) if i < x.shape[0] else float32(0.0)
    for j in range(EACH):
        i = first + j * THREADS
        if i < x.shape[0]:
            y[i] = positive[j] * positive[j]


@cuda.jit
def square_relu_grad_kernel(dy, x, dx):
    """dx = 2 · max(x, 0) · dy, of arrays with one axis.

    grid      (⌈numbers / (THREADS · EACH)⌉,); threads (THREADS,), each for EACH numbers
    shared    none
    private   product (EACH,)
    HBM       dy, x, dx once
    budget    32 registers, 0 bytes shared
    """
    first = cuda.blockIdx.x * (THREADS * EACH) + cuda.threadIdx.x
    product = cuda.local.array(EACH, float32)
    for j in range(EACH):
        i = first + j * THREADS
        if i < x.shape[0]:
            product[j] = max(float32(x[i]), float32(0.0)) * float32(dy[i])
    for j in range(EACH):
        i = first + j * THREADS
        if i < x.shape[0]:
            dx[i] = float32(2.0) * product[j]


@cuda.jit
def sum_of_squares_kernel(x, parts):
    """Parts of the sum of x², of arrays with one axis: the same in every run, without atomics.

    grid      (PARTS,); threads (THREADS,), each for every PARTS · THREADS-th number
    shared    of_warp (WARPS,)
    private   total
    HBM       x, parts once
    budget    40 registers, 32 bytes shared
    """
    of_warp = cuda.shared.array(WARPS, float32)
    thread, total = cuda.threadIdx.x, float32(0.0)
    for i in range(cuda.blockIdx.x * THREADS + thread, x.shape[0], PARTS * THREADS):
        total += x[i] * x[i]
    total = warp_sum(total)
    if thread % WARP_SIZE == 0:
        of_warp[thread // WARP_SIZE] = total
    cuda.syncthreads()  # the sums of all warps are there
    if thread == 0:
        total = float32(0.0)
        for warp in range(WARPS):
            total += of_warp[warp]
        parts[cuda.blockIdx.x] = total


@cuda.jit
def adamw_kernel(weights, averages, squares, grads, square_of_norm, numbers, epsilon):
    """AdamW, a thread per weight.

    The numbers of a step are in an array, so that a CUDA graph can run with others.

    grid      (⌈weights / THREADS⌉,); threads (THREADS,)
    shared    none
    private   none
    HBM       weights, averages, squares read and written once; grads read once; square_of_norm
              (1,) and numbers (6,) from a cache
    paper     Loshchilov and Hutter 2019, arXiv:1711.05101, Algorithm 2
    budget    32 registers, 0 bytes shared
    """
    i = cuda.grid(1)
    if i < weights.shape[0]:
        keep1, keep2, rate = numbers[0], numbers[1], numbers[2]
        unbias, kept, clip = numbers[3], numbers[4], numbers[5]
        factor = min(float32(1.0), clip / (math.sqrt(square_of_norm[0]) + epsilon))
        g = grads[i] * factor
        m = averages[i] + (float32(1.0) - keep1) * (g - averages[i])
        s = squares[i] + (float32(1.0) - keep2) * (g * g - squares[i])
        averages[i], squares[i] = m, s
        weights[i] = kept * weights[i] - rate * m / (math.sqrt(s * unbias) + epsilon)
