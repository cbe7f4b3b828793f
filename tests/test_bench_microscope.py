"""benchmarks.bench_microscope: what ncu prints is read right, and set beside the right launch.

Its kernels run on the engine with the counts that one works out by hand, and compile for a GPU to
the memory instructions that they state, so that a difference on a GPU is one of the model.
"""

import functools
import json
import re

import numpy as np
import pytest

from benchmarks import bench_microscope as bench
from benchmarks.microscope_kernels import CASES
from fa_numba import simt
from fa_numba.analysis.machine_code import compile_kernel, compiler_available

BY_NAME = {case.name: case for case in CASES}
SMALL = [case for case in CASES if case.kernel is not None]
WARPS = 128  # of a small kernel: 4096 threads

# What ncu prints with --csv --page raw: a row of units, then one row per launch.
WIDE = """==PROF== Connected to process 123 (/usr/bin/python3.12)
==WARNING== Note: Running with unmodified GPU clocks.
==PROF== Profiling "copy" - 0: 0%....100% - 9 passes
==PROF== Disconnected from process 123
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",\
"Grid Size","Device","CC","device__attribute_architecture","dram__bytes_read.sum","load.sum",\
"l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum","smsp__x.ratio"
"","","","","","","","","","","","","Kbyte","","request",""
"0","123","python3.12","127.0.0.1","k::copy[abi:v1](Array<float, (int)1, C>)","1","7",\
"(128, 1, 1)","(32, 1, 1)","0","9.0","384","16.38","","1,024","0.5"
"1","123","python3.12","127.0.0.1","k::copy[abi:v1](Array<double, (int)1, C>)","1","7",\
"(128, 1, 1)","(32, 1, 1)","0","9.0","384","32","","128","n/a"
"""
LONG = """==PROF== Disconnected from process 123
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",\
"Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","123","python","h","copy(Array)","1","7","(128, 1, 1)","(32, 1, 1)","0","9.0","Command line",\
"dram__bytes_read.sum","byte","16,384"
"0","123","python","h","copy(Array)","1","7","(128, 1, 1)","(32, 1, 1)","0","9.0","Command line",\
"lts__t_bytes.sum","byte","(!) n/a"
"1","123","python","h","strided(Array)","1","7","(64, 2, 1)","(3, 1, 1)","0","9.0","Command line",\
"dram__bytes_read.sum","byte","0"
"""
REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"


def test_reads_one_row_per_launch():
    first, second = bench.parse_csv(WIDE)
    assert (first["grid"], first["block"]) == ((32, 1, 1), (128, 1, 1))
    assert "copy" in first["name"] and "double" in second["name"]
    want = {"dram__bytes_read.sum": 16380, REQUESTS: 1024, "smsp__x.ratio": 0.5}
    assert first["counters"] == want
    assert second["counters"] == {"dram__bytes_read.sum": 32000, REQUESTS: 128} | {
        "smsp__x.ratio": None
    }


def test_reads_one_row_per_metric():
    first, second = bench.parse_csv(LONG)
    assert first["counters"] == {"dram__bytes_read.sum": 16384, "lts__t_bytes.sum": None}
    assert (second["name"], second["block"]) == ("strided(Array)", (64, 2, 1))
    assert second["counters"] == {"dram__bytes_read.sum": 0}


def test_output_without_numbers_is_refused():
    with pytest.raises(ValueError, match="no CSV"):
        bench.parse_csv("==ERROR== ERR_NVGPUCTRPERM\n==WARNING== No kernels were profiled.\n")


@functools.cache
def modelled():
    return bench.model()


def as_measured(launch, **changes):
    """A launch as ncu would tell it if the engine were right."""
    metrics = {names[0]: launch["counters"][name] for name, names in bench.COMPARED.items()}
    name = f"somewhere::{launch['kernel']}[abi:v1](Array<float>)"
    counters = metrics | changes
    return {"name": name, "grid": launch["grid"], "block": launch["block"], "counters": counters}


def test_launches_are_paired_by_their_order():
    launches = modelled()
    measured = [as_measured(launch) for launch in launches]
    pairs = bench.pair(measured, launches)
    assert {row["equal"] for row in bench.compare(pairs)} == {"yes"}
    names = [bench.label(launch) for launch in launches]
    assert len(set(names)) == len(names) > len(CASES)


def test_launches_that_are_not_the_same_are_refused():
    launches = modelled()
    measured = [as_measured(launch) for launch in launches]
    with pytest.raises(ValueError, match="launches"):
        bench.pair(measured[:-1], launches)
    swapped = [measured[-1], *measured[1:-1], measured[0]]
    with pytest.raises(ValueError, match="launch 0 is copy"):
        bench.pair(swapped, launches)
    other_grid = [measured[0] | {"grid": (31, 1, 1)}, *measured[1:]]
    with pytest.raises(ValueError, match="31"):
        bench.pair(other_grid, launches)


def test_differences_are_shown_and_explained(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "PAGE", tmp_path / "page.md")
    bench.PAGE.write_text("above\n<!-- microscope:begin -->\nold\n<!-- microscope:end -->\nbelow\n")
    launches = modelled()
    merged = next(i for i, launch in enumerate(launches) if launch["differs"])
    measured = [as_measured(launch) for launch in launches]
    measured[0] = as_measured(launches[0], **{REQUESTS: 7})
    measured[1] = as_measured(launches[1], **{REQUESTS: None})
    measured[merged] = as_measured(launches[merged], **{REQUESTS: WARPS})
    about = {"machine": "a GPU", "date": "2026-01-01", "refused": ["lts__none.sum"]}
    record = bench.record_of(measured, launches, **about)
    verdicts = {(row["kernel"], row["counter"]): row["equal"] for row in record["rows"]}
    assert verdicts["copy", "load requests"] == "no"
    assert verdicts["copy int8", "load requests"] == "not measured"
    assert verdicts["same element twice", "load requests"] == "no: one load serves both uses"
    assert "1 differ where the kernel is made to differ, 1 elsewhere" in record["note"]

    bench.report(record, tmp_path)
    assert json.loads((tmp_path / "microscope.json").read_text()) == json.loads(json.dumps(record))
    page = bench.PAGE.read_text()
    assert page.startswith("above\n") and page.endswith("below\n") and "old" not in page
    assert f"| copy | **7 ≠ {WARPS}** | {4 * WARPS} |" in page
    assert "`lts__none.sum`" in page

    # The counters in the file are enough to compare again.
    assert bench.main(["--compare", "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "microscope.json").read_text())["rows"] == record["rows"]


def test_says_so_where_there_are_no_counters(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench.shutil, "which", lambda *args, **kwargs: None)
    assert bench.main(["--out", str(tmp_path)]) == 1
    assert "ncu is not installed" in capsys.readouterr().out

    denied = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n"
    monkeypatch.setattr(bench.shutil, "which", lambda *args, **kwargs: "ncu")
    monkeypatch.setattr(bench, "run", lambda command: (1, denied))
    assert bench.main(["--out", str(tmp_path)]) == 1
    assert "may not read the GPU's counters" in capsys.readouterr().out


def test_metrics_that_a_gpu_has_not_are_dropped_and_named(monkeypatch, tmp_path):
    refused = "launch__occupancy_limit_warps"
    asked = []

    def run(command):
        if "--query-metrics" in command:
            return 0, "".join(f"{m.partition('.')[0]}   Counter\n" for m in bench.METRICS[:-3])
        metrics = command[command.index("--metrics") + 1].split(",")
        asked.append(metrics)
        if refused in metrics:
            return 1, f"==ERROR== Failed to find metric {refused}\n"
        head = ["ID", "Kernel Name", "Block Size", "Grid Size", *metrics]
        rows = [head, [""] * len(head), ["0", "copy", "(128, 1, 1)", "(32, 1, 1)"] + ["1"] * 99]
        rows[2] = rows[2][: len(head)]
        return 0, "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)

    monkeypatch.setattr(bench, "run", run)
    read, missing = bench.choose_metrics("ncu", tmp_path / "log")
    assert missing == [refused]
    assert len(asked) == 2 and set(read) == set(bench.METRICS) - {refused}


# load requests, load sectors, store requests, store sectors: by hand, per warp
GLOBAL = {
    "copy": (1, 4, 1, 4),
    "copy int8": (1, 1, 1, 1),
    "copy int16": (1, 2, 1, 2),
    "copy float64": (1, 8, 1, 8),
    "strided by 2": (1, 8, 1, 4),
    "strided by 8": (1, 32, 1, 4),
    "strided by 32": (1, 32, 1, 4),
    "strided by 2, float64": (1, 16, 1, 8),
    "stored strided by 8": (1, 4, 1, 32),
    "broadcast": (1, 1, 1, 4),
    "one address per 4 threads": (1, 1, 1, 4),
    "misaligned by 1": (1, 5, 1, 4),
    "misaligned by 1, float64": (1, 9, 1, 8),
    "misaligned store": (1, 4, 1, 5),
    "copy of x[1:]": (1, 5, 1, 4),
    "backwards": (1, 4, 1, 4),
    "odd lanes": (1, 4, 1, 4),
    "transpose, naive": (1, 4, 1, 32),
    "transpose, padded tile": (1, 4, 1, 4),
    "multiply_add float32": (3, 12, 1, 4),
}
# shared wavefronts of a load, of a store; conflicts of a load, of a store: per warp
SHARED = {
    "transpose, shared tile": (32, 1, 31, 0),
    "transpose, padded tile": (1, 1, 0, 0),
    "shared, stride 1": (1, 1, 0, 0),
    "shared, stride 2": (2, 2, 1, 1),
    "shared, stride 8": (8, 8, 7, 7),
    "shared, stride 32": (32, 32, 31, 31),
    "shared, stride 33": (1, 1, 0, 0),
    "shared, 32 to a word": (1, 1, 0, 0),
    "shared, 128 to a word": (1, 1, 0, 0),
    "shared int8, stride 1": (1, 1, 0, 0),
    "shared float64, stride 1": (2, 2, 0, 0),
    "shared float64, stride 2": (4, 4, 2, 2),
    "shared float64, stride 16": (32, 32, 30, 30),
    "shared float64, half warps": (1, 1, 0, 0),
}


def counters(name):
    (launch,) = (launch for launch in modelled() if launch["case"] == name)
    return launch["counters"]


@pytest.mark.parametrize("name", GLOBAL)
def test_requests_and_sectors_by_hand(name):
    counted = counters(name)
    names = ("load requests", "load sectors", "store requests", "store sectors")
    assert tuple(counted[n] for n in names) == tuple(WARPS * n for n in GLOBAL[name])


@pytest.mark.parametrize("name", SHARED)
def test_wavefronts_and_conflicts_by_hand(name):
    counted = counters(name)
    names = [
        f"shared {op} {what}" for what in ("wavefronts", "conflicts") for op in ("load", "store")
    ]
    assert tuple(counted[n] for n in names) == tuple(WARPS * n for n in SHARED[name])


def test_warps_out_of_range_make_no_request():
    # 1000 of 4096 threads: 31 whole warps and 8 threads, 32 bytes, of another
    assert counters("tail")["load requests"] == 32
    assert counters("tail")["load sectors"] == 31 * 4 + 1
    # blocks of 48: 20 whole blocks of 2 warps (4 and 2 sectors), and 40 threads of another
    assert counters("tail, blocks of 48")["load requests"] == 21 * 2
    assert counters("tail, blocks of 48")["load sectors"] == 20 * 6 + 4 + 1


def test_the_trees_by_hand():
    blocks = 32
    # first the elements by 4 warps; then two loads a level by each warp with a thread at work:
    # 4 warps while width < 32, then 2, then 1; and the result
    divergent = counters("reduce, divergent")
    assert divergent["shared load requests"] == blocks * (2 * (5 * 4 + 2 + 1) + 1)
    assert divergent["shared load conflicts"] == 0
    # 64, 32, 16, ... neighbours: 2 warps, then 1
    sequential = counters("reduce, sequential")
    assert sequential["shared load requests"] == blocks * (2 * (2 + 6) + 1)
    assert sequential["shared load conflicts"] == 0
    # the same threads, 2 width apart: 4 words in the busiest bank, fewer at either end
    interleaved = counters("reduce, interleaved")
    assert interleaved["shared load requests"] == sequential["shared load requests"]
    ways = [2, 2, 4, 4, 4, 4, 2, 1]  # widths 1 (two warps), 2, 4, 8, 16, 32, 64
    assert interleaved["shared load conflicts"] == blocks * 2 * sum(n - 1 for n in ways)


def test_different_sectors_are_counted_once():
    by_case = {launch["case"]: launch["unique"] for launch in modelled()}
    assert by_case["copy"] == {"load": 512, "store": 512}
    assert by_case["copy of x[1:]"] == {"load": 513, "store": 512}
    assert by_case["strided by 32"] == {"load": 4096, "store": 512}
    assert by_case["broadcast"] == {"load": 4, "store": 512}
    assert by_case["backwards"] == {"load": 512, "store": 512}


def test_small_kernels_compute_what_they_say():
    for case in SMALL:
        with simt.options(package=True):
            args = case.arguments()
            case.call(*args)  # races, stray indices and unwritten reads raise
    x, y = BY_NAME["transpose, padded tile"].arguments()
    BY_NAME["transpose, padded tile"].call(x, y)
    np.testing.assert_array_equal(y, x.T)


def test_arguments_can_be_copied_to_a_gpu():
    """A copy of an argument, or of what it is a slice of, has the same layout there."""
    for case in CASES:
        for value in case.arguments():
            if isinstance(value, np.ndarray):
                base = value if value.base is None else value.base
                assert base.base is None and base.flags.c_contiguous
                assert value is base or (value.ndim == base.ndim == 1)


@pytest.mark.skipif(not compiler_available(), reason="needs NVVM and NVRTC")
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_compiles_to_the_accesses_that_it_states(case):
    code = compile_kernel(case.kernel, case.arguments(), cc=(9, 0, "a"))
    assert code.spill_bytes == code.local_bytes == 0
    assert "ld.local" not in code.ptx and "st.local" not in code.ptx
    for name, want in case.accesses.items():
        found = re.findall(rf"^\s*(?:@\S+\s+)?{re.escape(name)}[.\w]*\s", code.ptx, re.MULTILINE)
        assert want is None or len(found) == want, f"{len(found)} of {name}"


def test_the_record_is_of_this_engine():
    """After a change of the engine: `python -m benchmarks.bench_microscope --compare`."""
    path = bench.RESULTS / "microscope.json"
    if not path.exists():
        pytest.skip("nothing recorded")
    record = json.loads(path.read_text("utf-8"))
    pairs = bench.pair(record["launches"], modelled())
    assert bench.compare(pairs) == record["rows"]
