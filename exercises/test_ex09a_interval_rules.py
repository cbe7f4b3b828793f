"""Grader of ex09a: rules of intervals, against all numbers of the intervals one by one."""

import itertools

import pytest

from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.loops import expect_no_loop
from fa_numba.workbook.grading.proxies import each

INTERVALS = [(a, b) for a in range(-7, 8) for b in range(a, 8)]
TRUTHS = [(False, True), (True, False), (True, True)]
NAMES = {0: "HIDDEN", 1: "MIXED", 2: "WHOLE"}


def numbers(x):
    return range(x[0], x[1] + 1)


def truth_of(values):
    values = set(values)
    return False in values, True in values


def compare(name, function, cases, want, causes=lambda case, got: []):
    """Ask for all cases, and fail at the first that differs."""
    for case, got in zip(cases, each(lambda case: function(*case), cases), strict=True):
        expected = want(*case)
        same = got == expected and type(got) is type(expected)
        if isinstance(expected, tuple) and isinstance(got, tuple | list):
            same = tuple(got) == expected
        if not same:
            shown = ", ".join(map(str, case))
            raise Wrong(
                f"{name}({shown}) must be {NAMES.get(expected, expected)}, got "
                f"{NAMES.get(got, got) if type(got) is int else got!r}",
                causes=causes(case, got),
                where=name,
            )


def mistakes_of_modulo(case, got):
    (low, high), k = case
    for sentence, wrong in (
        ("0 and k - 1 both occur only if a multiple of k is crossed.", (0, k - 1)),
        ("Between the ends the remainder may fall back to 0.", (low % k, high % k)),
        ("high - low tells how many numbers there are, not whether a multiple of k is crossed.",
         (low % k, high % k) if high - low < k else (0, k - 1)),
    ):  # fmt: skip
        if got == wrong:
            return [sentence]
    return []


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 20])
def test_modulo(exercise, k):
    """modulo: the least and the greatest remainder of every interval"""

    def want(x, k):
        found = [n % k for n in numbers(x)]
        return min(found), max(found)

    compare("modulo", exercise.modulo, [(x, k) for x in INTERVALS], want, mistakes_of_modulo)


def test_at_most(exercise):
    """at_most: every pair of intervals agrees with all pairs of their numbers"""
    some = [x for x in INTERVALS if x[1] - x[0] < 4]
    cases = list(itertools.product(some, some[::3]))

    def want(x, y):
        return truth_of(a <= b for a in numbers(x) for b in numbers(y))

    def causes(case, got):
        swapped = got == want(*case)[::-1]
        return ["The pair is (may be false, may be true), in this order."] if swapped else []

    compare("at_most", exercise.at_most, cases, want, causes)


def test_both(exercise):
    """both: every pair of truths"""

    def want(p, q):
        values = [[v for v, may in zip((False, True), x, strict=True) if may] for x in (p, q)]
        return truth_of(a and b for a in values[0] for b in values[1])

    compare("both", exercise.both, list(itertools.product(TRUTHS, TRUTHS)), want)


def class_of(m, n, step):
    seen = {b <= a and (a - b) % step == 0 for a in numbers(m) for b in numbers(n)}
    return 1 if len(seen) == 2 else 2 * seen.pop()


@pytest.mark.parametrize("step", [1, 2, 3, 7, 19])
def test_dilated(exercise, step):
    """dilated: the class of each tile agrees with all its pairs"""
    tiles = [(a, a + size - 1) for size in (1, 3, 4) for a in range(0, 24, size)]
    cases = [(m, n, step) for m in tiles for n in tiles[::2]]
    compare("dilated", exercise.dilated, cases, class_of)


@pytest.mark.parametrize("far", [2**31 + 3, 10**12])
def test_far_away(exercise, far):
    """all four: exact at 10^12"""
    cases = [
        ("modulo", ((far, far + 1), 7), (far % 7, far % 7 + 1)
         if far % 7 < 6 else (0, 6)),
        ("modulo", ((-far, far), far), (0, far - 1)),
        ("at_most", ((0, far), (far, far + 9)), (False, True)),
        ("at_most", ((0, far + 1), (far, far + 9)), (True, True)),
        ("dilated", ((far, far), (0, 0), far), 2),
        ("dilated", ((far, far + 127), (0, 127), far + 200), 0),
    ]  # fmt: skip
    for name, case, want in cases:
        compare(name, getattr(exercise, name), [case], lambda *_, want=want: want)


def test_no_loop(exercise):
    """no loop over the numbers of an interval"""
    wide = (0, 10**12)
    for name, case in (
        ("modulo", (wide, 10**9)),
        ("at_most", (wide, wide)),
        ("dilated", (wide, wide, 10**9)),
    ):
        expect_no_loop(getattr(exercise, name), *case, over="the numbers of an interval")
