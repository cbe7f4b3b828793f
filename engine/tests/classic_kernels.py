"""Kernels of courses and textbooks, for the second gear: what it must run, and how fast.

Each has a launch of a size that a test can afford, and one as in a lesson.
"""

import math
from dataclasses import dataclass

import numpy as np
from numba import cuda, float32, int32, int64
from simt_kernels import jitted

from numba_cuda_simulator.names import python_function

TILE, PADDED = 16, 17
CLASSICS = []


@dataclass(frozen=True)
class Classic:
    """A kernel and its launches: `launch(size)` returns grid, thread block and arguments."""

    kernel: object
    launch: object
    small: int
    large: int
    times: int = 1  # so often a lesson launches it

    @property
    def name(self):
        return python_function(self.kernel).__name__


def classic(small, large, launch, times=1):
    def add(kernel):
        kernel = jitted(kernel)
        CLASSICS.append(Classic(kernel, launch, small, large, times))
        return kernel

    return add


def floats(*shape):
    return np.random.default_rng(0).random(shape, np.float32)


def integers(high, *shape):
    return np.random.default_rng(0).integers(0, high, shape)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def over(n, threads=64):
    """Grid and thread block of one thread for each of n elements."""
    return -(-n // threads), threads


def square(n):
    """The same for n x n elements."""
    return (-(-n // TILE),) * 2, (TILE, TILE)


# --- threads alone ----------------------------------------------------------------------------


@classic(20, 10_000, lambda n: (*over(1536), n, np.arange(1, 1537), zeros(1536, dtype="f8")))
def pi(n, seeds, out):
    i = cuda.grid(1)
    seed = seeds[i]
    inside = 0
    for _ in range(n):
        seed = (seed * 1103515245 + 12345) % 2147483648
        x = seed / 2147483648
        seed = (seed * 1103515245 + 12345) % 2147483648
        y = seed / 2147483648
        if x * x + y * y <= 1.0:
            inside += 1
    out[i] = 4.0 * inside / n


@classic(40, 1024, lambda n: (*square(n), zeros(n, n, dtype=np.uint8), 200))
def mandelbrot(image, most):
    x, y = cuda.grid(2)
    if y < image.shape[0] and x < image.shape[1]:
        cr = -2.0 + 3.0 * x / image.shape[1]
        ci = -1.5 + 3.0 * y / image.shape[0]
        zr = zi = 0.0
        turns = 0
        while turns < most and zr * zr + zi * zi <= 4.0:
            zr, zi = zr * zr - zi * zi + cr, 2 * zr * zi + ci
            turns += 1
        image[y, x] = turns


@classic(20, 200, lambda n: (*over(256), integers(1000, 256, n)))
def quicksort(x):
    i = cuda.grid(1)
    stack = cuda.local.array(400, int64)
    stack[0] = 0
    stack[1] = x.shape[1] - 1
    top = 2
    while top > 0:
        top -= 2
        low = stack[top]
        high = stack[top + 1]
        if low < high:
            pivot = x[i, high]
            place = low
            for j in range(low, high):
                v = x[i, j]
                if v < pivot:
                    x[i, j] = x[i, place]
                    x[i, place] = v
                    place += 1
            v = x[i, place]
            x[i, place] = x[i, high]
            x[i, high] = v
            stack[top] = low
            stack[top + 1] = place - 1
            stack[top + 2] = place + 1
            stack[top + 3] = high
            top += 4


@classic(10, 100, lambda n: (*over(256), integers(4, 256, n), integers(4, 256, n + 1),
                             zeros(256, dtype=np.int64)))  # fmt: skip
def edit_distance(a, b, out):
    i = cuda.grid(1)
    row = cuda.local.array(128, int64)
    for j in range(b.shape[1] + 1):
        row[j] = j
    for k in range(a.shape[1]):
        corner = row[0]
        row[0] = k + 1
        for j in range(b.shape[1]):
            cost = 0 if a[i, k] == b[i, j] else 1
            best = min(row[j + 1] + 1, row[j] + 1, corner + cost)
            corner = row[j + 1]
            row[j + 1] = best
    out[i] = row[b.shape[1]]


@classic(200, 50_000, lambda n: (*over(n), zeros(n, dtype=np.int64)))
def collatz(out):
    i = cuda.grid(1)
    if i >= out.size:
        return
    n = i + 1
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        out[i] += 1


@classic(200, 30_000, lambda n: (*over(n), zeros(n, dtype=bool)))
def primes(out):
    i = cuda.grid(1)
    if i < out.size:
        found = i < 2
        d = 2
        while d * d <= i and not found:
            found = i % d == 0
            d += 1
        out[i] = not found


@classic(50, 2000, lambda n: (*over(256), floats(256, 16), n))
def insertion_sort(x, turns):
    i = cuda.grid(1)
    for _ in range(turns // 50):
        for j in range(1, x.shape[1]):
            v = x[i, j]
            k = j
            while k > 0 and x[i, k - 1] > v:
                x[i, k] = x[i, k - 1]
                k -= 1
            x[i, k] = v


@classic(100, 200_000, lambda n: (*over(n), floats(n), zeros(n)))
def black_scholes(s, out):
    i = cuda.grid(1)
    if i < s.size:
        d = math.log(s[i] + float32(0.5)) * float32(0.8) + float32(0.1)
        k = float32(1) / (float32(1) + float32(0.2316419) * abs(d))
        tail = math.exp(float32(-0.5) * d * d) * float32(0.39894228) * k
        out[i] = float32(1) - tail if d > 0 else tail


@cuda.jit(device=True)
def nearest(x, y, spheres):
    best = -1
    depth = float32(1e9)
    for k in range(spheres.shape[0]):
        dx = x - spheres[k, 0]
        dy = y - spheres[k, 1]
        inside = spheres[k, 3] - dx * dx - dy * dy
        if inside > float32(0):
            z = spheres[k, 2] - math.sqrt(inside)
            if z < depth:
                depth = z
                best = k
    return best


@classic(24, 512, lambda n: (*square(n), floats(20, 4), zeros(n, n, dtype=np.int32)))
def ray_caster(spheres, image):
    j, i = cuda.grid(2)
    if i < image.shape[0] and j < image.shape[1]:
        x, y = float32(j) / float32(image.shape[1]), float32(i) / float32(image.shape[0])
        image[i, j] = nearest(x, y, spheres)


# --- neighbours in global memory --------------------------------------------------------------


@classic(40, 256, lambda n: (*square(n), floats(n, n), zeros(n, n)), times=200)
def heat(u, out):
    j, i = cuda.grid(2)
    if 0 < i < u.shape[0] - 1 and 0 < j < u.shape[1] - 1:
        around = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1]
        out[i, j] = u[i, j] + float32(0.1) * (around - float32(4) * u[i, j])


@classic(40, 512, lambda n: (*square(n), integers(2, n, n), zeros(n, n, dtype=np.int64)))
def game_of_life(cells, out):
    j, i = cuda.grid(2)
    n, m = cells.shape
    if i < n and j < m:
        alive = 0
        for di in range(-1, 2):
            for dj in range(-1, 2):
                alive += cells[(i + di) % n, (j + dj) % m]
        alive -= cells[i, j]
        out[i, j] = 1 if alive == 3 or (alive == 2 and cells[i, j] == 1) else 0


@classic(100, 20_000, lambda n: (*over(n), floats(n + 8), floats(9), zeros(n)))
def convolution(x, weights, out):
    i = cuda.grid(1)
    if i < out.size:
        total = float32(0)
        for k in range(weights.size):
            total += x[i + k] * weights[k]
        out[i] = total


@classic(100, 1000, lambda n: (*over(n), floats(n, n), floats(n), zeros(n)))
def matrix_vector(a, x, out):
    i = cuda.grid(1)
    if i < out.size:
        total = float32(0)
        for k in range(x.size):
            total += a[i, k] * x[k]
        out[i] = total


# --- shared memory ----------------------------------------------------------------------------


@classic(128, 2048, lambda n: (n // 64, 64, floats(n, 4), zeros(n, 3)))
def n_body(bodies, out):
    tile = cuda.shared.array((64, 4), float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    x, y, z = bodies[i, 0], bodies[i, 1], bodies[i, 2]
    ax = ay = az = float32(0)
    for start in range(0, bodies.shape[0], 64):
        for k in range(4):
            tile[t, k] = bodies[start + t, k]
        cuda.syncthreads()
        for j in range(64):
            dx = tile[j, 0] - x
            dy = tile[j, 1] - y
            dz = tile[j, 2] - z
            inverse = float32(1) / math.sqrt(dx * dx + dy * dy + dz * dz + float32(1e-3))
            pull = tile[j, 3] * inverse * inverse * inverse
            ax += pull * dx
            ay += pull * dy
            az += pull * dz
        cuda.syncthreads()
    out[i, 0] = ax
    out[i, 1] = ay
    out[i, 2] = az


@classic(37, 250, lambda n: (*square(n), floats(n, n), floats(n, n), zeros(n, n)))
def matrix_product(a, b, c):
    a_tile = cuda.shared.array((TILE, TILE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    j, i = cuda.grid(2)
    total = float32(0)
    for start in range(0, a.shape[1], TILE):
        inside = i < a.shape[0] and start + tx < a.shape[1]
        a_tile[ty, tx] = a[i, start + tx] if inside else 0
        inside = start + ty < b.shape[0] and j < b.shape[1]
        b_tile[ty, tx] = b[start + ty, j] if inside else 0
        cuda.syncthreads()
        for k in range(TILE):
            total += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()
    if i < c.shape[0] and j < c.shape[1]:
        c[i, j] = total


@classic(40, 1024, lambda n: (*square(n), floats(n, n), zeros(n, n)))
def transpose(x, out):
    tile = cuda.shared.array((TILE, PADDED), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.blockIdx.x * TILE, cuda.blockIdx.y * TILE
    if row + ty < x.shape[0] and column + tx < x.shape[1]:
        tile[ty, tx] = x[row + ty, column + tx]
    cuda.syncthreads()
    if column + ty < x.shape[1] and row + tx < x.shape[0]:
        out[column + ty, row + tx] = tile[tx, ty]


@classic(256, 1 << 18, lambda n: (n // 128, 128, floats(n), zeros(n // 128)))
def tree_sum(x, out):
    partial = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    partial[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    step = 64
    while step > 0:
        if t < step:
            partial[t] += partial[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        out[cuda.blockIdx.x] = partial[0]


@classic(256, 1 << 17, lambda n: (n // 128, 128, integers(9, n), zeros(n, dtype=np.int64)))
def prefix_sum(x, out):
    """Hillis and Steele's, in each block."""
    sums = cuda.shared.array(128, int64)
    t = cuda.threadIdx.x
    sums[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    step = 1
    while step < 128:
        v = sums[t - step] if t >= step else 0
        cuda.syncthreads()
        sums[t] += v
        cuda.syncthreads()
        step *= 2
    out[cuda.grid(1)] = sums[t]


@classic(1, 1, lambda n: (4, 128, integers(1000, 512)))
def bitonic_sort(x):
    cells = cuda.shared.array(128, int64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    cells[t] = x[i]
    cuda.syncthreads()
    size = 2
    while size <= 128:
        step = size // 2
        while step > 0:
            other = t ^ step
            if other > t:
                low, high = cells[t], cells[other]
                if (low > high) == (t & size == 0):
                    cells[t] = high
                    cells[other] = low
            cuda.syncthreads()
            step //= 2
        size *= 2
    x[i] = cells[t]


@classic(20, 512, lambda n: (1, 256, integers(1000, 512), n))
def odd_even_sort(x, turns):
    t = cuda.threadIdx.x
    for turn in range(turns):
        i = 2 * t + turn % 2
        if i + 1 < x.size and x[i] > x[i + 1]:
            v = x[i]
            x[i] = x[i + 1]
            x[i + 1] = v
        cuda.syncthreads()


@classic(2000, 1 << 20, lambda n: (16, 128, integers(64, n), zeros(64, dtype=np.int32)))
def histogram(x, counts):
    bins = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    if t < 64:
        bins[t] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(bins, x[i], 1)
    cuda.syncthreads()
    if t < 64:
        cuda.atomic.add(counts, t, bins[t])


@classic(300, 30_000, lambda n: (-(-n // 64), 64, integers(100, n), zeros(n, dtype=np.int64)))
def stencil(x, out):
    """Three neighbours, with a halo in shared memory; threads beyond the end leave."""
    cells = cuda.shared.array(66, int64)
    i, t = cuda.grid(1), cuda.threadIdx.x
    cells[t + 1] = x[i] if i < x.size else 0
    if t == 0:
        cells[0] = x[i - 1] if i > 0 else 0
        cells[65] = x[i + 64] if i + 64 < x.size else 0
    cuda.syncthreads()
    if i >= x.size:
        return
    out[i] = cells[t] + cells[t + 1] + cells[t + 2]
