"""Grader of ex13d: the ring, run on ranks in one process."""

import numpy as np
import pytest

from fa_numba.workbook.graders.attention import expect_close
from fa_numba.workbook.graders.ranks import cut_head, run_on_ranks

WORLDS = pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])


def run(exercise, head, **options):
    attend, merge, _ = head.functions
    return run_on_ranks(
        exercise.ring, head.world_size, *head.shards, attend=attend, functions=[merge], **options
    )


def check(exercise, head, **options):
    """Run on all ranks, compare the joined states; returns the run."""
    ran = run(exercise, head, **options)
    for rank, state in enumerate(ran.results):
        right = isinstance(state, tuple | list) and len(state) == 2
        assert right, f"rank {rank} must return a state, (out, lse), got {state!r:.80}"
    want, plain = head.answers(), head.answers(np.float32)
    for i, name in enumerate(("out", "lse")):
        got = head.joined([state[i] for state in ran.results])
        mistakes = known_mistakes(head, ran)
        expect_close(
            name, got, want[name], plain[name], tile=len(got) // head.world_size, rows="token",
            factor=4, mistakes=[(sentence, {name: got}) for sentence in mistakes],
        )  # fmt: skip
    return ran


def known_mistakes(head, ran):
    """A sentence on what the ranks have done, where it is not what the statement says."""
    world_size = head.world_size
    for rank, events in enumerate(ran.events):
        attended = [(e[1], e[2]) for e in events if e[0] == "attend"]
        want = [(rank, (rank - step) % world_size) for step in range(world_size)]
        if len(attended) != len(want):
            return [f"Rank {rank} of {world_size} attends {len(attended)} times: once per step."]
        for step, (got, right) in enumerate(zip(attended, want, strict=True)):
            if got != right:
                return [
                    f"Rank {rank}, step {step}: attend is told (rank, owner) = {got}, and it must "
                    f"be {right}: the mask comes from these two."
                ]
    return ["Whose keys does `attend` get? kv must be what arrived, from the second step on."]


@WORLDS
def test_result(exercise, world_size):
    """out and lse are those of one device, on any number of ranks"""
    check(exercise, cut_head("zigzag", world_size))


@pytest.mark.parametrize("layout", ["contiguous", "striped"])
def test_layouts(exercise, layout):
    """the same program for other layouts, with parts that no query of a rank sees"""
    check(exercise, cut_head(layout, 4, seed=1))


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
            f"rank {rank} of {world_size} sends {messages} messages, {sent} bytes; "
            f"{world_size - 1} times kv is {want} bytes"
            + (": the last step needs no message" if sent == want + size else "")
        )


@pytest.mark.parametrize("world_size", [2, 4])
def test_hidden(exercise, world_size):
    """a message begins before attend and is waited for after it: the link works meanwhile"""
    ran = run(exercise, cut_head("zigzag", world_size))
    kinds = [e[0] for e in ran.events[0] if e[0] != "begin_step"]
    want = ["start", "attend", "wait"] * (world_size - 1) + ["attend"]
    assert kinds == want, (
        f"rank 0 of {world_size} does {', '.join(kinds)}; it must do {', '.join(want)}"
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
        f"{world_size} ranks: begin_step was called {opened} times, and the bytes of each step are "
        f"{got}: must be {want}"
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
