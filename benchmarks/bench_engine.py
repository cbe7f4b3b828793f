"""How fast is the CPU engine, and what does each check cost?

    python -m benchmarks.bench_engine                 about 20 s; prints the table
    python -m benchmarks.bench_engine --full          every size in Numba's simulator: minutes
    python -m benchmarks.bench_engine --json FILE     save it

Milliseconds, median of some launches. "simulator" is NUMBA_ENABLE_CUDASIM=1 (a thread of the
operating system per CUDA thread), "greenlets" the oracle of tests/ (a greenlet per CUDA thread).
"first launch" is what a learner waits for after editing a kernel: one block, source never seen.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.readme import table
from benchmarks.timing import RESULTS
from fa_numba import simt

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))
import greenlet_oracle  # noqa: E402
import simt_kernels  # noqa: E402

SIMULATE = """
import sys, time
from benchmarks import bench_engine
name, size = sys.argv[1], int(sys.argv[2])
kernel, grid, block, args = bench_engine.launch(name, size)
start = time.perf_counter()
kernel[grid, block](*args)
print(time.perf_counter() - start)
"""


def floats(*shapes):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def launch(name, size):
    """Return kernel, grid, block and arguments of a row of the table."""
    kernel = getattr(simt_kernels, name)
    if name == "flash_attn_tile":
        q, k, v, out = floats(*[(size, 32)] * 4)
        return kernel, size // 16, (16, 16), (q, k, v, out, np.zeros(size, np.float32), 32**-0.5)
    if name == "attention_row":
        return kernel, -(-size // 128), 128, (*floats(*[(size, 32)] * 4), 32**-0.5)
    if name == "tiled_matmul":
        return kernel, (-(-size // 16), -(-size // 16)), (16, 16), floats(*[(size, size)] * 3)
    if name == "vector_add":
        return kernel, -(-size // 256), 256, floats(*[size] * 3)
    if name == "tree_softmax":
        return kernel, size, simt_kernels.NUM_THREADS, floats((size, 512), (size, 512))
    if name == "warp_softmax":
        return kernel, -(-size // 4), 128, floats((size, 512), (size, 512))
    raise ValueError(name)


# kernel, size, what it says in the table, where the slow engines run: in every table, or in --full
ROWS = (
    ("flash_attn_tile", 64, "FA2 tile kernel, N=64", "quick"),
    ("flash_attn_tile", 256, "FA2 tile kernel, N=256", "full"),
    ("flash_attn_tile", 1024, "FA2 tile kernel, N=1024", ""),
    ("tree_softmax", 4, "tree softmax, 4x512", "quick"),
    ("tree_softmax", 64, "tree softmax, 64x512", "full"),
    ("warp_softmax", 64, "warp softmax, 64x512", "quick"),
    ("tiled_matmul", 250, "tiled matmul, 250 (ragged)", ""),
    ("vector_add", 1_000_000, "vector add, 1M", ""),
    ("attention_row", 1024, "attention, thread per row, N=1024", ""),
    ("attention_row", 1000, "attention, thread per row, N=1000", ""),
)
NO_SIMULATOR = {"warp_softmax"}  # it has no shuffles

ENGINE = {
    "plain": dict(checked=False),
    "+ counters": dict(counters=True, races=False, uninitialised=False, divergence=False),
    "+ races": dict(races=True, uninitialised=False, divergence=False),
    "checked run": dict(races=True, uninitialised=True, divergence=True),
    "all": dict(counters=True, races=True, uninitialised=True, divergence=True),
}


def run(rows=ROWS, *, full=False, repeats=5):
    """Time every row.

    Parameters
    ----------
    rows : sequence of (kernel name, size, label, "quick" | "full" | "")
    full : bool, default=False
        Also run the simulator and the greenlets on the rows marked "full".
    repeats : int, default=5
        Launches per cell of our engine, of which the median is taken.

    Returns
    -------
    list of dict
        One per row: column name to milliseconds, None where nothing was run.
    """
    result = []
    for name, size, label, slow in rows:
        slowly = slow == "quick" or (slow == "full" and full)
        row = {"kernel": label, "simulator": None, "greenlets": None}
        if slowly and name not in NO_SIMULATOR:
            row["simulator"] = simulator_ms(name, size)
        if slowly:
            row["greenlets"] = milliseconds(greenlet_oracle.launch, *flat(launch(name, size)))
        for column, options in ENGINE.items():
            row[column] = engine_ms(launch(name, size), repeats, **options)
        row["first launch"] = first_launch_ms(name)
        result.append(row)
    return result


def flat(launch):
    *where, args = launch
    return *where, *args


def milliseconds(function, *args, **options):
    start = time.perf_counter()
    function(*args, **options)
    return 1000 * (time.perf_counter() - start)


def engine_ms(launch, repeats, *, checked=True, counters=False, **checks):
    call = simt.trace if counters else simt.run
    options = {} if counters else {"checked": checked}
    with simt.options(**checks):
        call(*flat(launch), **options)  # transformed before, as for the second launch of a cell
        samples = [milliseconds(call, *flat(launch), **options) for _ in range(repeats)]
    return statistics.median(samples)


def simulator_ms(name, size):
    """One launch in another process, where Numba is imported as its simulator."""
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", SIMULATE, name, str(size)]
    root = Path(__file__).parents[1]
    done = subprocess.run(
        command, env=environment, cwd=root, capture_output=True, text=True, check=True
    )
    return 1000 * float(done.stdout)


def first_launch_ms(name, edits=5):
    """From a changed source text to the end of one block's checked launch."""
    kernel, _, block, args = launch(name, simt_kernels.TILE)
    source = Path(simt_kernels.__file__).read_text()
    samples = []
    for edit in range(edits):
        edited = simt_kernels.edited_zoo(f"{source}\n# edit {edit}\n")
        samples.append(milliseconds(simt.run, getattr(edited, name), 1, block, *args))
    return statistics.median(samples)


def machine():
    """One line: CPU, cores, Python and package versions."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), model)
    packages = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("numpy", "numba"))
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, {packages}"


def printed(row):
    """A row with its milliseconds as text, to three figures."""

    def cell(value):
        if value is None:
            return "–"
        return value if isinstance(value, str) else f"{float(f'{value:.3g}'):,g}"

    return {column: cell(value) for column, value in row.items()}


def main(json_file=RESULTS / "engine.json", full=False):
    rows = [printed(row) for row in run(full=full)]
    record = {
        "machine": machine(),
        "command": f"python -m benchmarks.bench_engine{' --full' * full}",
        "date": datetime.date.today().isoformat(),
        "note": "Milliseconds per launch; see benchmarks/bench_engine.py for the columns",
        "rows": rows,
    }
    print(f"engine · {record['machine']}\n{record['note']}\n\n{table(rows)}")
    if json_file:
        Path(json_file).parent.mkdir(exist_ok=True)
        Path(json_file).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="also run what takes minutes")
    parser.add_argument("--json", metavar="FILE", help="save the table")
    options = parser.parse_args()
    main(options.json, options.full)
