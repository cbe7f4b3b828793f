"""Grader of ex12c: from the accumulators of Q Kᵀ to the operand of P V, and the product."""

import numpy as np
import pytest
from numba import cuda, float32

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.ptx import layouts
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.kernels import expect_at_most, launched
from fa_numba.workbook.graders.meter import expect_chip_memory


def random_arrays(rows, BLOCK_N, columns, seed=0):
    rng = np.random.default_rng(seed)
    s = rng.random((rows, BLOCK_N), dtype=np.float32)
    return s, rng.standard_normal((BLOCK_N, columns)).astype(np.float16)


def operands(exercise, p, numbers):
    """The registers of some A, (len(numbers), 32, 8), from P (16, columns) as D leaves it."""
    to_operand, length = exercise.to_operand, p.shape[1] // 2
    row, col = layouts.mma_d()
    held = np.stack([p[row, 8 * j + col] for j in range(p.shape[1] // 8)], axis=1)
    held = np.float32(held.reshape(32, length))

    @cuda.jit
    def ask(held, numbers, found, after):
        own = cuda.local.array(LENGTH, float32)
        a = cuda.local.array(8, np.float16)
        lane = cuda.threadIdx.x
        for i in range(held.shape[1]):
            own[i] = held[lane, i]
        for n in range(numbers.shape[0]):
            to_operand(a, own, numbers[n])
            for i in range(8):
                found[n, lane, i] = a[i]
        for i in range(held.shape[1]):
            after[lane, i] = own[i]

    numbers = np.array(numbers, np.int64)
    found, after = np.zeros((len(numbers), 32, 8), np.float32), np.zeros_like(held)
    simt.run(ask, 1, 32, held, numbers, found, after)
    assert np.array_equal(after, held), "to_operand: p is an input, it must not be changed"
    return found


LENGTH = 4 * 34  # of p, in `ask`: 272 columns


@pytest.mark.parametrize("numbers", [[0], [1, 0], [3, 16, 7]], ids=str)
def test_every_register(exercise, numbers):
    """to_operand: each half of each register of the k-th A"""
    p = np.arange(16)[:, None] * 0.5 + np.arange(272)  # exact in float16
    got = operands(exercise, p, numbers)
    row, col = (np.asarray(x).reshape(32, 8) for x in layouts.mma_a())
    want = np.stack([p[row, 16 * k + col] for k in numbers])
    if (got == want).all():
        return
    n, lane, i = map(int, np.argwhere(got != want)[0])
    known = {
        "The right half, a2 and a3, comes from product 2 k + 1.": [0, 1, 2, 3, 0, 1, 2, 3],
        "Registers 1 and 2 are exchanged: a1 is row g + 8.": [0, 1, 4, 5, 2, 3, 6, 7],
        "The halves of a register are exchanged.": [1, 0, 3, 2, 5, 4, 7, 6],
    }
    left = np.stack([p[row, np.minimum(8 * k + col, 271)] for k in numbers])
    causes = [c for c, order in known.items() if (got == want[:, :, order]).all()]
    if (got == left).all():
        causes.append("A has 16 columns, a product 8: the k-th A begins with product 2 k.")
    raise Wrong(
        f"A number {numbers[n]}, lane {lane}, a{i // 2} half {i % 2} must be P[{row[lane, i]}, "
        f"{16 * numbers[n] + col[lane, i]}] = {want[n, lane, i]:g}, got {got[n, lane, i]:g}",
        causes=causes,
        where=f"a{i // 2} half {i % 2}",
    )


def run(exercise, s, v):
    out = np.full((len(s), v.shape[1]), np.nan, np.float32)
    grid = -(-v.shape[1] // 32), len(s) // 16
    kernel = exercise.make_kernel(s.shape[1])
    got, trace = launched(kernel, grid, (32, 4), ("out",), s=s, v=v, out=out)
    return got["out"], trace


def check(exercise, s, v):
    got, trace = run(exercise, s, v)
    want = s.astype(np.float16).astype(np.float64) @ v.astype(np.float64)
    wrong = ~(np.abs(got - want) <= 4e-6 * max(1, np.abs(want).max()))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        rounded, half = s.astype(np.float16).astype(np.float64), len(v) // 32 * 16
        causes = {
            "The last 16 keys alone: d is set to 0 once.": rounded[:, -16:] @ v[-16:],
            "The first 16 keys alone: loop over k.": rounded[:, :16] @ v[:16],
            "d is not 0 at first: it still holds the last fragment of s.": want
            + np.tile(s[:, -8:], v.shape[1] // 8),
            "Only half of the A are multiplied: there are BLOCK_N // 16.": rounded[:, :half]
            @ v[:half],
            "The k-th A meets the rows of v from 16 k on, not from 8 k on.": sum(
                rounded[:, k : k + 16] @ v[k // 2 : k // 2 + 16] for k in range(0, len(v), 16)
            ),
            "Every A meets the first 16 rows of v.": rounded.reshape(len(s), -1, 16).sum(axis=1)
            @ v[:16],
        }
        said = "was never written" if np.isnan(got[at]) else f"is {got[at]:.6g}"
        raise Wrong(
            f"s {s.shape}, v {v.shape}: out{list(at)} must be {want[at]:.6g}, but {said} "
            f"({wrong.sum()} of {wrong.size} are wrong)",
            causes=[c for c, r in causes.items() if np.allclose(got, r, rtol=1e-3)],
            where=f"out{list(at)}",
        )
    return trace


def test_one_product(exercise):
    """16 keys: one product"""
    check(exercise, *random_arrays(16, 16, 8))


def test_unit_matrix(exercise):
    """P is the unit matrix: v comes out, bit for bit"""
    _, v = random_arrays(16, 16, 8, seed=1)
    got, _ = run(exercise, np.eye(16, dtype=np.float32), v)
    assert (got == v).all(), f"1 v must be v: {(got != v).sum()} of {v.size} elements differ"


def test_each_key(exercise):
    """each key alone has its value"""
    _, v = random_arrays(16, 64, 8, seed=2)
    for first in range(0, 64, 16):
        s = np.zeros((16, 64), np.float32)
        s[np.arange(16), first + np.arange(16)] = 1
        got, _ = run(exercise, s, v)
        want = v[first : first + 16]
        assert (got == want).all(), f"row i sees key {first} + i alone: out must be its value"


@pytest.mark.parametrize(
    "rows, BLOCK_N, columns", [(32, 48, 40), (16, 272, 8), (272, 16, 8), (16, 16, 264)]
)
def test_sizes(exercise, rows, BLOCK_N, columns):
    """any multiples of 16, 16 and 8"""
    check(exercise, *random_arrays(rows, BLOCK_N, columns, seed=rows))


def test_traffic(exercise):
    """s and v are loaded as often as the statement says; no shared memory, no barrier"""
    trace = check(exercise, *random_arrays(32, 64, 64))
    expect_at_most(
        trace,
        s_loads=(32 * 64 * 8, "once for each 8 columns of out"),
        v_loads=(64 * 64 * 2, "once for each 16 rows of out"),
        out_stores=(32 * 64, "once for each element"),
        out_loads=(0, "d is summed in registers"),
    )
    allowed = "p and the fragments are local arrays, which a GPU keeps in registers"
    expect_chip_memory(trace, local=4 * 32 + 16 + 8 + 16, allowed=allowed)
    assert not trace.barriers, "a warp works by itself: no barrier"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, to the instruction, in float32 throughout"""
    s, v = random_arrays(16, 32, 8)
    gpu_ready(exercise.make_kernel(32), (s, v, np.zeros((16, 8), np.float32)))
