"""A workbook with one pristine exercise, for tests of the commands."""

import shutil
from pathlib import Path

from fa_numba.workbook import catalog, stubs

REPOSITORY = Path(__file__).parents[1]


def make_small_workbook(root, monkeypatch, solution, grader):
    """Make ex99a in `root`, the working directory from now on; return the exercise."""
    for folder in ("solutions", "exercises"):
        (root / folder).mkdir()
    (root / "solutions/ex99a_double.py").write_text(solution)
    (root / "exercises/test_ex99a_double.py").write_text(grader)
    shutil.copy(REPOSITORY / "exercises/conftest.py", root / "exercises")
    monkeypatch.chdir(root)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    exercise = catalog.find_one("ex99a")
    stubs.write(exercise)
    return exercise
