"""Grader of ex23b: steps of static and of continuous batching, against a clock that ticks."""

from collections import deque

import numpy as np
import pytest

from fa_numba.workbook.graders.causes import Wrong


def by_clock(answers, batch, *, static):
    """Steps of a server, one after another."""
    queue, running, steps = deque(answers), [], 0
    while queue or running:
        while queue and len(running) < batch and not (static and steps_since_start(running)):
            running.append([queue.popleft(), 0])
        for answer in running:
            answer[1] += 1
        running = [a for a in running if a[1] < a[0]]
        steps += 1
    return steps


def steps_since_start(running):
    """Whether a batch is under way: some answer of it has a token."""
    return any(made for _, made in running)


CHANGED = "answers is an input: it must not be changed."
CASES = [
    ([3, 3, 3, 3], 2), ([1, 4, 1, 1], 2), ([5, 1, 1, 1, 1, 1], 3), ([1, 1, 1, 9], 2),
    ([2, 7, 3], 8), ([6], 1), ([1, 2, 3, 4, 5], 1), ([4, 1, 3, 1, 2, 6, 1], 3),
]  # fmt: skip
EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} batch {case[1]}")


def check(exercise, answers, batch, *, static):
    name = "static_steps" if static else "continuous_steps"
    given = answers.copy()
    got = getattr(exercise, name)(given, batch)
    if given != answers:
        raise Wrong(f"{name} has changed answers: it must not be changed", causes=[CHANGED])
    want = by_clock(answers, batch, static=static)
    if type(got) is int and got == want:
        return
    in_order = by_clock(sorted(answers), batch, static=static)
    backwards = by_clock(sorted(answers, reverse=True), batch, static=static)
    full = answers[: len(answers) // batch * batch]
    others = [answers[i : i + batch] for i in range(0, len(answers), batch)]
    ends = [0] * batch
    for n in answers:
        ends[ends.index(min(ends))] += n
    causes = [
        batch > 1
        and got == sum(answers)
        and "The requests of a batch run side by side: a step makes a token of each.",
        static
        and got == max(answers)
        and "A batch begins when the one before has ended: their steps add up.",
        static and got == sum(map(min, others)) and "A batch takes as long as its longest answer.",
        not static
        and got == min(ends)
        and "All has ended when the last place is free, not the first.",
        got == by_clock(answers, batch, static=not static) and "That is the other way of batching.",
        got == -(-sum(answers) // batch)
        and "Tokens over places: no place is ever empty in that count, not at the end either.",
        static
        and got == max(answers) * len(others)
        and "Each batch has a longest answer of its own.",
        not static
        and got == max(sum(answers[i::batch]) for i in range(batch))
        and "The requests take the places in turn: but the next one takes the place that is free "
        "first.",
        static
        and got == by_clock(full, batch, static=True)
        and "The last batch may have fewer requests.",
        got in (in_order, backwards)
        and "The requests are sorted: they begin in the order of the queue.",
        got == want - 1 and "One step is missing.",
        got == want + 1 and "The next request begins in the step after an end, not one later.",
    ]
    shown = answers if len(answers) <= 12 else f"{len(answers)} answers"
    raise Wrong(f"{name}({shown}, {batch}): {want} steps are counted, got {got!r}", causes=causes)


@EACH
def test_static(exercise, case):
    """static: a batch begins when the last one has ended"""
    check(exercise, *case, static=True)


@EACH
def test_continuous(exercise, case):
    """continuous: the next request takes the place of an answer that has ended"""
    check(exercise, *case, static=False)


def test_equal_answers(exercise):
    """answers of one length: both ways are the same"""
    for batch in (1, 3, 4):
        for static in (True, False):
            check(exercise, [7] * 12, batch, static=static)


def test_nobody(exercise):
    """no request, no step"""
    for static in (True, False):
        check(exercise, [], 4, static=static)


@pytest.mark.parametrize("batch", [2, 7, 70])
def test_mixed(exercise, batch):
    """many answers of very different lengths"""
    answers = (1 + np.random.default_rng(batch).lognormal(2, 1, 301).astype(int)).tolist()
    for static in (True, False):
        check(exercise, answers, batch, static=static)


def test_list_stays(exercise):
    """answers is not changed"""
    answers = [3, 1, 2]
    exercise.static_steps(answers, 2), exercise.continuous_steps(answers, 2)
    if answers != [3, 1, 2]:
        raise Wrong(f"answers has become {answers}", causes=[CHANGED])
