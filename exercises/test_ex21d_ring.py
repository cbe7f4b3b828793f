"""Grader of ex21d: the ring, run on ranks in one process."""

import numpy as np
import pytest

from fa_numba.workbook.graders.ranks import cut_head, expect_on_ranks, run_on_ranks

WORLDS = pytest.mark.parametrize("world_size", [2, 3, 4, 5, 1])


def run(exercise, head, **options):
    attend, merge, _ = head.functions
    return run_on_ranks(
        exercise.ring, head.world_size, *head.shards, attend=attend, functions=[merge], **options
    )


def check(exercise, head, **options):
    """Run on all ranks, compare their states; returns the run."""
    ran = run(exercise, head, **options)
    for rank, state in enumerate(ran.results):
        right = isinstance(state, tuple | list) and len(state) == 2
        assert right, f"rank {rank} must return a state, (out, lse), got {state!r:.40}"
    for i, name in enumerate(("out", "lse")):
        parts = [state[i] for state in ran.results]
        expect_on_ranks(head, name, parts, factor=4, mistakes=[(cause(head, ran), None)])
    return ran


def cause(head, ran):
    """The first thing that a rank does otherwise than the statement says."""
    world_size = head.world_size
    for rank, events in enumerate(ran.events):
        starts = [e for e in events if e[0] == "start"]
        attended = [tuple(e[1:]) for e in events if e[0] == "attend"]
        for _, destination, source in starts:
            if (destination, source) != ((rank + 1) % world_size, (rank - 1) % world_size):
                return (
                    f"Rank {rank} sends to rank {destination} and receives from rank {source}: "
                    "keys go to the next rank, and come from the one before."
                )
        if len(attended) != world_size:
            return (
                f"Rank {rank} attends {len(attended)} times: must be once per step, {world_size}."
            )
        for step, (told, owner, really) in enumerate(attended):
            right = (rank - step) % world_size
            if (told, owner) != (rank, right):
                return (
                    f"Step {step}: attend(q, kv, {told}, {owner}) must be attend(q, kv, {rank}, "
                    f"{right}): the mask comes from these two."
                )
            if really != right:
                return (
                    f"Step {step}: attend gets the keys of rank {really}, must be rank {right}'s: "
                    "what arrived in the step before."
                )
    return "Every rank attends to the right keys: look at `merge`. Each part counts once."


@WORLDS
def test_result(exercise, world_size):
    """out and lse are those of one device, on any number of ranks"""
    check(exercise, cut_head("zigzag", world_size))


@pytest.mark.parametrize("layout", ["contiguous", "striped"])
def test_layouts(exercise, layout):
    """the same program for other layouts, with parts that no query of a rank sees"""
    check(exercise, cut_head(layout, 5, seed=1))


@WORLDS
def test_direction(exercise, world_size):
    """every message goes to rank + 1 and comes from rank - 1"""
    ran = run(exercise, cut_head("zigzag", world_size))
    for rank, events in enumerate(ran.events):
        want = ("start", (rank + 1) % world_size, (rank - 1) % world_size)
        for event in events:
            assert event[0] != "start" or tuple(event) == want, (
                f"rank {rank} of {world_size} sends to rank {event[1]} and receives from rank "
                f"{event[2]}: must be rank {want[1]} and rank {want[2]}"
            )


@WORLDS
def test_messages(exercise, world_size):
    """each rank sends kv world_size - 1 times, and nothing else"""
    head = cut_head("zigzag", world_size)
    ran = run(exercise, head)
    size = head.shards[1][0].nbytes
    for rank in range(world_size):
        sent, messages = int(ran.bytes_sent[rank].sum()), int(ran.messages[rank].sum())
        want = (world_size - 1) * size
        assert sent == want, (
            f"W = {world_size}: rank {rank} sends {sent} bytes in {messages} messages; W - 1 times "
            f"kv is {want}"
            + (
                ": the last step needs no message"
                if sent == want + size and messages == world_size
                else ""
            )
        )


@pytest.mark.parametrize("world_size", [2, 4])
def test_hidden(exercise, world_size):
    """a message begins before attend and is waited for after it: the link works meanwhile"""
    ran = run(exercise, cut_head("zigzag", world_size))
    kinds = [e[0] for e in ran.events[0] if e[0] != "begin_step"]
    want = ["start", "attend", "wait"] * (world_size - 1) + ["attend"]
    assert kinds == want, (
        f"W = {world_size}: rank 0 does {', '.join(kinds)}; it must do {', '.join(want)}"
    )


@pytest.mark.parametrize("world_size", [1, 3])
def test_steps_are_counted(exercise, world_size):
    """comm.record.begin_step() opens every step, before its message"""
    head = cut_head("zigzag", world_size)
    ran = run(exercise, head)
    size = head.shards[1][0].nbytes
    want = [size] * (world_size - 1) + [0]
    opened = sum(e[0] == "begin_step" for e in ran.events[0])
    got = ran.bytes_sent[0].tolist()
    assert opened == world_size and got == want, (
        f"W = {world_size}: begin_step was called {opened} times, and the bytes of each step are "
        f"{got}: must be {world_size} times, and {want}"
    )


def test_any_order(exercise):
    """the same bits, in whichever order the ranks run"""
    head = cut_head("zigzag", 4, seed=2)
    first = run(exercise, head)
    for seed in range(4):
        other = run(exercise, head, order=seed)
        for rank in range(4):
            same = all(
                np.array_equal(x, y)
                for x, y in zip(first.results[rank], other.results[rank], strict=True)
            )
            assert same, f"rank {rank}: another order of the ranks gives another result"


def test_inputs_unchanged(exercise):
    """q and kv are not written"""
    head = cut_head("contiguous", 3)
    attend, merge, _ = head.functions
    shards, before = head.shards, head.shards
    run_on_ranks(exercise.ring, 3, *shards, attend=attend, functions=[merge])
    for name, now, was in zip(("q", "kv"), shards, before, strict=True):
        for rank in range(3):
            assert np.array_equal(now[rank], was[rank]), f"rank {rank} has written to its {name}"
