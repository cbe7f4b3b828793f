"""Grader of ex12b: a swizzled tile, judged by its banks alone."""

import numpy as np
import pytest

from fa_numba.ptx import layouts
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.grading.proxies import each

ROWS, COLS = 24, 64
BUDGET = 1  # wavefronts


def by_hand(starts):
    return layouts.wavefronts(starts, 16)


def check_wavefronts(exercise, starts, want, why):
    got = exercise.wavefronts(starts)
    if got != want:
        words = np.add.outer(np.array(starts) // 4, np.arange(4)).ravel()
        known = {
            "Lanes that want the same word get it together: count different words.": words % 32,
            "There are 32 banks, of one word each.": np.unique(words) % 16,
        }
        causes = [cause for cause, banks in known.items() if np.bincount(banks).max() == got]
        causes += ["Accesses to different banks share a wavefront."] * (got == len(set(starts)))
        causes += ["Without a conflict it is one wavefront, not 0."] * (got == want - 1)
        raise Wrong(f"wavefronts({starts}) must be {want} ({why}), got {got}", causes=causes)


def expect_budget(starts, what):
    """Fail where these accesses take more than one wavefront."""
    got = by_hand([start % 2**30 for start in starts])
    if got > BUDGET:
        same = len({start % 128 for start in starts}) == 1
        cause = (
            "A chunk has the same place in every row: let its place depend on the row."
            if same
            else "Some of the 8 accesses meet in one place: 8 places of 16 bytes fill the banks."
        )
        banks = ", ".join(f"{s // 4 % 32}–{s // 4 % 32 + 3}" for s in starts)
        raise Wrong(f"{what}: {got} wavefronts; they lie in banks {banks}", causes=[cause])


def all_bytes(exercise, rows=ROWS):
    return {(r, c): exercise.byte_of(r, c) for r in range(rows) for c in range(COLS)}


BY_HAND = [
    ([0], 1, "one lane: 4 words in 4 banks"),
    ([16 * i for i in range(8)], 1, "8 neighbours: 32 words in 32 banks"),
    ([128 * i for i in range(8)], 8, "8 rows in the same 4 banks"),
    ([128 * i for i in range(4)] + [16, 144, 272, 400], 4, "two groups of 4 banks"),
    ([144 * i for i in range(8)], 1, "rows padded by 16 bytes: 32 banks"),
    ([64] * 8, 1, "8 lanes ask for the same words: one wavefront serves all"),
    ([64, 64, 192], 2, "two lanes ask for the same, one for others in these banks"),
    ([16 * i for i in range(16)], 2, "64 words in 32 banks"),
    ([32 * 1024, 128 * 7], 2, "far apart, but in the same banks"),
]


@pytest.mark.parametrize("starts, want, why", BY_HAND, ids=[why for _, _, why in BY_HAND])
def test_wavefronts(exercise, starts, want, why):
    """wavefronts: counted by hand"""
    check_wavefronts(exercise, starts, want, why)


def test_wavefronts_of_any(exercise):
    """wavefronts: any addresses"""
    rng = np.random.default_rng(0)
    for _ in range(50):
        starts = (16 * rng.integers(0, 64, rng.integers(1, 20))).tolist()
        check_wavefronts(exercise, starts, by_hand(starts), "most words in one bank")


def test_fills_the_tile(exercise):
    """the first n rows fill the first 128 n bytes: no element twice, nothing padded"""
    every = all_bytes(exercise)
    for rows in range(1, ROWS + 1):
        got = sorted(byte for (row, _), byte in every.items() if row < rows)
        want = list(range(0, 128 * rows, 2))
        if got != want:
            twice = next((b for b, c in zip(got, got[1:], strict=False) if b == c), None)
            missing = sorted(set(want) - set(got))
            what = [] if twice is None else [f"two elements begin at byte {twice}"]
            what += [f"none begins at byte {missing[0]}"] if missing else []
            what += [f"the last one begins at byte {got[-1]}"] if got[-1] > want[-1] else []
            raise AssertionError(
                f"the first {rows} rows must fill the bytes 0 to {128 * rows - 1}, but "
                + ", ".join(what)
            )


def test_chunks_stay_whole(exercise):
    """8 neighbouring columns lie side by side, in order, from a multiple of 16 on"""
    for row in range(ROWS):
        for first in range(0, COLS, 8):
            got = [exercise.byte_of(row, first + i) for i in range(8)]
            want = [got[0] + 2 * i for i in range(8)]
            assert got == want and got[0] % 16 == 0, (
                f"row {row}, columns {first} to {first + 7} must begin at a multiple of 16 and "
                f"follow one another by 2 bytes, got {got}"
            )


@pytest.mark.parametrize("chunk", range(8))
def test_reading(exercise, chunk):
    """ldmatrix: the same chunk of 8 rows in one wavefront"""
    for row in range(0, ROWS, 8):
        starts = [exercise.byte_of(row + i, 8 * chunk) for i in range(8)]
        expect_budget(starts, f"chunk {chunk} of rows {row} to {row + 7}")


def test_reading_from_any_row(exercise):
    """ldmatrix: 8 rows from any row on"""
    for row in range(ROWS - 7):
        for chunk in range(8):
            starts = [exercise.byte_of(row + i, 8 * chunk) for i in range(8)]
            expect_budget(starts, f"chunk {chunk} of rows {row} to {row + 7}")


def test_writing(exercise):
    """cp.async: the 8 chunks of a row in one wavefront"""
    for row in range(ROWS):
        starts = [exercise.byte_of(row, 8 * chunk) for chunk in range(8)]
        expect_budget(starts, f"the 8 chunks of row {row}")


def test_there_and_back(exercise):
    """element_at finds what byte_of put there"""
    placed = all_bytes(exercise)
    back = each(exercise.element_at, list(placed.values()))
    for (element, byte), got in zip(placed.items(), back, strict=True):
        if got != element:
            plain = got == (byte // 128, byte % 128 // 2)
            raise Wrong(
                f"byte_of{element} is {byte}, but element_at({byte}) is {got}",
                causes=["element_at takes the chunks as in order: undo the swizzle."] * plain,
            )


def test_far_down(exercise):
    """rows far down a long tile: 1000 rows and more, 300 of them in the same banks"""
    for row in (1000, 4093, 2**33 + 5):
        for chunk in (0, 5):
            starts = [exercise.byte_of(row + i, 8 * chunk) for i in range(8)]
            expect_budget(starts, f"chunk {chunk} of rows {row} to {row + 7}")
        for col in (0, 9, 63):
            byte = exercise.byte_of(row, col)
            assert 128 * row <= byte < 128 * (row + 1), (
                f"row {row} fills the bytes {128 * row} to {128 * row + 127}, but byte_of({row}, "
                f"{col}) is {byte}"
            )
            got = exercise.element_at(byte)
            assert got == (row, col), f"element_at({byte}) must be {(row, col)}, got {got}"
    check_wavefronts(exercise, [128 * i for i in range(300)], 300, "300 rows in the same 4 banks")


def test_starts_unchanged(exercise):
    """wavefronts: the list stays as it is"""
    starts = [128, 0, 128]
    exercise.wavefronts(starts)
    assert starts == [128, 0, 128], f"starts was [128, 0, 128], and is now {starts}"


def test_ints(exercise):
    """ints, no floats"""
    got = exercise.wavefronts([0]), exercise.byte_of(3, 17), *exercise.element_at(130)
    assert all(type(x) is int for x in got), f"got {got!r}"
