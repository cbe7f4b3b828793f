"""Grader of ex03c: online softmax, a thread block per row, warp shuffles."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders import softmax as rows
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_no_races, expect_stores_by

NUM_WARPS = 4
NUM_THREADS = 32 * NUM_WARPS


def launch(exercise, x, how=simt.run):
    return rows.run(how, exercise.online_softmax_kernel, len(x), NUM_THREADS, x)


def check(exercise, x):
    rows.check_rows(x, launch(exercise, x)[0])


@pytest.mark.parametrize("behaviour", rows.ROWS)
def test_rows(exercise, behaviour):
    check(exercise, rows.ROWS[behaviour]())


def test_maximum_in_any_thread(exercise):
    """the maximum is found whichever lane and warp holds it, and every part is summed"""
    check(exercise, 4 * np.eye(NUM_THREADS + 3, dtype=np.float32))
    check(exercise, rows.spikes(NUM_THREADS + 3))


def test_every_warp_has_another_maximum(exercise):
    """warps whose maxima differ are brought to a common one"""
    x = np.zeros((4, 2 * NUM_THREADS), np.float32)
    warp = np.arange(x.shape[1]) // 32
    x[0], x[1], x[2] = warp, -warp, 3 * (warp % 2)
    check(exercise, x)


def test_rows_that_are_views(exercise):
    """rows inside a larger array: all of them written, nothing outside touched"""
    rows.check_view(exercise.online_softmax_kernel, 5, NUM_THREADS)


def test_input_is_unchanged(exercise):
    """x is read only"""
    for x in (rows.ordered_scores(), rows.masked_scores()):
        _, _, after = launch(exercise, x)
        rows.check_unchanged(x, after)


def test_no_race(exercise):
    """no two threads race: a barrier lies between the warps' stores and everybody's loads"""
    for x in (rows.case("columns no multiple of the threads"), rows.masked_rows()):
        expect_no_races(launch(exercise, x, simt.trace)[1])


def test_hbm_traffic(exercise):
    """at most 2 reads and 1 write of each element, by the meter: one pass fewer than ex02d"""
    for x in (rows.case("columns no multiple of the threads"), rows.masked_rows()):
        _, trace, _ = launch(exercise, x, simt.trace)
        why = "maximum and sum share one pass, and the second pass writes"
        rows.check_traffic(trace, x.size, 2, why)


def test_one_barrier(exercise):
    """one barrier per row, whatever its length"""
    for x in (rows.case("one column"), rows.case("columns no multiple of the threads")):
        _, trace, _ = launch(exercise, x, simt.trace)
        per_row = trace.barriers / len(x)
        if per_row > 1:
            raise Wrong(
                f"{per_row:g} barriers per row, and one is enough: it lies between the warps' "
                "stores and everybody's loads",
                causes=[
                    "Every thread merges the pairs of all warps for itself, after one barrier."
                ],
            )


def test_coalesced(exercise):
    """a warp reads and writes neighbouring columns: 4 sectors for 32 floats"""
    x = np.zeros((2, 8 * NUM_THREADS), np.float32)
    _, trace, _ = launch(exercise, x, simt.trace)
    rows.check_coalesced(trace, x.nbytes, 2)


def test_shared_memory(exercise):
    """lanes talk by shuffles: shared memory holds one pair (m, l) per warp, and nothing else"""
    x = rows.case("columns no multiple of the threads")
    _, trace, _ = launch(exercise, x, simt.trace)
    allowed = (
        f"one pair (m, l) of float32 for each of {NUM_WARPS} warps. Fold the 32 lanes with "
        "cuda.shfl_xor_sync first, then let one lane store"
    )
    expect_chip_memory(trace, shared=8 * NUM_WARPS, allowed=allowed)
    stores = sum(array.stores for array in trace.shared.values()) / len(x)
    pairs = 2 * NUM_WARPS
    assert stores <= pairs, (
        f"{stores:g} floats were stored to shared memory per row; {NUM_WARPS} warps need "
        f"{pairs}. Fold the 32 lanes with cuda.shfl_xor_sync first, then let one lane store"
    )


def test_all_lanes(exercise):
    """the mask of a shuffle names all 32 lanes"""
    check(exercise, rows.case("as many columns as threads"))
    mask = getattr(exercise, "FULL_MASK", 0xFFFFFFFF)
    assert mask == 0xFFFFFFFF, (
        f"FULL_MASK is {mask:#x}: all 32 lanes take part in a shuffle, so its mask names all 32"
    )


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
    gpu_ready(exercise.online_softmax_kernel, (x, x))
