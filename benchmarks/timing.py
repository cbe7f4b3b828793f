"""How every benchmark here measures, and how it saves its results."""

import datetime
import importlib.metadata
import math
import os
import platform
import subprocess
import time
from pathlib import Path

import numpy as np

from fa_numba.runtime.replacing import replacing
from fa_numba.workbook.tables import as_json

RESULTS = Path(__file__).parent / "results"
into = ""  # `save` writes to this folder of RESULTS; `python -m benchmarks --into` sets it
ends = math.inf  # on time.monotonic(): then a run ends; `python -m benchmarks --seconds` sets it


def time_ms(function, *args, repeats=20, warm_ups=2, **options):
    """Median milliseconds of ``function(*args, **options)``, inputs out of L2, compiled before.

    Parameters
    ----------
    function : callable
        Enqueues its work on CuPy's current stream.
    repeats : int, default=20
        Before each, 8 GiB are written in rounds of 1 GiB: far over any L2, and long enough (2 ms
        on an H200) for Python to enqueue the launch meanwhile, so that the events time the GPU
        and not Numba's launch.
    warm_ups : int, default=2
        Calls before the first sample; the first one compiles.
    """
    import cupy

    for _ in range(warm_ups):
        function(*args, **options)
    flush = cupy.empty(1 << 30, np.uint8)
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    samples = []
    for _ in range(repeats):
        for _ in range(8):
            flush.fill(0)
        start.record()
        function(*args, **options)
        end.record()
        end.synchronize()
        samples.append(cupy.cuda.get_elapsed_time(start, end))
    return float(np.median(samples))


def time_graph(function, calls=5, replays=15):
    """Median milliseconds of a call of PyTorch tensors, in a CUDA graph of several."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [function() for _ in range(calls)]  # kept as long as the graph
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(replays + 1)]
    for start, end in events:  # without a wait: the GPU would then wait for the next launch
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    del results
    return float(np.median([start.elapsed_time(end) for start, end in events[1:]])) / calls


def cells(ms, flops, error=None):
    """Cells of a row: milliseconds, their rate and, where there is one, the error."""
    found = {"ms": round(ms, 4), "TFLOP/s": round(flops / ms / 1e9, 1)}
    return found if error is None else found | {"error": float(f"{error:.2g}")}


def machine():
    """One line: GPU, driver, CUDA, package versions; or the CPU where there is no GPU."""

    packages = ", ".join(f"{name} {_version(name)}" for name in ("numba-cuda", "numpy"))
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return cpu()
    name, driver = gpu.splitlines()[0].split(", ")
    return f"{name}, driver {driver}, {packages}"


def cpu():
    """One line: CPU, cores, Python and package versions."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), model)
    packages = ", ".join(f"{name} {_version(name)}" for name in ("numpy", "numba"))
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, {packages}"


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def write_whole(path, text):
    """Write a file as a whole: an interrupted run leaves the one from before."""
    with replacing(path) as file:
        file.write(text.encode())


def save_each(question, parts, *, note="", on=None):
    """Measure one part after the other and save after each: a run that ends early keeps its rows.

    Parameters
    ----------
    question, note, on
        As for `save`. The note names the parts that have no rows.
    parts : dict of str to callable
        A part returns its rows, or none where it failed. After `ends` no part begins.
    """
    rows, missing = [], list(parts)
    for name, measure in parts.items():
        if time.monotonic() >= ends:
            break
        if found := list(measure()):
            rows += found
            missing.remove(name)
            save(question, rows, note=without(missing, note), on=on, show=found)
    if missing:
        print(without(missing, question))


def without(missing, note):
    """Return a note that names the parts that were not measured."""
    return f"{note}. Not measured: {'; '.join(missing)}" if missing else note


def save(question, rows, *, note="", on=None, show=None):
    """Write benchmarks/results/<question>.json and print the rows.

    Parameters
    ----------
    question : str
        Name of the script's question; `python -m benchmarks <question>` asks it again.
    rows : list of dict
    note : str
        Units and sizes, for the reader of the table.
    on : str, default=machine()
        What was measured.
    show : list of dict, default=rows
        The rows to print.
    """
    folder = RESULTS / into
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "machine": on or machine(),
        "command": f"python -m benchmarks {question}" + (f" --into {into}" if into else ""),
        "date": datetime.date.today().isoformat(),
        "note": note,
        "rows": rows,
    }
    write_whole(folder / f"{question}.json", as_json(record) + "\n")
    print(f"\n{question} · {record['machine']}\n{note}")
    for row in rows if show is None else show:
        print("  " + "  ".join(f"{key} {value}" for key, value in row.items()))
