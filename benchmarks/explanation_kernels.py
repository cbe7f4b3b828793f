"""Kernels that differ from a lesson's kernel in one thing, the one that an explanation names."""

import functools
import importlib.util
import inspect
import sys
import tempfile
from pathlib import Path

from numba import cuda, float32
from numba import uint64 as u64


def changed(module, replacements):
    """A module of the package with pieces of its source replaced, imported under another name.

    Parameters
    ----------
    module : module
    replacements : dict of str to str
        Each key must occur exactly once.
    """
    text = inspect.getsource(module)
    for old, new in replacements.items():
        assert text.count(old) == 1, f"{module.__name__} has {text.count(old)} times {old!r}"
        text = text.replace(old, new)
    return _imported(module.__name__.rpartition(".")[2], text)


@functools.cache
def _imported(name, text):
    path = Path(tempfile.mkdtemp()) / f"{name}_changed.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"{name}_{len(sys.modules)}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_copy(BOUNDS, INDEX):
    """y = x, an element per thread; with or without tests of bounds, indices of this type."""

    @cuda.jit
    def copy(x, y):
        col = INDEX(cuda.blockIdx.x) * INDEX(cuda.blockDim.x) + INDEX(cuda.threadIdx.x)
        row = INDEX(cuda.blockIdx.y) * INDEX(cuda.blockDim.y) + INDEX(cuda.threadIdx.y)
        if not BOUNDS or (row < y.shape[0] and col < y.shape[1]):
            y[row, col] = x[row, col]

    return copy


def make_copy_of_rows(ROWS):
    """y = x; a thread loads ROWS elements before it stores one."""

    @cuda.jit
    def copy_of_rows(x, y):
        few = cuda.local.array(ROWS, float32)
        col = u64(cuda.blockIdx.x) * u64(cuda.blockDim.x) + u64(cuda.threadIdx.x)
        row = (u64(cuda.blockIdx.y) * u64(cuda.blockDim.y) + u64(cuda.threadIdx.y)) * u64(ROWS)
        for i in range(ROWS):
            few[i] = x[row + u64(i), col]
        for i in range(ROWS):
            y[row + u64(i), col] = few[i]

    return copy_of_rows


def make_move(TRANSPOSED, THROUGH_TILE, UNROLLED):
    """y = x or x.T by tiles of 32 x 32; UNROLLED: four loads of a thread are in flight together."""

    @cuda.jit
    def move(x, y):
        tile = cuda.shared.array((32, 33), float32)
        few = cuda.local.array(4, float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        row, col = cuda.blockIdx.y * 32, cuda.blockIdx.x * 32
        to_row, to_col = (col, row) if TRANSPOSED else (row, col)
        if THROUGH_TILE and UNROLLED:
            for i in range(4):
                few[i] = x[row + ty + 8 * i, col + tx]
            for i in range(4):
                tile[ty + 8 * i, tx] = few[i]
            cuda.syncthreads()  # the tile is complete
            for i in range(4):
                r = ty + 8 * i
                y[to_row + r, to_col + tx] = tile[tx, r] if TRANSPOSED else tile[r, tx]
        elif THROUGH_TILE:
            for i in range(ty, 32, 8):
                tile[i, tx] = x[row + i, col + tx]
            cuda.syncthreads()  # the tile is complete
            for i in range(ty, 32, 8):
                y[to_row + i, to_col + tx] = tile[tx, i] if TRANSPOSED else tile[i, tx]
        else:
            for i in range(ty, 32, 8):
                y[row + i, col + tx] = x[row + i, col + tx]

    return move


@functools.cache
def make_busy_copy(PASSES):
    """x to y PASSES times by as many thread blocks as there are: a stand-in for NCCL's."""

    @cuda.jit
    def busy_copy(x, y):
        shared = cuda.shared.array(0, float32)
        shared[cuda.threadIdx.x] = float32(0)
        step = u64(cuda.gridDim.x) * u64(cuda.blockDim.x)
        for _ in range(PASSES):
            i = u64(cuda.blockIdx.x) * u64(cuda.blockDim.x) + u64(cuda.threadIdx.x)
            while i < u64(x.shape[0]):
                y[i] = x[i]
                i += step

    return busy_copy
