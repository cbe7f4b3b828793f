"""Grader of ex02c: a layer norm with its barriers in the right places."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_no_races, expect_stores_by
from fa_numba.workbook.graders.softmax import check_unchanged

NUM_THREADS = 128
BARRIERS = 17  # 7 in each tree, one before each, one between them
EPS = 1e-5

# num_rows, num_cols
SHAPES = {
    "as many columns as threads": (3, 128),
    "twice as many columns": (2, 256),
    "fewer columns than threads": (3, 100),
    "one column": (2, 1),
    "columns no multiple of the threads": (2, 1300),
    "many rows": (40, 33),
}


def make_x(num_rows, num_cols, seed=0):
    return np.random.default_rng(seed).standard_normal((num_rows, num_cols), np.float32)


def norm(x, *, correction=0, eps=EPS, centre=True, root=True):
    """The layer norm by its definition, in float64; the options are mistakes."""
    x = x.astype(np.float64)
    distance = x - x.mean(axis=1, keepdims=True)
    variance = (distance**2).sum(axis=1, keepdims=True) / max(x.shape[1] - correction, 1) + eps
    return (distance if centre else x) / (np.sqrt(variance) if root else variance)


def launch(exercise, x, y=None, how=simt.trace):
    y = np.full_like(x, np.nan) if y is None else y
    return y, how(exercise.kernel, len(x), NUM_THREADS, x, y)


def check(y, x, what):
    want = norm(x)
    wrong = np.argwhere(~(np.abs(y - want) <= 2e-5 * (1 + np.abs(want))))
    if not len(wrong):
        return
    mistakes = {
        "The mean is not subtracted.": norm(x, centre=False),
        "It is divided by the variance: take its square root.": norm(x, root=False),
        "The sum of squares is divided by num_cols - 1, not by num_cols.": norm(x, correction=1),
        "EPS is lost.": norm(x, eps=1e-30),
    }
    found = [cause for cause, of in mistakes.items() if np.allclose(y, of, rtol=1e-3, atol=1e-4)]
    row, n = wrong[0]
    raise Wrong(
        f"{what}: {len(wrong)} of {y.size} elements are wrong, the first is y[{row}, {n}]: want "
        f"{want[row, n]:.6g}, got {y[row, n]:.6g}",
        causes=found or ["The barriers are the bug, the arithmetic was right: is it the same?"],
        where=f"y[{row}, {n}]",
    )


@pytest.mark.parametrize("case", SHAPES)
def test_right(exercise, case):
    """each row's layer norm, without a race and without a barrier that waits for ever"""
    x = make_x(*SHAPES[case]) * 3 + 1
    y, trace = launch(exercise, x)
    expect_no_races(trace)
    check(y, x, f"{case} ({len(x)} x {x.shape[1]})")


def test_rows_differ(exercise):
    """no row takes the mean or the deviation of another one"""
    x = make_x(9, 130) * 10.0 ** np.arange(-2, 7, dtype=np.float32)[:, None]
    check(launch(exercise, x, how=simt.run)[0], x, "each row ten times its neighbour")


def test_nearly_equal(exercise):
    """EPS counts in a row of equal numbers"""
    x = np.zeros((3, 70), np.float32)
    x[1], x[2] = 3e-3 * (np.arange(70) % 2), 4
    check(launch(exercise, x, how=simt.run)[0], x, "rows of nearly equal numbers")


def test_the_race_was_between_rows(exercise):
    """kernel has no race in rows of 128, where broken_kernel, as it was given, has one"""
    x, y = make_x(2, 128), np.zeros((2, 128), np.float32)
    expect_no_races(launch(exercise, x)[1])
    races = simt.trace(exercise.broken_kernel, 2, NUM_THREADS, x, y).races
    pairs = {(race.kind, *race.lines) for race in races}
    assert len(pairs) == 1 and races[0].kind == "WAR", (
        "broken_kernel is to stay as it was given: mend `kernel`. In rows of 128 it now has "
        f"these races: {'; '.join(str(race) for race in races) or 'none'}"
    )


def test_few_barriers(exercise):
    """at most 17 barriers per row, whatever its length"""
    for num_cols in (100, 128, 1024):
        _, trace = launch(exercise, make_x(4, num_cols))
        per_row = trace.barriers / 4
        assert per_row <= BARRIERS, (
            f"rows of {num_cols}: {per_row:g} barriers per row, allowed are {BARRIERS}. A barrier "
            "in the loop over columns is passed once for each column of a thread"
        )


def test_hbm_traffic(exercise):
    """x is read three times and y written once, neighbours by neighbouring threads"""
    x = make_x(3, 256)
    _, trace = launch(exercise, x)
    x_meter, y_meter = trace.arrays["x"], trace.arrays["y"]
    for got, most, what in (
        (x_meter.loads, 3 * x.size, "loads of x"),
        (y_meter.stores, x.size, "stores of y"),
        (y_meter.loads, 0, "loads of y"),
        (32 * x_meter.load_sectors, 3 * x.nbytes, "bytes of x in whole sectors"),
    ):
        assert got <= most, f"{what}: want at most {most}, the meter says {got}"


def test_memory(exercise):
    """one shared array of NUM_THREADS float32 and no local array"""
    _, trace = launch(exercise, make_x(2, 100))
    expect_chip_memory(trace, shared=4 * NUM_THREADS, allowed="`partial`, used for both sums")


def test_all_work(exercise):
    """a thread block for each row, and columns for every thread"""
    _, trace = launch(exercise, make_x(5, NUM_THREADS))
    why = "thread block `row` owns row `row`, and thread tid its columns tid, tid + NUM_THREADS"
    expect_stores_by({"y": trace.arrays["y"]}, threads=5 * NUM_THREADS, blocks=5, why=why)


def test_nothing_else(exercise):
    """x is left as it was, and nothing is written beside y"""
    x = make_x(3, 70)
    before, frame = x.copy(), np.full((7, 80), 7, np.float32)
    y, _ = launch(exercise, x, frame[2:5, 5:75], how=simt.run)
    check_unchanged(before, x)
    check(y, before, "y inside a larger array")
    y[:] = 7
    assert (frame == 7).all(), f"{(frame != 7).sum()} elements around y were written"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    x = make_x(2, 2)
    gpu_ready(exercise.kernel, (x, x.copy()))
