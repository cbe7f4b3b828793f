"""`fa-numba init` and `fa-numba update`: a folder to work in, by the package alone."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from fa_numba.workbook import catalog, cli, folder, grader, progress, stubs

ROOT = Path(__file__).parents[1]
SOLUTION = '''"""ex99{x} · A function"""


def double(x):
    """Twice x."""
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION
'''
NOTEBOOK = '{{"cells": [{{"cell_type": "code", "source": ["{text}"], "outputs": []}}]}}'


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of two exercises and a lesson, in place of the installed one."""
    for name in ("solutions", "exercises", "notebooks"):
        (tmp_path / "course" / name).mkdir(parents=True)
    monkeypatch.setattr(catalog, "installed_course", lambda: tmp_path / "course")
    for x in "ab":
        new_solution(tmp_path / "course", x, SOLUTION.format(x=x))
    (tmp_path / "course/notebooks/99_last.ipynb").write_text(NOTEBOOK.format(text="a = 1"))
    return tmp_path / "course"


def new_solution(course, x, text):
    (course / f"solutions/ex99{x}_double.py").write_text(text)


@pytest.fixture
def mine(course, tmp_path):
    folder.init(tmp_path / "mine")
    assert folder.update(tmp_path / "mine") == []
    return tmp_path / "mine"


def contents(root):
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_init_makes_stubs_lessons_and_a_project(course, tmp_path, monkeypatch):
    said = "\n".join(folder.init(tmp_path / "mine"))
    assert "2 exercises, 1 lessons" in said and f"cd {tmp_path / 'mine'}; fa-numba learn" in said
    names = set(contents(tmp_path / "mine"))
    assert {"README.md", "pyproject.toml", ".gitignore", "lessons/99_last.ipynb"} <= names
    assert {n for n in names if n[:9] == "exercises"} == {
        f"exercises/ex99{x}_double.py" for x in "ab"
    }
    monkeypatch.chdir(tmp_path / "mine/lessons")
    assert catalog.find_root() == tmp_path / "mine"
    exercise = catalog.find_one("ex99a")
    assert stubs.state(exercise) == "pristine" and exercise.title == "A function"
    assert exercise.grader.parent == course / "exercises"


@pytest.mark.parametrize("name, content, said", [
    ("mine", "mine/thesis.txt", "holds thesis.txt"),
    ("mine", "mine", "must be a folder, got the file"),
    ("no/mine", "", "there is no folder"),
])  # fmt: skip
def test_init_refuses_what_would_be_lost(course, tmp_path, name, content, said, capsys):
    if content:
        (tmp_path / content).parent.mkdir(exist_ok=True)
        (tmp_path / content).write_text("my work")
    before = contents(tmp_path)
    assert cli.main(["init", str(tmp_path / name)]) == 2
    assert said in capsys.readouterr().err and contents(tmp_path) == before


def test_init_takes_a_folder_of_hidden_files_once(course, tmp_path):
    (tmp_path / "mine/.git").mkdir(parents=True)
    (tmp_path / "mine/.gitignore").write_text("mine\n")
    folder.init(tmp_path / "mine")
    assert (tmp_path / "mine/.gitignore").read_text() == "mine\n"
    with pytest.raises(folder.Refused, match="is a workbook already"):
        folder.init(tmp_path / "mine")


def answer(path):
    path.write_text(path.read_text().replace("raise NotImplementedError", "return 2 * x  # "))


def nothing(path):
    pass


@pytest.mark.parametrize("does, is_new, said, kept", [
    # what the learner has done, whether the exercise is another now, what `update` says
    (nothing, False, [], None),
    (nothing, True, ["ex99a_double.py: the exercise has changed. This is its new stub"], None),
    (answer, False, [], True),
    (answer, True, ["ex99a_double.py: the exercise has changed, and your file is kept"], True),
    (lambda p: p.write_text(p.read_text() + "\nx = 1\n"), True,
     ["ex99a_double.py: the exercise has changed, and your file is kept"], True),
    (Path.unlink, True, ["ex99a_double.py: added"], None),
    (lambda p: (answer(p), p.rename(p.with_name("ex99a_mine.py"))), True,
     ["ex99a_double.py: added", "ex99a_mine.py: no exercise has this name; the file is"], True),
    (lambda p: (p.unlink(), p.mkdir(), (p / "x").write_text("x")), True, [], True),
    (lambda p: p.write_bytes(b"\xff"), True, [], True),
])  # fmt: skip
def test_update_never_touches_an_answer(course, mine, does, is_new, said, kept):
    path = mine / "exercises/ex99a_double.py"
    before = contents(mine)
    does(path)
    work = contents(mine).items() - before.items()
    if is_new:
        new_solution(course, "a", SOLUTION.format(x="a").replace("Twice x", "x doubled"))
    told = folder.update(mine)
    assert len(told) == len(said) and all(map(re.search, map(re.escape, said), told))
    assert work <= contents(mine).items() and bool(work) == bool(kept)
    if path.is_file() and not (kept and path.read_bytes() in dict(work).values()):
        assert path.read_text() == stubs.read(catalog.find_one("ex99a", mine)).stub


def test_update_brings_new_exercises_and_keeps_old_ones(course, mine, monkeypatch, capsys):
    new_solution(course, "c", SOLUTION.format(x="c"))
    (course / "solutions/ex99b_double.py").unlink()
    (course / "notebooks/99_last.ipynb").write_text(NOTEBOOK.format(text="a = 2"))
    (mine / "docs").unlink()
    (mine / "docs").symlink_to("gone")
    monkeypatch.chdir(mine)
    assert cli.main(["update"]) == 0
    said = capsys.readouterr().out
    assert "ex99c_double.py: added" in said and "99_last.ipynb: brought up to date" in said
    assert "ex99b_double.py: no exercise has this name" in said
    assert (mine / "exercises/ex99b_double.py").exists()
    assert (mine / "docs").readlink() == course / "docs"


def test_in_a_checkout_update_is_for_lessons_alone(tmp_path, monkeypatch, capsys):
    for name in ("solutions", "exercises"):
        (tmp_path / name).mkdir()
    new_solution(tmp_path, "a", SOLUTION.format(x="a"))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["update"]) == 0 and "git pull" in capsys.readouterr().out
    assert not any((tmp_path / "exercises").iterdir())


def test_no_workbook_is_said_with_the_way_to_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalog, "PACKAGE", tmp_path / "site-packages/fa_numba")
    assert cli.main(["status"]) == 2
    assert "`fa-numba init my-workbook` makes one" in capsys.readouterr().err


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The wheel's files, as pip unpacks them."""
    place = tmp_path_factory.mktemp("wheel")
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(place), versions=["standard"])
    assert 1 << 20 < os.path.getsize(wheel) < 3 << 20
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place / "site")
    shutil.copytree(ROOT / "engine/numba_cuda_simulator", place / "site/numba_cuda_simulator")
    return place / "site"


COMMANDS = """
import sys
from fa_numba.workbook import cli

for command in sys.argv[1:]:
    if status := cli.main(command.split()):
        sys.exit(f"{command}: {status}")
    print("=== next")
"""


def test_the_wheel_alone_makes_grades_and_hands_out(site, tmp_path):
    """A user's commands, where no checkout is in reach."""

    def run(*commands, inside="mine"):
        """What they say. One process: the imports of each would cost more than what it does."""
        done = subprocess.run(
            [sys.executable, "-c", COMMANDS, *commands],
            cwd=tmp_path / inside, env=os.environ | {"PYTHONPATH": str(site)},
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.split("=== next\n")

    for path in (ROOT / "fa_numba").rglob("*"):
        there = (site / path.relative_to(ROOT)).exists()
        assert there or "__pycache__" in path.parts, path  # also what is no Python: corpus, page
    (entry_points,) = site.glob("*.dist-info/entry_points.txt")
    for module in re.findall(r"= ([\w.]+):", entry_points.read_text()):
        assert (site / f"{module.replace('.', '/')}.py").exists(), module
    course = site / "fa_numba/course"
    number = len(list((ROOT / "solutions").glob("ex*.py")))
    assert f"{number} exercises, 26 lessons" in run("init mine", inside=".")[0]
    stub = tmp_path / "mine/exercises/ex00a_thread_index.py"
    assert stub.read_text() == (ROOT / "exercises" / stub.name).read_text()
    shutil.copy(course / "solutions" / stub.name, stub)
    check, status, handout, _ = run("check ex00a", "status", "handout class")
    assert "ex00a" in check and f"1 of {number}" in status and "without solutions/" in handout
    link = tmp_path / "mine/fa_numba/kernels"
    assert link.is_symlink() and not link.with_name("__init__.py").exists()
    for lesson in (tmp_path / "mine/lessons").glob("*.ipynb"):
        for link in re.findall(r"\]\((\.\./[^)#]+)", lesson.read_text(encoding="utf-8")):
            assert (lesson.parent / link).exists(), (lesson.name, link)
    made = contents(tmp_path / "mine/class")
    assert {"install.py", "Makefile", "fa_numba/__init__.py", catalog.BUNDLE} <= made.keys()
    assert "fa_numba_command.py" in made  # pyproject.toml names it
    assert "engine/numba_cuda_simulator/__init__.py" in made
    assert {p.relative_to(ROOT).as_posix() for p in ROOT.glob("fa_numba/**/*.py")} <= made.keys()
    assert not [name for name in made if "course/" in name or "solutions/" in name]


def test_an_answer_does_not_reach_the_course(tmp_path, monkeypatch, warm_judges):
    """Solutions and graders lie elsewhere than in the learner's folder, and are kept from it."""
    folder.init(tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine")
    exercise = catalog.find_one("ex00a")
    read = "try:\n    open({!r})\nexcept PermissionError:\n    pass\nelse:\n    raise ValueError\n"
    reads = [read.format(str(path)) for path in (exercise.solution, exercise.grader)]
    exercise.stub.write_text("\n\n".join([exercise.solution.read_text(), *reads]))
    report = grader.grade("ex00a")
    assert report.passed and progress.is_passed(exercise), report.text()
