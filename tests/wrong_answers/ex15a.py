"""ex15a: what four timers print."""

CLOCK = '"clock": enqueue,'
CALLS = '"calls": max(enqueue, warm),'
EVENTS = '"events": enqueue + cold,'
FLUSHED = '"events behind a flush": cold,'
FOR = 'return {"kernel": "events behind a flush", "loop": "calls", "CPU": "clock"}[question]'

WRONG = [
    ("the clock waits", CLOCK, '"clock": enqueue + cold,'),
    ("the clock sees the kernel", CLOCK, '"clock": cold,'),
    ("nothing", CLOCK, '"clock": 0,'),
    ("both are added", CALLS, '"calls": enqueue + warm,'),
    ("always from HBM", CALLS, '"calls": max(enqueue, cold),'),
    ("the kernel alone", CALLS, '"calls": warm,'),
    ("the launch alone", CALLS, '"calls": enqueue,'),
    ("events find L2 full", EVENTS, '"events": enqueue + warm,'),
    ("the longer of both", EVENTS, '"events": max(enqueue, cold),'),
    ("the launch is not hidden", FLUSHED, '"events behind a flush": enqueue + cold,'),
    ("the flush is counted", FLUSHED, '"events behind a flush": 2000 + cold,'),
    ("a flush fills L2", FLUSHED, '"events behind a flush": warm,'),
    ("events for the kernel", FOR, FOR.replace('"events behind a flush"', '"events"')),
    ("a clock for the kernel", FOR, FOR.replace('"events behind a flush"', '"clock"')),
    ("calls for the CPU", FOR, FOR.replace('"clock"', '"calls"')),
    ("events for the loop", FOR, FOR.replace('"calls"', '"events behind a flush"')),
    ("no program", FOR, 'return {"kernel": "flush", "loop": "calls", "CPU": "clock"}[question]'),
]  # fmt: skip

RIGHT = [
    ("by cases", [
        (CALLS, '"calls": warm if warm > enqueue else enqueue,'),
        (FOR, 'if question == "kernel":\n        return "events behind a flush"\n    return "clock" if question == "CPU" else "calls"'),
    ]),
    ("on the simulated clock", [
        (EVENTS, '"events": simulated(enqueue, cold, warm),'),
        ("def printed(", "from fa_numba.analysis.stream_clock import SimulatedGpu\n\n\ndef simulated(enqueue, cold, warm):\n    gpu = SimulatedGpu(enqueue=enqueue)\n    kernel, start, end = gpu.kernel('k', cold=cold, warm=warm), gpu.event(), gpu.event()\n    start.record()\n    kernel()\n    end.record()\n    end.synchronize()\n    return gpu.event_elapsed_time(start, end)\n\n\ndef printed("),
    ]),
]  # fmt: skip

EQUIVALENT = []
