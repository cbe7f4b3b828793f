"""Grader of ex17b: the number of splits that a cost model likes best."""

import math
from fractions import Fraction

import pytest

from fa_numba.analysis.devices import DEVICES
from fa_numba.workbook.graders.causes import Wrong, diagnosis

CASES = [  # thread_blocks, num_n_tiles, num_sms, blocks_per_sm, overhead
    (1, 64, 4, 1, 1),
    (3, 20, 4, 2, 1),
    (5, 17, 4, 1, 0),
    (8, 100, 132, 2, 1),
    (7, 33, 40, 3, 2),
    (130, 48, 132, 1, 1),
    (133, 48, 132, 1, 1),
    (600, 31, 132, 4, 1),
    (40, 5, 108, 2, 3),
    (1, 7, 1, 1, 1),
    (1, 600, 132, 4, 1),  # 300 splits: as many tiles in a share as the overhead is
    (1, 600, 132, 4, 0),
    (1, 1100, 1200, 1, 0),  # as many splits as tiles
]
EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))


def time_by_the_model(num_splits, thread_blocks, num_n_tiles, num_sms, blocks_per_sm, overhead):
    """Deal the thread blocks out, wave by wave."""
    waiting = num_splits * thread_blocks
    longest = len(range(0, num_n_tiles, num_splits))  # the share of split 0 is a largest one
    time = 0
    while waiting > 0:
        waiting -= num_sms * blocks_per_sm
        time += longest + overhead
    return time


def wave_causes(num_splits, thread_blocks, num_sms, blocks_per_sm, got):
    """The mistakes that explain a wrong number of waves."""
    blocks, places = num_splits * thread_blocks, num_sms * blocks_per_sm
    known = {
        "num_waves: a part-filled wave is a wave, so round up.": blocks // places,
        "num_waves: an exactly full wave is one, and no thread blocks are none.": (
            blocks // places + 1
        ),
        "num_waves: an SM keeps blocks_per_sm thread blocks.": -(-blocks // num_sms),
        "num_waves: waves are whole, so round up.": blocks / places,
    }
    return [cause for cause, waves in known.items() if waves == got]


def named(case):
    thread_blocks, num_n_tiles, num_sms, blocks_per_sm, overhead = case
    return f"{thread_blocks=}, {num_n_tiles=}, {num_sms=}, {blocks_per_sm=}, {overhead=}"


@pytest.mark.parametrize(
    "args, want",
    [((1, 1, 4, 1), 1), ((4, 1, 4, 1), 1), ((5, 1, 4, 1), 2), ((3, 8, 4, 2), 3), ((3, 8, 4, 3), 2)]
    + [((66, 8, 132, 4), 1), ((67, 8, 132, 4), 2), ((1, 0, 4, 1), 0)],
    ids=lambda x: "-".join(map(str, x)) if isinstance(x, tuple) else f"{x} waves",
)
def test_num_waves(exercise, args, want):
    """num_waves: a wave more for one thread block too many"""
    got = exercise.num_waves(*args)
    num_splits, thread_blocks, num_sms, blocks_per_sm = args
    if got != want:
        raise Wrong(
            f"{num_splits} * {thread_blocks} thread blocks, room for {num_sms} * {blocks_per_sm}: "
            f"{want} waves, got {got}",
            causes=wave_causes(*args, got),
        )


@EACH
def test_step_time(exercise, case):
    """step_time: waves times the longest thread block, for every number of splits"""
    for num_splits in (*range(1, min(case[1], 24) + 1), case[1]):
        want = time_by_the_model(num_splits, *case)
        got = exercise.step_time(num_splits, *case)
        thread_blocks, tiles, *room, overhead = case
        share = -(-tiles // num_splits)
        waves = want // (share + overhead)
        known = {
            "Every wave has the overhead, not only the step.": waves * share + overhead,
            "A thread block has the overhead once.": waves * (share + overhead * num_splits),
            "The overhead is missing.": waves * share,
            "The largest share counts: round up.": waves * (tiles // num_splits + overhead),
            "Shares are whole tiles: round up.": waves * (tiles / num_splits + overhead),
            "The argument overhead is not used.": waves * (share + 1),
        }
        if got != want:
            with diagnosis():
                mine = exercise.num_waves(num_splits, thread_blocks, *room)
            follows = mine != waves and got == mine * (share + overhead)
            raise Wrong(
                f"{named(case)}: with {num_splits} splits the largest share is {share} tiles, so "
                f"step_time must be {want}, got {got}",
                causes=wave_causes(num_splits, thread_blocks, *room, mine)
                if follows
                else [cause for cause, time in known.items() if time == got],
                where=f"{named(case)}, {num_splits} splits",
            )


def test_overhead_is_one_tile(exercise):
    """overhead is one tile where nothing is said"""
    assert exercise.step_time(2, 1, 10, 4, 1) == 6, "1 wave of 5 tiles and 1 more"
    got = exercise.choose_num_splits(133, 20, 40, 2)
    assert got == 3, (
        f"choose_num_splits(133, 20, 40, 2) must be 3, as with an overhead of 1 (without one 10, "
        f"with 2 tiles 1), got {got}"
    )


@EACH
def test_none_is_quicker(exercise, case):
    """choose_num_splits: no other number of splits is quicker by the model"""
    got = exercise.choose_num_splits(*case)
    times = {s: time_by_the_model(s, *case) for s in range(1, max(1, case[1]) + 1)}
    best = min(times, key=times.get)
    assert got in times, f"{named(case)}: must be from 1 to {case[1]}, got {got}"
    assert times[got] == times[best], (
        f"{named(case)}: {got} splits take {times[got]}, {best} splits take {times[best]}"
    )


@EACH
def test_fewest_of_equals(exercise, case):
    """choose_num_splits: of equally quick numbers the smallest"""
    got = exercise.choose_num_splits(*case)
    mine = time_by_the_model(got, *case)
    fewer = [s for s in range(1, got) if time_by_the_model(s, *case) <= mine]
    assert not fewer, (
        f"{named(case)}: {got} splits take {mine}, and so do {fewer[0]}, with "
        f"{got - fewer[0]} partial results of each row less to store"
    )


@pytest.mark.parametrize("num_n_tiles", [1, 2, 3, 7])
def test_never_more_than_tiles(exercise, num_n_tiles):
    """choose_num_splits: never more splits than tiles of keys"""
    got = exercise.choose_num_splits(1, num_n_tiles, 132, 4, 0)
    assert 1 <= got <= num_n_tiles, f"{num_n_tiles} tiles: want at most as many splits, got {got}"


def test_nothing_to_do(exercise):
    """choose_num_splits: one split where there are no keys, or no thread blocks"""
    for thread_blocks, num_n_tiles in ((4, 0), (0, 8), (0, 0)):
        got = exercise.choose_num_splits(thread_blocks, num_n_tiles, 132, 4)
        assert got == 1, f"{thread_blocks=}, {num_n_tiles=}: want 1, got {got}"


def test_enough_work_is_not_split(exercise):
    """choose_num_splits: a full GPU needs no splits"""
    for thread_blocks in (528, 1056):
        got = exercise.choose_num_splits(thread_blocks, 32, 132, 4)
        assert got == 1, (
            f"{thread_blocks} thread blocks fill {thread_blocks // 528} waves of 132 * 4 to the "
            f"last place: splitting only adds overhead; want 1, got {got}"
        )


@pytest.mark.parametrize("name", ["T4", "A100-80GB", "H100"])
def test_fills_the_wave(exercise, name):
    """choose_num_splits: one sequence of 128k tokens fills one wave to nine tenths"""
    num_sms, kv_heads, num_n_tiles = DEVICES[name].num_sms, 8, 131072 // 64
    got = exercise.choose_num_splits(kv_heads, num_n_tiles, num_sms, 4)
    places = num_sms * 4
    full = Fraction(got * kv_heads, places)
    assert math.ceil(full) == 1 and full >= Fraction(9, 10), (
        f"{name}: {kv_heads} K/V heads in {got} splits are {got * kv_heads} thread blocks for "
        f"{places} places: {float(full):.2f} waves"
    )


def test_a_nearly_empty_second_wave(exercise):
    """choose_num_splits: 133 thread blocks on 132 places are not left in two waves"""
    one, got = time_by_the_model(1, 133, 64, 132, 1, 1), exercise.choose_num_splits(133, 64, 132, 1)
    mine = time_by_the_model(got, 133, 64, 132, 1, 1)
    assert mine < 0.7 * one, (
        f"unsplit, the second wave has one thread block and lasts as long as the first: {one}. "
        f"Got {got} splits, which take {mine}; small pieces fill waves better"
    )


def test_large_numbers(exercise):
    """num_waves, step_time: exact for numbers beyond 2^53"""
    many = 2**60 + 1
    got = exercise.num_waves(3, many, 1, 2), exercise.step_time(3, 1, many, 4, 1, 5)
    want = -(-3 * many // 2), -(-many // 3) + 5
    assert got == want, (
        f"num_waves(3, 2^60 + 1, 1, 2) and step_time(3, 1, 2^60 + 1, 4, 1, 5) must be {want}, got "
        f"{got}: whole numbers divide with //, without a float between"
    )


def test_ints(exercise):
    """ints come back"""
    got = (
        exercise.num_waves(2, 8, 132, 4),
        exercise.step_time(2, 8, 64, 132, 4),
        exercise.choose_num_splits(8, 64, 132, 4),
    )
    assert all(type(x) is int for x in got), f"want three ints, got {got}"
