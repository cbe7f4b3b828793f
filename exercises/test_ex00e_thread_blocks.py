"""Grader of ex00e: a matrix of any size, cut into thread blocks."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.elements import (
    exchanged,
    expect_elements,
    expect_neighbours,
    expect_once,
    unwritten,
)


def add(exercise, shape, block):
    a, b = np.random.default_rng(0).standard_normal((2, *shape), np.float32)
    out = unwritten(*shape)
    grid = -(-shape[1] // block[0]), -(-shape[0] // block[1])
    trace = simt.trace(exercise.add_matrices, grid, block, a.copy(), b.copy(), out)
    return a, b, out, trace


def check(a, b, out, block):
    part = np.full_like(out, np.nan)
    part[: block[1], : block[0]] = (a + b)[: block[1], : block[0]]
    threads = block[0] * -(-out.shape[1] // block[0]), block[1] * -(-out.shape[0] // block[1])
    mistakes = {
        "Only the first thread block's piece is computed: blockIdx is missing.": part,
        "b is missing.": a,
        "a is added to itself.": a + a,
    }
    mistakes |= [exchanged(a + b, *threads)]
    case = f"{a.shape[0]} rows, {a.shape[1]} columns, thread blocks {block}"
    expect_elements(out, a + b, case=case, mistakes=mistakes)


def test_num_blocks(exercise):
    """num_blocks: as few as possible, and enough"""
    for n in (*range(1, 40), 127, 128, 129, 1000, 2**60 + 1):
        for threads in (1, 7, 32, 128):
            got, want = exercise.num_blocks(n, threads), -(-n // threads)
            if type(got) is int and got == want:
                continue
            causes = []
            if got == n // threads:
                causes = ["The division rounds down: the last elements have no thread block."]
            elif got == n // threads + 1:
                causes = ["There is one too many where n is a multiple of threads."]
            elif type(got) is not int and got is not None and got == want:
                causes = ["The number is no int: a launch needs one."]
            where = f"num_blocks({n}, {threads})"
            raise Wrong(f"{where} must be {want}, got {got!r}", causes=causes, where=where)


@pytest.mark.parametrize(
    "shape, block",
    [((8, 64), (32, 4)), ((5, 33), (32, 4)), ((17, 1), (8, 8)), ((16, 24), (8, 16))],
    ids=lambda pair: "x".join(map(str, pair)),
)
def test_matrix(exercise, shape, block):
    """add_matrices: every element, whatever the shapes"""
    a, b, out, _ = add(exercise, shape, block)
    check(a, b, out, block)


def test_large_matrix(exercise):
    """add_matrices: many thread blocks both ways"""
    a, b, out, _ = add(exercise, (260, 330), (32, 16))
    check(a, b, out, (32, 16))


def test_once(exercise):
    """add_matrices: each thread reads one element of a and of b, writes one, and nothing else"""
    a, b, out, trace = add(exercise, (10, 40), (32, 4))
    check(a, b, out, (32, 4))
    expect_once(trace, {"a": 400, "b": 400}, 400)


def test_neighbours(exercise):
    """add_matrices: the threads of a warp touch neighbours in memory"""
    for block in ((32, 1), (32, 4), (8, 16)):
        *_, trace = add(exercise, (16, 64), block)
        expect_neighbours(trace, ("a", "b", "out"), "Let .x be the column, .y the row")


def test_compiles_for_a_gpu(exercise):
    """add_matrices compiles for a GPU"""
    m = np.zeros((4, 4), np.float32)
    gpu_ready(exercise.add_matrices, (m, m, m))
