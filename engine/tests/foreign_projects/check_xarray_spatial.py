"""xarray-spatial: its GPU functions beside its own functions for NumPy, on one terrain."""

import importlib
import inspect

import numpy as np
import pytest
from xrspatial.utils import cuda_args

convolution, focal, multispectral, perlin = (
    importlib.import_module(f"xrspatial.{name}")  # the package has functions of the same names
    for name in ("convolution", "focal", "multispectral", "perlin")
)

RNG = np.random.default_rng(1)
TERRAIN = RNG.normal(100, 20, (37, 45)).astype(np.float32)
BANDS = RNG.uniform(0.1, 1, (3, 20, 33)).astype(np.float32)
KERNEL = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]], np.float64)


@pytest.mark.parametrize(
    "name, options",
    [("slope", (2, 3)), ("aspect", ()), ("curvature", (2,)), ("hillshade", (225, 25))],
)
def test_surface(name, options):
    module = importlib.import_module(f"xrspatial.{name}")
    got = module._run_cupy(TERRAIN, *options)
    want = module._run_numpy(TERRAIN, *options)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_convolution():
    out = np.full_like(TERRAIN, np.nan)
    convolution._convolve_2d_cuda[cuda_args(TERRAIN.shape)](TERRAIN, KERNEL, out)
    want = convolution._convolve_2d_numpy(TERRAIN, KERNEL)
    np.testing.assert_allclose(out, want, rtol=1e-4)


def test_mean():
    """Of a square: 0.5.3 takes x for columns, and its grid is one of rows first."""
    square, excludes = TERRAIN[:, : len(TERRAIN)], np.array([np.nan])
    got = focal._mean_cupy(square, excludes)
    np.testing.assert_allclose(got, focal._mean_numpy(square, excludes), rtol=1e-4)


@pytest.mark.parametrize("name", ["min", "max", "range", "std", "var"])
def test_focal(name):
    out = np.full_like(TERRAIN, np.nan)
    getattr(focal, f"_focal_{name}_cuda")[cuda_args(TERRAIN.shape)](TERRAIN, KERNEL, out)
    want = focal._apply_numpy(TERRAIN, KERNEL, getattr(focal, f"_calc_{name}"))
    inside = (slice(1, -1),) * 2
    np.testing.assert_allclose(out[inside], want[inside], rtol=1e-2)


@pytest.mark.parametrize("name", ["arvi", "sipi", "ebbi", "gci", "normalized_ratio"])
def test_bands(name):
    gpu, cpu = (getattr(multispectral, f"_{name}_{kind}") for kind in ("gpu", "cpu"))
    bands = BANDS[: len(inspect.signature(cpu.py_func).parameters)]
    out = np.full_like(BANDS[0], np.nan)
    gpu[cuda_args(out.shape)](*bands, out)
    np.testing.assert_allclose(out, cpu(*bands), rtol=1e-4)


def test_perlin():
    args = np.zeros((20, 30), np.float32), (1, 1), 5
    np.testing.assert_allclose(
        perlin._perlin_cupy(*args), perlin._perlin_numpy(*args), rtol=1e-3, atol=1e-3
    )
