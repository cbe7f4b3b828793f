"""Grader of ex12b: a swizzled tile, judged by its banks alone."""

import numpy as np
import pytest
from numba import cuda

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.elements import expect_neighbours
from fa_numba.workbook.graders.kernels import expect_at_most, launched
from fa_numba.workbook.graders.meter import expect_chip_memory


def places(exercise, rows):
    """[row, word] -> where it lies, by the learner's device function."""
    word_of = exercise.word_of

    @cuda.jit
    def ask(found):
        for row in range(cuda.threadIdx.y, found.shape[0], cuda.blockDim.y):
            found[row, cuda.threadIdx.x] = word_of(row, cuda.threadIdx.x)

    found = np.full((rows, 32), -9, np.int64)
    simt.run(ask, 1, (32, 8), found)
    return found


def run(exercise, x):
    given = {"x": x, "y": np.full((8, len(x), 4), np.nan, np.float32)}
    got, trace = launched(exercise.kernel, len(x) // 32, (32, 4), ("y",), **given)
    return got["y"], trace


def random_x(rows, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, 32), np.float32)


@pytest.mark.parametrize("rows", [1, 7, 8, 24, 32, 300])
def test_map_fills_the_tile(exercise, rows):
    """word_of: each place is taken once, and there is no padding, for any number of rows"""
    got = places(exercise, rows)
    if not np.array_equal(np.sort(got, axis=None), np.arange(32 * rows)):
        largest, count = int(got.max()), len(np.unique(got))
        raise Wrong(
            f"{rows} rows have {32 * rows} words, which must fill the places 0 to "
            f"{32 * rows - 1}: got {count} different places up to {largest}",
            causes=["There is padding between rows."] if largest >= 32 * rows else [],
        )


def test_chunks_stay_whole(exercise):
    """word_of: the four words of a chunk lie side by side, in order, at a multiple of 4"""
    got = places(exercise, 32).reshape(32, 8, 4)
    right = (got[:, :, 0] % 4 == 0) & (np.diff(got, axis=2) == 1).all(axis=2)
    if not right.all():
        row, chunk = map(int, np.argwhere(~right)[0])
        raise Wrong(
            f"chunk {chunk} of row {row} lies in the words {got[row, chunk].tolist()}",
            causes=["A chunk is torn: 16 bytes are copied and loaded in one piece."],
        )


@pytest.mark.parametrize("rows", [32, 96, 352])
def test_values(exercise, rows):
    """every word arrives"""
    x = random_x(rows)
    got, _ = run(exercise, x)
    want = x.reshape(rows, 8, 4).transpose(1, 0, 2)
    wrong = np.argwhere(got != want)
    if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        found = np.argwhere(x == got[at])
        what = f"which is x{found[0].tolist()}" if len(found) else "which is nowhere in x"
        raise Wrong(
            f"y{list(at)} must be x[{at[1]}, {4 * at[0] + at[2]}] = {want[at]:.6g}, got "
            f"{got[at]:.6g}, {what}; {len(wrong)} of {want.size} differ",
            where=f"y{list(at)}",
        )


@pytest.mark.parametrize(
    "action, what", [("store", "a row is written"), ("load", "a chunk is read")]
)
def test_conflicts(exercise, action, what):
    """no bank conflict: rows are written, and chunks are read, in one wavefront"""
    _, trace = run(exercise, random_x(64))
    (tile,) = trace.shared.values()
    requests = getattr(tile, f"{action}_requests")
    wavefronts = getattr(tile, f"{action}_wavefronts")
    assert requests == 64, (
        f"2 tiles of 32 rows are 64 {action} requests of warps, got {requests}: 32 lanes with a "
        "word each"
    )
    if wavefronts > requests:
        same = (places(exercise, 8).reshape(8, 8, 4) % 32 == np.arange(32).reshape(8, 4)).all()
        cause = "A chunk has the same place in every row: let its place depend on the row."
        other = "Some of the 8 rows meet in one place: 8 places of 4 words fill the banks."
        raise Wrong(
            f"{what} in {wavefronts / requests:g} wavefronts, not in one",
            causes=[cause if same else other] if action == "load" else [],
        )


def test_every_eight_rows(exercise):
    """no bank conflict in any 8 rows that follow each other, far down too"""
    got = places(exercise, 300)
    for chunk in range(8):
        banks = got[:, 4 * chunk] // 4 % 8
        for row in range(293):
            met = len(set(banks[row : row + 8].tolist()))
            assert met == 8, f"chunk {chunk} of rows {row} to {row + 7}: {met} places, not 8"


def test_traffic(exercise):
    """x is loaded once, y stored once, by neighbouring threads; one barrier"""
    x = random_x(32)
    _, trace = run(exercise, x)
    once = x.size, "once for each word"
    expect_at_most(trace, x_loads=once, y_stores=once, y_loads=(0, "y is only written"))
    expect_neighbours(trace, ["x", "y"], "A warp moves 32 words that lie side by side.")
    expect_chip_memory(trace, shared=4096, allowed="a tile of 32 rows of 128 bytes")
    assert trace.barriers == 1, f"one barrier, between writing and reading; got {trace.barriers}"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU"""
    gpu_ready(exercise.kernel, (random_x(32), np.zeros((8, 32, 4), np.float32)))
