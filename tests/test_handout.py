"""`make handout`: no line of an answer is in it, and everything else works in it."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fa_numba.workbook import catalog, cli, grader, handout, progress, stubs

ROOT = Path(__file__).parents[1]
if not (ROOT / "solutions").is_dir():
    pytest.skip("this is a handout", allow_module_level=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return handout.make(tmp_path_factory.mktemp("class") / "handout", root=ROOT)


@pytest.fixture
def inside(made, monkeypatch, tmp_path):
    monkeypatch.chdir(made.folder)
    monkeypatch.setattr(progress, "FILE", str(tmp_path / "progress.json"))  # the folder is shared


def every_text(folder):
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path.read_bytes().decode("utf-8", "replace")


def test_it_has_no_solutions_and_no_history(made):
    names = {name for name, _ in every_text(made.folder)}
    assert names == set(made.files)
    assert not [n for n in names if n.startswith(("solutions/", ".git/", ".progress", "lessons/"))]
    assert {"Makefile", "install.py", "README.md", catalog.BUNDLE} <= names
    assert len([n for n in names if n.startswith("exercises/ex")]) == len(stubs_of(ROOT))


def stubs_of(root):
    return {e.name: stubs.read(e).stub for e in catalog.all_exercises(root)}


def test_no_file_has_a_line_of_an_answer(made):
    """Of the lines that no lesson, stub, grader or kernel of the package gives anyway."""
    given = "".join(
        text
        for name, text in every_text(made.folder)
        if name.startswith(("notebooks/", "benchmarks/", "exercises/ex", "exercises/test_ex"))
        or (name.startswith("fa_numba/") and not name.startswith("fa_numba/workbook/"))
    )
    answers = handout.answer_lines(ROOT)
    secret = {line for line in answers if line not in given}
    assert len(answers) > 400 and len(secret) > 0.6 * len(answers)
    for name, text in every_text(made.folder):
        assert not [line for line in secret if line in text], name


def test_what_is_given_is_given_by_the_repository(made):
    """Stubs, graders and lessons of the handout are those of the repository, and no more."""
    stubs_here = stubs_of(ROOT)
    for name, text in every_text(made.folder):
        path = ROOT / name
        if name.startswith("exercises/ex"):
            assert text == stubs_here[path.stem]
        elif name != catalog.BUNDLE and path.suffix != ".ipynb":
            assert text == path.read_bytes().decode("utf-8", "replace"), name


def test_a_file_with_answers_is_left_out_and_named(tmp_path):
    root = small_workbook(tmp_path / "root")
    answer = "    return x + x + x - x  # thirty characters"
    (root / "fa_numba/workbook").mkdir(parents=True)
    (root / "fa_numba/workbook/leak.py").write_text(f"def double(x):\n{answer}\n")
    (root / "docs").mkdir()
    (root / "docs/leak.md").write_text(answer)
    (root / "docs/good.md").write_text("nothing")
    made = handout.make(tmp_path / "out", root=root)
    assert set(made.left_out) == {
        "fa_numba/workbook/leak.py",
        "docs/leak.md",
        "hint 2 of ex99a_double",
        "the debrief of ex99a_double",
    }
    assert (made.folder / "docs/good.md").exists() and not (made.folder / "docs/leak.md").exists()
    bundle = json.loads((made.folder / catalog.BUNDLE).read_text())["ex99a_double"]
    assert bundle["hints"] == {"1": "a nudge"} and bundle["debrief"] == ""


def small_workbook(root):
    (root / "solutions").mkdir(parents=True)
    (root / "exercises").mkdir()
    (root / "solutions/ex99a_double.py").write_text(
        '"""ex99a · Double it\n\nReturn twice x.\n"""\n\n'
        "### HINT 1: a nudge\n### HINT 2: return x + x + x - x  # thirty characters\n"
        "### HINT 3: the rest\n### DEBRIEF: return x + x + x - x  # thirty characters\n\n\n"
        "def double(x):\n    ### BEGIN SOLUTION\n"
        "    return x + x + x - x  # thirty characters\n    ### END SOLUTION\n"
    )
    exercise = catalog.Exercise("ex99a_double", root)
    exercise.stub.write_text("somebody's own answer")
    exercise.grader.write_text("def test_it(exercise):\n    assert exercise.double(2) == 4\n")
    return root


@pytest.mark.parametrize("tiers", [0, 1, 2, 3])
def test_hints_are_kept_as_asked(tmp_path, tiers):
    made = handout.make(tmp_path / "out", root=ROOT, tiers=tiers)
    hints = [len(told["hints"]) for told in catalog.bundled(made.folder).values()]
    dropped = sum(name.startswith("hint") for name in made.left_out)
    assert sum(hints) == tiers * len(hints) - dropped and (tiers < 3 or not dropped)


# --- what a learner does in it


def test_it_is_a_workbook(made, inside):
    assert catalog.find_root() == made.folder
    assert [e.name for e in catalog.all_exercises()] == [
        e.name for e in catalog.all_exercises(ROOT)
    ]
    for exercise in catalog.all_exercises():
        assert stubs.state(exercise) == "pristine"
        assert exercise.title == catalog.Exercise(exercise.name, ROOT).title


@pytest.mark.parametrize("command, said", [
    ("show ex06b", "outer loop walks the K/V tiles"),
    ("hint ex06b", "Hint 1 of 2"),
    ("hint ex06b --tier 2", "Hint 2 of 2"),
    ("debrief ex02d --force", "17 barriers per row"),
    ("solution ex06b --force", "has no solutions"),
    ("status", f"0 of {len(catalog.all_exercises(ROOT))} exercises passed"),
])  # fmt: skip
def test_commands_work(inside, capsys, command, said):
    assert cli.main(command.split()) == 0
    assert said in " ".join(capsys.readouterr().out.split())


def test_a_third_hint_is_refused_in_a_line(inside, capsys):
    assert cli.main(["hint", "ex06b", "--tier", "3"]) == 2
    assert "tier must be one of [1, 2], got 3" in capsys.readouterr().err


def test_checks_and_reset_work(made, tmp_path, monkeypatch):
    made = handout.make(tmp_path / "mine", root=ROOT)  # one to write in
    monkeypatch.chdir(made.folder)
    exercise = catalog.find_one("ex01a")
    exercise.stub.write_text((ROOT / "solutions" / exercise.stub.name).read_text())
    report = grader.grade("ex01a")
    assert report.passed and "Compare with ours" not in report.text()
    assert report.graded[0].debrief
    assert progress.is_passed(exercise)
    grader.reset("ex01a", yes=True)
    assert exercise.stub.read_text() == catalog.bundled(made.folder, exercise.name)["stub"]


def test_its_own_tests_pass(made):
    tests = ["tests/test_workbook.py", "-k", "stub or hint or state or find or reset"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=made.folder,
        env=os.environ | {"PYTHONPATH": str(made.folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout


# --- making it


def test_it_is_made_again_in_place_and_nothing_else_is_overwritten(made, tmp_path):
    again = handout.make(tmp_path / "out", root=ROOT)
    (again.folder / "stray").touch()
    handout.make(tmp_path / "out", root=ROOT)
    assert not (again.folder / "stray").exists()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter").touch()
    with pytest.raises(handout.Refused, match="is no handout"):
        handout.make(tmp_path / "thesis", root=ROOT)
    assert (tmp_path / "thesis/chapter").exists()
    with pytest.raises(handout.Refused, match="a handout already"):
        handout.make(tmp_path / "twice", root=made.folder)


def test_the_zip_file_holds_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    path = tmp_path / "course.zip"
    assert cli.main(["handout", str(tmp_path / "course"), "--zip", str(path)]) == 0
    with zipfile.ZipFile(path) as archive:
        names = {n.removeprefix("course/") for n in archive.namelist()}
    assert catalog.BUNDLE in names and not [n for n in names if "solutions" in n.split("/")]
    assert "without solutions/" in capsys.readouterr().out


def test_without_solutions_and_bundle_the_message_says_what_is_missing(tmp_path):
    (tmp_path / "exercises").mkdir()
    (tmp_path / "exercises/test_ex00a_thread_index.py").touch()
    with pytest.raises(FileNotFoundError, match=r"neither solutions/ nor exercises/\.work"):
        catalog._root_of([tmp_path])
