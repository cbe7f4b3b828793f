"""How fast is the CPU engine, and what does each check cost?

    python -m benchmarks engine                 about three minutes; saves the table
    python -m benchmarks.bench_engine --full    every size in Numba's simulator: long; prints it

Milliseconds of processor time per launch, the least of several, so that other programs do not
count. Columns:

simulator     NUMBA_ENABLE_CUDASIM=1: a thread of the operating system per CUDA thread
greenlets     the oracle of engine/tests/: a greenlet per CUDA thread
plain         our engine as the package's own launches run: indices and barriers are checked
+ ...         and one kind of check: uninitialised shared reads, races, or the counters of a trace
checked       a learner's own launch: all checks
trace         all checks, collected, and the counters
compiled      checked, in the second gear, where it can be; all columns before are of lockstep
first launch  from a source never seen before to the end of one block's checked launch
"""

import argparse
import itertools
import math
import os
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks.readme import table
from benchmarks.timing import cpu, save
from fa_numba import simt
from fa_numba.kernels.flash_attn_bwd import flash_attn_bwd
from fa_numba.kernels.flash_attn_v1 import flash_attn_v1
from fa_numba.kernels.flash_attn_v2 import flash_attn_v2
from fa_numba.kernels.online_softmax import online_softmax

from benchmarks.engine_kernels import floats, launch, simt_kernels  # isort: skip
import greenlet_oracle  # isort: skip  beside the kernels of the engine's tests

# Numba's simulator cannot import fa_numba: it does not know all options of cuda.jit.
SIMULATE = """
import sys, time
import numba_cuda_simulator
from benchmarks.engine_kernels import launch
numba_cuda_simulator.disable()  # our own engine
name, size = sys.argv[1], int(sys.argv[2])
kernel, grid, block, args = launch(name, size)
start = time.process_time()
kernel[grid, block](*args)
print(time.process_time() - start)
"""


@dataclass(frozen=True)
class Row:
    """A row of the table: a kernel of engine/tests, or any call that launches."""

    label: str
    kernel: str = ""
    size: int = 0
    slow: str = ""  # where the slow engines run too: "quick", in every table, or "full", in --full
    call: object = None

    def ready(self):
        """Return a function that launches."""
        if self.call:
            return self.call
        kernel, grid, block, args = launch(self.kernel, self.size)
        return lambda: simt.run(kernel, grid, block, *args)


def lesson(label, function, size, head_dim, **options):
    """A row that calls one of the package's attention functions, one head."""
    q, k, v, dout = floats(*[(1, size, 1, head_dim)] * 4)
    if function is flash_attn_bwd:
        out, lse = flash_attn_v2(q, k, v, **options)
        return Row(label, call=lambda: flash_attn_bwd(dout, q, k, v, out, lse, **options))
    return Row(label, call=lambda: function(q, k, v, **options))


def rows():
    (x,) = floats((64, 512))
    return (
        Row("FA2 tile kernel, N=64", "flash_attn_tile", 64, "quick"),
        Row("FA2 tile kernel, N=256", "flash_attn_tile", 256, "full"),
        Row("FA2 tile kernel, N=1024", "flash_attn_tile", 1024),
        Row("tree softmax, 4x512", "tree_softmax", 4, "quick"),
        Row("tree softmax, 64x512", "tree_softmax", 64, "full"),
        Row("warp softmax, 64x512", "warp_softmax", 64, "quick"),
        Row("tiled matmul, 250 (ragged)", "matrix_product", 250),
        Row("vector add, 1M", "vector_add", 1_000_000),
        Row("attention, thread per row, N=1024", "attention_row", 1024),
        Row("attention, thread per row, N=1000", "attention_row", 1000),
        Row("lesson: online softmax, 64x512", call=lambda: online_softmax(x)),
        lesson("lesson: FA1, N=256, d=64", flash_attn_v1, 256, 64),
        lesson("lesson: FA2, N=256, d=64", flash_attn_v2, 256, 64),
        lesson("lesson: FA2, N=1024, d=64", flash_attn_v2, 1024, 64),
        lesson("lesson: FA2, N=1024, d=64, causal", flash_attn_v2, 1024, 64, causal=True),
        lesson("lesson: FA backward, N=256, d=64", flash_attn_bwd, 256, 64),
    )


SECONDS = 4  # per row, at least
EDITS = itertools.count()
NO_SIMULATOR = {"warp_softmax"}  # it has no shuffles

CHECKS = {"races": False, "uninitialised": False, "divergence": False}
ENGINE = {  # column -> options, counters; all but the last run in lockstep
    "plain": (CHECKS | {"divergence": True}, False),
    "+ uninitialised": (CHECKS | {"uninitialised": True}, False),
    "+ races": (CHECKS | {"races": True}, False),
    "checked": (dict.fromkeys(CHECKS, True), False),
    "+ counters": (CHECKS, True),
    "trace": (dict.fromkeys(CHECKS, True), True),
    "compiled": (dict.fromkeys(CHECKS, True) | {"compiled": "always"}, False),
}


def run(rows, *, full=False, repeats=4):
    """Time every row.

    Parameters
    ----------
    rows : sequence of Row
    full : bool, default=False
        Also run the simulator and the greenlets on the rows marked "full".
    repeats : int, default=4
        Least number of launches per cell of our engine; the fastest counts.

    Returns
    -------
    list of dict
        One per row: column name to milliseconds, None where nothing was run.
    """
    result = []
    for row in rows:
        slowly = row.slow == "quick" or (row.slow == "full" and full)
        cells = {"kernel": row.label, "simulator": None, "greenlets": None}
        if slowly and row.kernel not in NO_SIMULATOR:
            cells["simulator"] = simulator_ms(row.kernel, row.size)
        if slowly:
            *where, args = launch(row.kernel, row.size)
            cells["greenlets"] = milliseconds(greenlet_oracle.launch, *where, *args)
        cells |= engine_ms(row.ready(), repeats)
        cells["first launch"] = first_launch_ms(row.kernel) if row.kernel else None
        result.append(cells)
    return result


def milliseconds(function, *args):
    """Processor time of one call."""
    start = time.process_time()
    function(*args)
    return 1000 * (time.process_time() - start)


def engine_ms(call, repeats):
    """Processor time of a call with each set of checks, by column.

    The columns alternate for some seconds, because the machine may be slow for a while.
    """
    best = dict.fromkeys(ENGINE, math.inf)
    start = time.process_time()
    while repeats > 0 or time.process_time() - start < SECONDS:
        repeats -= 1
        for column, (chosen, counters) in ENGINE.items():
            with simt.options(**{"package": True, "compiled": "never"} | chosen):
                with simt.tracing() if counters else nullcontext():
                    best[column] = min(best[column], milliseconds(call))
    return best


def simulator_ms(name, size):
    """The fastest of three launches, in processes where Numba is imported as its simulator."""
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", SIMULATE, name, str(size)]
    root = Path(__file__).parents[1]
    how = dict(env=environment, cwd=root, capture_output=True, text=True, check=True)
    return 1000 * min(float(subprocess.run(command, **how).stdout) for _ in range(3))


def first_launch_ms(name, edits=5):
    """From a source never seen to the end of one block's checked launch."""
    kernel, _, block, args = launch(name, simt_kernels.TILE)
    source = Path(kernel.py_func.__code__.co_filename).read_text()
    samples = []
    for _ in range(edits):
        edited = simt_kernels.edited_zoo(f"{source}\n# edit {next(EDITS)}\n")
        samples.append(milliseconds(simt.run, getattr(edited, name), 1, block, *args))
    return statistics.median(samples)


def printed(row):
    """A row with its milliseconds as text, to three figures."""

    def cell(value):
        if value is None:
            return "–"
        return value if isinstance(value, str) else f"{float(f'{value:.3g}'):,g}"

    return {column: cell(value) for column, value in row.items()}


def main(full=False):
    table_rows = [printed(row) for row in run(rows(), full=full)]
    print(table(table_rows))
    if not full:
        note = (
            "Milliseconds of processor time per launch, the least of several (load average of the "
            f"machine {os.getloadavg()[1]:.1f}); the columns are explained in "
            "`benchmarks/bench_engine.py`"
        )
        save("engine", table_rows, note=note, on=cpu())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="also run the cells that take minutes")
    main(parser.parse_args().full)
