"""What is coalescing worth? Vector addition, and one matrix copied along rows and down columns."""

import cupy
import numpy as np
from numba import cuda

from benchmarks.timing import save, time_ms
from fa_numba.runtime.arrays import launch

SIDE = 8192


@cuda.jit
def vector_add(a, b, out):
    """out = a + b, one thread per element."""
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = a[i] + b[i]


@cuda.jit
def copy_along_rows(x, y):
    """Neighbouring threads take neighbouring columns."""
    col, row = cuda.grid(2)
    if row < y.shape[0] and col < y.shape[1]:
        y[row, col] = x[row, col]


@cuda.jit
def copy_down_columns(x, y):
    """Neighbouring threads take neighbouring rows."""
    row, col = cuda.grid(2)
    if row < y.shape[0] and col < y.shape[1]:
        y[row, col] = x[row, col]


def main():
    x = cupy.random.default_rng(0).standard_normal((SIDE, SIDE), dtype=np.float32)
    y = cupy.zeros_like(x)
    a, b, out = x.ravel(), x.ravel().copy(), y.ravel()
    grid, block = (SIDE // 32, SIDE // 8), (32, 8)

    tried = {
        "vector_add": (lambda: launch(vector_add, (a.size // 256,), (256,), a, b, out), 2 * x),
        "copy_along_rows": (lambda: launch(copy_along_rows, grid, block, x, y), x),
        "copy_down_columns": (lambda: launch(copy_down_columns, grid, block, x, y), x),
        "cupy.copyto": (lambda: cupy.copyto(y, x), x),
    }
    rows = []
    for name, (function, expected) in tried.items():
        y.fill(np.nan)  # so that no kernel passes with the numbers of the one before it
        ms = time_ms(function)
        assert bool((y == expected).all()), name
        moved = (3 if name == "vector_add" else 2) * x.nbytes
        rows.append({"kernel": name, "ms": round(ms, 4), "GB/s asked for": round(moved / ms / 1e6)})
    save("bandwidth", rows, note=f"float32, {SIDE} x {SIDE} elements; GB/s of the bytes asked for")
