"""Grader of ex00g: instructions that warps issue inside of a branch."""

import numpy as np
import pytest
from numba import cuda

from fa_numba import simt
from fa_numba.workbook.graders.causes import Wrong


def truth(sides, lengths):
    warps = [sides[first : first + 32] for first in range(0, len(sides), 32)]
    return sum(length for warp in warps for s, length in enumerate(lengths) if s in warp)


def mistakes(sides, lengths):
    """The results of wrong rules, by rule."""
    warps = [sides[first : first + 32] for first in range(0, len(sides), 32)]
    return {
        "The sides of every thread are added: a warp issues a side once for all its threads.": sum(
            lengths[s] for s in sides
        ),
        "The thread block is taken as one warp.": sum(lengths[s] for s in set(sides)),
        "Every warp pays for all sides, also for those that none of its threads takes.": len(warps)
        * sum(lengths),
        "Only the longest side of a warp is counted: the sides run one after the other.": sum(
            max(lengths[s] for s in warp) for warp in warps
        ),
        "Only the first thread of a warp is asked.": sum(lengths[warp[0]] for warp in warps),
        "The last, part-filled warp is missing.": sum(
            lengths[s] for warp in warps if len(warp) == 32 for s in set(warp)
        ),
        "The sides are counted, not their instructions.": sum(len(set(warp)) for warp in warps),
    }


def check(exercise, sides, lengths, case):
    sides, lengths = [int(s) for s in sides], [int(n) for n in lengths]
    got, want = exercise.issued(list(sides), list(lengths)), truth(sides, lengths)
    if type(got) is int and got == want:
        return
    causes = [rule for rule, number in mistakes(sides, lengths).items() if number == got]
    if type(got) is not int:
        causes = ["The result is no int: is a return missing?"]
    raise Wrong(f"{case}: want {want} instructions, got {got!r}", causes=causes, where=case)


def test_all_agree(exercise):
    """threads that all take one side issue that side alone"""
    check(exercise, [0] * 96, [7, 100], "96 threads, all on side 0")
    check(exercise, [1] * 96, [7, 100], "96 threads, all on side 1")


def test_every_other(exercise):
    """two sides in turn cost every warp both"""
    check(exercise, np.arange(128) % 2, [10, 3], "128 threads, sides 0 1 0 1 ...")


def test_by_warp(exercise):
    """sides that depend on the warp cost each warp its own"""
    check(exercise, np.arange(128) // 32 % 2, [10, 3], "128 threads, even warps on side 0")


@pytest.mark.parametrize("border", [1, 31, 32, 33, 50, 64])
def test_border(exercise, border):
    """a border inside of a warp costs that warp both sides"""
    check(exercise, np.arange(96) >= border, [10, 3], f"side 0 for t < {border}")


@pytest.mark.parametrize("threads", [1, 20, 40, 1000])
def test_part_of_a_warp(exercise, threads):
    """the last warp may have fewer threads"""
    check(exercise, np.arange(threads) % 3, [5, 11, 17], f"{threads} threads, three sides in turn")


def test_drawn(exercise):
    """sides and lengths at random"""
    rng = np.random.default_rng(0)
    for number in (2, 3, 5, 40):
        sides = rng.integers(0, number, 300)
        check(exercise, sides, rng.integers(0, 30, number), f"300 threads, {number} sides")


def test_as_the_meter_counts(exercise):
    """agrees with the requests that the engine counts in a divergent kernel"""

    @cuda.jit
    def branch(side, low, high):
        t = cuda.threadIdx.x
        if side[t] == 0:
            low[t] = 1
        else:
            high[t] = 1
            high[t] = 2

    side = (np.arange(128) > 70).astype(np.int32)
    low, high = np.zeros((2, 128), np.float32)
    trace = simt.trace(branch, 1, 128, side, low, high)
    metered = sum(trace.arrays[name].store_requests for name in ("low", "high"))
    assert metered == truth(side.tolist(), [1, 2])
    check(exercise, side, [1, 2], "stores of a kernel with 128 threads, metered")


def test_arguments_stay(exercise):
    """the lists are left as they were"""
    sides, lengths = [0, 1] * 40, [4, 3]
    exercise.issued(sides, lengths)
    assert sides == [0, 1] * 40 and lengths == [4, 3], "a list was changed"
