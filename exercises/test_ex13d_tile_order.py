"""Grader of ex13d: tiles of queries for persistent thread blocks."""

import pytest

from fa_numba.workbook.graders.causes import Wrong

BUDGET = 1.10  # longest work over the least possible
CASES = [
    (6, 28),
    (4, 32),
    (8, 32),
    (8, 16),
    (3, 30),
    (5, 128),
    (16, 64),
    (132, 1056),
    (7, 100),
    (10, 95),
]
FEW = [(1, 7), (4, 4), (8, 3), (132, 5), (1, 1)]


def dealt(exercise, num_blocks, num_tiles):
    """The tiles of every thread block, checked: lists of ints, each tile once."""
    found = [exercise.tiles_of(block, num_blocks, num_tiles) for block in range(num_blocks)]
    case = f"{num_tiles} tiles, {num_blocks} thread blocks"
    owner = {}
    for block, tiles in enumerate(found):
        right = isinstance(tiles, list) and all(type(tile) is int for tile in tiles)
        assert right, f"{case}: tiles_of({block}, ...) must be a list of ints, got {tiles!r:.60}"
        for tile in tiles:
            assert 0 <= tile < num_tiles, f"{case}: thread block {block} has tile {tile}"
            if tile in owner:
                raise Wrong(
                    f"{case}: tile {tile} belongs to thread block {owner[tile]} and to {block}",
                    causes=["A tile is computed twice."],
                )
            owner[tile] = block
    if missing := set(range(num_tiles)) - owner.keys():
        raise Wrong(f"{case}: nobody computes tile {min(missing)}", causes=["A tile is left out."])
    return found


@pytest.mark.parametrize("num_blocks, num_tiles", CASES + FEW)
def test_each_tile_once(exercise, num_blocks, num_tiles):
    """each tile belongs to exactly one thread block"""
    dealt(exercise, num_blocks, num_tiles)


@pytest.mark.parametrize("num_blocks, num_tiles", CASES + FEW)
def test_budget(exercise, num_blocks, num_tiles):
    """the longest work is at most 1.10 times the least possible"""
    found = dealt(exercise, num_blocks, num_tiles)
    work = [sum(tile + 1 for tile in tiles) for tiles in found]
    least = max(sum(work) / num_blocks, num_tiles)
    if max(work) > BUDGET * least:
        counts = [len(tiles) for tiles in found]
        causes = []
        if all(tiles == sorted(range(b, num_tiles, num_blocks)) for b, tiles in enumerate(found)):
            causes = ["Each round runs the same way: the last thread block always gets the most."]
        elif max(counts) - min(counts) <= 1 and any(
            tiles == list(range(min(tiles), max(tiles) + 1)) and len(tiles) > 1 for tiles in found
        ):
            causes = ["A thread block has neighbouring tiles: all long, or all short."]
        elif all(tiles == sorted(tiles) for tiles in found):
            causes = [
                "The last round, which is incomplete, has the longest tiles: begin with them."
            ]
        raise Wrong(
            f"{num_tiles} tiles, {num_blocks} thread blocks: thread block {work.index(max(work))} "
            f"has the work {max(work)}, the mean is {sum(work) / num_blocks:.1f}: "
            f"{max(work) / least:.2f} times the least possible, {BUDGET:.2f} are allowed",
            causes=causes,
            where=f"{num_tiles} tiles, {num_blocks} thread blocks",
        )


def test_same_every_time(exercise):
    """the same answer each time, in any order of asking: thread blocks ask for themselves"""
    first = [exercise.tiles_of(block, 5, 23) for block in range(5)]
    again = [exercise.tiles_of(block, 5, 23) for block in reversed(range(5))][::-1]
    assert first == again, f"asked again, the tiles are {again}, before {first}"
