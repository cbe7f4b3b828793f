"""Grader of ex00a: one thread per element, and nobody past the end."""

import numpy as np
import pytest

from fa_numba import simt


def scale(exercise, n, grid, block, factor=3.0):
    x = np.arange(1, n + 1, dtype=np.float32)
    out = np.full(n, np.nan, np.float32)
    trace = simt.trace(exercise.scale_vector, grid, block, x, out, np.float32(factor))
    return out, np.float32(factor) * x, trace


def add(exercise, shape, grid, block):
    a = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape)
    b = 1000 * a + 1
    out = np.full(shape, np.nan, np.float32)
    trace = simt.trace(exercise.add_matrices, grid, block, a, b, out)
    return out, a + b, trace


def check(out, expected):
    wrong = np.argwhere(~(out == expected))
    if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        got = "was never written" if np.isnan(out[at]) else f"is {out[at]}"
        place = at[0] if len(at) == 1 else at
        raise AssertionError(f"out[{place}] must be {expected[at]}, but {got}"
                             f" ({len(wrong)} of {out.size} elements are wrong)")  # fmt: skip


def test_one_block(exercise):
    """scale_vector: one thread block, as many threads as elements"""
    out, expected, _ = scale(exercise, 64, 1, 64)
    check(out, expected)


def test_many_blocks(exercise):
    """scale_vector: every thread block takes its own piece"""
    out, expected, _ = scale(exercise, 256, 4, 64)
    check(out, expected)


@pytest.mark.parametrize("n", [1, 100, 130])
def test_threads_past_the_end(exercise, n):
    """scale_vector: threads past the end do nothing"""
    out, expected, _ = scale(exercise, n, 3, 64)
    check(out, expected)


def test_reads_each_element_once(exercise):
    """scale_vector: reads each element once and writes each element once"""
    _, _, trace = scale(exercise, 100, 4, 32)
    for name, kind, want in (("x", "loads", 100), ("out", "stores", 100), ("out", "loads", 0)):
        got = getattr(trace.arrays[name], kind)
        assert got == want, f"{kind} of {name}: {want} elements are enough, got {got}"


@pytest.mark.parametrize("shape", [(16, 32), (5, 33), (17, 1)], ids=["16x32", "5x33", "17x1"])
def test_matrix(exercise, shape):
    """add_matrices: every element, whatever the shape"""
    out, expected, _ = add(exercise, shape, (2, 5), (32, 4))
    check(out, expected)


def test_tall_blocks(exercise):
    """add_matrices: the shape of the thread block does not change the answer"""
    out, expected, _ = add(exercise, (16, 24), (3, 1), (8, 16))
    check(out, expected)


def test_neighbours_in_a_row(exercise):
    """add_matrices: the threads of a warp read neighbours, so that each request is 4 sectors"""
    _, _, trace = add(exercise, (8, 64), (2, 8), (32, 1))
    a = trace.arrays["a"]
    sectors = a.load_sectors / max(a.load_requests, 1)
    assert sectors <= 4, (
        f"a warp's request for a touched {sectors:g} sectors of 32 bytes; 32 neighbours of 4 bytes"
        f" lie in 4. Let threadIdx.x run along a row (the column index), threadIdx.y down the rows"
    )


def test_compiles_for_a_gpu(exercise):
    """both kernels compile for a GPU"""
    from fa_numba.analysis.machine_code import gpu_ready

    x, m = np.zeros(4, np.float32), np.zeros((4, 4), np.float32)
    gpu_ready(exercise.scale_vector, (x, x, np.float32(1)))
    gpu_ready(exercise.add_matrices, (m, m, m))
