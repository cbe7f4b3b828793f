"""What is in the lessons: each says how long it takes, and the command lists all."""

import pytest

from fa_numba.workbook import cli, contents, stubs


def test_a_lesson_takes_at_most_90_minutes_as_its_head_says():
    every = contents.lessons()
    assert [lesson.number for lesson in every] == [f"{n:02}" for n in range(26)]
    assert not [x.number for x in every if not 0 < x.minutes <= 90 or x.minutes % 5]
    assert all(lesson.exercises and lesson.title for lesson in every)


def test_a_kind_is_one_of_six():
    exercise = contents.lessons()[0].exercises[1]
    assert stubs.read(exercise).kind == "find the bug" and "KIND" not in stubs.read(exercise).stub
    text = exercise.solution.read_text(encoding="utf-8")
    with pytest.raises(stubs.SolutionError, match="KIND is one of fill a line, .*find it"):
        stubs.parse(text.replace("KIND: find the bug", "KIND: find it"), exercise.name)


def test_the_command_lists_all_lessons(capsys):
    assert cli.main(["lessons"]) == 0
    out = capsys.readouterr().out
    assert "Safe softmax" in out and f"{sum(x.minutes for x in contents.lessons())}" in out
    kinds = sum((lesson.kinds() for lesson in contents.lessons()), start=contents.Counter())
    assert f"/{kinds.total()}" in out and f"{kinds['find the bug']} find" in out
