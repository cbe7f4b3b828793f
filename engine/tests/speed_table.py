"""Prints the README's two tables of speed, made of processor time on one core.

In engine/: python tests/speed_table.py gears [names]
            python tests/speed_table.py simulator [names]

The first table has launches as in a lesson: in lockstep, how long that was announced to take after
a tenth of a second, then in three processes after each other that begin with nothing on disk, and
once more in the third. The second one has smaller launches of these kernels, of public code's
styles and of threads that work alone, in Numba's own simulator and on the engine with all checks:
the first of five launches, the least of them, and of five in a second process. Each is the least of
ROUNDS rounds.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import types
from dataclasses import dataclass

import numpy as np

import numba_cuda_simulator as simt
from numba_cuda_simulator import progress

SIMULATOR = "NUMBA_ENABLE_CUDASIM"
simt.enable()  # the simulator lacks names that some kernels import

import serial_kernels  # noqa: E402
import simt_kernels  # noqa: E402
from classic_kernels import CLASSICS  # noqa: E402
from collection import STYLES  # noqa: E402

if os.environ.get(SIMULATOR):
    simt.disable()

ROUNDS = 2
THREADS = 1000  # that a kernel of many threads has at least
MOST = 10_000  # each is a thread of the operating system, in the simulator
GEARS = "lockstep", "announced", "first process", "second", "third", "again"
SIMULATED = "threads", "simulator", "engine, first", "again", "second process"


def seconds(call):
    """Return the processor time of a call, which other programs on the machine do not change."""
    start = time.process_time()
    call()
    return time.process_time() - start


@dataclass(frozen=True)
class Row:
    """A launch, or several of one kernel; `launch()` returns grid, thread block and arguments."""

    name: str
    kernel: object
    launch: object
    times: int = 1
    shared_bytes: int = 0

    def seconds(self):
        grid, block, *args = self.launch()
        where = (grid, block, 0, self.shared_bytes) if self.shared_bytes else (grid, block)

        def call():
            for _ in range(self.times):
                if os.environ.get(SIMULATOR):
                    self.kernel[where](*args)
                else:
                    simt.run(self.kernel, grid, block, *args, shared_bytes=self.shared_bytes)

        return seconds(call)


def lessons():
    """Return the rows of the first table."""
    return [Row(c.name, c.kernel, lambda c=c: c.launch(c.large), c.times) for c in CLASSICS]


def simulated():
    """Return the rows of the second table."""
    flash = lambda: simt_kernels.flash_attn_launch(64, np.random.default_rng(0))  # noqa: E731
    rows = [Row("FlashAttention-2, N = 64", simt_kernels.flash_attn_tile, flash)]
    for c in CLASSICS:
        size = c.small
        while threads(c.launch(size)) < THREADS < threads(c.launch(c.large)):
            size *= 2
        rows.append(Row(c.name, c.kernel, lambda c=c, size=size: c.launch(size)))
    for c in serial_kernels.CASES:
        made = lambda c=c: c.arguments(np.random.default_rng(0))  # noqa: E731
        rows += [Row(c.label, c.kernel, lambda c=c, made=made: (c.grid, c.block, *made()))]
    for c in STYLES:
        launch = lambda c=c: (c.grid, c.block, *c.arguments())  # noqa: E731
        rows.append(Row(f"style: {c.name}", c.kernel, launch, 1, c.shared_bytes))
    return [row for row in rows if threads(row.launch()) <= MOST]


def threads(launch):
    return int(np.prod(launch[0])) * int(np.prod(launch[1]))


def announced():
    """Have launches announced early, by the processor's clock; return the times, as they come."""
    times, clock = [], time.process_time
    progress.time = types.SimpleNamespace(monotonic=clock, process_time=clock)
    progress.LONG, progress.FIRST_LOOK = 0.0, progress.EARLY_LOOK
    progress.duration = times.append
    progress.Progress.say = staticmethod(lambda text: None)
    return times


def measure(rows, how, times, names):
    """Print what some launches of each kernel take, as JSON; an error where one cannot be run."""
    result, said = {}, announced() if how == "never" else []
    with simt.options(compiled=how):
        for row in rows():
            if row.name in names or not names:
                try:
                    result[row.name] = [row.seconds() for _ in range(times)] + said[:1]
                except Exception as error:
                    result[row.name] = str(error)
    print(json.dumps(result))


def measured(rows, how, times, names, **environment):
    """Return what `measure` prints in a process of its own."""
    command = [sys.executable, __file__, "measure", rows.__name__, how, str(times), *names]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", **environment}
    out = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(out.stdout.splitlines()[-1])


def show(*cells):
    texts = (f"{x:.2g}" if isinstance(x, float) else str(x) for x in cells)
    print(f"| {' | '.join(texts)} |", flush=True)


def gears(names):
    show("kernel", *GEARS)
    show("---", *["---:"] * len(GEARS))
    for name in names or [row.name for row in lessons()]:
        rounds, said = [], ""
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as folder:
                lockstep, *announced = measured(lessons, "never", 1, [name])[name]
                times = []
                for count in 1, 1, 2:
                    times += measured(lessons, "auto", count, [name], SIMT_CACHE=folder)[name]
            if announced and all(lockstep < x[0] for x in rounds):
                (said,) = announced
            rounds.append((lockstep, *times))
        lockstep, *times = map(min, zip(*rounds, strict=True))
        show(name, lockstep, said, *times)


def simulator(names):
    rounds = []
    for _ in range(ROUNDS):
        theirs = measured(simulated, "auto", 1, names, **{SIMULATOR: "1"})
        with tempfile.TemporaryDirectory() as folder:
            ours = [measured(simulated, "auto", 5, names, SIMT_CACHE=folder) for _ in range(2)]
        rounds.append((theirs, *ours))
    show("kernel", *SIMULATED)
    show("---", *["---:"] * len(SIMULATED))
    ratios = []
    for row in simulated():
        if row.name not in rounds[0][0]:
            continue
        if any(isinstance(theirs[row.name], str) for theirs, *_ in rounds):
            show(row.name, threads(row.launch()), "not run", "", "", "")
            continue
        found = [[x[row.name] for x in parts] for parts in rounds]
        found = [(theirs[0], ours[0], min(ours), min(later)) for theirs, ours, later in found]
        simulator, *ours = map(min, zip(*found, strict=True))
        ratios.append((threads(row.launch()), *(simulator / x for x in ours)))
        show(row.name, threads(row.launch()), simulator, *ours)
    for least in (1, THREADS):
        found = [ratio for count, *ratio in ratios if count >= least]
        for which, values in zip(SIMULATED[2:], zip(*found, strict=True), strict=False):
            low, middle = min(values), statistics.median(values)
            print(f"{len(values)} of {least} threads or more, {which}: {low:.2g}, {middle:.3g}")


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    if command == "measure":
        measure(globals()[rest[0]], rest[1], int(rest[2]), rest[3:])
    else:
        globals()[command](rest)
