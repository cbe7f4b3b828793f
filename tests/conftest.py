"""Fixtures of the tests."""

import gc
import importlib.util
import itertools
import json
import os
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

# One thread of BLAS for each of many workers: with one per core, 16 workers take twice the time.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# FA_NUMBA_TEST_GPUS=2: of two GPUs each worker sees one, the workers by turns.
if "PYTEST_XDIST_WORKER" in os.environ and "FA_NUMBA_TEST_GPUS" in os.environ:
    worker = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    os.environ["CUDA_VISIBLE_DEVICES"] = str(worker % int(os.environ["FA_NUMBA_TEST_GPUS"]))

# nbformat imports jsonschema, which builds 38 grammars for formats of text that no notebook has.
if "rfc3987_syntax" not in sys.modules:
    sys.modules["rfc3987_syntax"] = None

# A shell starts `make test &` with Ctrl-C ignored, and so would be every process of the tests.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import numpy as np
import pytest
from few_cases import mark_thorough
from warm_judges import WarmJudges

if "PYTEST_XDIST_WORKER" in os.environ and importlib.util.find_spec("threadpoolctl"):
    import threadpoolctl

    threadpoolctl.threadpool_limits(1)  # a plugin may have imported NumPy before this file

from fa_numba import simt
from fa_numba.runtime import arrays
from fa_numba.workbook import grader
from numba_cuda_simulator.without_numba.missing import NameMissingError

simt.options(compiled="never")  # no compiler in the middle of a test; engine/tests ask for it

# Collecting tests and compiling a kernel make so many objects that Python looks for garbage among
# them some 200 times, which took an eighth of the time: it does so less often.
gc.set_threshold(100_000, 20, 100)

# Tests of four seconds and more, without those by which `quick` knows a kernel, and the engine's.
# Each worker begins with some, so that none is left for the end; `quick` leaves them out.
LONG = re.compile(
    r"test_(wrong_answers|exercises)\.py|test_notebooks\.py::test_runs"
    r"|test_classroom\.py::test_(students|a_hanging)|test_workbook\.py::test_doctor_survives"
    r"|test_(handout|hostile_answers|tour)\.py|test_cpu\.py::test_files$"
    r"|test_bugs_of_others\.py::test_rows_that_see_no_key|test_compile_ahead\.py"
    r"|test_folder\.py::test_(the_wheel|an_answer_does)|test_without_numba\.py"
    r"|test_(tensor_core_(dropout|varlen)|flash_attn_(bwd_stored|mma|split|wide)|mla_decode_mma)"
    r"\.py::\w*_in_registers"
    r"|test_launch_limits\.py::test_what_is_declared|test_machine_code\.py::test_line_numbers"
    r"|test_hbm_traffic\.py::test_flash_attn_(bwd_registers|varlen)$"
    r"|test_drafts\.py::test_(two_tokens|guesses_that_are_drawn|two_thousand)"
    r"|test_serving\.py::test_ten_thousand|test_ranks_agree\.py::test_on_processes_with_mpi"
    r"|test_dropout\.py::test_no_dropout_costs|test_factors\.py::test_the_first_screen"
    r"|test_plots\.py::test_pictures|test_readme\.py::test_the_picture"
    r"|test_(bench_microscope|language_model_command)\.py|test_install\.py::test_an_environment"
    r"|test_environment\.py::test_(pytest_benchmark|what_the_tests)"
)

# Tests that compile kernels for a GPU, seconds each: to `quick` those of a file are one test.
COMPILES = re.compile(r"::\w*(_in_registers|budget|_fit$|cost)\w*$")

# Modules of pyproject.toml's extras, by the names under which they are imported.
OPTIONAL = frozenset(
    "IPython autograd cupy greenlet hatchling httpx hypothesis ipykernel ipywidgets jupytext"
    " matplotlib ml_dtypes mpi4py nbclient nbformat packaging rich starlette threadpoolctl torch"
    " uvicorn yaml z3".split()
)


def missing_module(error):
    """The optional module without which an ImportError was raised, or ""."""
    if not isinstance(error, ImportError):
        return ""
    name = error.name or ""
    if isinstance(error, NameMissingError) or name.startswith("numba.cuda"):
        # macOS, Python 3.15: Numba's own numba.cuda lacks names of numba-cuda
        name = "" if importlib.util.find_spec("numba_cuda") else "numba_cuda"
    return name if name.split(".")[0] in OPTIONAL | {"numba_cuda"} else ""


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Skip a test file that imports an optional module, itself or by a helper, that is missing."""
    report = yield
    if missing := missing_module(report.call.excinfo and report.call.excinfo.value.__cause__):
        report.outcome = "skipped"
        report.longrepr = str(collector.path), 1, f"Skipped: needs {missing}"
    # Of a folder each worker imports another part first. In a fresh checkout pytest rewrites the
    # asserts of a file before it is imported, and keeps the result: so no file is rewritten twice.
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    if isinstance(collector, pytest.Directory) and report.result:
        first = len(report.result) * worker // workers
        report.result = [*report.result[first:], *report.result[:first]]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Skip a test that imports an optional module as it runs, where that is missing."""
    report = yield
    if missing := missing_module(call.excinfo and call.excinfo.value):
        report.outcome = "skipped"
        report.longrepr = str(item.path), item.location[1] + 1, f"Skipped: needs {missing}"
    return report


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="a few cases of each test: `make quick`")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One more than there are cores: in a tenth of its time a worker waits for other processes."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" not in os.environ:
        return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else None


def pytest_configure(config):
    # An -m of the command line takes the place of that in pyproject.toml.
    if config.option.markexpr and "thorough" not in config.option.markexpr:
        config.option.markexpr = f"({config.option.markexpr}) and not thorough"
    if importlib.util.find_spec("hypothesis"):
        from hypothesis import settings

        # Without a deadline a busy machine fails no example; the same ones are drawn each time.
        settings.register_profile("tests", deadline=None, derandomize=True, database=None)
        settings.load_profile("tests")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: item.path)  # the same order in all workers
    mark_thorough(items)
    if config.getoption("--quick"):
        few = set(map(id, quick(items)))
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in few])
        items[:] = [item for item in items if id(item) in few]
    yield  # pytest leaves out what is not asked for, so that the number of items is known
    items[:] = long_ones_first(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)))


def long_ones_first(items, workers):
    """The order in which xdist's worksteal, a run of items for each worker, spreads LONG files."""
    long = [item for item in items if LONG.search(item.nodeid)]
    files = sorted({item.path for item in long})
    short = iter([item for item in items if not LONG.search(item.nodeid)])
    left = len(items)
    for worker in range(workers):
        left -= (run := left // (workers - worker))
        own = [item for item in long if files.index(item.path) % workers == worker]
        yield from own
        yield from itertools.islice(short, max(0, run - len(own)))
    yield from short


def quick(items):
    """Of each test that is not long the first case, of ten and more the last one; a few lessons.

    Of what `make test` runs. The lessons are the last ones of the parts of the table of contents.
    """
    families, lessons = {}, []
    for item in items:
        name = item.nodeid.partition("[")[0]
        if item.get_closest_marker("thorough"):
            continue
        if name.endswith("test_notebooks.py::test_runs_top_to_bottom"):
            lessons.append(item)
        elif not LONG.search(name):
            families.setdefault(COMPILES.sub("::", name), []).append(item)
    for cases in families.values():
        yield from cases[:: len(cases) - 1] if len(cases) >= 10 else cases[:1]
    contents = (Path(__file__).parents[1] / "docs" / "lessons.md").read_text("utf-8")
    for part in contents.split("\n## ")[1:]:
        last = max(re.findall(r"\[(\d\d) ·", part), default="")
        yield from [x for x in lessons if x.callspec.id[:2] <= last][-1:]


def pytest_collection_finish():
    """Modules and test cases stay: Python's garbage collector need not look through them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def checked():
    """Check the launches of the package's own functions for races and uninitialised reads."""
    with simt.options(package=True):
        yield


@pytest.fixture
def poisoned(monkeypatch):
    """New arrays hold NaN, in e4m3 too, so that a number that is not written shows."""
    empty = arrays.empty

    def full_of_nan(like, shape, dtype=np.float32):
        made = empty(like, shape, dtype)
        made[...] = np.nan if "float" in str(made.dtype) else 0x7F  # NaN of e4m3
        return made

    monkeypatch.setattr(arrays, "empty", full_of_nan)


@pytest.fixture(scope="session")
def warm_processes():
    judges = WarmJudges()
    yield judges
    judges.close()


@pytest.fixture
def warm_judges(warm_processes, monkeypatch):
    """`grader.grade` forks its judges from a process that has everything imported.

    Its value is called as `subprocess.run` is.
    """
    monkeypatch.setattr(grader, "subprocess", SimpleNamespace(run=warm_processes.run))
    return warm_processes.run


@pytest.fixture
def run_on_model(warm_processes):
    """Run a program of this folder, which uses `hopper_model`, with a case in JSON."""
    pytest.importorskip("numba_cuda", reason="needs numba-cuda")
    pytest.importorskip("greenlet", reason="threads of the model")

    def run(program, case):
        command = [sys.executable, Path(__file__).with_name(program), json.dumps(case)]
        done = warm_processes.run(command, cwd=".", env=os.environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr[-2000:]

    return run
