"""Grader of ex02b: online softmax, a thread block per row, warp shuffles."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.workbook import softmax_checks as rows


def launch(exercise, x, how=simt.run):
    return rows.run(how, exercise.online_softmax_kernel, len(x), exercise.NUM_THREADS, x)


def check(exercise, x):
    rows.check_rows(x, launch(exercise, x)[0])


@pytest.mark.parametrize("case", rows.CASES)
def test_rows(exercise, case):
    """every row becomes its softmax, whatever the number of columns"""
    check(exercise, rows.case(case))


def test_many_rows(exercise):
    """each thread block keeps to its own row"""
    check(exercise, np.random.default_rng(5).normal(size=(97, 40)).astype(np.float32))


def test_large_scores(exercise):
    """stable on large scores: +-10000 neither overflow nor vanish"""
    check(exercise, rows.large_scores())


def test_order(exercise):
    """ascending scores (every one rescales), descending, equal; the maximum anywhere"""
    check(exercise, rows.ordered_scores())


def test_maximum_in_any_thread(exercise):
    """the maximum is found whichever lane and warp holds it, and every part is summed"""
    columns = exercise.NUM_THREADS + 3
    check(exercise, 4 * np.eye(columns, dtype=np.float32))


def test_every_warp_has_another_maximum(exercise):
    """warps whose maxima differ are brought to a common one"""
    x = np.zeros((4, 2 * exercise.NUM_THREADS), np.float32)
    warp = np.arange(x.shape[1]) // 32
    x[0], x[1], x[2] = warp, -warp, 3 * (warp % 2)
    check(exercise, x)


def test_masked_columns(exercise):
    """-inf entries get probability 0, also where a thread or a warp sees nothing else"""
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
    rows.check_view(exercise.online_softmax_kernel, 5, NUM_THREADS)


def test_input_is_unchanged(exercise):
    """x is read only"""
    x = rows.ordered_scores()
    _, _, after = launch(exercise, x)
    assert np.array_equal(after, x), "x changed: pairs (m, l) belong in registers"


def test_no_race(exercise):
    """no two threads race: a barrier lies between the warps' stores and everybody's loads"""
    _, trace, _ = launch(exercise, rows.case("columns no multiple of the threads"), simt.trace)
    assert not trace.races, f"{trace.races[0]} (and {len(trace.races) - 1} more)"


def test_hbm_traffic(exercise):
    """2 reads and 1 write of each element, by the meter: one pass fewer than safe softmax"""
    x = rows.case("columns no multiple of the threads")
    _, trace, _ = launch(exercise, x, simt.trace)
    loads, stores = trace.arrays["x"].loads, trace.arrays["y"].stores
    assert loads <= 2 * x.size, (
        f"x has {x.size} elements and was read {loads} times, {loads / x.size:.3g} an element: "
        "maximum and sum share one pass, and the second pass writes"
    )
    assert stores == x.size, (
        f"y has {x.size} elements and was written {stores} times: each belongs to one thread"
    )
    again = trace.arrays["y"].loads
    assert again == 0, f"y was read back {again} times: compute exp(x - m) again instead"


def test_coalesced(exercise):
    """a warp reads neighbouring columns: 4 sectors for 32 floats"""
    x = np.zeros((2, 8 * exercise.NUM_THREADS), np.float32)
    _, trace, _ = launch(exercise, x, simt.trace)
    sectors, needed = trace.arrays["x"].load_sectors, 2 * x.nbytes // 32
    assert sectors <= needed, (
        f"two passes over {x.nbytes} bytes are {needed} sectors of 32 bytes, but the warps asked "
        f"for {sectors}: thread tid takes columns tid, tid + NUM_THREADS, ..., all threads at once"
    )


def test_shared_memory(exercise):
    """lanes talk by shuffles: shared memory carries one pair (m, l) per warp"""
    x = rows.case("columns no multiple of the threads")
    _, trace, _ = launch(exercise, x, simt.trace)
    stores = sum(array.stores for array in trace.shared.values()) / len(x)
    pairs = 2 * exercise.NUM_WARPS
    assert stores <= pairs + 2, (  # + 2: a final pair, for those who let one warp finish
        f"{stores:g} floats were stored to shared memory per row; {exercise.NUM_WARPS} warps need "
        f"{pairs}. Fold the 32 lanes with cuda.shfl_xor_sync first, then let one lane store"
    )


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32"""
    from fa_numba.analysis.machine_code import gpu_ready

    x = np.zeros((4, 8), np.float32)
    gpu_ready(exercise.online_softmax_kernel, (x, x))
