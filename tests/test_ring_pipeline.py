"""The model of a ring: what goes well, and what is found where a wait is missing."""

import re

import pytest

from fa_numba.analysis.ring_pipeline import Barrier, run_ring


def producer(num_tiles, num_stages, wait=True):
    steps = []
    for tile in range(num_tiles):
        turn, stage = divmod(tile, num_stages)
        steps += [("wait", "empty", stage, (turn + 1) % 2)] * wait + [("load", stage, tile)]
    return steps


def consumer(num_tiles, num_stages, wait=True, arrive=True, early=False):
    steps = []
    for tile in range(num_tiles):
        turn, stage = divmod(tile, num_stages)
        read, back = [("read", stage, tile)], [("arrive", stage)] * arrive
        steps += [("wait", "full", stage, turn % 2)] * wait
        steps += back + read if early else read + back
    return steps


def test_a_barrier_counts_and_its_phases_end():
    barrier = Barrier(2)
    assert barrier.ended(1) and not barrier.ended(0)  # new: as if a phase −1 had ended
    barrier.arrive()
    assert not barrier.ended(0)
    barrier.arrive()
    assert barrier.ended(0) and not barrier.ended(1)


@pytest.mark.parametrize("consumers", [1, 3])
@pytest.mark.parametrize("num_tiles, num_stages", [(1, 1), (7, 1), (7, 3), (2, 4), (0, 2)])
def test_every_tile_is_copied_once_and_read_by_everyone(num_tiles, num_stages, consumers):
    readers = [consumer(num_tiles, num_stages)] * consumers
    ring = run_ring(producer(num_tiles, num_stages), readers, num_stages)
    assert not ring.problem
    for who in range(consumers + 1):
        assert [span.tile for span in ring.spans if span.who == who] == list(range(num_tiles))
    for span in ring.spans:  # no copy to a stage while somebody reads there
        for other in ring.spans:
            if span.who == 0 and other.who and span.stage == other.stage:
                assert other.end <= span.start or span.end <= other.start


def test_time_is_that_of_the_slower():
    def times(who, tile):
        return 2 if who == 0 else 7

    ring = run_ring(producer(5, 2), [consumer(5, 2)], 2, times=times)
    assert ring.end == 2 + 5 * 7  # only the first copy is waited for


@pytest.mark.parametrize(
    "options, sentence",
    [
        (
            {"producer": {"wait": False}},
            "race: tile 2 is copied to stage 0, to which a copy of tile 0",
        ),
        ({"consumer": {"wait": False}}, "race: consumer 1 reads tile 0 in stage 0, where tile 0"),
        ({"consumer": {"early": True}}, "race: tile 2 is copied over tile 0 in stage 0"),
        (
            {"consumer": {"arrive": False}},
            r"deadlock: the producer waits for empty\[0\], parity 0 \(no phase has ended\); "
            r"consumer 1 waits for full\[0\], parity 1 \(phase 0 ended last\)",
        ),
    ],
)
def test_what_goes_wrong_is_said(options, sentence):
    ring = run_ring(
        producer(6, 2, **options.get("producer", {})),
        [consumer(6, 2, **options.get("consumer", {}))],
        2,
    )
    assert re.match(sentence, ring.problem), ring.problem
