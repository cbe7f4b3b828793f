"""The order in which a thread block of the backward pass goes through the queries of a group."""

import itertools

import pytest

from fa_numba.tensor_core.key_tiles import make_order

GROUP, M_TILES = 4, 24  # query heads, and tiles of queries of a head


def steps(in_step, first, end, downwards):
    """(head, tile of queries) of each step, and the sum of the steps of dQ before it."""
    ranges, m_tile_of, head_of, dq_step = (x.py_func for x in make_order(in_step))
    outer_first, outer_end, inner_first, inner_end = ranges(first, end, 0, GROUP)
    found = []
    for outer in range(outer_first, outer_end):
        place = None
        for inner in range(inner_first, inner_end):
            head, m_tile = head_of(outer, inner), m_tile_of(outer, inner, first, end, downwards)
            place = head * M_TILES + m_tile if place is None else place
            assert place == head * M_TILES + m_tile  # the tile of dQ that the kernel adds to
            place += dq_step(M_TILES)
            found.append((head, m_tile))
    return found


@pytest.mark.parametrize("in_step, downwards", [*itertools.product((False, True), repeat=2)])
@pytest.mark.parametrize("first, end", [(0, M_TILES), (5, 11), (3, 4), (7, 7)])
def test_each_tile_of_each_head_once(in_step, downwards, first, end):
    found = steps(in_step, first, end, downwards)
    assert sorted(found) == list(itertools.product(range(GROUP), range(first, end)))


def test_tiles_of_keys_are_at_the_same_queries():
    """In pairs, causal: the first tiles of keys begin together, the second ones end together."""
    firsts = range(0, M_TILES // 2, 2)
    long = [steps(True, first, M_TILES, True) for first in firsts]
    assert all(x == long[0][: len(x)] for x in long)
    short = [steps(True, first, M_TILES, False) for first in range(M_TILES // 2, M_TILES, 2)]
    assert all(x == short[0][len(short[0]) - len(x) :] for x in short)
