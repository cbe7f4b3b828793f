"""Does the CPU engine's microscope count what a GPU counts? The same launches under `ncu`.

`python -m benchmarks microscope` needs a GPU and Nsight Compute's `ncu`. It launches `CASES` under
it, counts the same launches on the CPU engine, and writes

    microscope.csv    the output of ncu
    microscope.json   the counters that matter of every launch, and the comparison
    docs/microscope.md, between its markers, the tables

`python -m benchmarks.bench_microscope --compare` needs neither: it compares the engine as it is now
with the counters in microscope.json. `--csv FILE` does so with the output of ncu. Where the GPU
executes other accesses than the source states, `microscope_reasons` says why.
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
from benchmarks.microscope_reasons import REASONS
from benchmarks.readme import table
from benchmarks.timing import RESULTS, machine, write_whole
from fa_numba import simt
from fa_numba.analysis.machine_code import compile_kernel, disassembler_available
from fa_numba.runtime import arrays
from fa_numba.workbook.tables import as_json
from numba_cuda_simulator import counters as meter

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "microscope.md"
SECTOR = meter.SECTOR
PIECE = 64  # bytes: the least that DRAM delivers, two sectors

L1 = "l1tex__"
LSU = "_pipe_lsu_mem_global_op_"
WAVEFRONTS = "l1tex_data_pipe_lsu_wavefronts_mem_shared_op_"
PIPE = f"{L1}{WAVEFRONTS.removeprefix('l1tex_')}"
CONFLICTS = f"{L1}data_bank_conflicts_pipe_lsu_mem_shared_op_"
# The counters compared: the name here, and ncu's names; the first that this GPU has is taken. Those
# of the instructions themselves ("sass") come first: others count an instruction even where a false
# predicate keeps a whole warp from it, and wavefronts of whatever else is in the pipe.
COMPARED = {
    "load requests": (f"{L1}t_requests{LSU}ld.sum",),
    "load sectors": (f"{L1}t_sectors{LSU}ld.sum",),
    "store requests": (f"{L1}t_requests{LSU}st.sum",),
    "store sectors": (f"{L1}t_sectors{LSU}st.sum",),
}
for op, short in (("load", "ld"), ("store", "st")):
    COMPARED |= {
        f"shared {op} requests": (
            f"smsp__sass_inst_executed_op_shared_{short}.sum",
            f"smsp__inst_executed_op_shared_{short}.sum",
        ),
        f"shared {op} wavefronts": (f"smsp__sass_{WAVEFRONTS}{short}.sum", f"{PIPE}{short}.sum"),
        f"shared {op} conflicts": (f"{CONFLICTS}{short}.sum",),
    }
# Counters that the engine does not model, or not yet.
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
XU = "smsp__inst_executed_pipe_xu.sum"  # exp2, reciprocal, square root, conversions
CORE = (*(names[-1] for names in COMPARED.values()), *CACHES.values(), *FLOPS.values())
REGISTERS = "launch__registers_per_thread"
# The counters that ncu is asked for and that the record keeps.
METRICS = tuple(
    dict.fromkeys((*(n for names in COMPARED.values() for n in names), *CORE, REGISTERS, XU))
)
DERIVED = "caches", "flops"  # of a record, from its launches: not in the file
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
    """The names of metrics in the warnings and errors of ncu."""
    lines = re.findall(r"^==(?:ERROR|WARNING)==.*$", output, re.MULTILINE)
    return {name for line in lines for name in re.findall(r"\w+__\w+", line)}


def explain(output):
    tail = "\n".join(output.strip().splitlines()[-25:])
    if "ERR_NVGPUCTRPERM" in output:
        return f"this user may not read the GPU's counters (ERR_NVGPUCTRPERM)\n{tail}"
    return f"ncu measured nothing; it said\n{tail}"


# ---------------------------------------------------------------- the output of ncu


def parse_csv(text):
    """Return the counters of each launch in ncu's CSV, in their order.

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
        raise ValueError("the output of ncu has no CSV")
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
        case, kernel, grid, block; counters by the names of COMPARED; compiled: the same after the
        compilers' changes, and reason, "" where they leave the accesses as they are; caches: bytes
        that L2 and DRAM must deliver at least.
    """
    launches = []
    for case in CASES:
        with simt.tracing() as traces, touched() as places:
            case.call(*case.arguments())
        for trace, place in zip(traces, places, strict=True):
            launch = {
                "case": case.name,
                "kernel": trace.kernel,
                "grid": trace.grid,
                "block": trace.block,
                "counters": counters_of(trace),
                "reason": "",
                "caches": {what: len(found) for what, found in place.items()},
            }
            launch["compiled"] = dict(launch["counters"])
            if reason := REASONS.get(label(launch)):
                reason.change(launch["compiled"], trace)
                launch["reason"] = reason.text
            launches.append(launch)
    return launches


def counters_of(trace):
    """The engine's counts by the names of COMPARED."""
    counts = dict.fromkeys(COMPARED, 0)
    for op in ("load", "store"):
        for what in ("requests", "sectors"):
            name = f"{op}_{what}"
            counts[f"{op} {what}"] = sum(getattr(a, name) for a in trace.arrays.values())
        for what in ("requests", "wavefronts", "conflicts"):
            name = f"{op}_{what}"
            counts[f"shared {op} {what}"] = sum(getattr(s, name) for s in trace.shared.values())
    return counts


@contextlib.contextmanager
def touched():
    """Note which pieces of global memory each launch touches.

    Yields a list: per launch, the sectors that are loaded, by block and in all, the sectors stored,
    and the pieces of DRAM that hold the loaded data.
    """
    launches = []

    class Counters(meter.Counters):
        def __init__(self, requests):
            super().__init__(requests)
            names = ("sectors by block", "sectors loaded", "sectors stored", "pieces loaded")
            self.places = {name: set() for name in names}
            launches.append(self.places)

        def count(self, array, offset, site, action):
            super().count(array, offset, site, action)
            if array.kind == "shared":
                return
            lanes = self.requests.lanes
            active = lanes.active()
            byte = lanes.full(offset)[active] * array.itemsize + array.alignment
            block = np.broadcast_to(np.arange(active.shape[1]), active.shape)[active]
            sector = np.concatenate([byte, byte + array.itemsize - 1]) // SECTOR
            if action == "load":
                self.note("sectors loaded", array, sector)
                self.note("pieces loaded", array, sector * SECTOR // PIECE)
                by_block = np.tile(block + lanes.first_block, 2) << 40 | sector
                self.note("sectors by block", array, by_block)
            elif action == "store":
                self.note("sectors stored", array, sector)

        def note(self, what, array, numbers):
            self.places[what].update((array.name, n) for n in np.unique(numbers).tolist())

    with mock.patch("numba_cuda_simulator.watch.Counters", Counters):
        yield launches


def machine_codes():
    """Facts of the machine code of each kernel of the lessons, by `label`.

    Returns
    -------
    dict of str to dict
        registers, bytes of code, and how many loads and stores of each width; empty where the
        compilers are not installed.
    """
    found = {}
    if not disassembler_available():
        return found
    for case in (case for case in CASES if case.kernel is None):
        for kernel, arguments in launched_by(case):
            name = label({"case": case.name, "kernel": kernel.py_func.__name__})
            code = compile_kernel(kernel, arguments, cc=(9, 0, "a"))
            found[name] = {"registers": code.registers, "bytes": 16 * len(code.instructions)}
            found[name] |= {
                op: count
                for op, count in sorted(code.counts.items())
                if re.match(r"(LDG|STG|LDS|STS)\.", op)
            }
    return found


def launched_by(case):
    """The kernels that a function of the package launches, with their arguments."""
    launched = []
    launch = arrays.launch

    def note(kernel, grid, block, *args, **options):
        launched.append((kernel, args))
        launch(kernel, grid, block, *args, **options)

    with mock.patch.object(arrays, "launch", note):
        case.call(*case.arguments())
    return launched


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


def measured_value(counters, name):
    """The hardware's counter of this name; None where there is none."""
    metrics = COMPARED[name]
    value = next((counters[n] for n in metrics if counters.get(n) is not None), None)
    if value and name.endswith("conflicts"):
        value -= waiting(counters, "ld" if "load" in name else "st")
    return value


def waiting(counters, short):
    """Wavefronts in which the pipe served something else: counted as conflicts, but not ours."""
    pipe, own = (
        counters.get(f"{PIPE}{short}.sum"),
        counters.get(f"smsp__sass_{WAVEFRONTS}{short}.sum"),
    )
    return pipe - own if pipe and own else 0


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
        for name in COMPARED:
            measured, counted = measured_value(hardware["counters"], name), launch["counters"][name]
            if not (measured or counted):
                continue
            if measured is None:
                verdict = "not measured"
            elif measured == counted:
                verdict = "yes"
            elif measured == launch["compiled"][name]:
                verdict = f"no: {launch['reason']}"
            else:
                verdict = "no"
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


def unexplained(rows):
    return [row for row in rows if row["equal"] == "no"]


def cache_rows(pairs, codes):
    """Bytes between the caches, which the engine does not model: a row for each launch."""
    rows = []
    for hardware, launch in pairs:
        counters, caches = hardware["counters"], launch["caches"]
        code = codes.get(label(launch), {}).get("bytes")
        read, pieces = counters.get(CACHES["DRAM bytes read"]), PIECE * caches["pieces loaded"]
        from_l2 = counters.get(CACHES["L2 sectors read by L1"])
        rows.append(
            {
                "kernel": label(launch),
                "loaded, all sectors": SECTOR * launch["counters"]["load sectors"],
                "each once per block": SECTOR * caches["sectors by block"],
                "L2 to L1": None if from_l2 is None else SECTOR * from_l2,
                "each 64 bytes once": pieces,
                "machine code": code,
                "DRAM read": read,
                "left over": None if None in (read, code) else read - pieces - code,
                "stored, each sector once": SECTOR * caches["sectors stored"],
                "DRAM written": counters.get(CACHES["DRAM bytes written"]),
            }
        )
    return rows


def flop_rows(launches):
    """Floating-point instructions, once per thread, of measured launches that have any."""
    rows = []
    for launch in launches:
        counts = {name: launch["counters"].get(metric) for name, metric in FLOPS.items()}
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
        f"{len(equal)} of {len(measured)} counters are equal, {len(explained)} differ by exactly "
        f"what the compilers change, {len(unexplained(rows))} otherwise"
    )


def record_of(measured, modelled, codes=None, **about):
    """The record, and what follows from its launches: DERIVED."""
    pairs, codes = pair(measured, modelled), codes or {}
    rows = compare(pairs)
    registers = {label(launch): hardware["counters"].get(REGISTERS) for hardware, launch in pairs}
    return {
        **about,
        "command": "python -m benchmarks microscope",
        "note": f"ncu's counters against the CPU engine's; {summary(rows)}",
        "waiting": sum(
            waiting(hardware["counters"], short) for hardware, _ in pairs for short in ("ld", "st")
        ),
        "rows": by_kernel(rows),
        "caches": cache_rows(pairs, codes),
        "flops": flop_rows(launch | {"counters": x["counters"]} for x, launch in pairs),
        "code": [
            {"kernel": name, "registers on the GPU": registers[name], **code}
            for name, code in codes.items()
            if name in registers
        ],
        "metrics": METRICS,
        "launches": [
            {
                "case": launch["case"],
                "kernel": launch["kernel"],
                "grid": launch["grid"],
                "block": launch["block"],
                "counters": [hardware["counters"].get(name) for name in METRICS],
            }
            for hardware, launch in pairs
        ],
    }


def by_kernel(rows):
    """The rows of `compare`, one per launch: {counter: [hardware, engine, verdict]}."""
    merged = {}
    for row in rows:
        cells = merged.setdefault(row["kernel"], {"kernel": row["kernel"]})
        cells[row["counter"]] = [row["hardware"], row["model"], row["equal"]]
    return list(merged.values())


def launches_of(record):
    """The launches of a record, as `parse_csv` returns them."""
    return [
        {
            "case": launch["case"],
            "kernel": launch["kernel"],
            "name": launch["kernel"],
            "grid": launch["grid"],
            "block": launch["block"],
            "counters": dict(zip(record["metrics"], launch["counters"], strict=True)),
        }
        for launch in record["launches"]
    ]


# ---------------------------------------------------------------- the page


def page_tables(record):
    """The tables of docs/microscope.md, as Markdown, by the name of their markers."""
    parts = [f"{record['machine']}, {record['date']}, `{record['command']}`. {record['note']}."]
    if record["waiting"]:
        parts.append(
            f"The pipe served shared memory in {record['waiting']} wavefronts more than the "
            "instructions took; its conflict counters are shown without them."
        )
    if record.get("unmeasured"):
        names = ", ".join(record["unmeasured"])
        parts.append(f"Written since, and waiting for a GPU: {names}.")
    parts.append(table(result_rows(record["rows"])))
    if record.get("refused"):
        names = ", ".join(f"`{name}`" for name in record["refused"])
        parts.append(f"Not to be had on this GPU: {names}.")
    # Of the small kernels the sums suffice; microscope.json has their rows.
    known = [row for row in record["caches"] if row["machine code"]] or record["caches"]
    return {
        "measured": "\n\n".join(parts),
        "reasons": table(reason_rows(record["rows"])),
        "code": table(every_column(record["code"])) if record["code"] else "",
        "caches": f"{cache_summary(record['caches'])}\n\n{table(every_column(known))}",
        "flops": table(record["flops"]) if record["flops"] else "",
    }


def result_rows(rows):
    """A column per counter: one number where both agree, else `hardware ≠ engine`."""
    shown = []
    for row in rows:
        cells = {"kernel": row["kernel"]}
        for name in (name for name in row if name != "kernel"):
            hardware, model, verdict = row[name]
            hardware = "?" if hardware is None else hardware
            mark = "**" if verdict == "no" else ""
            cells[name] = model if verdict == "yes" else f"{mark}{hardware} ≠ {model}{mark}"
        shown.append(cells)
    columns = ["kernel", *(c for c in COMPARED if any(c in cells for cells in shown))]
    return [{c: cells.get(c, "") for c in columns} for cells in shown]


def reason_rows(rows):
    """A row for each change that the compilers make, with its kernels."""
    kernels = {}
    for row in rows:
        for name in (name for name in row if name != "kernel"):
            verdict = row[name][2]
            if verdict.startswith("no: "):
                kernels.setdefault(verdict.removeprefix("no: "), {})[row["kernel"]] = None
    return [
        {"kernels": "; ".join(names), "what the compilers do": reason}
        for reason, names in kernels.items()
    ]


def every_column(rows):
    """The rows with all columns that any of them has, empty where one has none."""
    columns = dict.fromkeys(name for row in rows for name in row)
    shown = [{name: row.get(name) for name in columns} for row in rows]
    return [{name: "" if x is None else x for name, x in row.items()} for row in shown]


def cache_summary(rows):
    """How well two simple models explain the measurements."""
    left = [row["left over"] for row in rows if row["left over"] is not None]
    l1 = [(row["L2 to L1"], row["each once per block"]) for row in rows if row["L2 to L1"]]
    equal, less = sum(a == b for a, b in l1), sum(a < b for a, b in l1)
    sentence = (
        f"L2 delivered to the L1 caches each sector once per block in {equal} of {len(l1)} "
        f"launches, fewer in {less}."
    )
    if left:
        sentence += (
            f" Of the DRAM reads of {len(left)} launches, each piece of 64 bytes once and the "
            f"machine code once leave {min(left)} to {max(left)} bytes over."
        )
    return sentence


def write_page(record):
    if not PAGE.exists():
        return
    text = PAGE.read_text("utf-8")
    for name, body in page_tables(record).items():
        pattern = rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)"
        text = re.sub(pattern, lambda m, body=body: f"{m[1]}{body}\n{m[2]}", text, flags=re.DOTALL)
    write_whole(PAGE, text)


def report(record, folder):
    """Write microscope.json and the page; print the differences."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {name: x for name, x in record.items() if name not in DERIVED}
    write_whole(folder / "microscope.json", as_json(kept) + "\n")
    write_page(record)
    print(f"\nmicroscope · {record['machine']}\n{record['note']}")
    for row in record["rows"]:
        for name in (name for name in row if name != "kernel"):
            hardware, model, verdict = row[name]
            if verdict != "yes":
                print(f"  {row['kernel']}: {name}: hardware {hardware}, engine {model} ({verdict})")
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
    report(record_of(measured, model(), machine_codes(), **about), folder)


def compare_again(folder, printed=None):
    """Compare the engine as it is now with microscope.json, or with the output of ncu."""
    path = folder / "microscope.json"
    before = json.loads(path.read_text("utf-8")) if path.exists() else {}
    about = {
        key: before.get(key, default)
        for key, default in (("machine", machine()), ("date", ""), ("refused", []))
    }
    measured, modelled = parse_csv(printed) if printed else launches_of(before), model()
    if not printed:
        measured, modelled, about["unmeasured"] = in_both(measured, modelled)
    codes = machine_codes() or {row["kernel"]: row for row in before.get("code", [])}
    report(record_of(measured, modelled, codes, **about), folder)


def in_both(measured, modelled):
    """Return the launches of cases that both sides have, and the names of those not measured."""
    cases = {launch["case"] for launch in measured} & {launch["case"] for launch in modelled}
    missing = dict.fromkeys(x["case"] for x in modelled if x["case"] not in cases)
    return (
        [launch for launch in measured if launch["case"] in cases],
        [launch for launch in modelled if launch["case"] in cases],
        list(missing),
    )


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
        compare_again(options.out, options.csv and options.csv.read_text("utf-8"))
    else:
        try:
            measure(options.out)
        except NoCountersError as error:
            print(f"microscope: no hardware counters: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
