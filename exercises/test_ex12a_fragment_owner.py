"""Grader of ex12a: the maps of a warp's fragments, and a product on tensor cores."""

import numpy as np
import pytest
from numba import cuda

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.ptx import layouts
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.kernels import expect_at_most, launched
from fa_numba.workbook.graders.meter import expect_chip_memory

LAYOUTS = {"a": (layouts.mma_a, 4, 2), "b": (layouts.mma_b, 2, 2), "d": (layouts.mma_d, 4, 1)}
EACH = pytest.mark.parametrize("matrix", LAYOUTS)
HALVES = "Half 0 is the element to the left, or above: half 1 is one further."


def places(exercise, matrix):
    """[lane, register, half] -> (row, col), by the learner's device function."""
    _, registers, halves = LAYOUTS[matrix]
    place_of = getattr(exercise, f"place_of_{matrix}")
    if halves == 2:

        @cuda.jit
        def ask(found):
            lane = cuda.threadIdx.x
            for r in range(found.shape[1]):
                for h in range(2):
                    found[lane, r, h, 0], found[lane, r, h, 1] = place_of(lane, r, h)
    else:

        @cuda.jit
        def ask(found):
            lane = cuda.threadIdx.x
            for r in range(found.shape[1]):
                found[lane, r, 0, 0], found[lane, r, 0, 1] = place_of(lane, r)

    found = np.full((32, registers, halves, 2), -9, np.int64)
    simt.run(ask, 1, 32, found)
    return found


def wanted(matrix):
    """The same by the package's layouts."""
    make, registers, halves = LAYOUTS[matrix]
    row, col = (np.asarray(x).reshape(32, registers, halves) for x in make())
    return np.stack([row, col], axis=-1)


def random_product(rows, inner, columns, seed=0):
    rng = np.random.default_rng(seed)
    shapes = (rows, inner), (inner, columns)
    return [rng.standard_normal(shape).astype(np.float16) for shape in shapes]


def run(exercise, x, y):
    out = np.full((len(x), y.shape[1]), np.nan, np.float32)
    grid = -(-y.shape[1] // 32), len(x) // 16
    got, trace = launched(exercise.matmul, grid, (32, 4), ("out",), x=x, y=y, out=out)
    return got["out"], trace


@EACH
def test_every_place(exercise, matrix):
    """every lane, register and half"""
    got, want = places(exercise, matrix), wanted(matrix)
    if (got == want).all():
        return
    at = np.argwhere((got != want).any(axis=-1))[0]
    transposed, swapped = got[..., ::-1], got[:, :, ::-1]
    known = {
        "Row and column are exchanged.": transposed,
        HALVES: swapped,
        "Registers 1 and 2 are exchanged.": got[:, [0, 2, 1, 3]] if got.shape[1] == 4 else got,
    }
    lane, register, half = map(int, at)
    arguments = (lane, register) if matrix == "d" else (lane, register, half)
    raise Wrong(
        f"place_of_{matrix}{arguments} must be {tuple(want[tuple(at)].tolist())}, got "
        f"{tuple(got[tuple(at)].tolist())}",
        causes=[said for said, mended in known.items() if (mended == want).all()],
        where=f"place_of_{matrix}{arguments}",
    )


@EACH
def test_each_element_once(exercise, matrix):
    """each element of the matrix is in one place"""
    got = places(exercise, matrix).reshape(-1, 2)
    shape = {"a": (16, 16), "b": (16, 8), "d": (16, 8)}[matrix]
    inside = (got >= 0).all() and (got < shape).all()
    assert inside, f"place_of_{matrix}: rows and columns must be within {shape}"
    count = len({tuple(x) for x in got.tolist()})
    assert count == shape[0] * shape[1], (
        f"place_of_{matrix}: {shape[0] * shape[1]} elements, but {count} different places"
    )


def check(exercise, x, y):
    got, trace = run(exercise, x, y)
    want = x.astype(np.float64) @ y.astype(np.float64)
    wrong = ~(np.abs(got - want) <= 2e-6 * max(1, np.abs(want).max()) * x.shape[1] ** 0.5)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        last = x[:, -16:].astype(np.float64) @ y[-16:].astype(np.float64)
        first = x[:, :16].astype(np.float64) @ y[:16].astype(np.float64)
        causes = {
            "The sum of the last 16 alone: d is set to 0 once, before the loop.": last,
            "The sum of the first 16 alone: loop over inner.": first,
        }
        said = "was never written" if np.isnan(got[at]) else f"is {got[at]:.6g}"
        raise Wrong(
            f"{x.shape} by {y.shape}: out{list(at)} must be {want[at]:.6g}, but {said} "
            f"({wrong.sum()} of {wrong.size} are wrong)",
            causes=[c for c, r in causes.items() if np.allclose(got, r, atol=1e-4)],
            where=f"out{list(at)}",
        )
    return trace


def test_one_product(exercise):
    """one product: 16 x 16 by 16 x 8"""
    check(exercise, *random_product(16, 16, 8))


def test_unit_matrix(exercise):
    """the unit matrix: y comes out, bit for bit"""
    _, y = random_product(16, 16, 8, seed=1)
    got, _ = run(exercise, np.eye(16, dtype=np.float16), y)
    assert (got == y).all(), f"1 y must be y: {(got != y).sum()} of {y.size} elements differ"


@pytest.mark.parametrize(
    "rows, inner, columns", [(32, 48, 40), (16, 272, 8), (272, 16, 8), (16, 16, 264)]
)
def test_sizes(exercise, rows, inner, columns):
    """any multiples of 16, 16 and 8; warps without columns"""
    check(exercise, *random_product(rows, inner, columns, seed=rows))


def test_float32_sum(exercise):
    """sums are float32: 2048 + 1 is 2049"""
    x, y = np.zeros((16, 32), np.float16), np.ones((32, 8), np.float16)
    x[:, 0], x[:, 31] = 2048, 1
    got, _ = run(exercise, x, y)
    assert (got == 2049).all(), f"2048 + 1 must be 2049, got {got[0, 0]:g}: d is float32"


def test_traffic(exercise):
    """out is stored once; each warp loads its part of x and y once"""
    trace = check(exercise, *random_product(32, 32, 64))
    expect_at_most(
        trace,
        x_loads=(32 * 32 * 8, "once for each 8 columns of out"),
        y_loads=(32 * 64 * 2, "once for each 16 rows of out"),
        out_stores=(32 * 64, "once for each element"),
        out_loads=(0, "d is summed in registers"),
    )
    allowed = "fragments are local arrays, which a GPU keeps in registers"
    expect_chip_memory(trace, local=16 + 8 + 16, allowed=allowed)
    assert not trace.barriers, "a warp works by itself: no barrier"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, to the instruction, in float32 throughout"""
    x, y = random_product(16, 16, 8)
    gpu_ready(exercise.matmul, (x, y, np.zeros((16, 8), np.float32)))
