"""Grader of ex12a: the fragments of mma.m16n8k16."""

import itertools

import numpy as np
import pytest

from fa_numba.ptx import layouts
from fa_numba.workbook.graders.causes import Wrong

WHERE = {"a": layouts.mma_a(), "b": layouts.mma_b(), "d": layouts.mma_d()}
SHAPES = {"a": (16, 16), "b": (16, 8), "d": (16, 8)}
TABLE = {  # of the statement: what each register is
    "a": (
        "row g, cols c, c+1",
        "row g+8, cols c, c+1",
        "row g, cols c+8, c+9",
        "row g+8, cols c+8, c+9",
    ),
    "b": ("rows c, c+1, col g", "rows c+8, c+9, col g"),
    "d": ("row g, col c", "row g, col c+1", "row g+8, col c", "row g+8, col c+1"),
}


def places(matrix):
    """Every (lane, register[, half]) of a fragment."""
    return itertools.product(*map(range, WHERE[matrix][0].shape))


def said(matrix, place):
    words = ("lane", "register", "half")
    return ", ".join(f"{word} {i}" for word, i in zip(words, place, strict=False))


def because(matrix, place):
    """Why: the statement's table, and what g and c are in this lane."""
    lane, register, *_ = place
    g, c = lane // 4, 2 * (lane % 4)
    return f"{matrix}{register} is {TABLE[matrix][register]}, here g = {g}, c = {c}"


def elements(matrix, row, col):
    """Pairs (place, the element that it holds)."""
    return [(place, (int(row[place]), int(col[place]))) for place in places(matrix)]


def mistakes(matrix):
    """(sentence, rows, columns) of usual mistakes."""
    row, col = WHERE[matrix]
    yield "Row and column are exchanged: the row comes first.", col, row
    if row.ndim == 3:
        yield "The halves are exchanged: half 0 comes first.", row[..., ::-1], col[..., ::-1]
    order = [0, 2, 1, 3] if row.shape[1] == 4 else [1, 0]
    two = "1 and 2" if row.shape[1] == 4 else "0 and 1"
    yield f"Registers {two} of {matrix.upper()} are exchanged.", row[:, order], col[:, order]
    across = np.arange(32).reshape(8, 4).T.ravel()
    sentence = "Four neighbouring lanes have the same g: g = lane // 4, c = 2 * (lane % 4)."
    for rows, cols in ((row[across], col[across]), (row[across], col), (row, col[across])):
        yield sentence, rows, cols
    row, col = (x // 8 * 8 + x % 8 // 2 + x % 2 * 4 for x in (row, col))
    sentence = "A lane has neighbours, c and c + 1: c = 2 * (lane % 4)."
    yield sentence, *((row, WHERE["b"][1]) if matrix == "b" else (WHERE[matrix][0], col))


def causes(matrix, held):
    """The mistakes that explain all of `held`, pairs (place, element)."""
    known = ((said, elements(matrix, row, col)) for said, row, col in mistakes(matrix))
    return [said for said, pairs in known if all(pair in pairs for pair in held)]


def check_elements(exercise, matrix, lanes=32):
    """Ask what each place of the first lanes holds."""
    want = [(p, element) for p, element in elements(matrix, *WHERE[matrix]) if p[0] < lanes]
    held = [(place, getattr(exercise, f"element_of_{matrix}")(*place)) for place, _ in want]
    for (place, element), (_, got) in zip(want, held, strict=True):
        if got != element:
            raise Wrong(
                f"element_of_{matrix}: {said(matrix, place)} holds {matrix.upper()}"
                f"[{element[0]}, {element[1]}] ({because(matrix, place)}), got {got}",
                causes=causes(matrix, held),
                where=said(matrix, place),
            )


def element_of(exercise, matrix, place):
    """What the answer says is held there; two ints, so that it can be an index."""
    got = getattr(exercise, f"element_of_{matrix}")(*place)
    if not (isinstance(got, tuple) and len(got) == 2 and all(type(x) is int for x in got)):
        cause = f"element_of_{matrix} returns a tuple of two ints, (row, col)."
        raise Wrong(f"{said(matrix, place)} of {matrix.upper()}: got {got!r}", causes=[cause])
    return got


def check_owners(exercise, matrix):
    """Ask for the owner of each element."""
    want = elements(matrix, *WHERE[matrix])
    held = [(getattr(exercise, f"owner_in_{matrix}")(*element), element) for _, element in want]
    for (place, element), (got, _) in zip(want, held, strict=True):
        if got != place:
            raise Wrong(
                f"owner_in_{matrix}{element}: {matrix.upper()}[{element[0]}, {element[1]}] is held "
                f"by {said(matrix, place)} ({because(matrix, place)}), got {got}",
                causes=causes(matrix, held),
                where=f"{matrix.upper()}[{element[0]}, {element[1]}]",
            )


@pytest.mark.parametrize("matrix", ["a", "b", "d"])
def test_first_lanes(exercise, matrix):
    """lanes 0 and 1, by the table of the statement"""
    check_elements(exercise, matrix, lanes=2)


@pytest.mark.parametrize("matrix", ["a", "b", "d"])
def test_elements(exercise, matrix):
    """every lane, register and half: which element it holds"""
    check_elements(exercise, matrix)


@pytest.mark.parametrize("matrix", ["a", "b", "d"])
def test_owners(exercise, matrix):
    """every element: who holds it"""
    check_owners(exercise, matrix)


@pytest.mark.parametrize("matrix", ["a", "b", "d"])
def test_each_element_once(exercise, matrix):
    """each element is held once, none twice"""
    rows, cols = SHAPES[matrix]
    held = np.zeros(SHAPES[matrix], int)
    for place in places(matrix):
        row, col = element_of(exercise, matrix, place)
        assert 0 <= row < rows and 0 <= col < cols, (
            f"{said(matrix, place)}: ({row}, {col}) lies outside of {matrix.upper()} {rows, cols}"
        )
        held[row, col] += 1
    bad = np.argwhere(held != 1)
    assert not len(bad), (
        f"{matrix.upper()}[{bad[0][0]}, {bad[0][1]}] is held {held[tuple(bad[0])]} times"
    )


@pytest.mark.parametrize("matrix", ["a", "b", "d"])
def test_there_and_back(exercise, matrix):
    """element_of and owner_in undo each other"""
    for place in places(matrix):
        element = element_of(exercise, matrix, place)
        got = getattr(exercise, f"owner_in_{matrix}")(*element)
        assert got == place, (
            f"{said(matrix, place)} holds {element}, whose owner is said to be {got}"
        )


def test_a_row_of_d_is_a_quad(exercise):
    """a row of D belongs to four neighbouring lanes"""
    for row in range(16):
        lanes = {exercise.owner_in_d(row, col)[0] for col in range(8)}
        first = 4 * (row % 8)
        assert lanes == set(range(first, first + 4)), (
            f"row {row} of D: lanes {first} to {first + 3}, got {sorted(lanes)}"
        )


def test_a_product(exercise):
    """32 lanes' fragments, put together as the tensor core does, give A B"""
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 10, (16, 16)), rng.integers(-9, 10, (16, 8))
    held_a = {p: a[element_of(exercise, "a", p)] for p in places("a")}
    held_b = {p: b[element_of(exercise, "b", p)] for p in places("b")}
    owner_a = {(r, c): exercise.owner_in_a(r, c) for r in range(16) for c in range(16)}
    owner_b = {(r, c): exercise.owner_in_b(r, c) for r in range(16) for c in range(8)}
    for lane, register in places("d"):
        row, col = element_of(exercise, "d", (lane, register))
        got = sum(held_a[owner_a[row, k]] * held_b[owner_b[k, col]] for k in range(16))
        assert got == (a @ b)[row, col], (
            f"d{register} of lane {lane} is D[{row}, {col}], the sum of A[{row}, k] B[k, {col}]. "
            f"From the lanes that owner_in_a and owner_in_b name: want {(a @ b)[row, col]}, "
            f"got {got}"
        )


def test_ints(exercise):
    """tuples of ints, no floats"""
    for got in (
        exercise.element_of_a(7, 3, 1),
        exercise.element_of_b(7, 1, 1),
        exercise.element_of_d(7, 3),
        exercise.owner_in_a(11, 13),
        exercise.owner_in_b(11, 5),
        exercise.owner_in_d(11, 5),
    ):
        assert type(got) is tuple and all(type(x) is int for x in got), f"got {got!r}"
