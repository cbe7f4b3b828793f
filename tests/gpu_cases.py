"""What the tests on a GPU share: their marks, and tiles of shared memory."""

import numpy as np
import pytest
from numba import cuda

ON_A_GPU = [  # the marks of a file
    pytest.mark.gpu,
    pytest.mark.skipif(not cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore"),  # Numba warns of small grids; libraries of each other
]


def cupy_on_a_gpu(*, hopper=False):
    """CuPy. Skips the file that calls this where it is missing, or the GPU."""
    cupy = pytest.importorskip("cupy", reason="needs CuPy")
    if not cuda.is_available():
        pytest.skip("needs a CUDA GPU", allow_module_level=True)
    if hopper and cuda.get_current_device().compute_capability[0] != 9:
        pytest.skip("needs a Hopper GPU", allow_module_level=True)
    return cupy


def as_tile(x):
    """The bytes of a 16-bit matrix as a tile in shared memory has them; missing columns are 0."""
    from fa_numba.ptx import layouts

    rows, cols = x.shape
    tile = np.zeros(rows * -(-cols // 64) * layouts.ROW_BYTES // 2, np.uint16)
    row, col = np.mgrid[:rows, :cols]
    tile[layouts.tile_offset(row, col, rows) // 2] = x.view(np.uint16)
    return tile.view(np.uint8)


def integers(rng, shape, dtype):
    """Small ones: their products and sums are exact."""
    return rng.integers(-4, 5, shape).astype(dtype)


def run(kernel, threads, *args, blocks=1, shared_bytes=0):
    """Launch one thread block, or some; NumPy arrays come back changed."""
    import cupy

    on_gpu = [cupy.asarray(x) if isinstance(x, np.ndarray) else x for x in args]
    kernel[blocks, threads, cuda.default_stream(), shared_bytes](*on_gpu)
    for x, changed in zip(args, on_gpu, strict=True):
        if isinstance(x, np.ndarray):
            x[...] = changed.get()
