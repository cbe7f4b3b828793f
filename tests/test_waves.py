"""Thread blocks on the places of a GPU, by hand."""

import pytest

from fa_numba.analysis.waves import makespan, schedule


def test_first_free_place_in_order():
    assert schedule([4, 1, 2, 2, 1], 2) == [(0, 0), (1, 0), (1, 1), (1, 3), (0, 4)]
    assert makespan([4, 1, 2, 2, 1], 2) == 5


@pytest.mark.parametrize("number, waves", [(0, 0), (1, 1), (8, 1), (9, 2), (16, 2), (17, 3)])
def test_equal_thread_blocks_run_in_waves(number, waves):
    assert makespan([3] * number, 8) == 3 * waves


def test_no_slot_has_two_at_a_time():
    durations = [1 + n * n % 7 for n in range(50)]
    busy = set()
    for (slot, start), duration in zip(schedule(durations, 6), durations, strict=True):
        times = {(slot, t) for t in range(start, start + duration)}
        assert not times & busy
        busy |= times
    assert len(busy) == sum(durations)
