"""Grader of ex14b: e4m3 with a scale for each block of rows."""

import numpy as np
import pytest

from fa_numba.analysis import fp8
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.elements import expect_neighbours
from fa_numba.workbook.graders.kernels import expect_at_most, launched
from fa_numba.workbook.graders.meter import expect_chip_memory

NUM_THREADS = 64


def matrix(rows, columns=8, *, seed=0):
    """Rows whose sizes differ by powers of ten."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns)) * 10.0 ** rng.integers(-6, 7, (rows, 1))
    return x.astype(np.float32)


def run(exercise, x, block_rows):
    blocks = -(-len(x) // block_rows)
    outputs = {"x8": np.full_like(x, np.nan), "scales": np.full(blocks, np.nan, np.float32)}
    given = {"x": x, **outputs, "block_rows": block_rows}
    got, trace = launched(exercise.kernel, blocks, NUM_THREADS, tuple(outputs), **given)
    return got["x8"], got["scales"], trace


def blocks_of(x, block_rows):
    return [x[i : i + block_rows] for i in range(0, len(x), block_rows)]


def check(exercise, x, block_rows):
    x8, scales, _ = run(exercise, x, block_rows)
    blocks = blocks_of(x, block_rows)
    want = [np.abs(b).max() / np.float32(448) if b.any() else np.float32(1) for b in blocks]
    wrong = np.flatnonzero(~np.isclose(scales, want, rtol=1e-6, atol=0))
    if len(wrong):
        n = int(wrong[0])
        largest, block = np.abs(blocks[n]).max(), blocks[n]
        mistakes = {
            "A block of zeros has the scale 1.": 0.0,
            "All rows of the block count.": np.abs(block[0]).max() / 448,
            "Only the columns of thread 0 count: take what largest_of returns.": np.abs(
                block[:, ::NUM_THREADS]
            ).max()
            / 448,
            "The largest negative number counts as well: take absolute values.": block.max() / 448,
            "A scale divides: the largest becomes 448, not 1.": largest,
            "That is the inverse of the scale.": 448 / largest if largest else 0,
            "Every thread has the largest of its own numbers: call largest_of.": np.abs(
                block.ravel()[::NUM_THREADS]
            ).max()
            / 448,
        }
        for number in (480, 256, 240, 127):
            mistakes[f"{number} is not the largest e4m3 number: that is 448."] = largest / number
        near = [c for c, s in mistakes.items() if np.isclose(scales[n], s, rtol=1e-5, atol=0)]
        if not largest and np.isnan(scales[n]):
            near = ["A block of zeros has the scale 1."]
        raise Wrong(
            f"{len(x)} rows, blocks of {block_rows}: scales[{n}] must be {want[n]:.6g}, got "
            f"{scales[n]:.6g}: the block's largest is {largest:.6g}",
            causes=near,
            where=f"scales[{n}]",
        )
    of_row = np.repeat(np.float32(want), block_rows)[: len(x), None]
    rounded = fp8.round_e4m3((x / of_row).astype(np.float64))
    bad = np.argwhere(~(x8 == rounded))
    if len(bad):
        row, column = map(int, bad[0])
        first = fp8.round_e4m3((x / of_row[0]).astype(np.float64))
        times = fp8.round_e4m3(np.clip(x * of_row, -448, 448).astype(np.float64))
        causes = {
            "The scale multiplies where it must divide.": times,
            "Every row is divided by the first block's scale.": first,
            "x is not rounded to e4m3.": x / of_row,
            "x8 is x / scale, rounded: it is not multiplied by the scale again.": rounded * of_row,
        }
        raise Wrong(
            f"{len(x)} rows, blocks of {block_rows}: x8[{row}, {column}] must be "
            f"{rounded[row, column]:g}, got {x8[row, column]:g}: row {row} is in block "
            f"{row // block_rows}",
            causes=[c for c, other in causes.items() if np.allclose(x8, other, equal_nan=True)],
            where=f"x8[{row}, {column}]",
        )


@pytest.mark.parametrize("rows, block_rows", [(8, 4), (12, 3), (5, 1), (16, 16)])
def test_whole_blocks(exercise, rows, block_rows):
    """a scale for each block: its largest absolute value over 448"""
    check(exercise, matrix(rows, seed=rows), block_rows)
    check(exercise, -np.abs(matrix(rows, seed=rows)), block_rows)


@pytest.mark.parametrize("rows, block_rows", [(7, 4), (1, 128), (130, 128), (301, 9)])
def test_last_block(exercise, rows, block_rows):
    """a last block with fewer rows"""
    check(exercise, matrix(rows, 6, seed=rows), block_rows)


@pytest.mark.parametrize("columns", [1, 63, 65, 130, 650])
def test_columns(exercise, columns):
    """any number of columns"""
    check(exercise, matrix(5, columns, seed=columns), 3)


def test_zeros(exercise):
    """a block of zeros has the scale 1, beside blocks that are not; no scale is too small"""
    x = matrix(12)
    x[4:8] = 0
    check(exercise, x, 4)
    check(exercise, np.full((2, 2), 1e-30, np.float32), 2)
    check(exercise, np.full((1, 1), 3e38, np.float32), 1)


def test_every_element_decides(exercise):
    """the largest may be anywhere in the block"""
    for at in (0, 1, 63, 64, 127, 128, 194):
        x = np.ones((3, 65), np.float32)
        x.flat[at] = -5
        check(exercise, x, 3)


def test_error(exercise):
    """the error: at most 1/16 of a number, or half of the smallest step"""
    x = np.random.default_rng(5).standard_normal((256, 64)).astype(np.float32)
    x8, scales, _ = run(exercise, x, 64)
    of_row = np.repeat(scales, 64)[:, None]
    allowed = np.maximum(np.abs(x) / 16, 2.0**-10 * of_row)
    off = np.abs(x8 * of_row - x) / allowed
    assert (off <= 1 + 1e-5).all(), f"off by {off.max():.3g} times what rounding allows"


def test_traffic(exercise):
    """x is loaded twice, x8 stored once, by neighbouring threads"""
    x = matrix(20, 64)
    *_, trace = run(exercise, x, 10)
    expect_at_most(
        trace,
        x_loads=(2 * x.size, "once for the scale, once to be rounded"),
        x8_loads=(0, "x8 is only written"),
        x8_stores=(x.size, "once for each number"),
        scales_stores=(2, "one thread stores a block's scale"),
        scales_loads=(0, "the scale is in a register of every thread"),
    )
    expect_neighbours(trace, ["x", "x8"], "Thread x takes the numbers x, x + NUM_THREADS, ...")
    allowed = "part has a number for each thread"
    expect_chip_memory(trace, shared=4 * NUM_THREADS, allowed=allowed)


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    x = matrix(4)
    gpu_ready(exercise.kernel, (x, np.zeros_like(x), np.zeros(1, np.float32), 4))
