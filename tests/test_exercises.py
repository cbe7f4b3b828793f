"""The two-sided gate: every stub is red for the intended reason, every solution is green.

Stubs are generated afresh for these tests, so a learner's own work in exercises/ changes nothing
here. What is committed must be the generated stub to the letter; work not yet committed is skipped.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import grader_cases
import learner
import pytest
from cases import thorough

from fa_numba.analysis.machine_code import compiler_available
from fa_numba.workbook import par, stubs
from fa_numba.workbook.catalog import all_exercises
from fa_numba.workbook.grader import grade_all
from fa_numba.workbook.pytest_plugin import NOT_COMPILED

REPOSITORY = Path(__file__).parents[1]
EXERCISES = all_exercises(REPOSITORY)
EACH = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.short)
MAY_BE_SKIPPED = set() if compiler_available() else {NOT_COMPILED, "needs numba-cuda"}
GIVEN = re.compile(r"\b(is as it was given|are as they were)\b")
BARRIER = re.compile(r"cuda\.sync(threads|warp)\(")
WITH_BARRIERS = [e for e in EXERCISES if BARRIER.search(e.solution.read_text(encoding="utf-8"))]
COMPILED = [e for e in EXERCISES if "gpu_ready" in e.grader.read_text(encoding="utf-8")]
# What starts a process does so for a part of the exercises: that costs more than most of them.
FOURTH = pytest.mark.parametrize("fourth", range(4))
# `make test` takes one part of 16, CI's thorough run the others.
A_PART = pytest.mark.parametrize("part", [0, *map(thorough, range(1, 16))])
AT_LEAST_TEN = (
    *("ex06[ab]", "ex07[ab]", "ex08", "ex11[bc]", "ex12", "ex16c", "ex17[cd]", "ex18", "ex20[ab]"),
    *("ex21[cdg]", "ex23[abcdef]", "ex24[bc]", "ex25"),
)  # fmt: skip


def test_there_are_exercises():
    lessons = {e.lesson for e in EXERCISES}
    assert lessons == {f"{number:02}" for number in range(26)}
    assert all(sum(e.lesson == lesson for e in EXERCISES) >= 2 for lesson in lessons)
    assert len(WITH_BARRIERS) >= 12


def test_no_orphans():
    assert stubs.orphans(REPOSITORY) == []


def test_three_hints_and_a_debrief():
    def good(parsed):
        hints = sorted(parsed.hints) == [1, 2, 3] and all(parsed.hints.values())
        return hints and parsed.debrief and "###" not in parsed.stub

    assert not [e.short for e in EXERCISES if not good(stubs.read(e))]


def test_stubs_are_what_the_solutions_generate():
    drifted = {e.stub.name: stubs.state(e) for e in EXERCISES if stubs.state(e) != "pristine"}
    for exercise in EXERCISES:  # somebody is working on it: not drift
        if drifted.get(exercise.stub.name) == "changed" and is_being_worked_on(exercise.stub):
            del drifted[exercise.stub.name]
    assert not drifted, (
        "python -m fa_numba.workbook.stubs --write, with --force if one was edited by hand"
    )


def is_being_worked_on(path):
    """Whether the file differs from what is committed; outside a checkout, too."""
    git = ["git", "-C", str(REPOSITORY), "diff", "--quiet", "HEAD", "--", str(path)]
    return bool(subprocess.run(git, capture_output=True).returncode)


def test_titles_name_the_exercises():
    texts = {e.short: e.solution.read_text(encoding="utf-8") for e in EXERCISES}
    assert not [short for short, text in texts.items() if not text.startswith(f'"""{short} · ')]


GRADE_ALL = """
import dataclasses, json, sys
from fa_numba.workbook import catalog, grader
exercises = [e for e in catalog.all_exercises() if e.short in sys.argv[2:]]
report = grader.grade_all(exercises, impl=sys.argv[1])
checks = {g.exercise.name: [dataclasses.asdict(c) for c in g.checks] for g in report.graded}
print(json.dumps(checks))
"""


@A_PART
def test_every_stub_fails_because_nothing_is_written_yet(part, tmp_path):
    """In what `make learn` installs: in FA_NUMBA_LEARN_PYTHON, or with everything else hidden."""
    written = tmp_path / "stubs"
    written.mkdir()
    exercises = EXERCISES[part::16]
    for exercise in exercises:
        body = stubs.read(exercise).stub
        # Without its last line a stub no longer counts as untouched, and each check speaks for
        # itself. Compiling is the one thing that a body of `raise` can do.
        (written / exercise.stub.name).write_text(body[: body.rindex("# Stub ")], encoding="utf-8")
    env = dict(os.environ)
    if learner.PYTHON is None:
        env |= learner.environment(tmp_path / "site", learner.not_for_learners())
    names = [e.short for e in exercises]
    command = [learner.PYTHON or sys.executable, "-c", GRADE_ALL, str(written), *names]
    done = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    graded = json.loads(done.stdout)
    assert graded.keys() == {e.name for e in exercises}
    for name, checks in graded.items():
        wrong = {
            c["name"]: c["message"] or c["outcome"] for c in checks if c["outcome"] != "not started"
        }
        compiles = "passed", NOT_COMPILED
        wrong = {name: m for name, m in wrong.items() if not (m in compiles and "compile" in name)}
        # What is given, with its bug, is there already.
        wrong = {name: m for name, m in wrong.items() if not (m == "passed" and GIVEN.search(name))}
        assert not wrong, f"{name}: {wrong}"
        assert "not started" in {c["outcome"] for c in checks}


@FOURTH
def test_solutions_pass(fourth, monkeypatch, warm_judges, tmp_path):
    """The graders try the sizes that tests/grader_cases.py asks for."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p tests.grader_cases")  # of the graders' session
    monkeypatch.setenv(grader_cases.VARIABLE, str(tmp_path / "cases.json"))
    exercises = EXERCISES[fourth::4]
    report = grade_all(exercises, impl="solutions").graded
    assert len(report) == len(exercises)
    for graded in report:
        skipped = {c.message for c in graded.checks if c.outcome == "skipped"}
        assert graded.passed and skipped <= MAY_BE_SKIPPED, repr(graded)
        slow = {c.name: c.seconds for c in graded.checks if c.seconds > 5}
        assert not slow, f"checks over 5 s: {slow}"
        names = {c.name for c in graded.checks}
        assert len(names) == len(graded.checks), f"{graded.exercise.name}: two share a name"
        if known := par.known(graded.exercise):
            counted = {name: number for name, number in graded.counts.items() if number}
            assert counted == {name: number for name, (number, _) in known.items()}, (
                f"{graded.exercise.short}: python -m tests.wrong_answers.par"
            )
    assert sum("compile" in c.name for graded in report for c in graded.checks) >= 4
    cases = json.loads((tmp_path / "cases.json").read_text(encoding="utf-8"))
    left_out = {e.short: grader_cases.gaps(e, cases.get(e.short, [])) for e in exercises}
    assert not any(left_out.values()), left_out


@pytest.mark.thorough
def test_solutions_compile_to_machine_code(monkeypatch, warm_judges):
    """Where there is a compiler, every kernel that `test_solutions_pass` compiles to PTX."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "--machine-code -k compile")
    report = grade_all(COMPILED, impl="solutions").graded
    assert [g.exercise for g in report] == COMPILED and len(COMPILED) > 50
    assert all(g.passed for g in report), [repr(g) for g in report if not g.passed]


COLLECT = """
import pytest, sys, time
from fa_numba.workbook import mutants
mutants.import_graders()
begin = time.process_time()
status = pytest.main(["--collect-only", "-q", "exercises"])
print(time.process_time() - begin)
sys.exit(status)
"""


@pytest.fixture(scope="module")
def collection():
    """The names of all checks, and the CPU seconds it takes to collect them after all imports."""
    env = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # as grade() does
    command = [sys.executable, "-c", COLLECT]
    run = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    *names, seconds = run.stdout.splitlines()
    return names, float(seconds)


@pytest.mark.parametrize("exercises", AT_LEAST_TEN)
def test_at_least_ten_named_checks(exercises, collection):
    names = {line.split("[")[0] for line in collection[0]}
    assert sum(bool(re.search(rf"test_{exercises}.*::", name)) for name in names) >= 10


def test_collecting_the_graders_is_quick(collection):
    """No grader computes when it is imported. A busy machine slows compiling their text as much."""
    texts = [e.grader.read_text(encoding="utf-8") for e in EXERCISES]
    before = time.process_time()
    for text in texts:
        compile(text, "grader", "exec")
    assert collection[1] < 6 * (time.process_time() - before)


@A_PART
def test_any_deleted_barrier_is_caught_and_both_lines_named(part, tmp_path, warm_processes):
    exercises, answer = WITH_BARRIERS[part::16], tmp_path / "mutants.json"
    command = [sys.executable, "-m", "fa_numba.workbook.mutants", "--barriers"]
    command += [*(e.short for e in exercises), f"--json={answer}"]
    run = warm_processes.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert answer.exists(), run.stdout + run.stderr
    mutants = json.loads(answer.read_text())
    for exercise in exercises:
        assert mutants[exercise.name]
        for mutant in mutants[exercise.name]:
            where = f"{exercise.solution.name}:{mutant['line']}"
            assert mutant["caught"], f"{where}: deleting this barrier goes unnoticed"
            both_lines = re.search(r"race .*line \d+.*line \d+", mutant["report"])
            # The barrier of a kernel that is given, and that the learner is to leave as it is.
            left_alone = re.search(r"\w+ is to stay\b", mutant["report"])
            assert both_lines or left_alone, f"{where}: {mutant['report']}"


def test_a_sample_of_other_mistakes_is_caught(tmp_path, warm_processes):
    answer = tmp_path / "mutants.json"
    command = [sys.executable, "-m", "fa_numba.workbook.mutants", "ex00a", "ex07d"]
    command += ["--every=9", f"--json={answer}"]
    run = warm_processes.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    mutants = [m for some in json.loads(answer.read_text()).values() for m in some]
    assert len(mutants) >= 5
    assert sum(m["caught"] for m in mutants) >= 0.9 * len(mutants), run.stdout
