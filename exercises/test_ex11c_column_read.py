"""Grader of ex11c: a column of a tile, without bank conflicts."""

import numpy as np

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import (
    expect_chip_memory,
    expect_no_races,
    expect_stores_by,
    expect_traffic,
)
from fa_numba.workbook.graders.tiles import expect_float32, expect_product, matrices

BUDGET = 8448  # bytes of shared memory


def launch(exercise, q, k, s=None, kernel="kernel"):
    s = np.full((8, 32), np.nan, np.float32) if s is None else s
    return s, simt.trace(getattr(exercise, kernel), 1, (32, 8), q, k, s)


def inputs(seed=0):
    return matrices((8, 64), (32, 64), seed=seed)


def test_equals_float64(exercise):
    """s = q k^T, as in float64"""
    for seed in range(3):
        q, k = inputs(seed)
        s, trace = launch(exercise, q, k)
        expect_no_races(trace)
        expect_product(s, q, k.T, f"inputs {seed}")


def test_each_score(exercise):
    """each query meets each key, each d its own"""
    for d in (0, 1, 31, 32, 63):
        q, k = np.zeros((8, 64), np.float32), np.zeros((32, 64), np.float32)
        q[:, d], k[:, d] = 1 + np.arange(8), 10 + np.arange(32)
        expect_product(launch(exercise, q, k)[0], q, k.T, f"only column {d} is not 0")


def conflicts(trace, action):
    return sum(getattr(array, f"{action}_conflicts") for array in trace.shared.values())


def test_no_conflicts_in_loads(exercise):
    """no bank conflict when the warps read the tile"""
    _, trace = launch(exercise, *inputs())
    assert trace.shared, "k goes through shared memory: each of its numbers is needed eight times"
    if number := conflicts(trace, "load"):
        times = sum(a.load_wavefronts for a in trace.shared.values())
        asked = sum(a.load_requests for a in trace.shared.values())
        raise Wrong(
            f"{asked} requests to read take {times} steps, {number} more than without conflicts",
            causes=["The threads of a warp read addresses a multiple of 32 floats apart, or "
                    "a distance that shares a factor with 32."],
        )  # fmt: skip


def test_no_conflicts_in_stores(exercise):
    """no bank conflict when the tile is written; broken_kernel is as it was given"""
    _, trace = launch(exercise, *inputs())
    _, broken = launch(exercise, *inputs(), kernel="broken_kernel")
    expect_no_races(broken)
    assert conflicts(broken, "load") == 31 * 512, "broken_kernel is to stay: mend `kernel`"
    if number := conflicts(trace, "store"):
        raise Wrong(
            f"writing the tile takes {number} steps more than without conflicts",
            causes=[
                "The conflict is now in the stores: the threads of a warp write down a column."
            ],
        )


def test_chip_memory(exercise):
    """at most 8448 bytes of shared memory in one array, none of it local"""
    _, trace = launch(exercise, *inputs())
    expect_chip_memory(trace, shared=BUDGET, allowed="k has 8192 bytes, and 256 are for padding")
    assert len(trace.shared) <= 1, f"one array is enough, there are {', '.join(trace.shared)}"
    expect_no_races(trace)


def test_hbm_traffic(exercise):
    """HBM traffic: k loaded once and coalesced, q at most once per thread and d, s stored once"""
    _, trace = launch(exercise, *inputs())
    wanted = {
        ("k", "loads"): (32 * 64, "32 keys of 64"),
        ("s", "stores"): (8 * 32, "8 queries by 32 keys"),
        ("s", "loads"): (0, "a sum is a register"),
        ("q", "stores"): (0, "it is an input"),
        ("k", "stores"): (0, "it is an input"),
    }
    expect_traffic(trace, wanted)
    moved = trace.arrays
    assert moved["q"].loads <= 8 * 32 * 64, "q is loaded more often than once per thread and d"
    assert 32 * moved["k"].load_sectors == moved["k"].load_bytes, (
        "the loads of k fetch bytes that nobody asked for: neighbouring threads load neighbours"
    )
    why = "each of the 32 x 8 threads owns one score"
    expect_stores_by({"s": moved["s"]}, threads=256, why=why)


def test_nothing_else_written(exercise):
    """writes s and not one element beside it"""
    q, k = inputs()
    frame = np.full((12, 40), 7, np.float32)
    s, _ = launch(exercise, q, k, frame[2:10, 4:36])
    expect_product(s, q, k.T, "s inside a larger array")
    s[:] = 7
    assert (frame == 7).all(), f"{(frame != 7).sum()} elements around s were written"


def test_float32(exercise):
    """computes in float32"""
    expect_float32(launch(exercise, *inputs())[1])


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    q, k = inputs()
    gpu_ready(exercise.kernel, (q, k, np.zeros((8, 32), np.float32)))
