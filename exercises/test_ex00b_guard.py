"""Grader of ex00b: differences of neighbours, and nobody past the end."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.elements import expect_elements, expect_once, unwritten, vectors

THREADS = 64


def differences(exercise, n):
    (x,) = vectors(1, n)
    out = unwritten(n - 1)
    trace = simt.trace(exercise.kernel, 1, THREADS, x.copy(), out)
    return x, out, trace


def check(x, out):
    mistakes = {
        "The sign is wrong: it is x[i + 1] - x[i].": x[:-1] - x[1:],
        "The last difference is missing: the guard stops a thread too many.": np.append(
            (x[1:] - x[:-1])[:-1], [np.nan] * (len(x) > 1)
        ).astype(np.float32),
    }
    expect_elements(out, x[1:] - x[:-1], case=f"n = {len(x)}", mistakes=mistakes)


@pytest.mark.parametrize("n", [2, 3, 31, 33, 50, 64])
def test_more_threads_than_differences(exercise, n):
    """threads without a difference do nothing"""
    x, out, _ = differences(exercise, n)
    check(x, out)


def test_as_many_threads(exercise):
    """with as many threads as differences no thread is left out"""
    x, out, _ = differences(exercise, THREADS + 1)
    check(x, out)


def test_no_difference(exercise):
    """one element has no difference: no thread reads or writes"""
    x, out, trace = differences(exercise, 1)
    assert not trace.load_bytes and not trace.store_bytes, "n = 1: a thread read or wrote"


def test_once(exercise):
    """each difference takes two loads and a store"""
    x, out, trace = differences(exercise, 41)
    check(x, out)
    expect_once(trace, {"x": 80}, 40)


def test_inside_a_larger_array(exercise):
    """nothing is written behind out"""
    (x,) = vectors(1, 20)
    frame = np.full(40, 7, np.float32)
    simt.run(exercise.kernel, 1, THREADS, x.copy(), frame[5:24])
    check(x, frame[5:24])
    assert (np.delete(frame, range(5, 24)) == 7).all(), "elements around out were written"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU"""
    x = np.zeros(4, np.float32)
    gpu_ready(exercise.kernel, (x, x))
