"""Grader of ex00c: one thread per element of a matrix, x along a row."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.elements import (
    exchanged,
    expect_elements,
    expect_neighbours,
    expect_once,
    unwritten,
)


def subtract(exercise, shape, block):
    a, b = np.random.default_rng(0).standard_normal((2, *shape), np.float32)
    out = unwritten(*shape)
    trace = simt.trace(exercise.subtract_matrices, 1, block, a.copy(), b.copy(), out)
    return a, b, out, trace


def check(a, b, out, case, block):
    mistakes = {"It is a - b, not b - a.": b - a, "It is a - b, not a + b.": a + b}
    mistakes |= [exchanged(a - b, *block)]
    expect_elements(out, a - b, case=case, mistakes=mistakes)


@pytest.mark.parametrize(
    "shape, block",
    [((4, 8), (8, 4)), ((1, 300), (300, 1)), ((300, 3), (3, 300)), ((6, 6), (6, 6))],
    ids=lambda pair: "x".join(map(str, pair)),
)
def test_as_many_threads_as_elements(exercise, shape, block):
    """a thread for each element, whatever the shape"""
    a, b, out, _ = subtract(exercise, shape, block)
    check(a, b, out, f"{shape[0]} rows, {shape[1]} columns", block)


@pytest.mark.parametrize(
    "shape, block",
    [((4, 7), (8, 4)), ((3, 8), (8, 4)), ((5, 3), (16, 8)), ((1, 1), (32, 4))],
    ids=lambda pair: "x".join(map(str, pair)),
)
def test_more_threads_than_elements(exercise, shape, block):
    """threads past the last row or the last column do nothing"""
    a, b, out, _ = subtract(exercise, shape, block)
    check(a, b, out, f"{shape[0]} rows, {shape[1]} columns, threads {block}", block)


def test_once(exercise):
    """each thread reads one element of a and of b, writes one, and nothing else"""
    a, b, out, trace = subtract(exercise, (10, 30), (32, 16))
    check(a, b, out, "10 rows, 30 columns", (32, 16))
    expect_once(trace, {"a": 300, "b": 300}, 300)


def test_neighbours(exercise):
    """the threads of a warp touch neighbours in memory"""
    for shape, block in (((8, 32), (32, 8)), ((16, 16), (16, 16))):
        *_, trace = subtract(exercise, shape, block)
        why = "Let threadIdx.x be the column, threadIdx.y the row"
        expect_neighbours(trace, ("a", "b", "out"), why)


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU"""
    m = np.zeros((4, 4), np.float32)
    gpu_ready(exercise.subtract_matrices, (m, m, m))
