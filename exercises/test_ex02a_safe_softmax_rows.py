"""Grader of ex02a: softmax, a thread per row, three passes."""

import numpy as np
import pytest
from numba import cuda

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders import softmax as rows
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_stores_by


def check(exercise, x, threads=32):
    grid = -(-len(x) // threads)
    y, _, _ = rows.run(simt.run, exercise.safe_softmax_rows, grid, threads, x)
    rows.check_rows(x, y)


def statistics(exercise, x):
    """(m, l) of each row, as row_statistics returns them."""
    row_statistics = exercise.row_statistics

    @cuda.jit
    def kernel(x, m, l):
        row = cuda.grid(1)
        if row < x.shape[0]:
            m[row], l[row] = row_statistics(x, row)

    m, l = np.full((2, len(x)), rows.FILLER, np.float32)
    try:
        simt.run(kernel, 1, 32, x, m, l)
    except Exception as error:
        if "unpack" in str(error):
            raise Wrong(
                f"row_statistics must return two numbers: {error}",
                causes=["row_statistics must return (m, l)."],
            ) from None
        raise
    return m, l


@pytest.mark.parametrize("of", ["ordinary", "large", "masked", "all masked", "steep"])
def test_statistics(exercise, of):
    """row_statistics returns (m, l) of a row"""
    steep = np.full((1, 5000), -30, np.float32)
    steep[:, -1] = 0
    x = {
        "ordinary": lambda: rows.case("a few rows"),
        "large": rows.large_scores,
        "masked": rows.masked_scores,
        "all masked": rows.masked_rows,
        "steep": lambda: steep,
    }[of]()
    m, l = statistics(exercise, x)
    for row, scores in enumerate(x.astype(np.float64)):
        want_m = scores.max()
        want_l = np.exp(scores - want_m).sum() if want_m > -np.inf else 0.0
        case = f"{of} scores, row {row}"
        if not m[row] == want_m:
            raise Wrong(
                f"{case}: m must be {want_m:.6g}, got {m[row]:.6g}",
                causes=["m is the largest score of the row, and it starts at -inf."],
                where=case,
            )
        if not abs(l[row] - want_l) <= 2e-6 * want_l:
            causes = ["l is the sum of exp(x[row, n] - m) over all columns of the row."]
            if want_l == 0:
                causes = ["A row of -inf only has l = 0: -inf - -inf is NaN and needs a guard."]
            raise Wrong(
                f"{case}: l must be {want_l:.7g}, got {l[row]:.7g}", causes=causes, where=case
            )


@pytest.mark.parametrize("case", ["a few rows", "one column", "two columns"])
def test_rows(exercise, case):
    """every row becomes its softmax"""
    check(exercise, rows.case(case), threads=1)


@pytest.mark.parametrize("num_rows, threads", [(1, 32), (33, 32), (300, 64), (5, 128)])
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


def test_maximum_in_any_column(exercise):
    """the maximum is found whichever column holds it"""
    check(exercise, rows.spikes(37))


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
    check(exercise, rows.long_rows(2000))


def test_rows_that_are_views(exercise):
    """rows inside a larger array: all of them written, nothing outside touched"""
    rows.check_view(exercise.safe_softmax_rows, 1, 32)


def test_input_is_unchanged(exercise):
    """x is read only"""
    for x in (rows.ordered_scores(), rows.masked_scores()):
        _, _, after = rows.run(simt.run, exercise.safe_softmax_rows, 1, 32, x)
        rows.check_unchanged(x, after)


def test_hbm_traffic(exercise):
    """at most 3 reads and 1 write of each element, by the meter"""
    for x in (rows.case("fewer columns than a warp"), rows.masked_rows()):
        _, trace, _ = rows.run(simt.trace, exercise.safe_softmax_rows, 1, 32, x)
        why = "maximum, sum and quotient need 3. (m_i starts at -inf; x[row, 0] is one more read)"
        rows.check_traffic(trace, x.size, 3, why)


def test_registers_only(exercise):
    """no shared memory and no local arrays"""
    _, trace, _ = rows.run(simt.trace, exercise.safe_softmax_rows, 1, 32, rows.case("a few rows"))
    expect_chip_memory(trace, allowed="a maximum, a sum and a factor are three scalars")


def test_a_thread_per_row(exercise):
    """each row has a thread of its own"""
    x = np.zeros((70, 3), np.float32)
    _, trace, _ = rows.run(simt.trace, exercise.safe_softmax_rows, 3, 32, x)
    y = {"y": trace.arrays["y"]}
    expect_stores_by(y, threads=70, why="thread number `row` of the grid owns one row")


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32"""
    x = np.zeros((4, 8), np.float32)
    statistics(exercise, x)  # a function that is not written yet says so here
    gpu_ready(exercise.safe_softmax_rows, (x, x))
