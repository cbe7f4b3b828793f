"""What is a tile worth? A matrix product without and with tiles; a transposition without and with
padding."""

import runpy

import cupy
import numpy as np
from numba import cuda, float32

from benchmarks.timing import save, time_ms
from fa_numba.runtime.arrays import launch
from fa_numba.workbook.catalog import find_one

SIDE, TRANSPOSED = 4096, 8192
TILES = (4, 8, 16, 32)


@cuda.jit
def matmul_without_tiles(a, b, c):
    """c = a @ b, a row of a and a column of b per thread."""
    col, row = cuda.grid(2)
    if row < c.shape[0] and col < c.shape[1]:
        acc = float32(0)
        for k in range(a.shape[1]):
            acc += a[row, k] * b[k, col]
        c[row, col] = acc


@cuda.jit
def transpose_without_tile(x, y):
    """y = x.T, read along rows and written down columns."""
    col, row = cuda.grid(2)
    if row < x.shape[0] and col < x.shape[1]:
        y[col, row] = x[row, col]


def make_transpose(L):
    """y = x.T through tiles of 32 x 32, kept in rows of L floats; 32 divides the sides."""

    @cuda.jit
    def transpose(x, y):
        tile = cuda.shared.array((32, L), float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        row, col = cuda.blockIdx.y * 32, cuda.blockIdx.x * 32
        for i in range(ty, 32, 8):
            tile[i, tx] = x[row + i, col + tx]
        cuda.syncthreads()  # the tile is complete
        for i in range(ty, 32, 8):
            y[col + i, row + tx] = tile[tx, i]

    return transpose


def main():
    rng = cupy.random.default_rng(0)
    a, b = (rng.standard_normal((SIDE, SIDE), dtype=np.float32) for _ in range(2))
    c, expected = cupy.empty_like(a), a @ b
    make_tiled_matmul = runpy.run_path(find_one("ex05b").solution)["make_tiled_matmul"]

    products = {"product, no tiles": (matmul_without_tiles, 32)}
    products |= {f"product, T = {T}": (make_tiled_matmul(T), T) for T in TILES}
    rows = []
    for name, (kernel, T) in products.items():
        c.fill(np.nan)
        ms = time_ms(launch, kernel, (SIDE // T, SIDE // T), (T, T), a, b, c, repeats=8)
        assert bool(abs(c - expected).max() <= 1e-2), name
        rows.append(row(name, ms, flops=2 * SIDE**3))
    rows.append(row("product, cuBLAS", time_ms(cupy.matmul, a, b, out=c), flops=2 * SIDE**3))

    x = rng.standard_normal((TRANSPOSED, TRANSPOSED), dtype=np.float32)
    y = cupy.empty_like(x)
    kernels = {
        "transposition, no tile": (transpose_without_tile, TRANSPOSED // 8),
        "transposition, tile of 32 × 32": (make_transpose(32), TRANSPOSED // 32),
        "transposition, tile of 32 × 33": (make_transpose(33), TRANSPOSED // 32),
    }
    for name, (kernel, down) in kernels.items():
        y.fill(np.nan)
        ms = time_ms(launch, kernel, (TRANSPOSED // 32, down), (32, 8), x, y)
        assert bool((y == x.T).all()), name
        rows.append(row(name, ms, moved=2 * x.nbytes))
    rows.append(row("plain copy", time_ms(cupy.copyto, y, x), moved=2 * x.nbytes))
    note = f"float32; products of {SIDE} x {SIDE}, transpositions of {TRANSPOSED} x {TRANSPOSED}"
    save("tiles", rows, note=note)


def row(name, ms, *, flops=None, moved=None):
    return {
        "kernel": name,
        "ms": round(ms, 3),
        "TFLOP/s": flops and round(flops / ms / 1e9, 2),
        "GB/s": moved and round(moved / ms / 1e6),
    }
