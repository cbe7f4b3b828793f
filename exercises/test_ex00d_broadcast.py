"""Grader of ex00d: a number for each row, a number for each column."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.elements import expect_elements, expect_once, unwritten

SHAPES = [(4, 8), (8, 4), (6, 6), (2, 300), (300, 1)]


def run(exercise, shape, block=None):
    block = block or (shape[1] + 2, shape[0] + 1)
    rng = np.random.default_rng(sum(shape))
    x = rng.standard_normal(shape, np.float32)
    shift, scale = (rng.standard_normal(n, np.float32) for n in shape)
    out = unwritten(*shape)
    trace = simt.trace(exercise.rescale, 1, block, x.copy(), shift.copy(), scale.copy(), out)
    return (x, shift, scale), out, trace


def check(arrays, out):
    x, shift, scale = arrays
    rows = shift[:, None]
    mistakes = {
        "The shift is missing.": x * scale,
        "The scale is missing.": x - rows,
        "The shift is added, not subtracted.": (x + rows) * scale,
        "The product comes first: brackets around the difference are missing.": x - rows * scale,
    }
    if len(shift) == len(scale):
        mistakes["shift belongs to the rows, scale to the columns."] = (x - shift) * scale[:, None]
        mistakes["shift belongs to the rows."] = (x - shift) * scale
        mistakes["scale belongs to the columns."] = (x - rows) * scale[:, None]
    case = f"{x.shape[0]} rows, {x.shape[1]} columns"
    expect_elements(out, (x - rows) * scale, case=case, mistakes=mistakes, rtol=1e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_every_element(exercise, shape):
    """every element, whatever the shape"""
    arrays, out, _ = run(exercise, shape)
    check(arrays, out)


def test_exact_fit(exercise):
    """with as many threads as elements"""
    arrays, out, _ = run(exercise, (6, 6), (6, 6))
    check(arrays, out)


def test_once(exercise):
    """x, shift and scale are read once per element, out is written once"""
    arrays, out, trace = run(exercise, (5, 9))
    check(arrays, out)
    expect_once(trace, {"x": 45, "shift": 45, "scale": 45}, 45)


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU"""
    m, v = np.zeros((4, 4), np.float32), np.zeros(4, np.float32)
    gpu_ready(exercise.rescale, (m, v, v, m))
