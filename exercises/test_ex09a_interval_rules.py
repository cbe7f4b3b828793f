"""Grader of ex09a: rules of intervals, against all numbers of the intervals one by one."""

import itertools

import pytest

from fa_numba.workbook.graders.causes import Wrong, diagnosis
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


def compare(name, function, cases, want, mistakes=()):
    """Ask for all cases, and fail at the first that differs.

    `mistakes` are pairs (sentence, what the mistake makes of a case).
    """
    answers = list(each(lambda case: function(*case), cases))
    for case, got in zip(cases, answers, strict=True):
        expected = want(*case)
        same = got == expected and type(got) is type(expected)
        if isinstance(expected, tuple) and isinstance(got, tuple | list):
            same = tuple(got) == expected
        if not same:
            shown = ", ".join(map(str, case))
            raise Wrong(
                f"{name}({shown}) must be {NAMES.get(expected, expected)}, got "
                f"{NAMES.get(got, got) if type(got) is int else got!r}",
                causes=list(
                    dict.fromkeys(
                        said
                        for said, wrong in mistakes
                        if all(same_as(wrong(*c), a) for c, a in zip(cases, answers, strict=True))
                    )
                ),
                where=name,
            )


def same_as(wrong, got):
    return wrong == (tuple(got) if isinstance(got, list) else got)


MODULO = [
    ("0 and k - 1 both occur only if a multiple of k is crossed.", lambda x, k: (0, k - 1)),
    (
        "Between the ends the remainder may fall back to 0.",
        lambda x, k: (x[0] % k, x[1] % k),
    ),
    (
        "high - low tells how many numbers there are, not whether a multiple of k is crossed.",
        lambda x, k: (x[0] % k, x[1] % k) if x[1] - x[0] < k else (0, k - 1),
    ),
]
ORDER = "The pair is (may be false, may be true), in this order."
ENDS = "One pair of numbers is enough: for false a large x and a small y, for true the opposite."
EQUAL = "x <= y is true of equal numbers."
AT_MOST = [
    (ORDER, lambda x, y: (x[0] <= y[1], x[1] > y[0])),
    (ENDS, lambda x, y: (x[0] > y[0], x[1] <= y[1])),
    (ENDS, lambda x, y: (x[0] > y[1], x[1] <= y[0])),
    (ENDS, lambda x, y: (x[1] > y[1], x[0] <= y[0])),
    (EQUAL, lambda x, y: (x[1] >= y[0], x[0] <= y[1])),
    (EQUAL, lambda x, y: (x[1] > y[0], x[0] < y[1])),
    (EQUAL, lambda x, y: (x[1] >= y[0], x[0] < y[1])),
    ("at_most(x, y) is of x <= y, not of y <= x.", lambda x, y: (y[1] > x[0], y[0] <= x[1])),
]
BOTH = [
    (ORDER, lambda p, q: (p[1] and q[1], p[0] or q[0])),
    ("Both may be false as soon as one may.", lambda p, q: (p[0] and q[0], p[1] and q[1])),
    ("Both may be true only if each may.", lambda p, q: (p[0] or q[0], p[1] or q[1])),
]


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 20])
def test_modulo(exercise, k):
    """modulo: the least and the greatest remainder of every interval"""

    def want(x, k):
        found = [n % k for n in numbers(x)]
        return min(found), max(found)

    compare("modulo", exercise.modulo, [(x, k) for x in INTERVALS], want, MODULO)


def test_at_most(exercise):
    """at_most: every pair of intervals agrees with all pairs of their numbers"""
    some = [x for x in INTERVALS if x[1] - x[0] < 4]
    cases = list(itertools.product(some, some[::3]))

    def want(x, y):
        return truth_of(a <= b for a in numbers(x) for b in numbers(y))

    compare("at_most", exercise.at_most, cases, want, AT_MOST)


def test_both(exercise):
    """both: every pair of truths"""

    def want(p, q):
        values = [[v for v, may in zip((False, True), x, strict=True) if may] for x in (p, q)]
        return truth_of(a and b for a in values[0] for b in values[1])

    compare("both", exercise.both, list(itertools.product(TRUTHS, TRUTHS)), want, BOTH)


def class_of(m, n, step, sees=lambda a, b, step: b <= a and (a - b) % step == 0):
    seen = {sees(a, b, step) for a in numbers(m) for b in numbers(n)}
    return 1 if len(seen) == 2 else 2 * seen.pop()


WHOLE = "WHOLE is a tile that is seen as a whole, MIXED one that is seen in part."
DILATED = [
    (said, lambda m, n, step, sees=sees: class_of(m, n, step, sees))
    for said, sees in (
        ("m - n must be a multiple of step, too.", lambda a, b, step: b <= a),
        ("A query sees no later key: n <= m, too.", lambda a, b, step: (a - b) % step == 0),
        (
            "A query sees no later key: n <= m, not m <= n.",
            lambda a, b, step: a <= b and (a - b) % step == 0,
        ),
    )
] + [
    (WHOLE, lambda m, n, step: (0, 2, 1)[class_of(m, n, step)]),
    (WHOLE, lambda m, n, step: (0, 2, 2)[class_of(m, n, step)]),
]


def mistakes_of_dilated(exercise, step):
    """Those of dilated alone: none if one of the other three is wrong."""
    try:
        with diagnosis():
            test_at_most(exercise)
            test_both(exercise)
            test_modulo(exercise, step)
    except Exception:
        return
    yield from DILATED


@pytest.mark.parametrize("step", [1, 2, 3, 7, 19])
def test_dilated(exercise, step):
    """dilated: the class of each tile agrees with all its pairs"""
    tiles = [(a, a + size - 1) for size in (1, 3, 4) for a in range(0, 24, size)]
    cases = [(m, n, step) for m in tiles for n in tiles[::2]]
    compare("dilated", exercise.dilated, cases, class_of, mistakes_of_dilated(exercise, step))


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
