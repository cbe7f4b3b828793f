"""Kernels of the engine's tests with their launches, for `bench_engine` and Numba's simulator."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "engine" / "tests"))
import classic_kernels
import simt_kernels


def floats(*shapes):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def launch(name, size):
    """Return kernel, grid, block and arguments of a row of the table."""
    kernel = getattr(simt_kernels, name, None) or getattr(classic_kernels, name)
    if name == "flash_attn_tile":
        q, k, v, out = floats(*[(size, 32)] * 4)
        return kernel, size // 16, (16, 16), (q, k, v, out, np.zeros(size, np.float32), 32**-0.5)
    if name == "attention_row":
        return kernel, -(-size // 128), 128, (*floats(*[(size, 32)] * 4), 32**-0.5)
    if name == "matrix_product":
        return kernel, (-(-size // 16), -(-size // 16)), (16, 16), floats(*[(size, size)] * 3)
    if name == "vector_add":
        return kernel, -(-size // 256), 256, floats(*[size] * 3)
    if name == "tree_softmax":
        return kernel, size, simt_kernels.NUM_THREADS, floats((size, 512), (size, 512))
    if name == "warp_softmax":
        return kernel, -(-size // 4), 128, floats((size, 512), (size, 512))
    raise ValueError(name)
