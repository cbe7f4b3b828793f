"""Grader of ex10b: the starts of packed sequences, and positions in them."""

import numpy as np
import pytest

from fa_numba.workbook.graders.causes import Wrong

BATCHES = [[4, 0, 3], [1], [5], [2, 2, 2], [0, 0, 1], [7, 1, 0], [0], [], [13, 1, 8, 21]]
EACH = pytest.mark.parametrize("lengths", BATCHES, ids=str)


def starts_of(lengths):
    found = [0]
    for n in lengths:
        found.append(found[-1] + n)
    return found


@EACH
def test_starts(exercise, lengths):
    """cu_seqlens: the tokens before each sequence, and all of them at the end"""
    got, want = np.asarray(exercise.cu_seqlens(list(lengths))), starts_of(lengths)
    if got.tolist() != want:
        causes = {
            "These are the ends: the first sequence begins at 0.": want[1:],
            "The last number is missing: the end of the last sequence.": want[:-1],
            "These are the lengths: add them up.": list(lengths),
            "The lengths are not added up: a start is the sum of those before.": [0, *lengths],
            "The 0 belongs before the first length, not after the last.": want[1:] + want[-1:],
        }
        raise Wrong(
            f"lengths {lengths}: want {want}, got {got.tolist()}",
            causes=[cause for cause, numbers in causes.items() if numbers == got.tolist()],
            where=f"lengths {lengths}",
        )


@EACH
def test_int32(exercise, lengths):
    """cu_seqlens: an array of int32, as kernels want it"""
    got = exercise.cu_seqlens(list(lengths))
    assert isinstance(got, np.ndarray), f"must be a NumPy array, got {type(got).__name__}"
    assert got.dtype == np.int32, f"lengths {lengths}: must be int32, got {got.dtype}"


@EACH
def test_positions(exercise, lengths):
    """positions: each sequence counts from 0"""
    want = [position for n in lengths for position in range(n)]
    starts = np.array(starts_of(lengths), np.int32)
    got = np.asarray(exercise.positions(starts.copy()))
    if got.tolist() != want:
        each = [
            (start, n, b)
            for b, (start, n) in enumerate(zip(starts_of(lengths), lengths, strict=False))
        ]
        through = "The count goes on through the batch: it begins anew in each sequence."
        less = "This is where the sequence begins: subtract it from the number of the token."
        causes = {
            through: range(len(want)),
            less: [start for start, n, _ in each for _ in range(n)],
            "A sequence's first token has the position 0, not 1.": [x + 1 for x in want],
            "Subtract where the sequence begins, not where it ends.": [
                i - n for _, n, _ in each for i in range(n)
            ],
            "This is the number of the sequence.": [b for _, n, b in each for _ in range(n)],
            "Positions ascend.": [n - 1 - i for _, n, _ in each for i in range(n)],
        }
        raise Wrong(
            f"starts {starts.tolist()}: want {want}, got {got.tolist()}",
            causes=[said for said, numbers in causes.items() if list(numbers) == got.tolist()],
            where=f"starts {starts.tolist()}",
        )
    assert got.dtype.kind in "iu", f"must be integers, got {got.dtype}"


def test_a_large_batch(exercise):
    """a million tokens, quickly"""
    lengths = [1 + n * 7919 % 999 for n in range(2000)]
    starts = np.asarray(exercise.cu_seqlens(lengths))
    assert starts[-1] == sum(lengths) and len(starts) == 2001
    got = np.asarray(exercise.positions(np.array(starts_of(lengths), np.int32)))
    assert len(got) == sum(lengths) and got.max() == max(lengths) - 1
