"""The learner's own copies of the lessons."""

import json
import subprocess
from pathlib import Path

import pytest

from fa_numba.workbook import lessons

ROOT = Path(__file__).parents[1]


def notebook(*texts, output=""):
    cells = [
        {
            "cell_type": "code",
            "source": [text],
            "outputs": [{"output_type": "stream", "text": output}] if output else [],
        }
        for text in texts
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "00_first.ipynb").write_text(notebook("a = 1"), encoding="utf-8")
    (tmp_path / "notebooks" / "compiled.json").write_text("{}", encoding="utf-8")
    return tmp_path


def original(checkout, text=None):
    path = checkout / "notebooks" / "00_first.ipynb"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8")


def copy(checkout, text=None):
    path = checkout / "lessons" / "00_first.ipynb"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8")


def backups(checkout):
    return [p.read_text(encoding="utf-8") for p in (checkout / "lessons").glob("backup/*.ipynb")]


def test_first_time_copies_lessons_and_nothing_else(checkout):
    (said,) = lessons.update(checkout)
    assert "00_first.ipynb: copied" in said and copy(checkout) == original(checkout)
    names = {p.name for p in (checkout / "lessons").iterdir()}
    assert names == {"00_first.ipynb", ".originals"}
    assert lessons.update(checkout) == []


def test_a_lesson_that_ran_stays_with_its_outputs(checkout):
    lessons.update(checkout)
    ran = copy(checkout, notebook("a = 1", output="1"))
    assert lessons.update(checkout) == [] and copy(checkout) == ran


def test_a_changed_copy_stays_while_the_original_does(checkout):
    lessons.update(checkout)
    mine = copy(checkout, notebook("a = 2"))
    assert lessons.update(checkout) == [] and copy(checkout) == mine and not backups(checkout)


@pytest.mark.parametrize("output", ["", "1"])
def test_an_unchanged_copy_follows_the_original(checkout, output):
    lessons.update(checkout)
    copy(checkout, notebook("a = 1", " ", output=output))  # an empty cell is no change either
    new = original(checkout, notebook("a = 3"))
    (said,) = lessons.update(checkout)
    assert "up to date" in said and copy(checkout) == new and not backups(checkout)


def test_changed_by_both_keeps_a_backup_and_says_so(checkout):
    lessons.update(checkout)
    mine = copy(checkout, notebook("a = 2"))
    new = original(checkout, notebook("a = 3"))
    (said,) = lessons.update(checkout)
    assert copy(checkout) == new and backups(checkout) == [mine]
    assert "lessons/backup/00_first." in said
    assert lessons.update(checkout) == [] and backups(checkout) == [mine]


def test_changed_by_both_in_the_same_way_is_no_quarrel(checkout):
    lessons.update(checkout)
    copy(checkout, notebook("a = 3", output="3"))
    original(checkout, notebook("a = 3"))
    assert lessons.update(checkout) == [] and "3" in copy(checkout) and not backups(checkout)
    original(checkout, notebook("a = 4"))
    (said,) = lessons.update(checkout)
    assert "up to date" in said


def test_a_copy_that_is_no_notebook_any_more_is_kept(checkout):
    lessons.update(checkout)
    copy(checkout, "half a fi")
    assert lessons.update(checkout) == []
    original(checkout, notebook("a = 3"))
    (said,) = lessons.update(checkout)
    assert backups(checkout) == ["half a fi"] and "backup" in said


def test_a_copy_of_unknown_origin_is_kept(checkout):
    (checkout / "lessons").mkdir()
    copy(checkout, notebook("a = 2"))
    lessons.update(checkout)
    assert backups(checkout) == [notebook("a = 2")]


def test_git_does_not_see_the_copies():
    command = ["git", "check-ignore", "-q", "lessons/00_first_kernels.ipynb"]
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    assert subprocess.run(command, cwd=ROOT).returncode == 0
