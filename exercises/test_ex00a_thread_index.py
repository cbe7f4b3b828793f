"""Grader of ex00a: one thread per element, and nobody past the end."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_stores_by

NO_MEMORY = "each thread reads its element, computes, and writes: registers do"


def scale(exercise, n, grid, block, factor=3.0):
    x = np.random.default_rng(n).standard_normal(n, np.float32)
    out, factor = np.full(n, np.nan, np.float32), np.float32(factor)
    trace = simt.trace(exercise.scale_vector, grid, block, x.copy(), out, factor)
    return out, factor * x, trace


def add(exercise, shape, grid, block):
    a, b = np.random.default_rng(0).standard_normal((2, *shape), np.float32)
    out = np.full(shape, np.nan, np.float32)
    trace = simt.trace(exercise.add_matrices, grid, block, a.copy(), b.copy(), out)
    return out, a + b, trace


def check(out, expected):
    wrong = np.argwhere(~(out == expected))
    if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        got = "was never written" if np.isnan(out[at]) else f"is {out[at]:.7g}"
        place = ", ".join(map(str, at))
        raise AssertionError(f"out[{place}] must be {expected[at]:.7g}, but {got}"
                             f" ({len(wrong)} of {out.size} elements are wrong)")  # fmt: skip


def check_access(trace, names, num_elements):
    """Each element is read and written once, by a thread of its own, and nothing else is."""
    *inputs, output = trace.arrays.values()
    for name, array in zip(names.split(), inputs, strict=False):
        assert not array.stores, f"{name} is an input, and the kernel wrote into it"
        got = array.loads
        assert got == num_elements, (
            f"loads of {name}: {num_elements} elements are enough, got {got}"
        )
        assert not array.stores, f"{name} is an input, and the kernel wrote into it"
    assert output.stores == num_elements, (
        f"stores of out: {num_elements} elements are enough, got {output.stores}"
    )
    assert not output.loads, f"out was read {output.loads} times: it is only written"
    why = "each thread handles one element, so no thread needs a loop"
    expect_stores_by({"out": output}, threads=num_elements, why=why)
    expect_chip_memory(trace, allowed=NO_MEMORY)


def check_neighbours(trace, names, why):
    """A warp's request covers 32 neighbours; rows begin at a sector."""
    for name, array in zip(names.split(), trace.arrays.values(), strict=False):
        for kind, moved, sectors, requests in (
            ("read", array.load_bytes, array.load_sectors, array.load_requests),
            ("wrote", array.store_bytes, array.store_sectors, array.store_requests),
        ):
            assert 32 * sectors <= moved, (
                f"a warp {kind} {moved // requests} bytes of {name} at a time and touched "
                f"{sectors / requests:g} sectors of 32 bytes. {why}"
            )


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


@pytest.mark.parametrize("factor", [1.0, -0.5, 0.0, 1e30])
def test_factor(exercise, factor):
    """scale_vector: any factor"""
    out, expected, _ = scale(exercise, 40, 2, 32, factor)
    check(out, expected)


def test_long_vector(exercise):
    """scale_vector: many thread blocks"""
    out, expected, _ = scale(exercise, 20_001, 157, 128)
    check(out, expected)


def test_reads_each_element_once(exercise):
    """scale_vector: each thread reads one element and writes one element, and nothing else"""
    out, expected, trace = scale(exercise, 100, 4, 32)
    check(out, expected)
    check_access(trace, "x out", 100)


def test_neighbours_in_a_vector(exercise):
    """scale_vector: neighbouring threads take neighbouring elements"""
    _, _, trace = scale(exercise, 1024, 8, 128)
    why = "Let thread i of the whole grid take element i: 32 neighbours of 4 bytes lie in 4 sectors"
    check_neighbours(trace, "x out", why)


@pytest.mark.parametrize("shape", [(16, 32), (5, 33), (17, 1)], ids=["16x32", "5x33", "17x1"])
def test_matrix(exercise, shape):
    """add_matrices: every element, whatever the shape"""
    out, expected, _ = add(exercise, shape, (2, 5), (32, 4))
    check(out, expected)


def test_tall_blocks(exercise):
    """add_matrices: the shape of the thread block does not change the answer"""
    out, expected, _ = add(exercise, (16, 24), (3, 1), (8, 16))
    check(out, expected)


def test_large_matrix(exercise):
    """add_matrices: many thread blocks both ways"""
    out, expected, _ = add(exercise, (300, 257), (9, 38), (32, 8))
    check(out, expected)


def test_matrix_reads_each_element_once(exercise):
    """add_matrices: each thread reads one element of a and of b, writes one, and nothing else"""
    out, expected, trace = add(exercise, (10, 40), (2, 3), (32, 4))
    check(out, expected)
    check_access(trace, "a b out", 400)


def test_neighbours_in_a_row(exercise):
    """add_matrices: the threads of a warp touch neighbours, so that each request is 4 sectors"""
    for block in ((32, 1), (32, 4), (8, 16)):
        grid = 64 // block[0], 16 // block[1]
        _, _, trace = add(exercise, (16, 64), grid, block)
        why = (
            "32 neighbours of 4 bytes lie in 4. Let threadIdx.x run along a row (the column "
            "index), threadIdx.y down the rows"
        )
        check_neighbours(trace, "a b out", why)


def test_compiles_for_a_gpu(exercise):
    """both kernels compile for a GPU"""
    from fa_numba.analysis.gpu_ready import gpu_ready

    x, m = np.zeros(4, np.float32), np.zeros((4, 4), np.float32)
    gpu_ready(exercise.scale_vector, (x, x, np.float32(1)))
    gpu_ready(exercise.add_matrices, (m, m, m))
