"""Matrices, dense and sparse; stencils and images."""

import math

import numpy as np
from numba import cuda, float32
from simt_kernels import Zoo, floats, zeros

ZOO = Zoo()
launched = ZOO.launched

TILE = 8
HALO = TILE + 2


# --- products ---------------------------------------------------------------------------------


def make_register_matmul(ROWS):
    TALL = TILE * ROWS

    @cuda.jit
    def matmul_registers(a, b, c):
        """Each thread keeps a column of ROWS results; lengths are multiples of the tiles."""
        a_tile = cuda.shared.array((TALL, TILE), float32)
        b_tile = cuda.shared.array((TILE, TILE), float32)
        acc = cuda.local.array(ROWS, float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        first = cuda.blockIdx.y * TALL
        col = cuda.blockIdx.x * TILE + tx
        for r in range(ROWS):
            acc[r] = 0
        for start in range(0, a.shape[1], TILE):
            for r in range(ROWS):
                a_tile[ty + r * TILE, tx] = a[first + ty + r * TILE, start + tx]
            b_tile[ty, tx] = b[start + ty, col]
            cuda.syncthreads()
            for k in range(TILE):
                weight = b_tile[k, tx]
                for r in range(ROWS):
                    acc[r] += a_tile[ty + r * TILE, k] * weight
            cuda.syncthreads()
        for r in range(ROWS):
            c[first + ty + r * TILE, col] = acc[r]

    return matmul_registers


for rows in (2, 3):
    launched(
        (2, 1), (TILE, TILE), label=f"_{rows}",
        inputs=lambda rng, m=rows * TILE: (floats(rng, m, 16), floats(rng, 16, 16), zeros(m, 16)),
        answer=lambda a, b, c: a @ b,
    )(make_register_matmul(rows))  # fmt: skip


@launched((1, 1, 3), (8, 8), lambda rng: (floats(rng, 3, 5, 6), floats(rng, 3, 6, 7),
    zeros(3, 5, 7)),
    answer=lambda a, b, c: a @ b)  # fmt: skip
def matmul_batched(a, b, c):
    j, i, batch = cuda.grid(3)
    if i >= c.shape[1] or j >= c.shape[2]:
        return
    row, total = a[batch, i], float32(0)
    for k in range(row.size):
        total += row[k] * b[batch, k, j]
    c[batch, i, j] = total


@launched(2, 32, lambda rng: (floats(rng, 40, 9), floats(rng, 9), zeros(40)),
    answer=lambda a, x, y: a @ x)  # fmt: skip
def matvec(a, x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = dot_row(a[i], x)


@cuda.jit(device=True)
def dot_row(row, x):
    total = float32(0)
    for k in range(len(x)):
        total = cuda.fma(row[k], x[k], total)
    return total


@launched((2, 2), (TILE, TILE), lambda rng: (floats(rng, 14, 10), zeros(10, 14)),
    answer=lambda x, out: x.T)  # fmt: skip
def transpose_by_view(x, out):
    i, j = cuda.grid(2)
    turned = out.T
    if i < x.shape[0] and j < x.shape[1]:
        turned[i, j] = x[i, j]


@launched(2, 64, lambda rng: (np.array([0, 40, 128]), rng.integers(0, 50, 128), floats(rng, 128),
    floats(rng, 50), zeros(2)),
    answer=lambda starts, cols, values, x, y: np.add.reduceat(values * x[cols], starts[:-1]),
    tolerance=1e-4)  # fmt: skip
def csr_matvec_by_warps(starts, cols, values, x, y):
    """A warp per row: strided sums, then shuffles."""
    row = cuda.grid(1) // 32
    lane = cuda.threadIdx.x & 31
    if row >= y.size:
        return
    total = float32(0)
    k = starts[row] + lane
    while k < starts[row + 1]:
        total += values[k] * x[cols[k]]
        k += 32
    for mask in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, mask)
    if lane == 0:
        y[row] = total


@launched(2, 32, lambda rng: (rng.integers(0, 6, 50), rng.integers(0, 7, 50), floats(rng, 50),
    floats(rng, 7), zeros(6)), rtol=1e-5, tolerance=1e-4,
    answer=lambda rows, cols, values, x, y: np.bincount(rows, values * x[cols], 6))  # fmt: skip
def coo_matvec(rows, cols, values, x, y):
    k = cuda.grid(1)
    if k < values.size:
        cuda.atomic.add(y, rows[k], values[k] * x[cols[k]])


@launched(1, (8, 8), lambda rng: (spd(rng), zeros(8, 8)),
    answer=lambda a, low: np.linalg.cholesky(a))  # fmt: skip
def cholesky(a, low):
    """One block factors a small matrix, column by column."""
    m = cuda.shared.array((8, 8), float32)
    j, i = cuda.threadIdx.x, cuda.threadIdx.y
    m[i, j] = a[i, j]
    for k in range(8):
        if i == k and j == k:
            m[k, k] = math.sqrt(m[k, k])
        cuda.syncthreads()
        if j == k and i > k:
            m[i, k] /= m[k, k]
        cuda.syncthreads()
        if k < j <= i:
            m[i, j] -= m[i, k] * m[j, k]
    low[i, j] = m[i, j] if j <= i else float32(0)


def spd(rng):
    a = floats(rng, 8, 8)
    return (a @ a.T + 8 * np.eye(8)).astype(np.float32)


# --- stencils ---------------------------------------------------------------------------------


@launched((2, 2), (TILE, TILE), lambda rng: (floats(rng, 13, 12), zeros(13, 12)),
    answer=lambda x, out: laplace(x))  # fmt: skip
def laplace_with_halo(x, out):
    cells = cuda.shared.array((HALO, HALO), float32)
    tx, ty = cuda.threadIdx.x + 1, cuda.threadIdx.y + 1
    j, i = cuda.grid(2)
    rows, cols = x.shape
    inside = i < rows and j < cols
    cells[ty, tx] = x[i, j] if inside else 0
    if tx == 1:
        cells[ty, 0] = x[i, j - 1] if inside and j > 0 else 0
    if tx == TILE:
        cells[ty, HALO - 1] = x[i, j + 1] if i < rows and j + 1 < cols else 0
    if ty == 1:
        cells[0, tx] = x[i - 1, j] if inside and i > 0 else 0
    if ty == TILE:
        cells[HALO - 1, tx] = x[i + 1, j] if i + 1 < rows and j < cols else 0
    cuda.syncthreads()
    if inside:
        cross = cells[ty - 1, tx] + cells[ty + 1, tx] + cells[ty, tx - 1] + cells[ty, tx + 1]
        out[i, j] = cross - 4 * cells[ty, tx]


def laplace(x):
    p = np.pad(x, 1)
    return p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * x


@launched(2, 32, lambda rng: (zeros(2, 64) + np.eye(1, 64, 20, dtype=np.float32), 6))
def diffuse_with_grid_sync(rods, steps):
    """Time steps in one launch; all blocks wait for each other between them."""
    i = cuda.grid(1)
    grid = cuda.cg.this_grid()
    n = rods.shape[1]
    for step in range(steps):
        old = rods[step % 2]
        new = rods[(step + 1) % 2]
        left = old[i - 1] if i > 0 else old[i]
        right = old[i + 1] if i + 1 < n else old[i]
        new[i] = old[i] + float32(0.25) * (left - 2 * old[i] + right)
        grid.sync()


# --- images -----------------------------------------------------------------------------------

SOBEL = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], np.float32)


@launched((2, 2), (8, 8), lambda rng: (floats(rng, 10, 12), zeros(10, 12)),
    answer=lambda x, out: sobel_answer(x), rtol=1e-6)  # fmt: skip
def sobel(x, out):
    weights = cuda.const.array_like(SOBEL)
    j, i = cuda.grid(2)
    if 0 < i < x.shape[0] - 1 and 0 < j < x.shape[1] - 1:
        gx = float32(0)
        gy = float32(0)
        for r in range(3):
            for c in range(3):
                value = x[i + r - 1, j + c - 1]
                gx += weights[r, c] * value
                gy += weights[c, r] * value
        out[i, j] = math.sqrt(gx * gx + gy * gy)


def sobel_answer(x):
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3))
    gx, gy = (np.einsum("ijrc,rc->ij", windows, w) for w in (SOBEL, SOBEL.T))
    return np.pad(np.hypot(gx, gy), 1)


@launched((2, 1), (8, 8), lambda rng: (rng.integers(0, 256, (8, 16)).astype(np.uint8),
    zeros(4, 8, dtype=np.uint8)),
    answer=lambda x, out: ((x[::2, ::2].astype(int) + x[1::2, ::2] + x[::2, 1::2] + x[1::2,
    1::2] + 2) // 4).astype(np.uint8))  # fmt: skip
def halve_image(x, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        window = x[2 * row : 2 * row + 2, 2 * col : 2 * col + 2]
        total = 2
        for r in range(2):
            for c in range(2):
                total += window[r, c]
        out[row, col] = total // 4


@launched(1, (8, 8), lambda rng: ((rng.random((8, 8)) < 0.2), zeros(8, 8, dtype=bool)),
    answer=lambda x, out: np.lib.stride_tricks.sliding_window_view(np.pad(x, 1),
    (3, 3)).any((2, 3)))  # fmt: skip
def dilate(x, out):
    j, i = cuda.grid(2)
    hit = False
    for r in range(max(i - 1, 0), min(i + 2, x.shape[0])):
        for c in range(max(j - 1, 0), min(j + 2, x.shape[1])):
            if x[r, c]:
                hit = True
                break
        if hit:
            break
    out[i, j] = hit
