"""The pytest plugin of ``exercises/conftest.py``: the `exercise` fixture, a report by behaviour.

A grader is a file of plain pytest functions. This plugin has the learner's file imported in a
process of its own, names each check by its docstring, reports "not started" if a function still
raises the stub's NotImplementedError, and shortens each failure to facts that help the learner.

pytest itself is the judge: it never imports the learner's file (see `grading`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import re
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from fa_numba.workbook import progress, stubs
from fa_numba.workbook.catalog import NAME, Exercise, course, find_root
from fa_numba.workbook.grading import factors, inside, launches, processes
from fa_numba.workbook.grading.answer import Answer
from fa_numba.workbook.grading.explain import causes_of, explain, is_not_written, left_over
from fa_numba.workbook.grading.factors import Evidence, only_where
from fa_numba.workbook.grading.files import read_answer
from fa_numba.workbook.grading.lifetime import die_with_parent
from fa_numba.workbook.grading.limits import limits_of
from fa_numba.workbook.grading.proxies import Module
from fa_numba.workbook.report import Check, Graded, Report, behaviour_of, says_little

__all__ = [
    "exercise", "pytest_addoption", "pytest_collection_finish", "pytest_configure",
    "pytest_deselected", "pytest_ignore_collect", "pytest_report_header",
    "pytest_report_teststatus", "pytest_runtest_call", "pytest_runtest_logreport",
    "pytest_runtest_makereport", "pytest_terminal_summary", "pytest_sessionfinish",
    "pytest_unconfigure",
]  # fmt: skip

BEFORE = pytest.StashKey[tuple]()  # the functions that the judge's replace
RESULTS = pytest.StashKey[dict]()
DESELECTED = pytest.StashKey[bool]()  # by -k, -m or another plugin: not all checks run
NOT_COMPILED = "not compiled: there is no compiler for GPU code here"
CONFIG = []  # of this session: pytest_runtest_logreport is not told


def pytest_addoption(parser):
    group = parser.getgroup("workbook")
    group.addoption(
        "--impl",
        default="exercises",
        help="the files to grade: exercises (yours), solutions, or a folder with such files",
    )
    group.addoption(
        "--gpu",
        action="store_true",
        help="run the checks' kernels on the GPU; traces use the CPU engine",
    )
    group.addoption(
        "--machine-code",
        action="store_true",
        help="every kernel that must compile does so down to machine code, for every target",
    )
    group.addoption("--grade-json", metavar="FILE", help="write the results to FILE as JSON")
    group.addoption("--ends-with-parent", action="store_true", help="for `fa-numba check`")


def pytest_configure(config):
    config.stash[RESULTS] = {}
    CONFIG[:] = [config]
    _exercise_of.cache_clear()  # of an earlier session in this process
    _is_untouched.cache_clear()
    option = config.option
    if option.ends_with_parent:
        die_with_parent()
    # Before any grader is imported.
    config.stash[BEFORE] = launches.install(to_machine_code=option.machine_code)
    in_process = inside.is_wanted()
    if not (
        option.collectonly or option.gpu or in_process or getattr(option, "numprocesses", None)
    ):
        processes.fork_server()  # imports Numba while pytest collects
    if option.tbstyle == "auto":  # --tb=short and the like bring pytest's own report back
        option.tbstyle = "no"
        option.reportchars = ""
    if option.impl != "solutions":
        config.addinivalue_line("filterwarnings", "ignore")  # a warning is no wrong answer
    if not in_process:  # a notebook's objects are its own
        # At its end pytest collects garbage five times: among the session's objects, not Numba's.
        gc.freeze()


def pytest_ignore_collect(collection_path, config):
    """Leave out the graders beside those that are asked for: pytest looks at all of a folder."""
    if (asked := _names_asked_for(tuple(config.args))) is None or collection_path.suffix != ".py":
        return None
    return collection_path.name not in asked or None


@functools.cache  # pytest asks for each file of the folder, once for each argument
def _names_asked_for(arguments):
    """Names of the files that pytest is to collect; None where folders are among them."""
    names = {Path(argument.partition("::")[0]).name for argument in arguments}
    return names if all(name.endswith(".py") for name in names) else None


def pytest_unconfigure(config):
    processes.close_fork_server()
    launches.uninstall(config.stash.get(BEFORE, None))


def pytest_report_header(config):
    return f"grading: {config.option.impl}   (-v shows every failure, --tb=short full tracebacks)"


@pytest.fixture(scope="module")
def exercise(request):
    """The exercise that this test file grades, imported from ``--impl`` in its own process."""
    answer = _answer_for(request.node, request.config)
    launches.tracing.answers.append(answer)
    try:
        answer.begin_check(None)
        yield Module(answer, path=[], name=answer.path.stem)
    finally:
        launches.tracing.answers.remove(answer)
        answer.stop()


def _answer_for(node, config):
    graded, option = _exercise_of(node.path), config.option
    path = _file_under_test(node, config)
    read_answer(path)  # raises BadFile
    kind = inside.InsideAnswer if inside.is_wanted() and not option.gpu else Answer
    return kind(
        path,
        graded.root,
        limits_of(graded.grader),
        gpu=option.gpu,
        strict=option.impl == "solutions",
        compiles="gpu_ready" in graded.grader.read_text(encoding="utf-8"),
        forbidden=[option.grade_json] if option.grade_json else [],
        reference=_stub(graded),
    )


@functools.cache
def _stub(graded):
    """The text that the learner was given, or None."""
    try:
        return stubs.read(graded).stub
    except (OSError, ValueError):
        return None


@functools.cache  # in a browser each look at a file takes milliseconds
def _exercise_of(path: Path) -> Exercise:
    """The exercise of a grader, in the learner's folder around the working directory if it has one.

    An installed grader serves every folder that `fa-numba init` has made.
    """
    root = path.parents[1]
    with contextlib.suppress(FileNotFoundError):
        here = find_root()
        root = here if course(here) == root else root
    return Exercise(path.stem.removeprefix("test_"), root)


@functools.cache
def _is_untouched(path: Path) -> bool:
    return stubs.is_untouched(read_answer(path))


def _file_under_test(node, config) -> Path:
    exercise = _exercise_of(node.path)
    impl = config.option.impl
    if impl in ("exercises", "solutions"):
        return exercise.stub if impl == "exercises" else exercise.solution
    return Path(config.invocation_params.dir, impl, f"{exercise.name}.py")


def _name(item) -> str:
    """The name of a check: its docstring's first line, and the parameters if there are any.

    A check of a table of behaviours, such as `graders.attention.HEADS`, has no docstring: its
    parameter is the name.
    """
    case = item.callspec.id if hasattr(item, "callspec") else None
    if case and not item.function.__doc__:
        return case
    doc = (item.function.__doc__ or item.originalname.removeprefix("test_")).strip()
    name = doc.splitlines()[0].rstrip(".")
    return f"{name} [{case}]" if case else name


def pytest_collection_finish(session):
    """Number the checks of each grader, to put reports from several workers in order."""
    by_file = {}
    for item in session.items:
        by_file.setdefault(item.path, []).append(item)
    for items in by_file.values():
        for number, item in enumerate(items):
            item.workbook_place = number, len(items)


def _answer_of(item) -> Answer | None:
    module = getattr(item, "funcargs", {}).get("exercise")
    return module._answer if isinstance(module, Module) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    item.judge_began = time.process_time()
    if (answer := _answer_of(item)) is not None:
        answer.never_written = False
        answer.begin_check(behaviour_of(_name(item)))
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if not NAME.fullmatch(item.path.stem.removeprefix("test_")):
        return report
    answer, path = _answer_of(item), _file_under_test(item, item.config)
    outcome, message = report.outcome, ""
    causes, where = [], ""
    if report.failed and is_not_written(call.excinfo.value, path):
        outcome = "not started"
        stub = _stub(_exercise_of(item.path))
        if stub is not None and (said := left_over(call.excinfo.value, read_answer(path), stub)):
            outcome, message = "failed", said
    elif report.failed:
        never_written = answer is not None and answer.never_written
        message = explain(call.excinfo.value, path, never_written=never_written)
        causes, where = causes_of(call.excinfo.value)
    elif report.skipped:
        message = call.excinfo.value.msg
    elif report.when != "call":
        return report
    elif answer is not None and answer.slow:
        report.outcome = outcome = "failed"
        message = answer.slow
    elif _is_untouched(path):
        # A stub can compile for a GPU; an untouched file has earned nothing all the same.
        report.outcome, outcome = "failed", "not started"
    elif answer is not None and not answer.compiled:
        report.outcome, outcome, message = "skipped", "skipped", NOT_COMPILED
        report.longrepr = str(item.path), 0, message
    report.not_started = outcome == "not started"
    output = answer.take_output() if answer is not None else ""
    check = Check(
        _name(item), outcome, message, _seconds(item, call, answer), output, causes, where
    )
    check.counts = answer.counts if answer is not None else {}
    place = getattr(item, "workbook_place", (0, 0))
    # pytest-xdist sends a report's attributes to the process that shows them.
    evidence = Evidence(reached=sorted(factors.reached(item.function)))
    evidence.traits = dict(answer.recorder.traits) if answer is not None else {}
    evidence.raised_in = factors.raised_in(call.excinfo.tb) if call.excinfo is not None else ""
    report.workbook = {"grader": str(item.path), "place": place, "check": asdict(check)}
    report.workbook["evidence"] = asdict(evidence)
    return report


def _seconds(item, call, answer):
    """Time of a check: of the judge's processor and of the answer, whatever else the machine does.

    The clock on the wall is used where a check has not come as far as that.
    """
    if call.when != "call" or answer is None:
        return round(call.duration, 3)
    return round(time.process_time() - item.judge_began + answer.spent, 3)


def pytest_runtest_logreport(report):
    said = getattr(report, "workbook", None)
    if said is None:
        return
    checks = CONFIG[0].stash[RESULTS].setdefault(_exercise_of(Path(said["grader"])), {})
    number, total = said["place"]
    if number not in checks or said["check"]["outcome"] == "failed":
        checks[number] = Check(**said["check"]), total, Evidence(**said["evidence"])


def pytest_report_teststatus(report, config):
    if getattr(report, "not_started", False):
        return "not started", "·", ("NOT STARTED", {"yellow": True})


def _graded(config) -> list[Graded]:
    return [
        _with_common_factor(e, [found for _, found in sorted(config.stash[RESULTS][e].items())])
        for e in sorted(config.stash[RESULTS], key=lambda e: e.name)
    ]


def _with_common_factor(exercise, found) -> Graded:
    """The checks of an exercise; the failing ones say what they have in common."""
    graded = Graded(exercise, [check for check, _, _ in found])
    first = graded.first_failure
    failed = [(c, e) for c, _, e in found if c.outcome == "failed" and not says_little(c)]
    failed.sort(key=lambda pair: pair[0] is not first)
    if failed and failed[0][0] is first:
        first.only_where = only_where(
            [e for _, e in failed],
            [e for c, _, e in found if c.outcome == "passed"],
            number=graded.count("failed"),
        )
    return graded


def pytest_terminal_summary(terminalreporter, config):
    if config.option.tbstyle != "no" or not (graded := _graded(config)):
        return
    writer = terminalreporter._tw
    learner, verbose = config.option.impl == "exercises", config.option.verbose > 0
    report = Report(graded, learner=learner, brief=not verbose, verbose=verbose)
    report.note = getattr(config, "workbook_note", "")
    width = min(writer.fullwidth, 110)
    terminalreporter.write("\n" + report.text(width=width, colour=writer.hasmarkup))


def pytest_deselected(items):
    if items:
        items[0].config.stash[DESELECTED] = True


def pytest_sessionfinish(session):
    config = session.config
    if hasattr(config, "workerinput"):  # of pytest-xdist: the process that started it reports
        return
    graded = _graded(config)
    if config.option.grade_json:
        data = [{"name": g.exercise.name, "checks": [asdict(c) for c in g.checks]} for g in graded]
        number = re.fullmatch(r"/dev/fd/(\d+)", config.option.grade_json)  # also without /dev/fd
        with open(int(number[1]) if number else config.option.grade_json, "w") as file:
            json.dump(data, file)
    if config.option.impl != "exercises":
        return
    results = config.stash[RESULTS]
    whole = not config.stash.get(DESELECTED, False)
    whole &= not any("::" in arg for arg in config.args)
    done = [g for g in graded if len(g.checks) == next(iter(results[g.exercise].values()))[1]]
    if whole and done:
        config.workbook_note = progress.record(done)
