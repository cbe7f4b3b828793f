"""Predictions: written down before the meter speaks, answered after it."""

import ast
import re
from pathlib import Path

import nbformat
import pytest

from fa_numba.workbook import grader, guesses
from fa_numba.workbook.guesses import EXACT, FAR, HALF, NEAR, Request, answer, guess

ROOT = Path(__file__).parents[1]
LOADS = {"guess": "07 · loads", "formula": 300, "meter": 300}


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """A workbook with an exercise of lesson 07, and somebody who reads."""
    for folder in ("solutions", "exercises"):
        (tmp_path / folder).mkdir()
    (tmp_path / "solutions/ex07a_x.py").write_text('"""ex07a · X"""\n')
    (tmp_path / "solutions/ex07b_x.py").write_text('"""ex07b · X"""\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(guesses, "can_ask", lambda: True)
    return tmp_path


def test_a_guess_is_kept_and_answered(reader, capsys):
    guess("07 · loads", 290)
    assert capsys.readouterr().out.startswith("07 · loads: your guess is 290")
    guess("07 · loads")
    assert "your guess is 290" in capsys.readouterr().out, "dots ask, and change nothing"
    shown = answer({**LOADS, "GPU": None}, then=grader.Note("more")).markdown
    assert "| loads | 290 | 300 | 300 | – | within 10 % |" in shown and shown.endswith("more")


def test_without_a_guess_it_asks_once(reader, capsys):
    guess("07 · loads", ...)
    assert "no guess yet" in capsys.readouterr().out
    asked = answer(LOADS, then=grader.Note("below"))
    assert isinstance(asked, Request) and "07 · loads" in asked.markdown
    assert "300" not in asked.markdown and "below" not in asked.markdown
    shown = answer(LOADS)
    assert not isinstance(shown, Request) and "| loads | – | 300 | 300 |" in shown.markdown
    guess("07 · loads", 300)
    assert "does not count" in capsys.readouterr().out
    assert guesses.summary() == "0 guesses answered: 1 not made"


def test_it_asks_for_what_is_missing_of_several(reader):
    guess("07 · loads", 300)
    asked = answer(LOADS, {"guess": "07 · stores", "meter": 7})
    assert "07 · stores" in asked.markdown and "07 · loads" not in asked.markdown
    shown = answer(LOADS, {"guess": "07 · stores", "meter": 7}).markdown
    assert "| loads | 300 | 300 | 300 | exact |" in shown and "| stores | – | – | 7 |" in shown


def test_where_nobody_reads_the_numbers_come_at_once(reader, monkeypatch):
    monkeypatch.setattr(guesses, "can_ask", lambda: False)
    guess("07 · loads", ...)
    assert "| 300 | 300 |" in answer(LOADS).markdown
    assert not (reader / ".progress.json").exists(), "a run by a program asks and keeps nothing"


def test_the_first_guess_can_be_changed_until_the_answer(reader):
    guess("07 · loads", 1)
    guess("07 · loads", 300)
    assert "exact" in answer(LOADS).markdown
    guess("07 · loads", 2)
    assert "| 300 | 300 | 300 | exact" in answer(LOADS).markdown


def test_status_says_how_good_they_were(reader):
    assert grader.status().guesses == "" and "guess" not in repr(grader.status())
    for name, value in (("07 a", 100), ("07 b", 109), ("07 c", 60), ("08 d", 1)):
        guess(name, value)
        answer({"guess": name, "meter": 100})
    everything = "4 guesses answered: 1 exact, 1 within 10 %, 1 within a factor of 2, 1 further off"
    assert everything in " ".join(repr(grader.status()).split())
    assert grader.status()._repr_markdown_().endswith(everything)
    assert grader.status("07").guesses.startswith("3 guesses")


@pytest.mark.parametrize(
    "value, truth, grade",
    [
        (300, 300.0, EXACT), (1 / 3, 0.333, NEAR), (109, 100, NEAR), (92, 100, NEAR),
        (51, 100, HALF), (199, 100, HALF), (201, 100, FAR), (-100, 100, FAR), (0, 100, FAR),
        ("The longest ", "the longest", EXACT), ("short", "long", FAR), ("100", 100, EXACT),
    ],
)  # fmt: skip
def test_grades(value, truth, grade):
    assert guesses.grade_of(value, truth) == grade


@pytest.mark.parametrize("row", [{"GPU": None}, {"formula": 4, "GPU": None}])
def test_a_number_that_is_not_recorded_judges_nobody(reader, row):
    guess("07 · times", 4)
    shown = answer({"guess": "07 · times", **row}).markdown
    assert "exact" not in shown and guesses.summary() == ""


@pytest.mark.parametrize("value", [None, [1], True, float("nan"), float("inf")])
def test_what_is_no_guess(reader, value):
    with pytest.raises((TypeError, ValueError), match="value must be"):
        guess("07 · loads", value)


def calls(path, name):
    """The names in calls of guess or answer in a lesson's cells, with the index of the cell."""
    found = []
    for index, cell in enumerate(nbformat.read(path, 4).cells):
        if cell.cell_type != "code" or name not in cell.source:
            continue
        if name == "guess":
            trees = [n for n in ast.walk(ast.parse(cell.source)) if isinstance(n, ast.Call)]
            found += [(ast.literal_eval(n.args[0]), index) for n in trees
                      if ast.unparse(n.func) == "guess"]  # fmt: skip
        else:
            found += [(x, index) for x in re.findall(r'"guess": "([^"]+)"', cell.source)]
    return found


def test_every_prediction_of_a_lesson_is_answered_below():
    numbers = set()
    for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")):
        made, answered = dict(calls(path, "guess")), dict(calls(path, '"guess": '))
        assert made.keys() == answered.keys(), path.name
        assert all(made[name] < answered[name] for name in made), path.name
        assert all(name.startswith(f"{path.name[:2]} ") for name in made), path.name
        numbers |= {path.name[:2]} if made else set()
    assert {"04", "05", "06", "07"} <= numbers
