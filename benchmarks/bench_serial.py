"""How fast are single threads that work through arrays one element after the other?

    python -m benchmarks serial     a few minutes

Milliseconds of processor time per launch, the least of several. Columns:

simulator   NUMBA_ENABLE_CUDASIM=1: a thread of the operating system per CUDA thread; – too many
unchecked   our engine, `simt.run(..., checked=False)`: indices and barriers are checked
checked     `simt.run(...)`, as a learner's own launch: races and uninitialised reads too
"""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.readme import table
from benchmarks.timing import cpu, save
from fa_numba import simt

sys.path.insert(0, str(Path(__file__).parents[1] / "engine" / "tests"))
from serial_kernels import CASES

LAUNCHES = 5  # of each cell, at least
SECONDS = 0.5  # of each cell, at least

SIMULATE = """
import json
from fa_numba import simt
simt.disable()  # our own engine
from benchmarks import bench_serial
print(json.dumps(bench_serial.simulator_cells()))
"""


def least_ms(launches):
    """Processor time of each launch, the least of several that alternate."""
    best = dict.fromkeys(launches, math.inf)
    start = time.process_time()
    rounds = 0
    while rounds < LAUNCHES or time.process_time() - start < SECONDS * len(launches):
        rounds += 1
        for column, (case, launch) in launches.items():
            args = case.arguments(np.random.default_rng(0))
            before = time.process_time()
            launch(*args)
            best[column] = min(best[column], 1000 * (time.process_time() - before))
    return best


def simulator_cells():
    """Milliseconds of each case, where Numba was imported as its simulator."""
    return {
        case.label: least_ms({"ms": (case, case.kernel[case.grid, case.block])})["ms"]
        for case in CASES
        if case.simulated
    }


def simulator_ms():
    """The same, from here."""
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONWARNINGS": "ignore"}
    how = dict(env=environment, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    done = subprocess.run([sys.executable, "-c", SIMULATE], check=True, **how)
    return json.loads(done.stdout.splitlines()[-1])


def engine_ms(case):
    def launch(checked):
        where = case.kernel, case.grid, case.block
        return case, lambda *args: simt.run(*where, *args, checked=checked)

    return least_ms({"unchecked": launch(False), "checked": launch(True)})


def rows():
    simulated = simulator_ms()
    return [
        {"kernel": case.label, "simulator": simulated.get(case.label)} | engine_ms(case)
        for case in sorted(CASES, key=lambda case: case.kernel.py_func.__code__.co_firstlineno)
    ]


def printed(value):
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{float(f'{value:.3g}'):,g}"


def main():
    table_rows = [{key: printed(value) for key, value in row.items()} for row in rows()]
    print(table(table_rows))
    note = (
        "Milliseconds of processor time per launch, the least of several (load average of the "
        f"machine {os.getloadavg()[1]:.1f}); the kernels are in `engine/tests/serial_kernels.py`"
    )
    save("serial", table_rows, note=note, on=cpu())
