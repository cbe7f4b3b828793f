"""Grader of ex05d: the largest tiles that fit."""

import math
import re

import numpy as np
import pytest

from fa_numba.workbook.graders.causes import Wrong, diagnosis

KIB = 1024
BUDGETS = [
    (164 * KIB, 64, 2),  # the tutorial's two lines
    (164 * KIB, 128, 2),
    (48 * KIB, 64, 2),
    (48 * KIB, 64, 4),
    (48 * KIB, 96, 4),
    (227 * KIB, 256, 2),
    (20 * KIB, 256, 1),
    (9999, 7, 2),
    (1000, 3, 8),
    (513, 1, 1),
]


def sram(B_r, B_c, d, dtype_bytes):
    return dtype_bytes * (B_r * d + 2 * B_c * d + B_r * B_c)


def brute_force(sram_bytes, d, dtype_bytes):
    """The largest product, found by trying every B_r as well as every B_c."""
    best = 0
    for B_r in range(1, sram_bytes // dtype_bytes // d + 1):
        B_c = 1
        # for this B_r the cost only grows with B_c: walk until it no longer fits
        while sram(B_r, B_c, d, dtype_bytes) <= sram_bytes:
            best = max(best, B_r * B_c)
            B_c += 1
    return best


def answer(exercise, *arguments):
    """(B_r, B_c), held to what any answer must be."""
    got = exercise.calculate_block_sizes(*arguments)
    if not (isinstance(got, tuple) and len(got) == 2):
        raise Wrong(f"want (B_r, B_c), got {got!r}", causes=["The result is a tuple of two ints."])
    if not all(type(size) is int for size in got):
        raise Wrong(
            f"tile sizes are whole numbers of rows: want two ints, got {got!r}. Divide with //, "
            "which keeps ints exact",
            causes=height_causes(exercise),
        )
    return got


def check(exercise, sram_bytes, d, dtype_bytes, best=None):
    B_r, B_c = answer(exercise, sram_bytes, d, dtype_bytes)
    case = f"sram_bytes={sram_bytes}, d={d}, dtype_bytes={dtype_bytes}"
    used = sram(B_r, B_c, d, dtype_bytes)
    best = best or brute_force(sram_bytes, d, dtype_bytes)
    if used <= sram_bytes and B_r * B_c == best and B_r >= 1:
        return
    said = f"fits with product {B_r * B_c}; another pair reaches {best}"
    said = f"needs {used} bytes" if used > sram_bytes else said
    found = height_causes(exercise) or causes((B_r, B_c), sram_bytes, d, dtype_bytes)
    raise Wrong(f"{case}: ({B_r}, {B_c}) {said}", causes=found)


def causes(got, sram_bytes, d, dtype_bytes):
    """The mistakes whose pair is `got`."""
    elements = sram_bytes // dtype_bytes
    pairs = [
        ((elements - 2 * B_c * d) // (d + B_c), B_c) for B_c in range(1, elements // (2 * d) + 1)
    ]
    squares = [(min(pair),) * 2 for pair in pairs]
    known = (
        ("The pair is (B_r, B_c), in this order.", max(pairs, key=math.prod)[::-1]),
        ("The largest product counts, not the largest sum.", max(pairs, key=sum)),
        ("The largest product counts, not the largest B_r.", max(pairs)),
        ("The largest product counts, not the largest B_c.", pairs[-1]),
        ("It is the smallest product.", min(pairs, key=math.prod)),
        ("The tiles need not be square.", max(squares)),
        ("B_c is any whole number, not only a power of two.",
         max((p for p in pairs if p[1] & (p[1] - 1) == 0), key=math.prod)),
    )  # fmt: skip
    return [words for words, pair in known if pair == got]


def wrong_heights(exercise):
    """[(case, want, got, causes)] of the calls of tallest that are wrong."""
    found = []
    for B_c, d, elements in [
        (1, 4, 100), (5, 4, 100), (3, 64, 24_576), (96, 64, 24_576), (9, 7, 999)
    ]:  # fmt: skip
        got = exercise.tallest(B_c, d, elements)
        want = max(n for n in range(elements) if sram(n, B_c, d, 1) <= elements)
        known = (
            ("tallest: // keeps ints exact.", (elements - 2 * B_c * d) / (d + B_c)),
            ("tallest: V has B_c rows of d, too, 2 * B_c * d.", (elements - B_c * d) // (d + B_c)),
            ("tallest: the scores take B_r * B_c elements.", (elements - 2 * B_c * d) // d),
            ("tallest: B_r is rounded down, one row more does not fit.", want + 1),
            ("tallest: B_r need not be at most B_c.", min(want, B_c)),
            ("tallest: B_r is any number, not only a multiple of 16.", want // 16 * 16 or 1),
        )
        if type(got) is not int or got != want:
            case = f"B_c={B_c}, d={d}, elements={elements}"
            found.append((case, want, got, [words for words, size in known if got == size]))
    return found


def height_causes(exercise):
    """The causes that explain all wrong calls of tallest."""
    with diagnosis():
        causes = [set(causes) for *_, causes in wrong_heights(exercise)]
    return sorted(set.intersection(*causes)) if causes else []


def test_tallest(exercise):
    """tallest: the largest B_r that fits, and one row more does not"""
    wrong = wrong_heights(exercise)
    if wrong:
        case, want, got, _ = wrong[0]
        raise Wrong(f"{case}: want {want}, got {got!r}", causes=height_causes(exercise))


def test_two_ints(exercise):
    """the answer is two Python ints"""
    answer(exercise, 164 * KIB, 64)
    answer(exercise, 9999, 7, 2)


def test_sources_example(exercise):
    """an A100's 164 KiB, d = 64, fp16: at least the 128 x 128 that the source chose, and more"""
    check(exercise, 164 * KIB, 64, 2)


@pytest.mark.parametrize("sram_bytes, d, dtype_bytes", BUDGETS)
def test_largest_product(exercise, sram_bytes, d, dtype_bytes):
    """fits, and no other pair has a larger product"""
    check(exercise, sram_bytes, d, dtype_bytes)


def test_small_budgets(exercise):
    """every budget from one row upwards, byte by byte"""
    for sram_bytes in range(2 * (3 * 5 + 1), 600):
        check(exercise, sram_bytes, 5, 2)


def test_smallest(exercise):
    """exactly one row of each fits: (1, 1)"""
    for d, dtype_bytes in [(1, 1), (64, 2), (100, 4)]:
        need = dtype_bytes * (3 * d + 1)
        got = answer(exercise, need, d, dtype_bytes)
        assert got == (1, 1), f"{need} bytes hold exactly one row each at d={d}, got {got}"


def test_element_size(exercise):
    """twice the bytes per element needs twice the SRAM"""
    for d in (32, 64, 80):
        half = answer(exercise, 48 * KIB, d, 2)
        full = answer(exercise, 96 * KIB, d, 4)
        assert half[0] * half[1] == full[0] * full[1], (
            f"d={d}: 48 KiB of 2-byte elements and 96 KiB of 4-byte elements are the same number "
            f"of elements, got {half} and {full}"
        )


def test_default_is_half_precision(exercise):
    """dtype_bytes is 2 when not given"""
    default = answer(exercise, 48 * KIB, 64)
    explicit = answer(exercise, 48 * KIB, 64, 2)
    assert default == explicit, f"want fp16 by default: {explicit}, got {default}"


@pytest.mark.parametrize(
    "short, d, dtype_bytes", [(1, 64, 2), (50, 64, 2), (385, 64, 2), (1, 3, 4), (7, 100, 1)]
)
def test_nothing_fits(exercise, short, d, dtype_bytes):
    """where not even one row fits, ValueError says how many bytes it takes"""
    need = dtype_bytes * (3 * d + 1)
    sram_bytes = need - short
    case = f"sram_bytes={sram_bytes}, d={d}, dtype_bytes={dtype_bytes} cannot hold B_r = B_c = 1"
    most = exercise.tallest(1, d, sram_bytes // dtype_bytes)
    assert most < 1, f"{case}: tallest must be 0 or less there, got {most}"
    try:
        got = exercise.calculate_block_sizes(sram_bytes, d, dtype_bytes)
    except NotImplementedError:
        raise
    except Exception as error:
        assert type(error).__name__ == "ValueError", (
            f"{case}: want ValueError, got {type(error).__name__}: {error}"
        )
        numbers = re.findall(r"\d+", str(error))
        assert str(need) in numbers, (
            f"{case}: the message must say that this needs {need} bytes, it is {str(error)!r}"
        )
        return
    raise AssertionError(f"{case}: want ValueError, got {got}")


def test_large_budget(exercise):
    """64 MiB at d = 64 answers at once: one loop over one of the sizes, not two"""
    sram_bytes, d = 64 * 2**20, 64
    B_c = np.arange(1, sram_bytes // (2 * d))
    B_r = (sram_bytes - 2 * B_c * d) // (d + B_c)
    check(exercise, sram_bytes, d, 1, best=int((B_r * B_c).max()))


def test_rectangular(exercise):
    """the best tile is about twice as tall as wide"""
    for sram_bytes, d, dtype_bytes in [(164 * KIB, 64, 2), (1024 * KIB, 128, 2)]:
        B_r, B_c = answer(exercise, sram_bytes, d, dtype_bytes)
        assert 1.8 <= B_r / B_c <= 2.2, (
            f"a row of Q costs d elements, a row of K and V together 2d: the optimum spends "
            f"equally on both, so B_r is near 2 B_c; got {(B_r, B_c)}"
        )
