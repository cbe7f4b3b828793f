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
from benchmarks.microscope_reasons import REASONS
from fa_numba import simt
from fa_numba.analysis.machine_code import (
    compile_kernel,
    compiler_available,
    disassembler_available,
)

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
    """A launch as ncu would tell it if the engine, and its reasons, were right."""
    metrics = {names[0]: launch["compiled"][name] for name, names in bench.COMPARED.items()}
    name = f"somewhere::{launch['kernel']}[abi:v1](Array<float>)"
    counters = metrics | changes
    return {"name": name, "grid": launch["grid"], "block": launch["block"], "counters": counters}


def test_launches_are_paired_by_their_order():
    launches = modelled()
    measured = [as_measured(launch) for launch in launches]
    pairs = bench.pair(measured, launches)
    rows = bench.compare(pairs)
    assert not bench.unexplained(rows)
    assert {row["kernel"] for row in rows if row["equal"] != "yes"} == set(REASONS)
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


PAGE = "".join(
    f"{name}\n<!-- {name}:begin -->\nold\n<!-- {name}:end -->\n"
    for name in ("measured", "reasons", "code", "caches", "flops")
)


def test_differences_are_shown_and_explained(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(bench, "machine_codes", dict)
    bench.PAGE.write_text(PAGE)
    launches = modelled()
    measured = [as_measured(launch) for launch in launches]
    measured[0] = as_measured(launches[0], **{REQUESTS: 7})
    measured[1] = as_measured(launches[1], **{REQUESTS: None})
    about = {"machine": "a GPU", "date": "2026-01-01", "refused": ["lts__none.sum"]}
    record = bench.record_of(measured, launches, **about)
    verdicts = {row["kernel"]: {name: row[name][-1] for name in row} for row in record["rows"]}
    assert verdicts["copy"]["load requests"] == "no"
    assert verdicts["copy int8"]["load requests"] == "not measured"
    assert verdicts["same element twice"]["load requests"] == "no: one load serves both uses"
    assert record["note"].endswith("by exactly what the compilers change, 1 otherwise")

    bench.report(record, tmp_path)
    kept = json.loads((tmp_path / "microscope.json").read_text())
    assert kept == json.loads(json.dumps({x: record[x] for x in kept}))
    page = bench.PAGE.read_text()
    assert page.startswith("measured\n<!-- measured:begin -->\na GPU, ") and "old" not in page
    assert f"| copy | **7 ≠ {WARPS}** | {4 * WARPS} |" in page
    assert f"| same element twice | {WARPS} ≠ {2 * WARPS} |" in page
    assert "| same element twice | one load serves both uses |" in page
    assert "| four neighbours; four neighbours, for 2 threads |" in page
    assert "`lts__none.sum`" in page

    # The counters in the file are enough to compare again.
    assert bench.main(["--compare", "--out", str(tmp_path)]) == 0
    again = json.loads((tmp_path / "microscope.json").read_text())
    assert again["rows"] == record["rows"] and again["unmeasured"] == []

    # Cases that are new since wait for a GPU.
    record["launches"] = record["launches"][1:]
    (tmp_path / "microscope.json").write_text(json.dumps(record))
    assert bench.main(["--compare", "--out", str(tmp_path)]) == 0
    again = json.loads((tmp_path / "microscope.json").read_text())
    assert again["rows"] == record["rows"][1:] and again["unmeasured"] == ["copy"]
    assert "waiting for a GPU: copy." in bench.PAGE.read_text()


def test_what_else_is_in_the_pipe_is_no_conflict():
    """Wavefronts beyond those of the instructions, which ncu counts as conflicts, are taken off."""
    names = bench.COMPARED["shared load wavefronts"] + bench.COMPARED["shared load conflicts"]
    counters = dict(zip(names, (20, 23, 8), strict=True))
    assert bench.measured_value(counters, "shared load wavefronts") == 20
    assert bench.measured_value(counters, "shared load conflicts") == 5
    assert bench.measured_value({names[1]: 23, names[2]: 8}, "shared load conflicts") == 8


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
    refused = "launch__registers_per_thread"
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


def counters(name):
    (launch,) = (launch for launch in modelled() if launch["case"] == name)
    return launch["counters"]


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


def test_what_is_touched_is_counted_once():
    """By hand: sectors loaded per block and in all, pieces of 64 bytes, sectors stored."""
    names = ("sectors by block", "sectors loaded", "pieces loaded", "sectors stored")
    for case, want in {
        "copy": (512, 512, 256, 512),
        "copy of x[1:]": (513 + 31, 513, 257, 512),
        "strided by 32": (4096, 4096, 4096, 512),
        "broadcast": (32, 4, 2, 512),
        "backwards": (512, 512, 256, 512),
        "shared, random": (1024, 1024, 512, 512),
        "odd lanes": (512, 512, 256, 512),
    }.items():
        (launch,) = (launch for launch in modelled() if launch["case"] == case)
        assert tuple(launch["caches"][name] for name in names) == want, case


def test_twins_of_what_the_compilers_change():
    """Each reason, in a small kernel, and one that computes the same without its cause."""
    compiled = {launch["case"]: launch["compiled"] for launch in modelled()}
    # a quarter as many requests; 16 bytes are served by quarters, by halves in pairs
    wide, narrow = compiled["four neighbours"], compiled["four neighbours, rows of 5"]
    assert wide["shared load requests"] == WARPS and narrow["shared load requests"] == 4 * WARPS
    assert wide["shared load wavefronts"] == narrow["shared load wavefronts"] == 4 * WARPS
    assert compiled["four neighbours, for 2 threads"]["shared load wavefronts"] == 2 * WARPS
    assert compiled["rows"] == compiled["rows in fours"]
    # 32 rows; in each, 12 whole warps and one that goes 4 + 3 times instead of 4
    assert compiled["rows"]["load requests"] == 32 * (12 + 7)
    assert compiled["guard after load"] == compiled["guard before load"]
    assert compiled["guard after load"]["shared load requests"] == 32


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


def stored():
    path = bench.RESULTS / "microscope.json"
    if not path.exists():
        pytest.skip("nothing recorded")
    return json.loads(path.read_text("utf-8"))


def test_the_record_is_of_this_engine_and_leaves_nothing_unexplained():
    """After a change of the engine: `python -m benchmarks.bench_microscope --compare`."""
    record = stored()
    *both, unmeasured = bench.in_both(bench.launches_of(record), modelled())
    rows = bench.compare(bench.pair(*both))
    assert bench.by_kernel(rows) == record["rows"]
    assert unmeasured == record["unmeasured"]
    assert not bench.unexplained(rows)
    assert len(rows) >= 500 and sum(row["equal"] == "yes" for row in rows) >= 0.9 * len(rows)


@functools.cache
def complete():
    """The record with what follows from its launches."""
    record = stored()
    codes = {row["kernel"]: row for row in record["code"]}
    return record | bench.record_of(bench.launches_of(record), modelled(), codes)


def test_the_page_shows_the_record():
    page = bench.PAGE.read_text("utf-8")
    for name, body in bench.page_tables(complete()).items():
        assert f"<!-- {name}:begin -->\n{body}\n<!-- {name}:end -->" in page


def test_dram_reads_are_explained():
    """Each 64-byte piece once, the machine code once, and 2 to 4 KB that every launch needs."""
    left = [row["left over"] for row in complete()["caches"] if row["left over"] is not None]
    assert len(left) >= 17 and 2000 <= min(left) <= max(left) <= 4000


def test_the_gpu_ran_the_code_that_was_read():
    """ptxas gave the kernels as many registers here as on the GPU."""
    for row in stored()["code"]:
        assert row["registers"] == row["registers on the GPU"], row["kernel"]


def test_reasons_are_in_the_machine_code():
    """Loads of 16 bytes; in each unrolled loop one load for the excess turns, and four."""
    code = {row["kernel"]: row for row in stored()["code"]}
    head_dim, block_n = 32, 16
    for name in (name for name in REASONS if name.startswith("flash_attn")):
        assert code[name]["LDS.128"] == head_dim // 4 + block_n // 4
    assert code["online_softmax"]["LDS.128"] == 2 and "LDS.32" not in code["online_softmax"]
    for name, loops in {"naive_softmax": 2, "safe_softmax": 3, "online_softmax": 2}.items():
        assert (code[name]["LDG.32"], code[name]["STG.32"]) == (5 * loops, 5)
    unchanged = [name for name in code if name not in REASONS]
    assert unchanged and not any("LDS.128" in code[name] for name in unchanged)


@pytest.mark.skipif(not disassembler_available(), reason="needs ptxas and nvdisasm")
@pytest.mark.parametrize("name, wide, narrow", [("naive_attn", 2, 8), ("naive_attn, causal", 2, 9)])
def test_scores_leave_before_the_last_loads(name, wide, narrow):
    kernel, arguments = bench.launched_by(BY_NAME[name])[0]
    code = compile_kernel(kernel, arguments, cc=(9, 0, "a")).instructions
    first_exit = next(i for i, x in enumerate(code) if x.mnemonic == "EXIT")
    loads = [x.label for x in code[first_exit:] if x.mnemonic == "LDS"]
    assert (loads.count("LDS.128"), loads.count("LDS.32")) == (wide, narrow)
