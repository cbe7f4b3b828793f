"""Grader of ex02d: softmax, a thread block per row, tree reduction."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders import softmax as rows
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_no_races, expect_stores_by

NUM_THREADS = 128


def launch(exercise, x, how=simt.run):
    return rows.run(how, exercise.safe_softmax_kernel, len(x), NUM_THREADS, x)


def check(exercise, x):
    rows.check_rows(x, launch(exercise, x)[0])


@pytest.mark.parametrize("behaviour", rows.ROWS)
def test_rows(exercise, behaviour):
    check(exercise, rows.ROWS[behaviour]())


def test_maximum_in_any_thread(exercise):
    """the maximum is found whichever thread holds it, and every thread's part is summed"""
    check(exercise, 4 * np.eye(NUM_THREADS + 3, dtype=np.float32))
    check(exercise, rows.spikes(NUM_THREADS + 3))


def test_rows_that_are_views(exercise):
    """rows inside a larger array: all of them written, nothing outside touched"""
    rows.check_view(exercise.safe_softmax_kernel, 5, NUM_THREADS)


def test_input_is_unchanged(exercise):
    """x is read only"""
    for x in (rows.ordered_scores(), rows.masked_scores()):
        _, _, after = launch(exercise, x)
        rows.check_unchanged(x, after)


def test_no_race(exercise):
    """no two threads race: a barrier lies between each write and the reads of it"""
    for x in (rows.case("columns no multiple of the threads"), rows.masked_rows()):
        expect_no_races(launch(exercise, x, simt.trace)[1])


def test_hbm_traffic(exercise):
    """at most 3 reads and 1 write of each element, by the meter"""
    for x in (rows.case("columns no multiple of the threads"), rows.masked_rows()):
        _, trace, _ = launch(exercise, x, simt.trace)
        why = "maximum, sum and quotient need 3. Does each thread keep to its own columns?"
        rows.check_traffic(trace, x.size, 3, why)


def test_coalesced(exercise):
    """a warp reads and writes neighbouring columns: 4 sectors for 32 floats"""
    x = np.zeros((2, 8 * NUM_THREADS), np.float32)
    _, trace, _ = launch(exercise, x, simt.trace)
    rows.check_coalesced(trace, x.nbytes, 3)


def test_shared_memory(exercise):
    """one shared array of NUM_THREADS float32, and no local arrays"""
    _, trace, _ = launch(exercise, rows.case("as many columns as threads"), simt.trace)
    allowed = "one array of NUM_THREADS float32 serves the maximum, and then the sum"
    expect_chip_memory(trace, shared=4 * NUM_THREADS, allowed=allowed)


def test_a_thread_block_per_row(exercise):
    """each row has a thread block of its own, and all its threads work"""
    x = np.zeros((6, NUM_THREADS), np.float32)
    _, trace, _ = launch(exercise, x, simt.trace)
    y = {"y": trace.arrays["y"]}
    why = "thread block `row` owns row `row`, and thread tid its columns tid, tid + NUM_THREADS"
    expect_stores_by(y, threads=x.size, blocks=6, why=why)


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32"""
    x = np.zeros((4, 8), np.float32)
    gpu_ready(exercise.safe_softmax_kernel, (x, x))
