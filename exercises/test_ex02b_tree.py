"""Grader of ex02b: a tree in shared memory, within a budget of requests."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders import softmax as rows
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_no_races

NUM_THREADS = 128
LEVELS = 7
BUDGET = 24  # requests for each row


def launch(exercise, x):
    """What every thread has read, and the trace."""
    x = np.asarray(x, np.float32)
    maxima = np.full((len(x), NUM_THREADS), np.nan, np.float32)
    return maxima, simt.trace(exercise.row_maxima, len(x), NUM_THREADS, x, maxima)


def check(exercise, x, what):
    x = np.asarray(x, np.float32)
    maxima, trace = launch(exercise, x)
    expect_no_races(trace)
    want = x.max(axis=1, keepdims=True)
    wrong = np.argwhere(~(maxima == want))
    if len(wrong):
        row, tid = wrong[0]
        raise Wrong(
            f"{what}: thread {tid} reads {maxima[row, tid]:.6g} as the maximum of row {row}, which "
            f"is {want[row, 0]:.6g}, in column {x[row].argmax()}",
            causes=causes(x, maxima, want),
            where=f"row {row}, thread {tid}",
        )


def causes(x, maxima, want):
    """What the wrong rows have in common."""
    found, got = [], maxima[:, 0]
    if (got == x.min(axis=1)).all():
        found.append("It is the minimum.")
    if (maxima != maxima[:, :1]).any():
        found.append("The threads read different numbers: the last level needs its barrier, too.")
    if x.shape[1] >= NUM_THREADS and np.isfinite(x).all():
        total = x.sum(axis=1, dtype=np.float64)
        if np.allclose(got, total, rtol=1e-4, atol=1e-4):
            found.append("It is the sum.")
    lost = np.flatnonzero(got != want[:, 0])
    threads = np.unique(x[lost].argmax(axis=1) % NUM_THREADS)
    found.append(
        f"The numbers of {len(threads)} threads never arrive, the first is thread {threads[0]}: is "
        "the first stride half of NUM_THREADS, and the last one 1?"
    )
    return found


def test_maximum_in_any_thread(exercise):
    """the maximum is found whichever thread holds it, and all threads read it"""
    check(exercise, np.eye(NUM_THREADS) - 1, "one 0 among -1")


@pytest.mark.parametrize("low", [0, 1e4, 2e9, 2e30, 3e38])
def test_negative_rows(exercise, low):
    """the maximum may be any number"""
    x = np.random.default_rng(0).normal(size=(11, 150)).astype(np.float32) - np.float32(low)
    check(exercise, x, f"numbers near -{low:g}")


def test_few_columns(exercise):
    """threads without a column hold -inf, and so may all"""
    check(exercise, [[-3.0], [7.0]], "one column")
    check(exercise, rows.masked_rows(), "rows of -inf among others")


def test_no_race(exercise):
    """no two threads race: each level is complete before the next one reads it"""
    expect_no_races(launch(exercise, rows.case("columns no multiple of the threads"))[1])


def test_barriers(exercise):
    """at most one barrier for each of the 7 levels"""
    _, trace = launch(exercise, np.zeros((4, 10)))
    per_row = trace.barriers / 4 - 1  # row_maxima has one
    assert per_row <= LEVELS, (
        f"fold_max takes {per_row:g} barriers, allowed are {LEVELS}: one for each level, which "
        "halves the numbers"
    )


def test_budget(exercise):
    """at most 24 requests for loads from shared memory for each row; par is 20"""
    _, trace = launch(exercise, np.zeros((4, NUM_THREADS)))
    requests = sum(array.load_requests for array in trace.shared.values()) / 4
    if requests > BUDGET:
        alone = requests > 100
        raise Wrong(
            f"{requests:g} requests for each row, the budget is {BUDGET}",
            causes=[
                "One thread adds up what many could." if alone else
                "Too many warps are awake: neighbouring threads should work, not every second one."
            ],
        )  # fmt: skip


def test_no_bank_conflicts(exercise):
    """no bank conflict"""
    _, trace = launch(exercise, np.zeros((4, NUM_THREADS)))
    conflicts = sum(array.bank_conflicts for array in trace.shared.values())
    assert not conflicts, (
        f"{conflicts} extra steps in the banks: neighbouring threads read neighbouring numbers"
    )


def test_memory(exercise):
    """no array besides partial"""
    _, trace = launch(exercise, np.zeros((2, 10)))
    expect_chip_memory(trace, shared=4 * NUM_THREADS, allowed="the array `partial` of row_maxima")


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32"""
    x = np.zeros((2, 8), np.float32)
    launch(exercise, x)  # a function that is not written yet says so here
    gpu_ready(exercise.row_maxima, (x, np.zeros((2, NUM_THREADS), np.float32)))
