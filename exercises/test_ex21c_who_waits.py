"""Grader of ex21c: who waits in a ring, against pairs that are counted one by one."""

import functools

import numpy as np
import pytest

from fa_numba.distributed.layouts import LAYOUTS, make_layout

EACH_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)
SIZES = [(1, 2), (1, 8), (2, 2), (2, 6), (3, 4), (4, 8), (5, 6), (8, 4)]  # (world_size, c)


@functools.cache
def counted(layout, world_size, c):
    """Pairs of each rank in each step, (world_size, world_size), from the positions of tokens."""
    whole = make_layout(layout, world_size * c, world_size)
    tokens = [whole.tokens(rank) for rank in range(world_size)]
    return np.array(
        [
            [(tokens[r][:, None] >= tokens[(r - t) % world_size]).sum() for t in range(world_size)]
            for r in range(world_size)
        ]
    )


@EACH_LAYOUT
def test_first_step(exercise, layout):
    """busiest: step 0, where every rank has its own keys"""
    for world_size, c in SIZES:
        got, want = exercise.busiest(layout, 0, c), counted(layout, world_size, c)[:, 0].max()
        assert got == want, (
            f"{layout}, c = {c}, step 0: {want} pairs are counted, got {got}: c queries and their "
            "own keys, the diagonal included"
        )


@EACH_LAYOUT
def test_later_steps(exercise, layout):
    """busiest: the steps after the first"""
    for world_size, c in SIZES:
        pairs = counted(layout, world_size, c)
        for step in range(1, world_size):
            got, want = exercise.busiest(layout, step, c), pairs[:, step].max()
            assert got == want, (
                f"{layout}, W = {world_size}, c = {c}, step {step}: the ranks have "
                f"{pairs[:, step].tolist()} pairs, the busiest {want}, got {got}"
            )


def test_whole_numbers(exercise):
    """busiest: an int, exact beyond 2^53"""
    c = 2**40 + 2
    wants = {"contiguous": c * c, "striped": c * (c + 1) // 2, "zigzag": c * c // 2}
    for layout, want in wants.items():
        for step, pairs in ((0, c * (c + 1) // 2), (3, want)):
            got = exercise.busiest(layout, step, c)
            assert type(got) is int and got == pairs, (
                f"{layout}, c = 2^40 + 2, step {step}: want {pairs}, got {got!r}"
            )


@EACH_LAYOUT
def test_busy(exercise, layout):
    """busy: all pairs, over W times the sum of the busiest"""
    for world_size, c in SIZES:
        pairs = counted(layout, world_size, c)
        want = pairs.sum() / (world_size * pairs.max(axis=0).sum())
        got = exercise.busy(layout, world_size, c)
        assert abs(got - want) <= 1e-12, (
            f"{layout}, W = {world_size}, c = {c}: {pairs.sum()} pairs in {world_size} times "
            f"{pairs.max(axis=0).sum()} units of time must be {want:.6g}, got {got:.6g}"
        )


@pytest.mark.parametrize("world_size", [1, 2, 4, 8, 64])
def test_limits(exercise, world_size):
    """busy: W / (2 W - 1) for long contiguous parts; almost 1 striped; 1 in zigzag"""
    c = 10**6
    for layout, want in (
        ("contiguous", world_size / (2 * world_size - 1)),
        ("striped", 1),
        ("zigzag", 1),
    ):
        got = exercise.busy(layout, world_size, c)
        limit = 1e-12 if layout == "zigzag" else 1e-5
        assert type(got) is float and abs(got - want) <= limit, (
            f"{layout}, W = {world_size}, a million tokens each: near {want:.6f}, got {got!r}"
        )
