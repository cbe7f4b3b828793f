"""Does the CPU engine's microscope count what a GPU counts? The same launches under `ncu`.

`python -m benchmarks microscope` needs a GPU and Nsight Compute's `ncu`. It launches `CASES` under
it, counts the same launches on the CPU engine, and writes

    microscope.csv    what ncu printed
    microscope.json   the counters of every launch, and the comparison
    docs/microscope.md, between its markers, the tables

`python -m benchmarks.bench_microscope --compare` needs neither: it compares the engine as it is now
with the counters in microscope.json. `--csv FILE` does so with what ncu printed.
"""

import argparse
import contextlib
import csv
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
from numba import cuda

from benchmarks.microscope_kernels import CASES
from benchmarks.readme import table
from benchmarks.timing import RESULTS, machine
from fa_numba import simt
from fa_numba.simt import counters as meter

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "microscope.md"
SECTOR = meter.SECTOR

L1 = "l1tex__"
LSU = "_pipe_lsu_mem_global_op_"
BANKS = "_pipe_lsu_mem_shared_op_"
# What is compared: the counter's name here, and ncu's, the first that this GPU has.
COMPARED = {
    "load requests": (f"{L1}t_requests{LSU}ld.sum",),
    "load sectors": (f"{L1}t_sectors{LSU}ld.sum",),
    "store requests": (f"{L1}t_requests{LSU}st.sum",),
    "store sectors": (f"{L1}t_sectors{LSU}st.sum",),
    "shared load requests": (
        "smsp__inst_executed_op_shared_ld.sum",
        "smsp__sass_inst_executed_op_shared_ld.sum",
    ),
    "shared load wavefronts": (f"{L1}data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",),
    "shared load conflicts": (f"{L1}data_bank_conflicts{BANKS}ld.sum",),
    "shared store requests": (
        "smsp__inst_executed_op_shared_st.sum",
        "smsp__sass_inst_executed_op_shared_st.sum",
    ),
    "shared store wavefronts": (f"{L1}data_pipe_lsu_wavefronts_mem_shared_op_st.sum",),
    "shared store conflicts": (f"{L1}data_bank_conflicts{BANKS}st.sum",),
}
# What the engine does not model, or not yet.
CACHES = {
    "L2 bytes": "lts__t_bytes.sum",
    "L2 sectors read by L1": "lts__t_sectors_srcunit_tex_op_read.sum",
    "L2 sectors written by L1": "lts__t_sectors_srcunit_tex_op_write.sum",
    "DRAM bytes read": "dram__bytes_read.sum",
    "DRAM bytes written": "dram__bytes_write.sum",
}
THREAD_INSTRUCTIONS = "smsp__sass_thread_inst_executed_op_"
FLOPS = {
    name: f"{THREAD_INSTRUCTIONS}{name}_pred_on.sum"
    for name in ("fadd", "fmul", "ffma", "dadd", "dmul", "dfma", "hadd", "hmul", "hfma")
}
ALL_KINDS = ("fp16", "fp32", "fp64", "integer", "conversion")
OTHERS = (
    *(f"{THREAD_INSTRUCTIONS}{kind}_pred_on.sum" for kind in ALL_KINDS),
    "smsp__inst_executed_pipe_xu.sum",  # exp2, reciprocal, square root, conversions
    "smsp__inst_executed_op_global_ld.sum",
    "smsp__inst_executed_op_global_st.sum",
    "smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "launch__registers_per_thread",
    "launch__shared_mem_per_block_static",
    "launch__occupancy_limit_blocks",
    "launch__occupancy_limit_registers",
    "launch__occupancy_limit_shared_mem",
    "launch__occupancy_limit_warps",
    "sm__maximum_warps_per_active_cycle_pct",
)
CORE = (*(names[0] for names in COMPARED.values()), *CACHES.values(), *FLOPS.values())
METRICS = tuple(
    dict.fromkeys((*CORE, *(name for names in COMPARED.values() for name in names), *OTHERS))
)
SCALE = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


class NoCountersError(RuntimeError):
    """The hardware counters cannot be read; the message says why."""


# ---------------------------------------------------------------- the GPU's side


def launch_cases(names):
    """Launch the cases on the GPU, in order, with nothing else in between."""
    for case in CASES:
        if not names or case.name in names:
            case.call(*map(on_device, case.arguments()))
    cuda.synchronize()


def on_device(value):
    """A Numba device array: made by a copy, so that no kernel but ours ever runs."""
    if not isinstance(value, np.ndarray):
        return value
    if value.base is None:
        return cuda.to_device(value)
    # A slice must start on the GPU where it starts here.
    start = (value.ctypes.data - value.base.ctypes.data) // value.itemsize
    return cuda.to_device(value.base)[start : start + len(value)]


def find_ncu():
    toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    ncu = shutil.which("ncu") or shutil.which("ncu", path=str(Path(toolkit, "bin")))
    if ncu is None:
        raise NoCountersError(
            "ncu is not installed (or not on the PATH): it comes with Nsight Compute"
        )
    return ncu


def run(command, seconds=240):
    """Return exit status and output of a command."""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout or b""
        raise NoCountersError(
            f"ncu took more than {seconds} s: {output[-2000:].decode(errors='replace')}"
        ) from expired
    return done.returncode, done.stdout


def profile(ncu, metrics, log, cases=()):
    """Launch under ncu and return exit status, and all that it printed; the CSV is in `log`."""
    log.unlink(missing_ok=True)
    target = [sys.executable, "-m", "benchmarks.bench_microscope", "--launch", *cases]
    options = ["--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"]
    options += ["--target-processes", "all", "--metrics", ",".join(metrics)]
    status, output = run([ncu, *options, "--log-file", str(log), *target])
    return status, output + (log.read_text(errors="replace") if log.exists() else "")


def available_metrics(ncu):
    """Names that `ncu --query-metrics` lists, without suffixes; empty if it lists none."""
    status, output = run([ncu, "--query-metrics"])
    return set(re.findall(r"^\s*([a-z0-9]+__\w+)", output, re.MULTILINE)) if not status else set()


def choose_metrics(ncu, log):
    """Return the metrics that this GPU has, and those that it has not.

    The list that ncu prints leaves some out that it can read, so each doubtful name gets its chance
    in a launch of one small kernel.
    """
    listed = available_metrics(ncu)
    metrics = [m for m in METRICS if not listed or m in CORE or certain(m, listed)]
    doubtful = [m for m in METRICS if m not in metrics]
    doubtful += [f"{m}.sum" for m in sorted(listed) if re.search("inst_executed.*barrier", m)]
    for wanted in ([*metrics, *doubtful], metrics, CORE):
        while True:
            _, output = profile(ncu, wanted, log, cases=["copy"])
            try:
                found = parse_csv(output)
            except ValueError:
                found = []
            if found:
                read = [m for m in wanted if found[0]["counters"].get(m) is not None]
                return read, [m for m in METRICS if m not in read]
            refused = [m for m in wanted if m.partition(".")[0] in complaints(output)]
            if not refused or len(refused) == len(wanted):
                break
            wanted = [m for m in wanted if m not in refused]
    raise NoCountersError(explain(output))


def certain(metric, listed):
    return metric.partition(".")[0] in listed or metric.startswith("launch__")


def complaints(output):
    """What ncu complains of, metric names among it."""
    lines = re.findall(r"^==(?:ERROR|WARNING)==.*$", output, re.MULTILINE)
    return {name for line in lines for name in re.findall(r"\w+__\w+", line)}


def explain(output):
    tail = "\n".join(output.strip().splitlines()[-25:])
    if "ERR_NVGPUCTRPERM" in output:
        return f"this user may not read the GPU's counters (ERR_NVGPUCTRPERM)\n{tail}"
    return f"ncu measured nothing; it said\n{tail}"


# ---------------------------------------------------------------- what ncu prints


def parse_csv(text):
    """Return what ncu's CSV says of each launch, in their order.

    Both layouts: one row per launch with a column per metric and a first row of units, as of
    `--page raw`, and one row per metric.

    Returns
    -------
    list of dict
        name, grid, block, and counters {metric: number, or None where there is none}.
    """
    lines = [line for line in text.splitlines() if not line.startswith("==")]
    first = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        raise ValueError("there is no CSV in what ncu printed")
    head, *rows = csv.reader(line for line in lines[first:] if line.startswith('"'))
    rows = [dict(zip(head, row, strict=True)) for row in rows if len(row) == len(head)]
    launches = {}
    if "Metric Name" in head:
        for row in rows:
            launch = launches.setdefault(row["ID"], identity(row))
            value = number(row["Metric Value"], row["Metric Unit"])
            launch["counters"][row["Metric Name"]] = value
        return list(launches.values())
    units = rows.pop(0) if rows and not rows[0]["ID"] else dict.fromkeys(head, "")
    for row in rows:
        launch = launches[row["ID"]] = identity(row)
        for name in head:
            if "__" in name and not name.startswith("device__"):
                launch["counters"][name] = number(row[name], units[name])
    return list(launches.values())


def identity(row):
    return {
        "name": row["Kernel Name"],
        "grid": tuple(map(int, re.findall(r"\d+", row.get("Grid Size", "")))),
        "block": tuple(map(int, re.findall(r"\d+", row.get("Block Size", "")))),
        "counters": {},
    }


def number(text, unit):
    """A counter's value: an int where it is whole, None where it was not measured."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    prefix = re.match(r"([KMG]?)byte", unit)
    value = round(value * SCALE[prefix[1]], 6) if prefix else value
    return int(value) if value.is_integer() else value


# ---------------------------------------------------------------- the engine's side


def model():
    """Count the same launches on the CPU engine.

    Returns
    -------
    list of dict
        case, kernel, grid, block, differs; counters by the names of COMPARED; unique: the
        sectors that the launch loads and stores, each counted once.
    """
    launches = []
    for case in CASES:
        with simt.tracing() as traces, different_sectors() as unique:
            case.call(*case.arguments())
        with simt.tracing() as in_wavefronts, wavefronts_for_conflicts():
            case.call(*case.arguments())
        for trace, again, sectors in zip(traces, in_wavefronts, unique, strict=True):
            launches.append(
                {
                    "case": case.name,
                    "kernel": trace.kernel,
                    "grid": trace.grid,
                    "block": trace.block,
                    "differs": case.differs,
                    "counters": counters_of(trace, again),
                    "unique": {action: len(sectors[action]) for action in ("load", "store")},
                    "barriers": trace.barriers,
                }
            )
    return launches


def counters_of(trace, in_wavefronts):
    """The engine's counts by the names of COMPARED."""
    counts = dict.fromkeys(COMPARED, 0)
    for line in trace.lines:
        if line.action == "atomic":
            continue
        place = "shared " if line.kind == "shared" else ""
        counts[f"{place}{line.action} requests"] += line.requests
        cost = "conflicts" if line.kind == "shared" else "sectors"
        counts[f"{place}{line.action} {cost}"] += line.cost
    for line in in_wavefronts.lines:
        if line.kind == "shared" and line.action != "atomic":
            counts[f"shared {line.action} wavefronts"] += line.cost
    return counts


@contextlib.contextmanager
def different_sectors():
    """Collect, for each launch inside, {"load": sectors, "store": sectors} as sets."""
    launches = []

    class Counters(meter.Counters):
        def __init__(self, requests):
            super().__init__(requests)
            self.sectors = {action: set() for action in ("load", "store", "atomic")}
            launches.append(self.sectors)

        def count(self, array, offset, site, action):
            super().count(array, offset, site, action)
            machine = self.requests.machine
            first = machine.full(offset)[machine.active()] * array.itemsize + array.alignment
            for byte in (first, first + array.itemsize - 1):
                found = np.unique(byte // SECTOR).tolist()
                self.sectors[action].update((array.name, sector) for sector in found)

    with mock.patch("fa_numba.simt.watch.Counters", Counters):
        yield launches


@contextlib.contextmanager
def wavefronts_for_conflicts():
    """Let the engine report all wavefronts of shared memory, not only those in excess."""
    count = meter.Requests.count

    def wavefronts(pattern, itemsize, start):
        at_once = lanes_at_once(itemsize)
        active = pattern != meter.INACTIVE
        served = sum(bool(active[i : i + at_once].any()) for i in range(0, meter.BANKS, at_once))
        return meter.extra_wavefronts(pattern, itemsize, start) + served

    def count_all(requests, array, offset, mask):
        elements, number, cost = count(requests, array, offset, mask)
        if array.kind == "shared" and not isinstance(offset, np.ndarray):
            cost = number * (meter.BANKS // lanes_at_once(array.itemsize))
        return elements, number, cost

    with (
        mock.patch.dict(meter.COST, shared=(wavefronts, meter.WORD)),
        mock.patch.object(meter.Requests, "count", count_all),
    ):
        yield


def lanes_at_once(itemsize):
    return meter.BANKS * meter.WORD // max(itemsize, meter.WORD)


# ---------------------------------------------------------------- side by side


def pair(measured, modelled):
    """Put the engine's launches and ncu's side by side, by their order.

    Raises
    ------
    ValueError
        They are not the same launches.
    """
    if len(measured) != len(modelled):
        raise ValueError(f"ncu saw {len(measured)} launches, the engine {len(modelled)}")
    for number, (hardware, launch) in enumerate(zip(measured, modelled, strict=True)):
        same = launch["kernel"] in hardware["name"] and all(
            not hardware[what] or tuple(hardware[what]) == tuple(launch[what])
            for what in ("grid", "block")
        )
        if not same:
            raise ValueError(
                f"launch {number} is {launch['kernel']} {launch['grid']} {launch['block']} "
                f"({launch['case']}) to the engine, {hardware['name']} {hardware['grid']} "
                f"{hardware['block']} to ncu"
            )
    return list(zip(measured, modelled, strict=True))


def value_of(counters, names):
    return next((counters[n] for n in names if counters.get(n) is not None), None)


def label(launch):
    """The case, and the kernel where a case has several."""
    function = launch["case"].partition(",")[0]
    kernel = launch["kernel"].removesuffix("_kernel")
    if any(case.kernel is None and case.name == launch["case"] for case in CASES):
        return launch["case"] if kernel == function else f"{launch['case']}: {kernel}"
    return launch["case"]


def compare(pairs):
    """One row per launch and counter that either side has seen."""
    rows = []
    for hardware, launch in pairs:
        for name, metrics in COMPARED.items():
            measured, counted = value_of(hardware["counters"], metrics), launch["counters"][name]
            if not (measured or counted):
                continue
            equal = None if measured is None else measured == counted
            verdict = {None: "not measured", True: "yes", False: "no"}[equal]
            if equal is False and launch["differs"]:
                verdict = f"no: {launch['differs']}"
            rows.append(
                {
                    "kernel": label(launch),
                    "counter": name,
                    "hardware": measured,
                    "model": counted,
                    "equal": verdict,
                }
            )
    return rows


def cache_rows(pairs):
    """What the caches make of the sectors, which the engine does not model."""
    rows = []
    for hardware, launch in pairs:
        counts, unique = launch["counters"], launch["unique"]
        row = {"kernel": label(launch)}
        row["bytes of all sectors"] = SECTOR * (counts["load sectors"] + counts["store sectors"])
        row["L2 bytes"] = hardware["counters"].get(CACHES["L2 bytes"])
        for title, action, metric in (
            ("loaded", "load", "DRAM bytes read"),
            ("stored", "store", "DRAM bytes written"),
        ):
            row[f"bytes of different sectors {title}"] = SECTOR * unique[action]
            row[metric] = hardware["counters"].get(CACHES[metric])
        rows.append(row)
    return rows


def flop_rows(pairs):
    """Floating-point instructions, once per thread, of launches that have any."""
    rows = []
    for hardware, launch in pairs:
        counts = {name: hardware["counters"].get(metric) for name, metric in FLOPS.items()}
        if any(counts.values()):
            rows.append({"kernel": label(launch), **counts})
    used = {name for row in rows for name in row if name == "kernel" or row[name]}
    return [{name: value for name, value in row.items() if name in used} for row in rows]


def summary(rows):
    """How many counters agree, in one sentence."""
    measured = [row for row in rows if row["equal"] != "not measured"]
    equal = [row for row in measured if row["equal"] == "yes"]
    explained = [row for row in measured if row["equal"].startswith("no:")]
    return (
        f"{len(equal)} of {len(measured)} counters are equal, {len(explained)} differ where the "
        f"kernel is made to differ, {len(measured) - len(equal) - len(explained)} elsewhere"
    )


def record_of(measured, modelled, **about):
    pairs = pair(measured, modelled)
    rows = compare(pairs)
    return {
        **about,
        "command": "python -m benchmarks microscope",
        "note": f"ncu's counters against the CPU engine's; {summary(rows)}",
        "rows": rows,
        "caches": cache_rows(pairs),
        "flops": flop_rows(pairs),
        "launches": [{**hardware, "case": launch["case"]} for hardware, launch in pairs],
    }


# ---------------------------------------------------------------- the page


def page_tables(record):
    """The tables of docs/microscope.md, as Markdown."""
    intro = f"{record['machine']}, {record['date']}, `{record['command']}`. {record['note']}."
    parts = [intro, table(one_row_per_launch(record["rows"]))]
    if record.get("refused"):
        names = ", ".join(f"`{name}`" for name in record["refused"])
        parts.append(f"Not to be had on this GPU: {names}.")
    parts += ["### Caches, in bytes", table(record["caches"])]
    if record["flops"]:
        parts += ["### Floating-point instructions, once per thread", table(record["flops"])]
    return "\n\n".join(parts)


def one_row_per_launch(rows):
    """A column per counter: one number where both agree, else `hardware ≠ engine`."""
    merged = {}
    for row in rows:
        cells = merged.setdefault(row["kernel"], {"kernel": row["kernel"]})
        same = row["hardware"] == row["model"]
        hardware = "?" if row["hardware"] is None else row["hardware"]
        cells[row["counter"]] = row["model"] if same else f"**{hardware} ≠ {row['model']}**"
    columns = ["kernel", *(c for c in COMPARED if any(c in cells for cells in merged.values()))]
    return [{c: cells.get(c, "") for c in columns} for cells in merged.values()]


def write_page(record):
    if PAGE.exists():
        pattern = r"(<!-- microscope:begin -->\n).*?(<!-- microscope:end -->)"
        body = page_tables(record)
        text = re.sub(
            pattern, lambda m: f"{m[1]}{body}\n{m[2]}", PAGE.read_text("utf-8"), flags=re.DOTALL
        )
        PAGE.write_text(text, "utf-8")


def as_json(record):
    """The record with one row of each table per line."""
    parts = []
    for key, value in record.items():
        text = json.dumps(value)
        if isinstance(value, list) and value:
            text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        parts.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def report(record, folder):
    """Write microscope.json and the page; print what differs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "microscope.json").write_text(as_json(record), "utf-8")
    write_page(record)
    print(f"\nmicroscope · {record['machine']}\n{record['note']}")
    for row in record["rows"]:
        if row["equal"] != "yes":
            print(
                f"  {row['kernel']}: {row['counter']}: hardware {row['hardware']}, "
                f"engine {row['model']} ({row['equal']})"
            )
    if record.get("refused"):
        print(f"metrics that this GPU has not: {', '.join(record['refused'])}")


def measure(folder):
    """Launch the cases under ncu, compare, write."""
    ncu = find_ncu()
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "microscope.csv"
    metrics, refused = choose_metrics(ncu, log)
    print(f"microscope: {len(metrics)} metrics; launching {len(CASES)} cases under ncu", flush=True)
    status, output = profile(ncu, metrics, log)
    try:
        measured = parse_csv(output)
    except ValueError as error:
        raise NoCountersError(explain(output)) from error
    if status:
        print(f"ncu ended with status {status}: {explain(output)}")
    about = {"machine": machine(), "date": datetime.date.today().isoformat(), "refused": refused}
    report(record_of(measured, model(), **about), folder)


def main(arguments=()):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_microscope")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--launch", nargs="*", metavar="CASE", help="only launch, on the GPU")
    parser.add_argument("--compare", action="store_true", help="compare again, without a GPU")
    parser.add_argument("--csv", type=Path, help="compare with this output of ncu")
    options = parser.parse_args(arguments)
    if options.launch is not None:
        launch_cases(options.launch)
    elif options.compare or options.csv:
        path = options.out / "microscope.json"
        before = json.loads(path.read_text("utf-8")) if path.exists() else {}
        about = {
            key: before.get(key, default)
            for key, default in (("machine", machine()), ("date", ""), ("refused", []))
        }
        measured = parse_csv(options.csv.read_text("utf-8")) if options.csv else before["launches"]
        report(record_of(measured, model(), **about), options.out)
    else:
        try:
            measure(options.out)
        except NoCountersError as error:
            print(f"microscope: no hardware counters: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
