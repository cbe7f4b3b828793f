"""Prints the README's two tables of speed, made of processor time on one core.

In engine/: python tests/speed_table.py gears [names]
            python tests/speed_table.py simulator [names]

The first table has a launch as in a lesson: in lockstep, as it is in a process that has never seen
the kernel, as it is where its machine code is on disk, and once more in the same process. Each is
the least of ROUNDS processes. The second one has smaller launches, on the engine with all checks
and in Numba's own simulator, each the least of ROUNDS launches.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

import numpy as np

import numba_cuda_simulator as simt

SIMULATOR = "NUMBA_ENABLE_CUDASIM"
if os.environ.get(SIMULATOR):
    simt.disable()

import simt_kernels  # noqa: E402
from classic_kernels import CLASSICS  # noqa: E402
from serial_kernels import CASES  # noqa: E402
from simt_kernels import ZOO  # noqa: E402

ROUNDS = 3
COLUMNS = "lockstep", "first ever", "from disk", "again"


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

    def threads(self):
        grid, block, *_ = self.launch()
        return int(np.prod(grid)) * int(np.prod(block))

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


def flash_attn(size=64):
    floats = np.random.default_rng(0).standard_normal((4, size, 32), np.float32)
    tile = simt_kernels.TILE
    return size // tile, (tile, tile), *floats, np.zeros(size, np.float32), 0.2


def simulated():
    """Return the rows of the second table."""
    rows = [Row("FlashAttention-2, N = 64", simt_kernels.flash_attn_tile, flash_attn)]
    rows += [Row(c.name, c.kernel, lambda c=c: c.launch(c.small)) for c in CLASSICS]
    for z in ZOO:
        launch = lambda z=z: (z.grid, z.block, *z.arguments())  # noqa: E731
        rows.append(Row(z.name, z.kernel, launch, 1, z.shared_bytes))
    for c in CASES:
        if c.simulated:
            launch = lambda c=c: (c.grid, c.block, *c.arguments(np.random.default_rng(0)))  # noqa: E731
            rows.append(Row(c.label, c.kernel, launch))
    return rows


def measure(rows, how, times, names):
    """Print what some launches of each kernel take, as JSON; an error where one cannot be run."""
    result = {}
    with simt.options(compiled=how):
        for row in rows():
            if row.name in names or not names:
                try:
                    result[row.name] = [row.seconds() for _ in range(times)]
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
    show("kernel", *COLUMNS)
    show("---", *["---:"] * len(COLUMNS))
    for name in names or [row.name for row in lessons()]:
        rounds = []
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as folder:
                times = measured(lessons, "never", 1, [name])[name]
                times += measured(lessons, "auto", 1, [name], SIMT_CACHE=folder)[name]
                times += measured(lessons, "auto", 2, [name], SIMT_CACHE=folder)[name]
            rounds.append(times)
        show(name, *map(min, zip(*rounds, strict=True)))


def simulator(names):
    rounds = []
    for _ in range(ROUNDS):
        theirs = measured(simulated, "auto", 1, names, **{SIMULATOR: "1"})
        rounds.append((theirs, measured(simulated, "auto", 3, names)))
    show("kernel", "threads", "simulator", "engine, first", "engine, again", "faster")
    show("---", *["---:"] * 5)
    ratios = []
    for row in simulated():
        if row.name not in rounds[0][0]:
            continue
        if any(isinstance(theirs[row.name], str) for theirs, _ in rounds):
            show(row.name, row.threads(), "not run", *" " * 3, rounds[0][0][row.name][:60])
            continue
        simulator = min(theirs[row.name][0] for theirs, _ in rounds)
        first = min(ours[row.name][0] for _, ours in rounds)
        again = min(min(ours[row.name]) for _, ours in rounds)
        ratios.append((row.threads(), simulator / first, simulator / again))
        show(row.name, row.threads(), simulator, first, again, simulator / again)
    for least in (1, 1000):
        found = [r for r in ratios if r[0] >= least]
        for which, values in zip(("first", "again"), list(zip(*found))[1:]):
            print(
                f"{len(found)} of at least {least} threads, {which}: least {min(values):.3g}, median {statistics.median(values):.3g}"
            )


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    if command == "measure":
        measure(globals()[rest[0]], rest[1], int(rest[2]), rest[3:])
    else:
        globals()[command](rest)
