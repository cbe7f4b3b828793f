"""Grader of ex01a: softmax, a thread per row, three passes."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.workbook import softmax_checks as rows


def check(exercise, x, threads=32):
    grid = -(-len(x) // threads)
    y, _, _ = rows.run(simt.run, exercise.safe_softmax_rows, grid, threads, x)
    rows.check_rows(x, y)


@pytest.mark.parametrize("case", ["a few rows", "one column", "two columns"])
def test_rows(exercise, case):
    """every row becomes its softmax"""
    check(exercise, rows.case(case), threads=1)


@pytest.mark.parametrize("num_rows, threads", [(1, 32), (33, 32), (100, 64), (5, 128)])
def test_threads_without_a_row(exercise, num_rows, threads):
    """more threads than rows: those without a row touch nothing"""
    x = np.random.default_rng(5).normal(size=(num_rows, 9)).astype(np.float32)
    check(exercise, x, threads)


def test_thread_block_size(exercise):
    """the number of threads a block does not change the answer"""
    x = rows.case("fewer columns than a warp").repeat(20, axis=0)
    answers = [
        rows.run(simt.run, exercise.safe_softmax_rows, -(-60 // t), t, x)[0] for t in (1, 20, 64)
    ]
    for threads, y in zip((20, 64), answers[1:], strict=True):
        assert np.array_equal(y, answers[0]), (
            f"{threads} threads a block give another answer than 1: a row's number is "
            "blockIdx.x * blockDim.x + threadIdx.x"
        )


def test_large_scores(exercise):
    """stable on large scores: +-10000 neither overflow nor vanish"""
    check(exercise, rows.large_scores())


def test_order(exercise):
    """ascending, descending and equal scores; the maximum first, last and in between"""
    check(exercise, rows.ordered_scores())


def test_masked_columns(exercise):
    """-inf entries get probability 0 and do not disturb the others"""
    check(exercise, rows.masked_scores())


def test_masked_rows(exercise):
    """a row of -inf only becomes a row of 0"""
    check(exercise, rows.masked_rows())


def test_low_scores(exercise):
    """scores far below 0, down to the lowest float32, are scores and not masked columns"""
    check(exercise, rows.low_scores())


def test_long_rows(exercise):
    """rows of thousands of columns"""
    check(exercise, rows.long_rows())


def test_rows_that_are_views(exercise):
    """rows inside a larger array: all of them written, nothing outside touched"""
    rows.check_view(exercise.safe_softmax_rows, 1, 32)


def test_input_is_unchanged(exercise):
    """x is read only"""
    x = rows.ordered_scores()
    _, _, after = rows.run(simt.run, exercise.safe_softmax_rows, 1, 32, x)
    assert np.array_equal(after, x), "x changed: keep intermediate values in registers"


def test_hbm_traffic(exercise):
    """3 reads and 1 write of each element, by the meter"""
    x = rows.case("fewer columns than a warp")
    _, trace, _ = rows.run(simt.trace, exercise.safe_softmax_rows, 1, 32, x)
    loads, stores = trace.arrays["x"].loads, trace.arrays["y"].stores
    assert loads <= 3 * x.size, (
        f"x has {x.size} elements and was read {loads} times, {loads / x.size:.3g} an element: "
        "maximum, sum and quotient need 3. (m_i starts at -inf; x[row, 0] would be one more read)"
    )
    assert stores == x.size, f"y has {x.size} elements and was written {stores} times"
    again = trace.arrays["y"].loads
    assert again == 0, f"y was read back {again} times: compute exp(x - m) again instead"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32"""
    from fa_numba.analysis.machine_code import gpu_ready

    x = np.zeros((4, 8), np.float32)
    gpu_ready(exercise.safe_softmax_rows, (x, x))
