"""fbpic: deposition, gathering and pushing of particles on its GPU kernels and on its CPU code."""

import importlib

import fbpic.utils.cuda
import numpy as np
import pytest
from numba import cuda

fbpic.utils.cuda.cuda_installed = True
fbpic.utils.cuda.compile_cupy = cuda.jit  # its own launches PTX through CuPy
N, NZ, NR, MODES = 300, 8, 6, 2
DZ, DR = 0.5, 0.25
CELLS = 1 / DZ, 0.0, NZ, 1 / DR, 0.0, NR
CHARGE = 1.5


def module(name):
    return importlib.import_module(f"fbpic.{name}")


@pytest.fixture
def particles():
    """x, y, z, w and momenta, sorted by cell as the kernels want them, and where cells end."""
    rng = np.random.default_rng(3)
    x, y = rng.uniform(-1, 1, (2, N))
    z = rng.uniform(0.6, NZ * DZ - 0.6, N)
    cell, order = np.zeros(N, np.int32), np.zeros(N, np.int32)
    sorting = module("particles.utilities.cuda_sorting")
    sorting.get_cell_idx_per_particle[3, 128](cell, order, x, y, z, *CELLS)
    order = np.argsort(cell, kind="stable")
    w, ux, uy, uz = rng.uniform(0.5, 1, (4, N))
    moving = [a[order] for a in (x, y, z, w, ux, uy, uz)]
    cell = cell[order]
    sums = np.zeros(NZ * (NR + 1), np.int32)
    sorting.prefill_prefix_sum[1, 128](cell, sums, N)
    sorting.incl_prefix_sum[3, 128](cell, sums)
    np.testing.assert_array_equal(sums, np.searchsorted(cell, np.arange(len(sums)), "right"))
    return moving, 1 / np.sqrt(1 + sum(u**2 for u in moving[4:])), cell, sums


def on_cpu(kind, shape, x, y, z, w, momenta):
    fields = 1 if kind == "rho" else 3
    grids = [np.zeros((1, MODES, NZ + 4, NR + 4), complex) for _ in range(fields)]
    function = getattr(
        module("particles.deposition.threading_methods"), f"deposit_{kind}_numba_{shape}"
    )
    nothing = np.zeros(NR + 1)
    function(x, y, z, w, CHARGE, *momenta, *CELLS, *grids, MODES, 1, np.array([0, N]), nothing,
             nothing)  # fmt: skip
    reduce = module("fields.numba_methods").sum_reduce_2d_array
    results = np.zeros((fields, MODES, NZ, NR), complex)
    for f in range(fields):
        for m in range(MODES):
            reduce(grids[f], results[f, m], m)
    return results


@pytest.mark.parametrize("form", ["", "_one_mode", "_unsorted"])
@pytest.mark.parametrize("shape", ["linear", "cubic"])
@pytest.mark.parametrize("kind", ["rho", "J"])
def test_deposition(particles, kind, shape, form):
    """Ten kernels; `_unsorted` is for linear shapes alone, and takes velocities."""
    if form == "_unsorted" and shape == "cubic":
        pytest.skip("fbpic has none")
    (x, y, z, w, *momenta), inverse_gamma, cell, sums = particles
    fields = 1 if kind == "rho" else 3
    moves = [] if kind == "rho" else [*momenta, inverse_gamma]
    want = on_cpu(kind, shape, x, y, z, w, moves)
    got = np.zeros_like(want)
    nothing = np.zeros(NR + 1)
    name = f"deposit_{kind}_gpu_{shape}{form}".replace("linear_uns", "uns")
    kernel = getattr(module(f"particles.deposition.cuda_methods{form}"), name)
    head = x, y, z, w, CHARGE
    if not form:
        places = [got[f, m] for f in range(fields) for m in range(MODES)]
        kernel[-(-len(sums) // 16), 16](*head, *moves, *CELLS, *places, cell, sums, nothing,
                                        nothing)  # fmt: skip
    for m in range(MODES) if form else []:
        places = [got[f, m] for f in range(fields)]
        if form == "_one_mode":
            kernel[-(-len(sums) // 16), 16](*head, *moves, *CELLS, *places, m, cell, sums, nothing)
        else:
            speed = [299792458.0 * u * inverse_gamma for u in momenta] if moves else []
            kernel[3, 128](*head, *speed, *CELLS, *places, m, nothing)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9 * np.abs(want).max())


@pytest.mark.parametrize("shape", ["linear", "cubic"])
def test_gathering(particles, shape):
    (x, y, z, *_), *_ = particles
    rng = np.random.default_rng(4)
    fields = rng.normal(size=(12, NZ, NR)) + 1j * rng.normal(size=(12, NZ, NR))
    got, want = np.zeros((6, N)), np.zeros((6, N))
    gpu = getattr(module("particles.gathering.cuda_methods"), f"gather_field_gpu_{shape}")
    cpu = getattr(module("particles.gathering.threading_methods"), f"gather_field_numba_{shape}")
    gpu[3, 128](x, y, z, 10.0, *CELLS, *fields, *got)
    chunks = [1, np.array([0, N])] if shape == "cubic" else []
    cpu(x, y, z, 10.0, *CELLS, *fields, *want, *chunks)
    np.testing.assert_allclose(got, want, rtol=1e-9)


def test_push(particles):
    (x, y, z, _, *u), inverse_gamma, *_ = particles
    fields = np.random.default_rng(5).normal(size=(6, N)) * 1e9
    arguments = -1.6e-19, 9.1e-31, N, 1e-15
    want, got = ([a.copy() for a in (*u, inverse_gamma)] for _ in range(2))
    module("particles.push.numba_methods").push_p_numba(*want, *fields, *arguments)
    gpu = module("particles.push.cuda_methods")
    gpu.push_p_gpu[3, 128](*got, *fields, *arguments)
    np.testing.assert_allclose(got, want, rtol=1e-12)
