"""Wrong answers fail and right ones pass: a sample of tests/wrong_answers, the same each time."""

import json
import sys
from pathlib import Path

import pytest
import wrong_answers
from cases import thorough

from fa_numba.workbook.catalog import all_exercises
from fa_numba.workbook.grading import explain

REPOSITORY = Path(__file__).parents[1]
EXERCISES = all_exercises(REPOSITORY)
EACH = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.short)
WRITTEN = [e for e in EXERCISES if wrong_answers.module_of(e)]
RIGHT = ("ex07a", "ex18b"), thorough(("ex17b", "ex12b", "ex20d"))  # all right variants of these


@pytest.mark.parametrize("which", ["WRONG", "RIGHT"])
def test_every_text_is_in_the_solution_once(which):
    for exercise in EXERCISES:
        found = wrong_answers.answers(exercise, which)
        names = [name for name, _ in found]
        assert len(set(names)) == len(names), f"{exercise.short}: two of {which} share a name"
        for name, source in found:
            compile(source, f"{exercise.short} {name}", "exec")
            assert source != wrong_answers.code_of(exercise), name


def test_each_file_belongs_to_an_exercise():
    shorts = {e.short for e in EXERCISES} | {"__init__", "__main__", "par"}
    assert not {p.stem for p in wrong_answers.FOLDER.glob("*.py")} - shorts


@pytest.fixture
def graded(tmp_path, warm_processes):
    """The verdicts that the script comes to."""

    def graded(*options):
        answer = tmp_path / "verdicts.json"
        command = [sys.executable, "-m", "tests.wrong_answers", f"--json={answer}", "--jobs=1"]
        run = warm_processes.run(
            [*command, *options], cwd=REPOSITORY, capture_output=True, text=True
        )
        assert answer.exists(), run.stdout + run.stderr
        return json.loads(answer.read_text(encoding="utf-8"))

    return graded


@pytest.mark.parametrize("first", [0, *map(thorough, range(1, 12))])
def test_a_sample_of_wrong_answers_is_caught(first, graded):
    some = WRITTEN[first::12]
    verdicts = graded("--kind=wrong", "--every=24", *(e.short for e in some))
    assert len(verdicts) >= len(some)
    missed = [f"{v['exercise']}: {v['name']}" for v in verdicts if not v["caught"]]
    assert not missed, missed
    failed = [v["report"] for v in verdicts if explain.NOT_COMPARED in v["report"]]
    assert not failed, failed


@pytest.mark.parametrize("exercises", RIGHT)
def test_right_answers_pass(exercises, graded):
    verdicts = graded("--kind=right", *exercises)
    rejected = {f"{v['exercise']}: {v['name']}": v["report"] for v in verdicts if v["caught"]}
    assert not rejected, rejected


def test_the_set_is_large_enough():
    numbers = {e.short: len(wrong_answers.answers(e, "WRONG")) for e in EXERCISES}
    assert sum(numbers.values()) >= 300
    assert all(n >= 8 for n in numbers.values()), numbers
    assert all(len(wrong_answers.answers(e, "RIGHT")) >= 2 for e in EXERCISES)
