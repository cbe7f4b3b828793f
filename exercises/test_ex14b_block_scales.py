"""Grader of ex14b: e4m3 with a scale for each block of rows."""

import numpy as np
import pytest

from fa_numba.analysis import fp8
from fa_numba.workbook.graders.causes import Wrong


def matrix(rows, columns=8, *, seed=0):
    """Rows whose sizes differ by powers of ten."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, columns)) * 10.0 ** rng.integers(-6, 7, (rows, 1))


def check_scale(exercise, block):
    got = exercise.scale_of(block)
    largest = np.abs(block).max()
    want = largest / 448 if largest else 1.0
    if not (isinstance(got, float) and np.isclose(got, want, rtol=1e-12, atol=0)):
        mistakes = {
            "A block of zeros has the scale 1.": 0.0,
            "All rows of the block count.": np.abs(block[0]).max() / 448,
            "The largest negative number counts as well: take absolute values.": block.max() / 448,
            "A scale divides: the largest becomes 448, not 1.": largest,
            "That is the inverse of the scale.": 448 / largest if largest else 0,
            "480 is not an e4m3 number: the largest is 448.": largest / 480,
            "That is the mean, not the largest.": np.abs(block).mean() / 448,
        }
        is_one = [cause for cause, x in mistakes.items() if np.isclose(got, x, rtol=1e-9, atol=0)]
        raise Wrong(f"scale_of a block whose largest is {largest:.6g}: must be {want:.6g}, got "
                    f"{got!r:.30}", causes=is_one)  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_scale(exercise, seed):
    """scale_of: the largest absolute value over 448"""
    check_scale(exercise, matrix(300, 270, seed=seed))
    check_scale(exercise, -np.abs(matrix(4, seed=seed)))
    check_scale(exercise, np.abs(matrix(2, seed=seed)))


def test_scale_of_zeros(exercise):
    """scale_of: 1.0 for zeros, and none is too small"""
    with np.errstate(all="ignore"):
        check_scale(exercise, np.zeros((4, 3)))
    check_scale(exercise, np.full((2, 2), 1e-30))
    check_scale(exercise, np.full((1, 1), 3e38))


def check(exercise, x, block_rows):
    x8, scales = exercise.quantise(x, block_rows)
    got = np.asarray(exercise.dequantise(x8, scales, block_rows))
    want = fp8.quantise(x, block_rows)
    assert got.shape == x.shape, f"dequantise: shape must be {x.shape}, got {got.shape}"
    wrong = ~np.isclose(got, want, rtol=1e-9, atol=0)
    if wrong.any():
        row = int(np.argwhere(wrong)[0][0])
        causes = []
        if np.allclose(got, x8):
            causes = ["Nothing is multiplied by a scale."]
        elif len(scales) > 1 and np.allclose(got, x8 * scales[0]):
            causes = ["All rows have the first block's scale."]
        elif np.allclose(got, x8 / np.asarray(scales)[np.arange(len(x)) // block_rows, None]):
            causes = ["The scale divides where it must multiply."]
        raise Wrong(
            f"{len(x)} rows, blocks of {block_rows}: row {row} stands for {want[row, 0]:.6g}, ..., "
            f"got {got[row, 0]:.6g}, ...: it is in block {row // block_rows}",
            causes=causes,
            where=f"row {row} of {len(x)}, blocks of {block_rows}",
        )


@pytest.mark.parametrize("rows, block_rows", [(8, 4), (12, 3), (5, 1), (16, 16)])
def test_whole_blocks(exercise, rows, block_rows):
    """dequantise: each row times the scale of its block"""
    check(exercise, matrix(rows, seed=rows), block_rows)


@pytest.mark.parametrize("rows, block_rows", [(7, 4), (1, 128), (130, 128), (301, 9)])
def test_last_block(exercise, rows, block_rows):
    """dequantise: a last block with fewer rows"""
    check(exercise, matrix(rows, 270, seed=rows), block_rows)


def test_zeros(exercise):
    """a block of zeros remains zeros, beside blocks that are not"""
    x = matrix(12)
    x[4:8] = 0
    with np.errstate(all="ignore"):
        check(exercise, x, 4)


def test_error(exercise):
    """the error: at most 1/16 of a number, or half of the smallest step"""
    x = np.random.default_rng(5).standard_normal((256, 64))
    x8, scales = exercise.quantise(x, 64)
    got = np.asarray(exercise.dequantise(x8, scales, 64))
    allowed = np.maximum(np.abs(x) / 16, 2.0**-10 * np.repeat(scales, 64)[:, None])
    assert (np.abs(got - x) <= allowed * (1 + 1e-9)).all(), (
        f"off by {np.max(np.abs(got - x) / allowed):.3g} times what rounding allows"
    )


def test_inputs_unchanged(exercise):
    """x8, scales and x stay as they are"""
    x = matrix(6)
    before = x.copy()
    x8, scales = exercise.quantise(x, 4)
    old = x8.copy(), scales.copy()
    exercise.dequantise(x8, scales, 4)
    assert (x == before).all(), "x was changed"
    assert (x8 == old[0]).all() and (scales == old[1]).all(), "x8 or scales were changed"
