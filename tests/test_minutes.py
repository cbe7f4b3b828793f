"""Each lesson says how long it takes, and takes at most 90 minutes."""

import json
from pathlib import Path

import nbformat
import pytest

from fa_numba.workbook import catalog, cli, minutes, notebooks, stubs
from fa_numba.workbook.minutes import Minutes

ROOT = Path(__file__).parents[1]
LESSONS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def printed(path):
    return int(minutes.LINE.search(nbformat.read(path, 4).cells[0].source)[1])


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_the_number_at_the_head_is_the_computed_one(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert printed(path) == minutes.of_cells(cells, ROOT).total
    assert "".join(cells[0]["source"]).startswith("# "), "below the heading"


def test_at_most_90_minutes():
    assert minutes.LIMIT == 90
    longer = {path.stem: printed(path) for path in LESSONS if printed(path) > minutes.LIMIT}
    assert not longer, "too long: split it, or shorten it"


@pytest.fixture
def exercise(tmp_path, monkeypatch):
    for folder in ("solutions", "exercises", "notebooks"):
        (tmp_path / folder).mkdir()
    (tmp_path / "solutions/ex99a_x.py").write_text(
        '''"""ex99a · X"""
### KIND: find the bug
### HINT 1: x


def given(x):
    y = x + 2
    return y


def f(x):
    ### BEGIN SOLUTION
    # a comment
    y = x + 1

    return y
    ### END SOLUTION
'''
    )
    monkeypatch.chdir(tmp_path)
    return catalog.find_one("ex99a")


def lesson(words=240, code_lines=30):
    """A lesson with these numbers of words, below its title, and lines of code."""
    new = nbformat.v4
    code = "\n\n".join(["x = 1"] * (code_lines - 1) + ['grade("ex99a")'])
    cells = [
        new.new_markdown_cell("# 99 · Title\n\n" + "word " * (words - 4)),
        new.new_code_cell(code),
    ]
    return nbformat.writes(new.new_notebook(cells=cells))


def test_the_formula(exercise):
    assert minutes.solution_lines(exercise) == 1, "`return y` is given, a comment is no code"
    found = minutes.of_cells(nbformat.reads(lesson(), 4).cells)
    assert found == Minutes(240, 30, (1,))
    assert (found.reading, found.code, found.exercises, found.total) == (2, 2, 5, 9)
    assert found.line == "*About 9 minutes: 2 to read, 2 for the code, 5 for 1 exercise.*"
    assert Minutes(240, 30, ()).line == "*About 4 minutes: 2 to read, 2 for the code.*"


def test_lines_of_the_exercise_that_it_starts_from_are_not_written_again(exercise):
    later = exercise.root / "solutions" / "ex99b_y.py"
    text = exercise.solution.read_text().replace("ex99a", "ex99b")
    text = text.replace("    y = x + 1\n", "    y = x + 1  # as before\n    z = 3 * y\n")
    later.write_text(text.replace("find the bug", "write"))
    assert minutes.solution_lines(catalog.find_one("ex99b")) == 2
    later.write_text(later.read_text().replace("### HINT", "### FROM: ex99a\n### HINT"))
    found = catalog.find_one("ex99b")
    assert stubs.read(found).start == "ex99a" and "FROM" not in stubs.read(found).stub
    assert minutes.solution_lines(found) == 1, "z = 3 * y"
    assert stubs.read(exercise).start is None


def test_the_notebook_tool_keeps_the_sentence_up_to_date(exercise):
    once = notebooks.canonical(lesson(), lesson=True)
    first = nbformat.reads(once, 4).cells[0].source
    assert first.startswith("# 99 · Title\n\n*About 9 minutes: ")
    assert notebooks.canonical(once, lesson=True) == once, "its own words do not count"
    stale = once.replace("About 9", "About 8")
    assert notebooks.canonical(stale, lesson=True) == once
    assert "About" not in notebooks.canonical(lesson())


def test_a_copy_without_solutions_keeps_the_sentence(exercise):
    once = notebooks.canonical(lesson(), lesson=True)
    bundle = {exercise.name: {"stub": exercise.text, "hints": {}, "debrief": ""}}
    (exercise.root / catalog.BUNDLE).write_text(json.dumps(bundle))
    exercise.solution.unlink()
    assert notebooks.canonical(once, lesson=True) == once
    assert stubs.read(exercise).kind == "write"


def test_a_kind_is_one_of_six(exercise):
    assert stubs.read(exercise).kind == "find the bug" and "KIND" not in stubs.read(exercise).stub
    text = exercise.solution.read_text().replace("KIND: find the bug", "KIND: find it")
    with pytest.raises(stubs.SolutionError, match="line 2: KIND is one of fill a line, .*find it"):
        stubs.parse(text, exercise.name)


def test_the_command_lists_all_lessons(exercise, capsys):
    path = exercise.root / "notebooks" / "99_title.ipynb"
    path.write_text(notebooks.canonical(lesson(), lesson=True), encoding="utf-8")
    (row, total) = minutes.lessons().rows
    assert row == ("99", "Title", "9", "1 find the bug", "0/1")
    assert total == ("all", "", "9", "1 find the bug", "0/1")
    assert cli.main(["lessons"]) == 0 and "1 find the bug" in capsys.readouterr().out
