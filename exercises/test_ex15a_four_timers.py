"""Grader of ex15a: what four timers print, by the simulated clocks."""

import pytest

from fa_numba.analysis.stream_clock import SimulatedGpu
from fa_numba.workbook.graders.causes import Wrong

CALLS = 2000  # stands for very many
TIMES = [  # enqueue, cold, warm
    (10, 50, 30),
    (10, 50, 50),
    (10, 4, 3),
    (130, 50, 30),
    (7, 20, 5),
    (11.5, 11.5, 11.5),
    (10, 400, 9),
    (0.5, 1000, 800),
]
EACH = pytest.mark.parametrize(
    "times", TIMES, ids=lambda t: "enqueue {}, cold {}, warm {}".format(*t)
)


def run(program, enqueue, cold, warm):
    """The number that a program prints on simulated clocks."""
    gpu = SimulatedGpu(enqueue=enqueue)
    kernel = gpu.kernel("kernel", cold=cold, warm=warm)
    begin = gpu.perf_counter()
    if program == "clock":
        kernel()
        return gpu.perf_counter() - begin
    if program == "calls":
        for _ in range(CALLS):
            kernel()
        gpu.synchronize()
        return (gpu.perf_counter() - begin) / CALLS
    if program == "events behind a flush":
        gpu.flush()
    start, end = gpu.event(), gpu.event()
    start.record()
    kernel()
    end.record()
    end.synchronize()
    return gpu.event_elapsed_time(start, end)


MISTAKES = {
    "clock": {
        "A launch is asynchronous: kernel() returns before the kernel has run.": (
            lambda e, c, w: c, lambda e, c, w: e + c, lambda e, c, w: w, lambda e, c, w: e + w,
        ),
    },
    "calls": {
        "CPU and GPU work at the same time: their times are not added.": (
            lambda e, c, w: e + w, lambda e, c, w: e + c,
        ),
        "Only the first call finds its inputs in HBM.": (
            lambda e, c, w: c, lambda e, c, w: max(e, c),
        ),
        "The GPU can be the slower one.": (lambda e, c, w: e,),
        "The CPU can be the slower one: then the GPU waits for each launch.": (
            lambda e, c, w: w,
        ),
    },
    "events": {
        "The GPU is idle: it reaches the first event at once, and waits for the launch.": (
            lambda e, c, w: c, lambda e, c, w: w,
        ),
        "The inputs are in HBM: L2 was flushed.": (lambda e, c, w: e + w,),
        "Events are on the clock of the GPU, and the kernel is between them.": (
            lambda e, c, w: e,
        ),
    },
    "events behind a flush": {
        "While the GPU flushes, the CPU enqueues the kernel: the launch is hidden.": (
            lambda e, c, w: e + c, lambda e, c, w: e + w,
        ),
        "The flush comes before the first event.": (
            lambda e, c, w: 2000 + c, lambda e, c, w: 2000 + e + c,
        ),
        "After a flush the inputs are in HBM.": (lambda e, c, w: w,),
    },
}  # fmt: skip


def check(exercise, program, times):
    want, got = run(program, *times), exercise.printed(program, *times)
    enqueue, cold, warm = times
    # the loop of the grader is long, not endless
    allowed = (enqueue + cold + warm) / CALLS + 1e-9 if program == "calls" else 1e-9
    if not (isinstance(got, int | float) and abs(got - want) <= allowed):
        same = isinstance(got, int | float)
        causes = [
            cause
            for cause, formulas in MISTAKES[program].items()
            if same and any(abs(got - formula(*times)) <= 1e-9 for formula in formulas)
        ]
        raise Wrong(
            f"{program}: enqueue {enqueue}, cold {cold}, warm {warm}: it prints {want:g}, got "
            f"{got!r}",
            causes=causes,
            where=f"{program}, enqueue {enqueue}, cold {cold}, warm {warm}",
        )


@EACH
def test_clock(exercise, times):
    """printed: a clock around the call"""
    check(exercise, "clock", times)


@EACH
def test_calls(exercise, times):
    """printed: many calls, then synchronize"""
    check(exercise, "calls", times)


@EACH
def test_events(exercise, times):
    """printed: events around the call, on an idle GPU"""
    check(exercise, "events", times)


@EACH
def test_events_behind_a_flush(exercise, times):
    """printed: events around the call, behind a flush"""
    check(exercise, "events behind a flush", times)


@pytest.mark.parametrize("question", ["kernel", "loop", "CPU"])
def test_questions(exercise, question):
    """program_for: the program whose number is the answer"""
    answers = {
        "kernel": lambda enqueue, cold, warm: cold,
        "loop": lambda enqueue, cold, warm: max(enqueue, warm),
        "CPU": lambda enqueue, cold, warm: enqueue,
    }
    got = exercise.program_for(question)
    assert got in MISTAKES, f"must be one of {', '.join(MISTAKES)}, got {got!r}"
    for times in TIMES:
        prints, want = run(got, *times), answers[question](*times)
        enqueue, cold, warm = times
        assert abs(prints - want) <= (enqueue + cold + warm) / CALLS + 1e-9, (
            f"{question}: enqueue {enqueue}, cold {cold}, warm {warm}: the answer is {want:g}, and "
            f"{got!r} prints {prints:g}"
        )
