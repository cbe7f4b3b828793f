"""Grader of ex14a: the limits of a format, against a list of all its numbers."""

import numpy as np
import pytest

from fa_numba.workbook.graders.causes import Wrong

NAMES = "largest", "smallest_normal", "smallest", "error"
FORMATS = {
    "e4m3": (4, 3, False),
    "e5m2": (5, 2, True),
    "float16": (5, 10, True),
    "e3m4": (3, 4, False),
    "e2m3": (2, 3, False),
    "bfloat16": (8, 7, True),
    "e6m1": (6, 1, True),
}


def numbers(exponent_bits, mantissa_bits, has_infinity):
    """All positive numbers of a format, ascending, and the smallest normal one."""
    e, f = np.mgrid[: 2**exponent_bits, : 2**mantissa_bits]
    fraction, bias = f / 2.0**mantissa_bits, 2 ** (exponent_bits - 1) - 1
    x = np.where(e > 0, (1 + fraction) * 2.0 ** (e - bias), fraction * 2.0 ** (1 - bias))
    x = x[:-1].ravel() if has_infinity else x.ravel()[:-1]
    return x[1:], 2.0 ** (1 - bias)


def expected(name):
    x, smallest_normal = numbers(*FORMATS[name])
    near_one = x[(x >= 1) & (x <= 2)]
    return x[-1], smallest_normal, x[0], np.diff(near_one).max() / 2


def answer(exercise, name):
    got = exercise.limits(*FORMATS[name])
    right = isinstance(got, tuple) and len(got) == 4
    assert right, f"limits must return four floats, {', '.join(NAMES)}: got {got!r:.60}"
    return got


def check(exercise, which):
    i = NAMES.index(which)
    for name in FORMATS:
        got, want = answer(exercise, name)[i], expected(name)[i]
        right = isinstance(got, float) and got == want
        if not right:
            raise Wrong(
                f"{which} of {name}, limits{FORMATS[name]}: must be {want:.9g}, got {got!r:.24}",
                causes=causes(which, got, want, name),
                where=f"{which} of {name}",
            )


def causes(which, got, want, name):
    """The likely reason, by the ratio."""
    if not isinstance(got, float) or got <= 0:
        return ["The result is not a positive float."]
    _, mantissa_bits, has_infinity = FORMATS[name]
    step = 2.0**-mantissa_bits
    less = (2 - step) / (2 - 2 * step)
    of_largest = {
        "The largest e belongs to infinities and NaN.": 2.0 if has_infinity else 0,
        "All bits set is a NaN: the largest number has one less in f.": 0 if has_infinity else less,
        "Without infinities the largest e is a number's, too.": 0 if has_infinity else less / 2,
    }
    mistakes = {
        "largest": of_largest,
        "smallest_normal": {
            "e = 0 has no normal number: the smallest e is 1.": 0.5,
            "The smallest normal number has f = 0.": 1 + step,
        },
        "smallest": {
            "Subnormal numbers are smaller than the smallest normal one.": 1 / step,
            "e = 0 has the power of e = 1, 2^(1 - bias).": 0.5,
        },
        "error": {
            "That is the distance of neighbours: rounding is off by half of it at most.": 2.0,
            "That is half of what rounding can be off by.": 0.5,
        },
    }
    found = [c for c, x in mistakes[which].items() if x and np.isclose(got / want, x, rtol=1e-12)]
    return found or ["The bias is 2^(exponent_bits - 1) - 1."] * (which != "error")


@pytest.mark.parametrize("name, want", [
    ("e4m3", (448.0, 2.0**-6, 2.0**-9, 1 / 16)),
    ("e5m2", (57344.0, 2.0**-14, 2.0**-16, 1 / 8)),
    ("float16", (65504.0, 2.0**-14, 2.0**-24, 2.0**-11)),
])  # fmt: skip
def test_by_hand(exercise, name, want):
    """e4m3, e5m2 and float16, by hand"""
    for which, got, number in zip(NAMES, answer(exercise, name), want, strict=True):
        if got != number:
            raise Wrong(
                f"{which} of {name} must be {number:.9g}, got {got!r:.24}",
                causes=causes(which, got, number, name),
                where=f"{which} of {name}",
            )


def test_largest(exercise):
    """the largest number, with infinities and without"""
    check(exercise, "largest")


def test_smallest_normal(exercise):
    """the smallest normal number"""
    check(exercise, "smallest_normal")


def test_smallest(exercise):
    """the smallest number, a subnormal one"""
    check(exercise, "smallest")


def test_error(exercise):
    """the largest error of rounding, between 1 and 2"""
    check(exercise, "error")
