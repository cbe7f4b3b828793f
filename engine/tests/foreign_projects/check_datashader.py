"""datashader: its kernels that merge n values of a pixel, and its lock, beside its CPU code."""

import numpy as np
import pytest
from datashader import utils
from datashader.transfer_functions import _cuda_utils as gpu
from numba import cuda

RNG = np.random.default_rng(2)
NAMES = "nanmax_n nanmin_n row_max_n row_min_n".split()


@pytest.mark.parametrize("axes", [3, 4])
@pytest.mark.parametrize("name", NAMES)
def test_n_values_of_a_pixel(name, axes):
    shape = (7, 5, 2, 3)[4 - axes :]
    rows = name.startswith("row")
    if rows:
        a, b = (RNG.integers(0, 50, shape) for _ in range(2))
    else:
        a, b = (RNG.normal(size=shape) for _ in range(2))
    for x in a, b:
        x[...] = np.sort(x, axis=-1) if "min" in name else -np.sort(-x, axis=-1)
        x[x > (40 if rows else 1)] = -1 if rows else np.nan
    want, got = a.copy(), a.copy()
    getattr(utils, f"{name}_in_place_{axes}d")(want, b)
    getattr(gpu, f"cuda_{name}_in_place_{axes}d")[gpu.cuda_args(shape[: axes - 1])](got, b)
    np.testing.assert_array_equal(got, want)


def test_masked_clip():
    data, mask = RNG.normal(size=(9, 11)), RNG.random((9, 11)) < 0.3
    want = np.where(mask, data, np.clip(data, -0.5, 0.5))
    gpu.masked_clip_2d(data, mask, -0.5, 0.5)
    np.testing.assert_array_equal(data, want)


def test_interp():
    x = RNG.uniform(0, 10, (8, 6))
    xp, fp = np.arange(10.0), RNG.normal(size=10)
    got = np.empty_like(x)
    gpu.interp2d_kernel[gpu.cuda_args(x.shape)](x, xp, fp, 0.0, 0.0, got)
    inside = x <= 9
    np.testing.assert_allclose(got[inside], np.interp(x, xp, fp)[inside])


@cuda.jit
def keep_largest(values, pixels, mutex, best):
    i = cuda.grid(1)
    if i < values.size:
        gpu.cuda_mutex_lock(mutex, pixels[i])
        row = best[pixels[i]]
        for k in range(row.size):
            if values[i] > row[k]:
                gpu.cuda_shift_and_insert(row, values[i], k)
                break
        gpu.cuda_mutex_unlock(mutex, pixels[i])


def test_lock():
    """What max_n does for each point of a plot."""
    values, pixels = RNG.normal(size=60), RNG.integers(0, 4, 60)
    mutex, best = np.zeros(4, np.uint32), np.full((4, 3), -np.inf)
    keep_largest[2, 32](values, pixels, mutex, best)
    for p in range(4):
        np.testing.assert_array_equal(best[p], -np.sort(-values[pixels == p])[:3])
