"""What ``exercises/conftest.py`` adds to pytest: the `exercise` fixture and a report by behaviour.

A grader is a file of plain pytest functions. This plugin imports the learner's file fresh, names
each check by its docstring, says "not started" for what still raises the stub's own
NotImplementedError, and shortens every failure to what the learner can act on.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import sys
import traceback
import warnings
from pathlib import Path

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.workbook import progress, stubs
from fa_numba.workbook.catalog import NAME, Exercise
from fa_numba.workbook.report import Check, Graded, Report

__all__ = [
    "exercise",
    "pytest_addoption",
    "pytest_configure",
    "pytest_report_header",
    "pytest_report_teststatus",
    "pytest_runtest_makereport",
    "pytest_terminal_summary",
    "pytest_sessionfinish",
]

RESULTS = pytest.StashKey[dict]()


def pytest_addoption(parser):
    group = parser.getgroup("workbook")
    group.addoption(
        "--impl",
        default="exercises",
        help="what to grade: exercises (yours), solutions, or a folder with files of those names",
    )
    group.addoption(
        "--gpu",
        action="store_true",
        help="launch on the GPU what the checks run; traces stay on the CPU engine",
    )
    group.addoption(
        "--machine-code",
        action="store_true",
        help="every kernel that must compile does so down to machine code, for every target",
    )
    group.addoption("--grade-json", metavar="FILE", help="write the results to FILE as JSON")


_run_on_engine = simt.run


def pytest_configure(config):
    config.stash[RESULTS] = {}
    if config.option.gpu:
        simt.run = _run_on_gpu  # before any grader is imported
    if config.option.machine_code:
        # The module, which its function of the same name hides in fa_numba.analysis.
        machine_code = importlib.import_module("fa_numba.analysis.machine_code")
        machine_code.gpu_ready = functools.partial(machine_code.gpu_ready, to_machine_code=True)
    if config.option.tbstyle == "auto":  # --tb=short and the like bring pytest's own report back
        config.option.tbstyle = "no"
        config.option.reportchars = ""
    if config.option.impl == "exercises":
        config.addinivalue_line("filterwarnings", "ignore")  # a warning is no wrong answer


def _run_on_gpu(kernel, grid, block, *args, shared_bytes=0, checked=True):
    """What `simt.run` does, on the GPU: Numba copies the NumPy arrays there and back."""
    if not checked:  # the package's own launch, for the meter's sake: nothing to grade
        return _run_on_engine(kernel, grid, block, *args, shared_bytes=shared_bytes, checked=False)
    copies = [np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x for x in args]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Numba's advice about copies and small grids
        kernel[grid, block, 0, shared_bytes](*copies)
    for array, copy in zip(args, copies, strict=True):
        if copy is not array and array.flags.writeable:
            array[...] = copy  # a strided view, which Numba cannot copy back


def pytest_report_header(config):
    return f"grading: {config.option.impl}   (--tb=short shows full tracebacks)"


@pytest.fixture(scope="module")
def exercise(request):
    """The exercise that this test file grades, imported fresh from ``--impl``."""
    path = _file_under_test(request.node, request.config)
    if not path.exists():
        short = path.stem.split("_", 1)[0]
        pytest.fail(f"{path.name} is not there: `fa-numba reset {short}` brings it back")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop(path.stem, None)


def _exercise_of(path: Path, config) -> Exercise:
    return Exercise(path.stem.removeprefix("test_"), path.parents[1])


def _file_under_test(node, config) -> Path:
    exercise = _exercise_of(node.path, config)
    impl = config.option.impl
    if impl in ("exercises", "solutions"):
        return exercise.root / impl / f"{exercise.name}.py"
    return Path(config.invocation_params.dir, impl, f"{exercise.name}.py")


def _behaviour(item) -> str:
    """The name of a check: its docstring's first line, and the parameters if there are any."""
    doc = (item.function.__doc__ or item.originalname.removeprefix("test_")).strip()
    name = doc.splitlines()[0].rstrip(".")
    return f"{name} [{item.callspec.id}]" if hasattr(item, "callspec") else name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if not NAME.fullmatch(item.path.stem.removeprefix("test_")):
        return report
    path = _file_under_test(item, item.config)
    outcome, message = report.outcome, ""
    if report.failed and _is_not_written(call.excinfo.value, path):
        outcome = "not started"
    elif report.failed:
        message = explain(call.excinfo.value, path)
    elif report.skipped:
        message = call.excinfo.value.msg
    elif report.when != "call":
        return report
    elif stubs.is_untouched(path.read_text(encoding="utf-8")):
        # A stub can compile for a GPU; an untouched file has earned nothing all the same.
        report.outcome, outcome = "failed", "not started"
    report.not_started = outcome == "not started"
    checks = item.config.stash[RESULTS].setdefault(_exercise_of(item.path, item.config), {})
    if item.nodeid not in checks or outcome == "failed":
        checks[item.nodeid] = Check(_behaviour(item), outcome, message, round(call.duration, 3))
    return report


def pytest_report_teststatus(report, config):
    if getattr(report, "not_started", False):
        return "not started", "·", ("NOT STARTED", {"yellow": True})


def _is_not_written(error, path) -> bool:
    short = path.stem.split("_", 1)[0]
    return isinstance(error, NotImplementedError) and str(error).startswith(f"{short}: ")


def explain(error: BaseException, path: Path) -> str:
    """What a learner can act on: the message, and the lines of `path` that it is about."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        where = f"line {error.lineno}: {(error.text or '').strip()}"
        return f"{path.name} does not import: {error.msg}\n  {where}"
    text = str(error).strip()
    if isinstance(error, AssertionError):
        # pytest appends its own account of the comparison; the grader's words are enough.
        text = re.split(r"^assert |\nassert ", text)[0].strip() or text or "the check failed"
    elif not isinstance(error, pytest.fail.Exception):
        text = f"{type(error).__name__}: {text}"
    if not hasattr(error, "sites"):  # the engine's own errors quote their lines already
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        text += "".join(f"\n  line {f.lineno}: {f.line}" for f in frames[-1:])
    return text


def _graded(config) -> list[Graded]:
    results = config.stash[RESULTS]
    return [Graded(e, list(results[e].values())) for e in sorted(results, key=lambda e: e.name)]


def pytest_terminal_summary(terminalreporter, config):
    if config.option.tbstyle != "no" or not (graded := _graded(config)):
        return
    writer = terminalreporter._tw
    report = Report(graded, learner=config.option.impl == "exercises", brief=True)
    width = min(writer.fullwidth, 110)
    terminalreporter.write("\n" + report.text(width=width, colour=writer.hasmarkup))


def pytest_sessionfinish(session):
    config = session.config
    graded = _graded(config)
    if config.option.grade_json:
        data = [{"name": g.exercise.name, "checks": [vars(c) for c in g.checks]} for g in graded]
        Path(config.option.grade_json).write_text(json.dumps(data), encoding="utf-8")
    whole = not (config.option.keyword or config.option.markexpr or config.option.maxfail)
    whole &= not any("::" in arg for arg in config.args)
    if config.option.impl == "exercises" and whole and graded:
        progress.record(graded)
