"""ex15b: a timer."""

WARM_UP = "kernel()  # compiles\n"
FLUSH = "gpu.flush()  # empties L2, and hides the launch\n"
# broken_timer has the lines of the loop, too: they are named by their neighbours.
START = (
    FLUSH
    + "        start, end = gpu.event(), gpu.event()\n        start.record()\n        kernel()\n        end.record()\n"
)
LOOP = WARM_UP + "    samples = []\n    for _ in range(9):"
MEDIAN = "return statistics.median(samples)"

WRONG = [
    ("no flush", FLUSH, "pass\n"),
    ("synchronised, not flushed", FLUSH, "gpu.synchronize()\n"),
    ("flushed once", [(FLUSH, "pass\n"), (WARM_UP, "kernel()\n    gpu.flush()\n")]),
    ("flushed, and waited for", FLUSH, "gpu.flush()\n        gpu.synchronize()\n"),
    ("the flush is between the events", START, "start, end = gpu.event(), gpu.event()\n        start.record()\n        gpu.flush()\n        kernel()\n        end.record()\n"),
    ("the mean", MEDIAN, "return sum(samples) / len(samples)"),
    ("the largest", MEDIAN, "return max(samples)"),
    ("the last", MEDIAN, "return samples[-1]"),
    ("the first", MEDIAN, "return samples[0]"),
    ("all samples", MEDIAN, "return samples"),
    ("the sum", MEDIAN, "return sum(samples)"),
    ("milliseconds", MEDIAN, "return statistics.median(samples) / 1000"),
    ("the mean without the first", MEDIAN, "return statistics.mean(samples[1:])"),
    ("two samples", LOOP, LOOP.replace("range(9)", "range(1)")),
    ("no sample", LOOP, LOOP.replace("range(9)", "range(0)")),
    ("a clock", START, FLUSH + "        gpu.synchronize()\n        begin = gpu.perf_counter()\n        kernel()\n        samples.append(gpu.perf_counter() - begin)\n        start, end = gpu.event(), gpu.event()\n        start.record()\n        end.record()\n"),
    ("both events before the kernel", START, FLUSH + "        start, end = gpu.event(), gpu.event()\n        start.record()\n        end.record()\n        kernel()\n"),
    ("a thousand samples", LOOP, LOOP.replace("range(9)", "range(1000)")),
]  # fmt: skip

RIGHT = [
    ("the median ignores the first call, too", WARM_UP, "pass\n"),
    ("the least of nine", MEDIAN, "return min(samples)"),
    ("events in lists, read at the end", [
        (LOOP, WARM_UP + "    pairs = []\n    for _ in range(15):"),
        (FLUSH + "        start, end = gpu.event(), gpu.event()\n        start.record()\n        kernel()\n        end.record()\n        end.synchronize()\n        samples.append(gpu.event_elapsed_time(start, end))", FLUSH + "        start, end = gpu.event(), gpu.event()\n        start.record()\n        kernel()\n        end.record()\n        pairs.append((start, end))"),
        (MEDIAN, "gpu.synchronize()\n    return statistics.median(gpu.event_elapsed_time(*pair) for pair in pairs)"),
    ]),
]  # fmt: skip

EQUIVALENT = [
    ("for _ in range(9): -> for _ in range(9 - 1):", "eight samples are enough"),
    ("for _ in range(9): -> for _ in range(10):", "ten samples are enough"),
]
