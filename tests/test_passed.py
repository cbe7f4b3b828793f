"""A lesson uses the learner's answer once it is passed, and not before."""

from pathlib import Path

from fa_numba.workbook import progress
from fa_numba.workbook.catalog import find_one
from fa_numba.workbook.passed import given, passed
from fa_numba.workbook.report import Check, Graded

ROOT = Path(__file__).parents[1]


def one_passed_check(exercise):
    return Graded(exercise, [Check("one behaviour", "passed")])


def a_workbook(tmp_path, source):
    """A checkout with one exercise, whose file is `source`."""
    name = find_one("ex21a", ROOT).name
    for folder in ("exercises", "solutions"):
        (tmp_path / folder).mkdir()
    (tmp_path / "solutions" / f"{name}.py").write_text('"""ex21a · A title\n"""\n')
    (tmp_path / "exercises" / f"{name}.py").write_text(source)
    return find_one("ex21a", tmp_path)


def test_none_until_it_is_passed(tmp_path):
    exercise = a_workbook(tmp_path, "def owner(rank):\n    return rank + 40\n")
    assert passed("ex21a", "owner", tmp_path) is None
    progress.record([one_passed_check(exercise)])
    assert passed("ex21a", "owner", tmp_path)(2) == 42


def test_none_after_a_change(tmp_path):
    exercise = a_workbook(tmp_path, "def owner(rank):\n    return rank\n")
    progress.record([one_passed_check(exercise)])
    exercise.stub.write_text("def owner(rank):\n    return 0\n")
    assert passed("ex21a", "owner", tmp_path) is None


def test_what_an_exercise_brings_along_needs_no_pass(tmp_path):
    exercise = a_workbook(tmp_path, "def broken(rank):\n    return rank + 1\n")
    assert given("ex21a", "broken", tmp_path)(1) == 2
    exercise.stub.write_text("def broken(rank):\n    return rank + 2\n")
    assert given("ex21a", "broken", tmp_path)(1) == 3
