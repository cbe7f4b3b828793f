"""Grader of ex00a: one thread per element."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.elements import (
    expect_elements,
    expect_neighbours,
    expect_once,
    unwritten,
    vectors,
)


def scale(exercise, n, factor=3.0):
    (x,) = vectors(1, n)
    out, factor = unwritten(n), np.float32(factor)
    trace = simt.trace(exercise.scale_vector, 1, n, x.copy(), out, factor)
    return x, factor, out, trace


def check(x, factor, out, trace):
    first = np.full_like(out, np.nan)
    first[0] = factor * x[0]
    mistakes = {
        "The factor is missing.": x,
        "The factor is added, not multiplied.": x + factor,
        "All threads take element 0.": first,
        "The elements are in the opposite order.": factor * x[::-1],
    }
    expect_elements(out, factor * x, case=f"n = {len(x)}", mistakes=mistakes)


@pytest.mark.parametrize("n", [1, 8, 1000, 1024])
def test_every_element(exercise, n):
    """every thread computes the element of its number"""
    check(*scale(exercise, n))


@pytest.mark.parametrize("factor", [1.0, -0.5, 0.0, 1e30])
def test_factor(exercise, factor):
    """any factor"""
    check(*scale(exercise, 40, factor))


def test_once(exercise):
    """each thread reads one element and writes one element, and nothing else"""
    *result, trace = scale(exercise, 96)
    check(*result, trace)
    expect_once(trace, {"x": 96}, 96)


def test_neighbours(exercise):
    """neighbouring threads take neighbouring elements"""
    *result, trace = scale(exercise, 1024)
    check(*result, trace)
    expect_neighbours(trace, ("x", "out"), "Let thread i take element i")


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU"""
    x = np.zeros(4, np.float32)
    gpu_ready(exercise.scale_vector, (x, x, np.float32(1)))
