"""Masks and scores of the user's: read, bounded by intervals, differentiated, written out."""

import contextlib
import gc
import itertools
import math
import numbers
import operator
import random
import sys
import weakref

import numpy as np
import pytest

from fa_numba.checks import Mask, as_options, check_expressions
from fa_numba.expressions import nodes
from fa_numba.expressions.as_options import softcap_of, window_of
from fa_numba.expressions.derivative import derivative
from fa_numba.expressions.nodes import const
from fa_numba.expressions.source import source_of
from fa_numba.expressions.tiles import (
    HIDDEN,
    MIXED,
    WHOLE,
    runs,
    runs_both_ways,
    runs_of_warpgroups,
    tile_classes,
)
from fa_numba.expressions.trace import trace

N, TILE = 64, 16
DOCUMENTS = np.repeat(np.arange(5), [3, 20, 1, 25, 15]).astype(np.int32)
WINDOWS = np.array([5, 40], np.int32)
TREE = np.array([[i >= j and (i - j) % 3 == 0 for j in range(N)] for i in range(N)])


def prefix(b, h, m, n):
    if n < 20:
        return True
    return n <= m


GALLERY = {
    "causal": (lambda b, h, m, n: n <= m,),
    "window": (lambda b, h, m, n: 0 <= m - n < 17,),
    "prefix": (prefix,),
    "documents": (lambda b, h, m, n, doc: doc[m] == doc[n] and n <= m, DOCUMENTS),
    "window and sinks": (lambda b, h, m, n, w: n <= m and (m - n < w or n < 4), 17),
    "dilated": (lambda b, h, m, n: n <= m and (m - n) % 4 == 0,),
    "block diffusion": (lambda b, h, m, n: n // 8 <= m // 8,),
    "2-D neighbourhood": (
        lambda b, h, m, n: abs(m // 8 - n // 8) <= 1 and abs(m % 8 - n % 8) <= 1,
    ),
    "a window for each head": (lambda b, h, m, n, w: n <= m and m - n < w[h], WINDOWS),
    "all but oneself": (lambda b, h, m, n: not (m == n or m < 0),),
    "a tree": (lambda b, h, m, n, tree: tree[m, n], TREE),
    "no limit": (lambda b, h, m, n: n <= m and m - n < 2**40 and n > -(2**31) - 1 and m != 2**31,),
    "a row of a picture": (lambda b, h, m, n: divmod(m, 8)[0] == divmod(n, 8)[0],),
    "first sequence alone": (lambda b, h, m, n: (n <= m) | (b == 0),),
}  # fmt: skip


def pairs(function, arguments, b, h):
    """The mask by calling the function for every pair."""
    values = [[bool(function(b, h, m, n, *arguments)) for n in range(N)] for m in range(N)]
    return np.array(values)


def wrong_tiles(function, arguments, classes):
    """Number of tiles called hidden or whole that are not; of tiles called mixed; of mixed ones."""
    wrong = mixed = truly_mixed = 0
    for b, h in itertools.product(range(classes.shape[0]), range(classes.shape[1])):
        tiles = pairs(function, arguments, b, h).reshape(N // TILE, TILE, N // TILE, TILE)
        some, every = tiles.any((1, 3)), tiles.all((1, 3))
        here = classes[b, h]
        wrong += np.count_nonzero((here == HIDDEN) & some | (here == WHOLE) & ~every)
        mixed += np.count_nonzero(here == MIXED)
        truly_mixed += np.count_nonzero(some & ~every)
    return wrong, mixed, truly_mixed


@pytest.mark.parametrize("name", GALLERY)
def test_the_tiles_of_a_gallery(name):
    function, *arguments = GALLERY[name]
    mask = trace(function, "mask", "b h m n", arguments)
    classes = tile_classes(mask, (N, N), TILE, TILE, arguments, 2, 2)
    wrong, mixed, truly_mixed = wrong_tiles(function, arguments, classes)
    assert not wrong and mixed == truly_mixed
    few = classes.shape[:2]
    assert few == (2 if name == "first sequence alone" else 1, 2 if "each head" in name else 1)


def number(draw, depth):
    if not depth:
        return draw.choice(["m", "n", "m", "n", "b", "h", str(draw.randint(0, 9)), "w"])
    x, y, k = number(draw, depth - 1), number(draw, depth - 1), draw.randint(1, 9)
    return draw.choice([
        f"({x} + {y})", f"({x} - {y})", f"({x} * {k - 5})", f"({x} // {k})", f"({x} % {k})",
        f"({x} % -{k})", f"({x} // -{k})", f"abs({x})", f"min({x}, {y})", f"max({x}, {y})",
        f"a[abs({x}) % 64]", f"c[b, abs({y}) % 64]", f"({x} & {k})", f"({x} | {k})",
        f"({x} ^ {k})", f"({x} >> {k % 4})", f"({x} << {k % 4})", f"({x} if m < n + {k} else {y})",
        f"-{x}",
    ])  # fmt: skip


def condition(draw, depth):
    x, y = (number(draw, draw.randint(0, 2)) for _ in range(2))
    if not depth:
        return f"{x} {draw.choice(['<', '<=', '>', '>=', '==', '!='])} {y}"
    p, q = condition(draw, depth - 1), condition(draw, depth - 1)
    return draw.choice([
        f"({p} and {q})", f"({p} or {q})", f"(not {p})", f"({x} <= m < {y})", f"(({p}) & ({q}))",
        f"(({p}) | ({q}))", f"({p} if {q} else {x} < 3)", f"(f[abs({x}) % 64] * 0.37 < u + {y})",
    ])  # fmt: skip


class Table(list):
    """An array of Python's numbers, so that enumeration is quick."""

    def __getitem__(self, index):
        return super().__getitem__(index) if isinstance(index, int) else self[index[0]][index[1]]


def random_masks(draw, count):
    """Functions of the grammar with their arguments."""
    numbers = np.random.default_rng(draw.randrange(1 << 30))
    for _ in range(count):
        text = condition(draw, draw.randint(0, 3))
        arguments = (
            numbers.integers(-5, 9, N).astype(np.int32),
            np.sort(numbers.integers(0, 9, (2, N))).astype(np.int32),
            numbers.standard_normal(N).astype(np.float32),
            draw.randint(0, 20),
            draw.random(),
        )
        yield text, eval(f"lambda b, h, m, n, a, c, f, w, u: {text}"), arguments


@pytest.mark.parametrize("count", [60, pytest.param(10_000, marks=pytest.mark.thorough)])
def test_no_tile_of_a_random_mask_is_called_what_it_is_not(count):
    draw, sums = random.Random(), np.zeros(3, int)
    for text, function, arguments in random_masks(draw, count):
        mask = trace(function, "mask", "b h m n", arguments)
        classes = tile_classes(mask, (N, N), TILE, TILE, arguments, 2, 2)
        lists = [Table(x.tolist()) if isinstance(x, np.ndarray) else x for x in arguments]
        found = wrong_tiles(function, lists, np.broadcast_to(classes, (2, 2, 4, 4)))
        assert not found[0], text
        sums += found
    assert count < 1000 or sums[1] <= 1.4 * sums[2], sums


def test_sizes_that_are_no_multiple_of_the_tile():
    mask = trace(lambda b, h, m, n: n <= m, "mask", "b h m n")
    # two queries at the end of five keys: m is their position, 3 and 4
    assert tile_classes(mask, (2, 5), 1, 2).tolist() == [[[[2, 2, 0], [2, 2, 2]]]]
    assert tile_classes(mask, (2, 5), 1, 2, first_position=0).tolist() == [[[[1, 0, 0], [2, 0, 0]]]]


def test_runs():
    classes = np.array([[[0, 1, 1, 2, 2, 1, 0, 2], [0] * 8]], np.int8)
    table = runs(classes)
    assert table[0, 0].tolist() == [[1, 3, MIXED], [3, 5, WHOLE], [5, 6, MIXED], [7, 8, WHOLE]]
    assert not table[0, 1].any()


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_runs_of_warpgroups(parts):
    """Each warpgroup meets the tiles that it sees, has one at least, and begins and ends with one.

    A tile that it meets and does not see, or that goes beyond the last key, is mixed.
    """
    rng = np.random.default_rng()
    for num_m, num_n in ((1, 1), (5, 7), (6, 4)):
        classes = rng.choice(3, (2, 1, num_m, num_n), p=[0.6, 0.2, 0.2]).astype(np.int8)
        table = runs_of_warpgroups(classes, 16 * num_n - 3, 16, parts)
        blocks = np.pad(classes, [(0, 0), (0, 0), (0, -num_m % parts), (0, 0)])
        for b, block in np.ndindex(2, table.shape[2]):
            met = np.zeros((parts, num_n), int)
            of_block = blocks[b, 0, block * parts : (block + 1) * parts]
            for first, end, flags in table[b, 0, block]:
                assert not met[:, first:end].any()
                met[:, first:end] = (flags >> 2 * np.arange(parts) & 3)[:, None]
            for w in range(parts):
                assert met[w].any()
                for tile in range(num_n):
                    if met[w, tile] != of_block[w, tile]:
                        last = tile == num_n - 1
                        assert met[w, tile] == MIXED
                        assert last or of_block[w, tile] == HIDDEN
                seen = np.flatnonzero(of_block[w])
                if len(seen):
                    found = np.flatnonzero(met[w])
                    assert (found[0], found[-1]) == (seen[0], seen[-1])


def test_runs_both_ways():
    """Both tables have each visible tile once; those at the ends are mixed, of a class or not."""
    classes = np.random.default_rng().choice(3, (2, 1, 5, 7)).astype(np.int8)
    for sizes in ((5 * 16, 7 * 8), (5 * 16 - 3, 7 * 8 - 3)):
        want = classes.copy()
        if sizes[0] % 16:
            want[..., -1, :] = np.minimum(want[..., -1, :], MIXED)
            want[..., -1] = np.minimum(want[..., -1], MIXED)
        of_queries, of_keys = runs_both_ways(classes, sizes, 16, 8)
        for table, x in ((of_queries, want), (of_keys, want.swapaxes(-1, -2))):
            found = np.zeros_like(x)
            for b, row in np.ndindex(2, x.shape[2]):
                for first, end, kind in table[b, 0, row]:
                    found[b, 0, row, first:end] += np.int8(kind)
            np.testing.assert_array_equal(found, x)
    for table in runs_both_ways(np.zeros_like(classes), sizes, 16, 8):
        assert table.shape[-2] == 1 and not table.any()  # an array must have elements


def test_a_tile_of_a_long_mask_is_never_entered():
    """262,144 tiles of 4,294,967,296 pairs, each row of them with at most 3 runs."""
    n, documents = 65536, np.sort(np.random.default_rng(0).integers(0, 200, 65536))
    arguments = (documents.astype(np.int32),)
    function, *_ = GALLERY["documents"]
    mask = trace(function, "mask", "b h m n", arguments)
    table = runs(tile_classes(mask, (n, n), 128, 128, arguments))
    assert table.shape[-2] <= 3


def test_no_array_is_kept():
    documents = DOCUMENTS.copy()
    function, *_ = GALLERY["documents"]
    mask = trace(function, "mask", "b h m n", (documents,))
    tile_classes(mask, (N, N), TILE, TILE, (documents,))
    kept = weakref.ref(documents)
    del documents
    gc.collect()
    assert kept() is None


def window(b, h, m, n, w):
    return n <= m and m - n < w


def test_equal_functions_are_one():
    """New values of the arguments, and another function with the same text, compile nothing."""
    mask = trace(window, "mask", "b h m n", (5,))
    assert mask == trace(window, "mask", "b h m n", (6,))
    assert mask == trace(lambda b, h, m, n, w: m >= n and w > m - n, "mask", "b h m n", (5,))
    assert hash(mask) == hash(trace(window, "mask", "b h m n", (7,)))
    assert mask != trace(window, "mask", "b h m n", (5.0,))


SLOPES = np.array([0.5, 0.25], np.float32)
SCORES = {
    "softcap": (lambda s, b, h, m, n: 30 * math.tanh(s / 30),),
    "ALiBi": (lambda s, b, h, m, n, slopes: s - slopes[h] * abs(m - n), SLOPES),
    "near": (lambda s, b, h, m, n, slopes: s * 2 + slopes[h] if m - n < 3 else s, SLOPES),
    "a product": (lambda s, b, h, m, n: s * s + s / (1 + math.exp(-s)),),
    "log n": (lambda s, b, h, m, n: math.sqrt(1 + abs(s)) * math.log(m + 2) - s**3,),
    "leaky": (lambda s, b, h, m, n: max(s, 0.1 * s) + min(s, np.where(n < 3, s, 2 * s)),),
}


@pytest.mark.parametrize("name", SCORES)
def test_the_derivative_of_a_score(name):
    """By central differences; and the written function computes what the user's does."""
    function, *arguments = SCORES[name]
    score = trace(function, "score", "s b h m n", arguments)
    given, compiled = {"int32": int, "float32": float, "math": math}, []
    for x in (score, derivative(score)):
        exec(source_of(x, "f", "s b h m n"), given)
        compiled.append(given["f"])
    f, slope = compiled
    for s, m, n in itertools.product((-2.3, 0.7, 1.9), (5, 2), (1, 7)):
        at = (0, 1, m, n, arguments)
        if name != "leaky":  # whose where is NumPy's
            assert f(s, *at) == pytest.approx(function(s, *at[:4], *arguments), rel=1e-6)
        want = (f(s + 1e-6, *at) - f(s - 1e-6, *at)) / 2e-6
        assert slope(s, *at) == pytest.approx(want, abs=1e-6)
    if name == "ALiBi":
        assert derivative(score) == const(1.0)  # the backward pass needs no change


def test_powers_of_two_are_shifts_and_integers_are_int32():
    mask = trace(lambda b, h, m, n: (m // 32 - n) % 4 == 1, "mask", "b h m n")
    text = source_of(mask, "mask", "b h m n")
    assert "int32(m >> int32(5))" in text and "& int32(3)" in text
    given = {"int32": np.int32}
    exec(text, given)
    for m, n in itertools.product((0, 31, 64, 1000), (0, 3, 700)):
        assert given["mask"](0, 0, np.int32(m), np.int32(n), ()) == ((m // 32 - n) % 4 == 1)


def endless(b, h, m, n):
    while n < m:
        m = m - 1
    return m


def changes(text, **more):
    """A mask that does something before it compares."""
    space = {"DOCUMENTS": DOCUMENTS, "math": math, **more}
    exec(f"def mask(b, h, m, n, *x):\n    {text}\n    return n <= m", space)
    return space["mask"]


def outer():
    count = 0

    def mask(b, h, m, n):
        nonlocal count
        count += 1
        return n < count

    return mask


class Helpers:
    """Of a user's: its methods are called as they are written."""

    @staticmethod
    def same(m, n):
        return m is n or n < 2

    def of_type(self, m, n):
        return n <= m if type(m) is int else n < 2

    def of_class(self, m, n):
        return n <= m if isinstance(m, int) else n < 2

    def __call__(self, b, h, m, n):
        return self.same(m, n)


def matched(b, h, m, n):
    match m:
        case int():
            return n <= m
    return n < 2


def attempt(what, otherwise="n < 2"):
    """A mask that goes on after what is refused."""
    return changes(f"try: {what}\n    except Exception: return {otherwise}", lists=[[1, 2]])


def suppressed(b, h, m, n):
    with contextlib.suppress(TypeError):
        return int(m) > n
    return n < 2


numbers_in_turn = itertools.count()

REFUSED = {
    "is, in a method": (lambda b, h, m, n: Helpers.same(m, n), (), r"got `is` \(same in .*, line"),
    "is, in an object": (Helpers(), (), r"got `is` \(same in .*, line"),
    "is of operator": (lambda b, h, m, n: operator.is_(m, n), (), r"got `is` \(<lambda> in"),
    "a type, in a method": (
        lambda b, h, m, n: Helpers().of_type(m, n), (), r"of a number: type \(of_type in .*, line"),
    "a class, in a method": (
        lambda b, h, m, n: Helpers().of_class(m, n), (), r"isinstance \(of_class in .*, line"),
    "an abstract class": (
        lambda b, h, m, n: isinstance(m, numbers.Real), (), r"isinstance \(<lambda> in .*sions.py"),
    "a pattern of a class": (matched, (), r"isinstance \(matched in .*, line"),
    "an int, in try": (attempt("return int(m) < n"), (), "must not turn a number into an int"),
    "a key, in try": (attempt("return {0: 5}[h] > n"), (), "no key of a set"),
    "an index, in try": (attempt("return lists[0][h] > n"), (), "must index arrays"),
    "a text, in try": (attempt("return f'{m:>3}' == '  3'"), (), "must not make a text"),
    "an int, suppressed": (suppressed, (), "must not turn a number into an int"),
    "a random number": (lambda b, h, m, n: random.random() < 0.5, (), "got a random number"),
    "another number in turn": (
        lambda b, h, m, n: m - n < next(numbers_in_turn), (),
        r"the same in each call, .*iterator\? \(<lambda> in .*sions.py, line"),
    "an assertion": (
        changes("assert m >= 0, 'no'"), (), r"AssertionError\('no'\) for \(m < 0\) \(mask"),
    "the other remainder": (lambda b, h, m, n: math.remainder(m, 3) < n, (), "got remainder"),
    "a key function": (
        lambda b, h, m, n: min((m, n), key=abs) < 3, (), r"parameters: min\(\) got .* 'key' \("),
    "an attribute of a function": (
        lambda b, h, m, n: np.logical_and.reduce([n <= m]), (), r"no attribute 'reduce' \("),
    "two numbers": (lambda b, h, m, n: math.log(m + 2, 2) < n, (), "give log one number.*got 2"),
    "a power modulo": (lambda b, h, m, n: pow(m, 2, 7) < n, (), "powers of 1 to 4, got 2 modulo 7"),
    "a new attribute": (changes("m.w = 3"), (), r"to an attribute, got .w \(mask in .*, line 2"),
    "an attribute of ours": (changes("m.node = n"), (), "attribute, got .node"),
    "an attribute of an array": (changes("x[0].shape = 3"), (DOCUMENTS,), "attribute, got .shape"),
    "an attribute of a module": (changes("math.w = 3"), (), "attribute, got .w"),
    "a deleted attribute": (changes("del m.w"), (), "attribute, got .w"),
    "an element of a number": (changes("m[0] = 3"), (), r"to an element \(mask in .*, line 2"),
    "an element of an array": (changes("x[0][m] = 3"), (DOCUMENTS,), "to an element"),
    "a deleted element": (changes("del x[0][0]"), (DOCUMENTS,), "to an element"),
    "an element of a captured array": (changes("DOCUMENTS[0] = 3"), (), "is read-only .*, line 2"),
    "a captured array, in place": (
        changes("global DOCUMENTS; DOCUMENTS += 1"), (), "outside of it, got DOCUMENTS .*, line 2"),
    "a global": (changes("global y; y = m"), (), "outside of it, got y"),
    "a variable outside": (outer(), (), r"outside of it, got count \(mask in .*, line"),
    "a whole array": (lambda b, h, m, n, x: x == 3, (DOCUMENTS,), r"must index mask_args\[0\]"),
    "an array as a condition": (
        lambda b, h, m, n, x: not x, (DOCUMENTS,), r"must index mask_args\[0\]"),
    "a matrix product": (lambda b, h, m, n: m @ n < m, (), r"only compute .* a number .*, line"),
    "all elements": (
        lambda b, h, m, n, x: n in x, (np.zeros(99, int),), r"at most 64 .*\[0\] has more"),
    "an array that is no argument": (
        lambda b, h, m, n: DOCUMENTS[m] == 1, (), "give the array in mask_args"),
    "an unknown function": (lambda b, h, m, n: math.erf(m) < 1, (), "of math only .* got erf"),
    "an attribute": (lambda b, h, m, n: m.real, (), "attribute, got .real"),
    "a parameter too few": (lambda b, m, n: m, (), r"must take b, h, m, n and the 0 of mask_args"),
    "an argument too many": (lambda b, h, m, n: m, (3,), "the 1 of mask_args"),
    "a loop over a symbol": (lambda b, h, m, n: [i for i in range(m)], (), "no loop"),
    "a loop that ends for some m": (endless, (), "does a loop end only for some"),
    "text": (lambda b, h, m, n: "yes", (), "got str"),
    "nothing": (
        lambda b, h, m, n: None, (), "must return one value.* got None .*expressions.py, line"),
    "rounding": (lambda b, h, m, n: round(m / 2) < n, (), "must not round a number"),
    "the same object": (changes("if n is m: return n"), (), r"by == and !=, got `is` \(mask in"),
    "a number by its object": (changes("if m is not n + 1: return n"), (), "got `is`"),
    "a formatted number": (changes("y = f'{m}' == '3'"), (), "must not make a text of a number"),
    "a type": (changes("y = isinstance(m, int)"), (), "type or identity of a number: isinstance"),
    "an unknown exponent": (lambda b, h, m, n: m**n < 9, (), "must have no unknown exponent"),
    "no function": (3, (), "must be a function of b, h, m, n, got int"),
    "a class": (int, (), "must be a function of b, h, m, n, got type"),
    "a call": (lambda b, h, m, n: n(m), (), r"its parameters: a number is not callable \("),
    "a length": (lambda b, h, m, n: len(m), (), r"its parameters: a number has no len\(\) \("),
    "an array outside": (lambda b, h, m, n: DOCUMENTS, (), "one value.* got ndarray .*sions.py"),
    "bits of a float": (lambda b, h, m, n: (m / 2) & 1, (), "bits of a float"),
    "floor of a float": (lambda b, h, m, n: (m / 2) % 2 == 0, (), "integers on both sides of %"),
    "an integer of more bits": (lambda b, h, m, n: n * 2**31 < m, (), "of 32 bits, got 21474"),
    "and of two": (lambda b, h, m, n: m - n < np.where(h, 3, 2**40), (), "of 32 bits, got 1099511"),
    "a power of 2": (lambda b, h, m, n: 2**m > n, (), r"no unknown exponent; exp\(x \* log\(base"),
    "a key of a set": (lambda b, h, m, n: h in {0, 2}, (), r"no key of a set or a dict; `h in \(0"),
    "division by 0": (lambda b, h, m, n: m // 0, (), "divide by 0"),
    "an index too many": (lambda b, h, m, n, x: x[m, n], (DOCUMENTS,), "with 1 numbers, got 2"),
    "an index that is no integer": (lambda b, h, m, n, x: x[m / 2], (DOCUMENTS,), "with integers"),
    "an argument of words": (lambda b, h, m, n, x: m, ("w",), r"mask_args\[0\] must be a number"),
    "an array of words": (
        lambda b, h, m, n, x: m, (np.array(["w"]),), r"mask_args\[0\] .* got ndarray of <U1"),
}  # fmt: skip


ALLOWED = {
    "a type of its own": (lambda b, h, m, n: n <= m if isinstance(int, type) else n < 2),
    "a type of a type": (lambda b, h, m, n: n <= m if type(int) is type else n < 2),
    "the class of an object": (lambda b, h, m, n: n <= m if type(SAME) is dict else n < 2),
    "a list of numbers": (lambda b, h, m, n: max([n - m, -1]) <= 0),
    "the divisor of divmod": (lambda b, h, m, n: divmod(n, m + 1)[0] <= 0 < divmod(9, n + 1)[0]),
    "an iterator": (lambda b, h, m, n: min(m - n + x for x in range(3)) >= 0),
    "a scalar of NumPy": (lambda b, h, m, n: n - m <= np.int64(0)),
    "its bool": (lambda b, h, m, n: np.True_ & (n <= m)),
    "a float's power": (lambda b, h, m, n: (n - m) ** 2.0 * np.sqrt(1) <= 0.5 or n < m),
}


@pytest.mark.parametrize("what", ALLOWED)
def test_what_is_a_mask(what):
    mask = trace(ALLOWED[what], "mask", "b h m n")
    given = {"int32": int, "float32": float}
    exec(source_of(mask, "mask", "b h m n"), given)
    for m, n in itertools.product(range(5), repeat=2):
        assert bool(given["mask"](0, 0, m, n, ())) == (n <= m) == bool(ALLOWED[what](0, 0, m, n))


def test_a_zero_has_a_sign():
    """Equal numbers, which are kept as keys, and other functions."""
    found = []
    for zero in (-0.0, 0.0):
        score = trace(lambda s, b, h, m, n, z=zero: math.copysign(s, z), "score", "s b h m n")
        given = {"float32": float, "math": math}
        exec(source_of(score, "score", "s b h m n"), given)
        found.append(given["score"](2.0, 0, 0, 0, 0, ()))
    assert found == [-2.0, 2.0]


def test_a_profiler_goes_on():
    """A function is watched by the hook that a profiler has, and gives it back."""
    seen = []

    def look(*what):
        seen.append(what)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        trace(lambda b, h, m, n: n <= m + 77, "mask", "b h m n")
        after = sys.getprofile()
    finally:
        sys.setprofile(before)
    assert after is look and seen


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_mask(what):
    function, arguments, message = REFUSED[what]
    before = DOCUMENTS.copy()
    with pytest.raises((TypeError, ValueError), match=message):
        trace(function, "mask", "b h m n", arguments)
    np.testing.assert_array_equal(DOCUMENTS, before)


def test_variables_of_its_own():
    """A function may assign to them, also by a walrus, in place, and from within."""

    def mask(b, h, m, n, few):
        count, pair = 0, [m, n]

        def more():
            nonlocal count
            count += 1

        more()
        pair[0] -= (far := count + 2)
        n += far
        return n < pair[0] or m in few

    few = np.array([3, 5], np.int32)
    want = trace(
        lambda b, h, m, n, x: n + 3 < m - 3 or x[0] == m or x[1] == m, "mask", "b h m n", (few,)
    )
    assert trace(mask, "mask", "b h m n", (few,)) == want


def test_an_error_says_where():
    with pytest.raises(TypeError, match=r"\(place in .*test_expressions.py, line \d+, column 12\)"):
        trace(place, "mask", "b h m n")


def place(b, h, m, n):
    return m.real == n


def test_an_error_of_the_users_own_is_not_a_refusal():
    with pytest.raises(ZeroDivisionError):
        trace(lambda b, h, m, n: m < 1 // 0, "mask", "b h m n")


TOO_FAR = {
    "past the end": (lambda b, h, m, n, x: x[m + 1] == 0, r"mask_args\[0\] must have more than 64"),
    "before the start": (lambda b, h, m, n, x: x[m - n] == 0, "its index be 0 or more"),
    "beyond 32 bits": (lambda b, h, m, n, x: m * m * m * m * m * m < 0, "integers of 32 bits"),
    "a divisor": (lambda b, h, m, n, x: m % (n - 3) == 0, "must not divide by 0, got a divisor"),
    "a shift": (lambda b, h, m, n, x: 1 << n < 3, "must shift by 0 to 31 bits, got 0 to 63"),
}


@pytest.mark.parametrize("what", TOO_FAR)
def test_values_out_of_range_are_known_before_the_call(what):
    function, message = TOO_FAR[what]
    mask = trace(function, "mask", "b h m n", (DOCUMENTS,))
    with pytest.raises(ValueError, match=message):
        tile_classes(mask, (N, N), TILE, TILE, (DOCUMENTS,))


# What an option says too, and what none does.
SAME = {
    "causal": (lambda b, h, m, n: n <= m, (-1, 0)),
    "a window": (lambda b, h, m, n: n <= m and m - n < 5, (4, 0)),
    "both sides": (lambda b, h, m, n: abs(n - m) <= 5, (5, 5)),
    "moved": (lambda b, h, m, n: m - 3 <= n < m + 4 and n + n <= m + n + 9, (3, 3)),
    "all": (lambda b, h, m, n: True, (-1, -1)),
    "before the diagonal": (lambda b, h, m, n: n < m, None),
    "twice as far": (lambda b, h, m, n: n <= 2 * m, None),
    "first keys too": (lambda b, h, m, n: n <= m or n < 3, None),
    "from a key on": (lambda b, h, m, n: n <= m and n > 3, None),
    "of a head": (lambda b, h, m, n: m - n <= h, None),
}
CAPS = {
    "softcap": (lambda s, b, h, m, n: 30 * math.tanh(s / 30), 30),
    "by a factor": (lambda s, b, h, m, n: np.tanh(s * 0.2) * 5, 5),
    "another slope": (lambda s, b, h, m, n: 30 * math.tanh(s / 31), None),
    "upside down": (lambda s, b, h, m, n: 30 * math.tanh(30 / s), None),
    "a further factor": (lambda s, b, h, m, n: 30 * math.tanh(s / 30) * m, None),
}


@pytest.mark.parametrize("name", SAME)
def test_the_window_that_says_the_same(name):
    mask, want = SAME[name]
    got = window_of(nodes.as_bool(trace(mask, "mask", "b h m n", ())), ())
    assert got == want
    if got is not None:
        left, right = (N if side < 0 else side for side in got)
        seen = {(m, n) for m in range(N) for n in range(N) if mask(0, 0, m, n)}
        assert seen == {(m, n) for m in range(N) for n in range(N) if -left <= n - m <= right}


@pytest.mark.parametrize("name", CAPS)
def test_the_softcap_that_says_the_same(name):
    score, want = CAPS[name]
    assert softcap_of(trace(score, "score", "s b h m n", ())) == want


def test_options_in_place_of_functions_and_beside_them():
    """A number among the arguments is known; a score after another option is not a softcap."""
    q, cap = np.zeros((1, 8, 2, 4), np.float32), CAPS["softcap"][0]
    given = {"mask": window, "mask_args": (9,), "score": None, "score_args": ()}
    for changes, options, want in (
        ({}, Mask(window_size=(3, -1), softcap=2.0), Mask(window_size=(3, 0), softcap=2.0)),
        ({"score": cap}, Mask(causal=True), Mask(window_size=(8, 0), softcap=30.0)),
        ({"score": cap}, Mask(softcap=2.0), None),
        ({"score": cap, "score_args": (1.0,)}, Mask(), None),
        ({"score": lambda s, *at: s, "mask": None, "mask_args": ()}, Mask(), Mask()),
    ):
        written = [*{**given, **changes}.values()]
        if written[3]:
            written[2] = lambda s, b, h, m, n, c: c * math.tanh(s / c)
        read = check_expressions(q, *written, options, None)
        assert as_options(read, options, *written[2:]) == want
