"""What is in the lessons: each says how long it takes, and the command lists all."""

import ast
import json
import re

import pytest

from fa_numba.workbook import cli, contents, stubs

CONTROLS = re.compile(r"(grade|show|guess|status)\(|import ")  # cells with nothing to understand
WORDS_PER_MINUTE, MINUTES_OF_A_CELL = 200, 1.5
# Guesses, checked with lessons 17, 24 and 25, which somebody who had not seen them worked through.
MINUTES_OF_A_KIND = {
    **{"fill a line": 7, "fill a loop": 10, "write": 12},
    **{"find the bug": 8, "beat a budget": 12, "predict": 7},
}


def estimated(lesson):
    """Minutes of each sitting: for its words, its code cells, and its exercises by their kinds."""
    minutes, exercises = [0.0], iter(lesson.exercises)
    for cell in json.loads(lesson.path.read_text("utf-8"))["cells"]:
        text, read = "".join(cell["source"]), ""
        if cell["cell_type"] == "markdown":
            read = text
            if text.startswith(contents.BREAK):
                minutes.append(0.0)
        elif text.startswith("grade("):
            exercise = stubs.read(next(exercises))
            minutes[-1] += MINUTES_OF_A_KIND[exercise.kind]
            read = ast.get_docstring(ast.parse(exercise.stub))
        elif not CONTROLS.match(text):
            minutes[-1] += MINUTES_OF_A_CELL
        minutes[-1] += len(read.split()) / WORDS_PER_MINUTE
    return minutes


def test_a_sitting_takes_at_most_90_minutes_as_the_head_of_its_lesson_says():
    every = contents.lessons()
    assert [lesson.number for lesson in every] == [f"{n:02}" for n in range(26)]
    assert all(lesson.exercises and lesson.title for lesson in every)
    for lesson in every:
        by_rule = estimated(lesson)
        assert len(lesson.sittings) == len(by_rule), (lesson.number, by_rule)
        for said, minutes in zip(lesson.sittings, by_rule, strict=True):
            assert 0 < said <= 90 and said % 5 == 0 and abs(said - minutes) <= 10, (
                lesson.number,
                by_rule,
            )


def test_the_head_of_a_lesson_names_the_section_after_its_break():
    for lesson in contents.lessons():
        cells = json.loads(lesson.path.read_text("utf-8"))["cells"]
        texts = ["".join(cell["source"]) for cell in cells]
        named = contents.MINUTES.search(texts[0])[3]
        breaks = [text for text in texts if text.startswith(contents.BREAK)]
        assert [text.splitlines()[2] for text in breaks] == [f"## {named}"] * (named is not None)


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
