"""Grader of ex21a: whose keys a rank of a ring has, against keys that are moved by hand."""

import pytest

from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.grading.proxies import each

WORLDS = pytest.mark.parametrize("world_size", [4, 2, 3, 5, 1])


def table(world_size):
    """[step][rank]: the owner of the keys, moved from rank to rank + 1 step by step."""
    keys, rows = list(range(world_size)), []
    for _ in range(world_size):
        rows.append(keys)
        keys = [keys[-1], *keys[:-1]]
    return rows


def all_of(function, world_size):
    """[a][b] of function(a, b, world_size)."""
    ranks = range(world_size)
    flat = each(lambda pair: function(*pair, world_size), [(a, b) for a in ranks for b in ranks])
    return [flat[a * world_size : (a + 1) * world_size] for a in ranks]


@WORLDS
def test_owner(exercise, world_size):
    """owner: the keys that come from rank - 1 in every step"""
    want, got = table(world_size), all_of(exercise.owner, world_size)
    for step in range(world_size):
        for rank in range(world_size):
            given = got[rank][step]
            if given == want[step][rank]:
                continue
            known = {
                "That is a ring in which keys go to rank r - 1.": (rank + step) % world_size,
                "After rank W - 1 comes rank 0: take the rest of a division by W.": rank - step,
            }
            causes = [cause for cause, found in known.items() if found == given]
            raise Wrong(
                f"W = {world_size}, step {step}: rank {rank} has the keys of rank "
                f"{want[step][rank]}, got {given!r}. {causes[0] if causes else ''}",
                causes=causes,
            )


@WORLDS
def test_step_of(exercise, world_size):
    """step_of: the step in which these keys are here"""
    want, got = table(world_size), all_of(exercise.step_of, world_size)
    for rank in range(world_size):
        for owner in range(world_size):
            (step,) = [t for t in range(world_size) if want[t][rank] == owner]
            given = got[rank][owner]
            assert given == step, (
                f"W = {world_size}: rank {rank} has the keys of rank {owner} in step {step}, "
                f"got {given!r}"
            )


def test_one_is_the_inverse_of_the_other(exercise):
    """step_of(rank, owner(rank, step)) is step"""
    for rank in range(6):
        for step in range(6):
            there = exercise.owner(rank, step, 6)
            back = exercise.step_of(rank, there, 6)
            assert back == step, (
                f"6 ranks: owner({rank}, {step}, 6) is {there}, and step_of({rank}, {there}, 6) is "
                f"{back}, not {step}"
            )


def test_whole_numbers(exercise):
    """both are ints, of many ranks too"""
    for got, want in (
        (exercise.owner(3, 1000, 1024), 27),
        (exercise.step_of(3, 27, 1024), 1000),
        (exercise.owner(2**60, 1, 2**60 + 2), 2**60 - 1),
    ):
        assert type(got) is int and got == want, f"must be the int {want}, got {got!r}"
