"""Grader of ex05a: find the race."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_no_races, expect_stores_by

THREADS = 64
BARRIERS_PER_ROW = 1 + 6  # of broken_kernel: one before the reduction, one after each of its steps

# num_rows, num_cols, thread blocks
SHAPES = {
    "a thread block per row": (4, 100, 4),
    "one thread block, many rows": (7, 100, 1),
    "fewer thread blocks than rows": (10, 70, 3),
    "more thread blocks than rows": (2, 70, 5),
    "fewer columns than threads": (6, 5, 2),
    "as many columns as threads": (6, 64, 2),
    "one column": (6, 1, 2),
    "one row": (1, 200, 1),
    "a long row": (2, 5000, 1),
    "many rows": (300, 3, 60),
}


def make_x(num_rows, num_cols, seed=0):
    return np.random.default_rng(seed).standard_normal((num_rows, num_cols), np.float32)


def subtract(exercise, x, num_blocks, y=None):
    y = np.full(x.shape, np.nan, np.float32) if y is None else y
    simt.run(exercise.kernel, num_blocks, THREADS, x, y)
    return y


def check(y, x, what):
    """Subtraction rounds once, so the answer is exact to the bit."""
    want = x - x.max(axis=1, keepdims=True)
    wrong = np.argwhere(~(y == want))
    if len(wrong):
        row, col = wrong[0]
        pytest.fail(
            f"{what}: {len(wrong)} of {y.size} elements are wrong, the first is y[{row}, {col}]: "
            f"want {want[row, col]:.6g}, got {y[row, col]:.6g}. The maximum of row {row} is "
            f"{x[row].max():.6g} in column {x[row].argmax()}"
        )


@pytest.mark.parametrize("case", SHAPES)
def test_right(exercise, case):
    """the row maximum is subtracted, without a race"""
    num_rows, num_cols, num_blocks = SHAPES[case]
    x = make_x(num_rows, num_cols)
    check(subtract(exercise, x, num_blocks), x, f"{case} ({num_rows} x {num_cols})")


def test_maximum_anywhere(exercise):
    """the maximum is found in whichever column it stands"""
    num_cols = THREADS + 30
    x = make_x(num_cols, num_cols)
    np.fill_diagonal(x, 9)  # row i has its maximum in column i
    check(subtract(exercise, x, 5), x, "row i has its maximum in column i")


def test_negative_rows(exercise):
    """rows below zero keep their own maximum, and 0 is a maximum, too"""
    for low in (0, 1e3, 2e4, 2e9, 2e30, 3e38):
        x = np.minimum(make_x(6, 40), 0) - np.float32(low)
        check(subtract(exercise, x, 2), x, f"rows whose maximum is -{low:g}: it starts at -inf")


def test_rows_differ(exercise):
    """a row never gets the maximum of the row before or after"""
    x = make_x(9, 130) + 10.0 ** np.arange(-3, 6, dtype=np.float32)[:, None]
    for rows in (x, x[::-1].copy()):
        check(subtract(exercise, rows, 2), rows, "each row ten times its neighbour")


def traced(exercise, x, num_blocks):
    """A trace of `kernel`, and its arrays."""
    trace = simt.trace(exercise.kernel, num_blocks, THREADS, x, np.empty_like(x))
    return trace, trace.arrays


def test_races_are_gone(exercise):
    """broken_kernel races in one pair of lines, kernel in none"""
    x = make_x(6, 100)
    for num_blocks in (1, 2, 6):
        expect_no_races(traced(exercise, x, num_blocks)[0])
    races = simt.trace(exercise.broken_kernel, 2, THREADS, x, np.empty_like(x)).races
    pairs = {(race.kind, *race.lines) for race in races}
    assert len(pairs) == 1 and races[0].kind == "WAR", (
        "broken_kernel is to stay as it was given, with one race, but it now has these: "
        f"{'; '.join(str(race) for race in races) or 'none'}"
    )


def test_few_barriers(exercise):
    """no more barriers per row than broken_kernel"""
    for num_rows, num_blocks in ((12, 3), (5, 1)):
        trace, _ = traced(exercise, make_x(num_rows, 100), num_blocks)
        allowed = num_rows * BARRIERS_PER_ROW
        assert trace.barriers <= allowed, (
            f"{num_rows} rows took {trace.barriers} barriers, allowed are {allowed}: mend the "
            "race without a further one; shared memory may be twice as large"
        )


def test_hbm_traffic(exercise):
    """HBM traffic: x loaded twice, y stored once, neighbours by neighbouring threads"""
    x = make_x(8, 128)
    _, moved = traced(exercise, x, 3)
    meter = {"x": moved["x"].loads, "y": moved["y"].stores, "y loaded": moved["y"].loads}
    want = {"x": 2 * x.size, "y": x.size, "y loaded": 0}
    for name in want:
        assert meter[name] <= want[name], (
            f"{name}: want {want[name]} elements, the meter says {meter[name]}: mending the "
            "race costs shared memory, not traffic of HBM"
        )
    for name, sectors, bytes_ in (
        ("x", moved["x"].load_sectors, moved["x"].load_bytes),
        ("y", moved["y"].store_sectors, moved["y"].store_bytes),
    ):
        assert 32 * sectors == bytes_, (
            f"{name}: {bytes_} bytes took {sectors} sectors of 32: thread tid takes columns tid, "
            "tid + THREADS, ..., as before"
        )


def test_memory(exercise):
    """at most 2 THREADS float32 in shared memory, and no local array"""
    trace, _ = traced(exercise, make_x(5, 100), 2)
    allowed = "2 * THREADS float32 in shared memory"
    expect_chip_memory(trace, shared=8 * THREADS, allowed=allowed)


def test_all_work(exercise):
    """every thread block takes its rows, and every thread its columns"""
    trace, moved = traced(exercise, make_x(7, 2 * THREADS), 3)
    why = "a thread block takes the rows blockIdx.x, blockIdx.x + gridDim.x, ..., a thread columns"
    expect_stores_by({"y": moved["y"]}, threads=3 * THREADS, blocks=3, why=why)


def test_nothing_else(exercise):
    """x is left as it was, and nothing is written beside y"""
    x = make_x(5, 70)
    before = x.copy()
    frame = np.full((9, 80), 7, np.float32)
    y = subtract(exercise, x, 2, frame[2:7, 5:75])
    assert (x == before).all(), "the kernel wrote into x"
    check(y, before, "y inside a larger array")
    y[:] = 7
    assert (frame == 7).all(), f"{(frame != 7).sum()} elements around y were written"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    x = make_x(2, 2)
    gpu_ready(exercise.kernel, (x, x.copy()))
