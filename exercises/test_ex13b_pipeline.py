"""Grader of ex13b: the ring runs, at many paces, and every wait is needed."""

import numpy as np
import pytest

from fa_numba.analysis.ring_pipeline import run_ring
from fa_numba.workbook.graders.causes import Wrong

SIZES = [(1, 1), (5, 1), (6, 2), (7, 2), (10, 3), (2, 5), (20, 9)]
LENGTH = {"wait": 4, "load": 3, "read": 3, "arrive": 2}
CAUSES = {  # words of the ring's problem -> the mistake
    "deadlock": "Somebody waits for a phase that never ends: is it the right barrier and parity?",
    "still in flight": "The producer copies to a stage whose copy is not complete.",
    "has not finished": "The producer copies over a tile that a consumer has still to read.",
    "reads tile": "A consumer reads a tile that is not there.",
}


def checked_steps(steps, name, allowed, num_stages):
    """The steps, if they are what the statement says."""
    for i, step in enumerate(steps):
        kind = step[0] if isinstance(step, tuple) and step else None
        right = kind in allowed and len(step) == LENGTH[kind]
        assert right, f"{name}: step {i} is {step!r}; a step is a tuple, one of {allowed}"
        stage = step[2] if kind == "wait" else step[1]
        assert 0 <= stage < num_stages, f"{name}: step {i}, {step}: no such stage of {num_stages}"
        if kind == "wait":
            assert step[1] in ("full", "empty"), f"{name}: step {i}, {step}: full or empty"
            assert step[3] in (0, 1), f"{name}: step {i}, {step}: a parity is 0 or 1"
    return steps


def run(exercise, num_tiles, num_stages, *, consumers=1, times=None):
    """The ring that these steps make; fails with its problem."""
    producer = exercise.producer_steps(num_tiles, num_stages)
    consumer = exercise.consumer_steps(num_tiles, num_stages)
    checked_steps(producer, "producer", ("wait", "load"), num_stages)
    checked_steps(consumer, "consumer", ("wait", "read", "arrive"), num_stages)
    options = {} if times is None else {"times": times}
    ring = run_ring(producer, [consumer] * consumers, num_stages, **options)
    case = f"tiles: {num_tiles}, stages: {num_stages}, consumers: {consumers}"
    if ring.problem:
        causes = [cause for words, cause in CAUSES.items() if words in ring.problem]
        raise Wrong(f"{case}: {ring.problem}", causes=causes[:1], where=case)
    for who in range(consumers + 1):
        did = [(span.tile, span.stage) for span in ring.spans if span.who == who]
        want = [(tile, tile % num_stages) for tile in range(num_tiles)]
        name = f"consumer {who} reads" if who else "the producer copies"
        assert did == want, f"{case}: {name} (tile, stage) {want}, got {did}"
    return ring


def random_times(seed, consumers, num_tiles):
    """Paces that change from tile to tile; now and then somebody is very slow."""
    rng = np.random.default_rng(seed)
    ticks = rng.integers(1, 9, (consumers + 1, num_tiles))
    ticks[rng.random(ticks.shape) < 0.15] += 30
    return lambda who, tile: int(ticks[who, tile])


def soonest(num_tiles, num_stages, consumers, times):
    """When all is done if everyone does each thing as soon as it may."""
    loaded, done = [], np.zeros((num_tiles, consumers))
    for t in range(num_tiles):
        free = done[t - num_stages].max() if t >= num_stages else 0
        begun = max(free, loaded[-1][0]) if loaded else free
        loaded.append((begun, begun + times(0, t)))
        for c in range(consumers):
            done[t, c] = max(loaded[t][1], done[t - 1, c] if t else 0) + times(c + 1, t)
    return done.max()


@pytest.mark.parametrize("num_tiles, num_stages", SIZES)
def test_every_tile(exercise, num_tiles, num_stages):
    """every tile is copied once and read, none before its time"""
    run(exercise, num_tiles, num_stages)


def test_first_use(exercise):
    """the first copies wait for nobody: the ring begins empty"""
    ring = run(exercise, 3, 3)
    copies = [span.start for span in ring.spans if span.who == 0]
    assert copies == [0, 0, 0], f"three free stages: copies begin at 0, got {copies}"


def test_slow_copies(exercise):
    """slow copies: nobody reads what has not arrived"""
    run(exercise, 12, 3, times=lambda who, tile: 50 if who == 0 else 1)


def test_slow_reads(exercise):
    """slow reads: nothing is copied over what is being read"""
    run(exercise, 12, 3, times=lambda who, tile: 1 if who == 0 else 50)


@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_any_pace(exercise, consumers):
    """any pace, from tile to tile, for one consumer and for several"""
    for seed in range(12):
        for num_tiles, num_stages in ((13, 2), (17, 3), (11, 4), (6, 1)):
            times = random_times(seed, consumers, num_tiles)
            run(exercise, num_tiles, num_stages, consumers=consumers, times=times)


@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
def test_runs_ahead(exercise, num_stages):
    """while a consumer is stuck, the producer fills the ring, and no more"""
    num_tiles, stuck = 12, 4

    def times(who, tile):
        return 1 if who == 0 else 1000 if tile == stuck else 1

    ring = run(exercise, num_tiles, num_stages, times=times)
    (read,) = (span for span in ring.spans if span.who == 1 and span.tile == stuck)
    begun = sum(span.who == 0 and span.start < read.end for span in ring.spans)
    want = min(num_tiles, stuck + num_stages)
    assert begun == want, (
        f"{num_stages} stages, the consumer is stuck reading tile {stuck}: of the stages one is "
        f"being read, the others can be filled: {want} copies begun, got {begun}"
    )


@pytest.mark.parametrize("consumers", [1, 2])
def test_no_needless_wait(exercise, consumers):
    """nobody waits without need: done as soon as can be"""
    for seed in range(6):
        for num_tiles, num_stages in ((14, 1), (14, 2), (15, 4), (2, 3)):
            times = random_times(seed, consumers, num_tiles)
            got = run(exercise, num_tiles, num_stages, consumers=consumers, times=times).end
            want = soonest(num_tiles, num_stages, consumers, times)
            assert got == want, (
                f"tiles: {num_tiles}, stages: {num_stages}, consumers: {consumers}: everyone does "
                f"each thing as soon as it may, and all is done at {want:g}; here at {got}, so "
                "somebody waits for what need not have ended"
            )


def test_many_uses(exercise):
    """the parity flips with every use of a stage, a hundred times"""
    run(exercise, 301, 3)
    run(exercise, 200, 2, consumers=2)


def test_no_tiles(exercise):
    """one tile, and none: then there is nothing to do, and nobody waits"""
    run(exercise, 1, 2)
    run(exercise, 0, 2)


def test_slow_and_quick_consumer(exercise):
    """the quick consumer does not give away what the slow one still reads"""
    run(exercise, 10, 2, consumers=2, times=lambda who, tile: (1, 1, 40)[who])
    run(exercise, 10, 2, consumers=2, times=lambda who, tile: (1, 40, 1)[who])
