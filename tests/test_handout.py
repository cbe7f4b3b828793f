"""`make handout`: no line of an answer is in it, and everything else works in it."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import pytest

from fa_numba.workbook import catalog, cli, grader, handout, leaks, progress, stubs

ROOT = Path(__file__).parents[1]
IMPORTS = ast.Import, ast.ImportFrom
ANSWER = "    return x + x + x - x + 0 * x + x * 0"
LONGER = """    first = x + x
    second = first + first
    third = second - first
    return third + x - x"""
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


def test_no_file_tells_an_answer(made):
    """No document has a line, no code a passage that no lesson, stub, grader or kernel gives."""
    files = dict(every_text(made.folder))
    given = [text for name, text in files.items() if handout.is_given(name)]
    answers = leaks.answer_lines(ROOT)
    whole = "\n".join(given)
    lines = {line for line in answers if line not in whole}
    secret = leaks.secret_passages(catalog.all_exercises(ROOT), given)
    assert len(answers) > 400 and len(lines) > 0.6 * len(answers) and len(secret) > 400
    for name, text in files.items():
        assert not leaks.told_passages(name, text, secret)
        if name.startswith("docs/"):
            assert not [line for line in lines if line in text], name


def test_it_has_no_bytecode_and_no_history(made, tmp_path):
    for path in (p for p in made.folder.rglob("*") if p.is_file()):
        name, begin = path.relative_to(made.folder), path.read_bytes()[:4]
        assert begin not in (MAGIC_NUMBER, b"PACK", b"DIRC") and path.suffix != ".pyc", name
        assert not {".git", "__pycache__"} & set(name.parts), name


def test_what_is_given_is_given_by_the_repository(made):
    """Stubs, graders and lessons of the handout are those of the repository, and no more."""
    stubs_here = stubs_of(ROOT)
    for name, text in every_text(made.folder):
        path = ROOT / name
        if name.startswith("exercises/ex"):
            assert text == stubs_here[path.stem]
        elif name != catalog.BUNDLE and path.suffix != ".ipynb":
            assert text == path.read_bytes().decode("utf-8", "replace"), name


def test_a_document_with_answers_is_left_out_and_named(tmp_path):
    root = small_workbook(tmp_path / "root")
    (root / "docs").mkdir()
    (root / "docs/leak.md").write_text(ANSWER)
    (root / "docs/good.md").write_text("nothing")
    made = handout.make(tmp_path / "out", root=root)
    assert set(made.left_out) == {
        "docs/leak.md",
        *(f"hint 2 of {name}" for name in ("ex99a_double", "ex99b_longer")),
        *(f"the debrief of {name}" for name in ("ex99a_double", "ex99b_longer")),
    }
    assert (made.folder / "docs/good.md").exists() and not (made.folder / "docs/leak.md").exists()
    bundle = json.loads((made.folder / catalog.BUNDLE).read_text())["ex99a_double"]
    assert bundle["hints"] == {"1": "a nudge"} and bundle["debrief"] == ""


@pytest.mark.parametrize("code, leaks", [
    (f"def double(x):\n    # one line is all of this answer\n{ANSWER}\n", [(3, "ex99a")]),
    (LONGER, [(1, "ex99b")]),
    (LONGER.replace("\n", "  # words\n\n    # words\n", 1), [(1, "ex99b")]),  # the same code
    (LONGER.partition("\n")[0], []),
    ("".join(sorted(LONGER.splitlines(True))), []),
])  # fmt: skip
def test_code_with_a_passage_of_an_answer_is_an_error(tmp_path, capsys, monkeypatch, code, leaks):
    """The workbook needs the file: without it graders and lessons do not import."""
    root = small_workbook(tmp_path / "root")
    (root / "fa_numba/workbook").mkdir(parents=True)
    (root / "fa_numba/workbook/leak.py").write_text(code)
    monkeypatch.chdir(root)
    assert cli.main(["handout", str(tmp_path / "out")]) == (2 if leaks else 0)
    said = capsys.readouterr().err
    for line, exercise in leaks:
        assert f"fa_numba/workbook/leak.py, line {line}, holds the answer of {exercise}: " in said
    assert (tmp_path / "out").exists() == (not leaks)


def small_workbook(root):
    (root / "solutions").mkdir(parents=True)
    (root / "exercises").mkdir()
    for name, answer in (("ex99a_double", ANSWER), ("ex99b_longer", LONGER)):
        (root / f"solutions/{name}.py").write_text(
            f'"""{name[:5]} · Double it\n\nReturn twice x.\n"""\n\n'
            f"### HINT 1: a nudge\n### HINT 2: {ANSWER.strip()}\n"
            f"### HINT 3: the rest\n### DEBRIEF: {ANSWER.strip()}\n\n\n"
            f"def double(x):\n    ### BEGIN SOLUTION\n{answer}\n    ### END SOLUTION\n"
        )
        exercise = catalog.Exercise(name, root)
        exercise.stub.write_text("somebody's own answer")
        exercise.grader.write_text("def test_it(exercise):\n    assert exercise.double(2) == 4\n")
    return root


@pytest.mark.parametrize("tiers", [0, 1, 2, 3])
def test_hints_are_kept_as_asked(tmp_path, tiers):
    made = handout.make(tmp_path / "out", root=small_workbook(tmp_path / "root"), tiers=tiers)
    told = catalog.bundled(made.folder).values()
    answers = {2} if tiers == 2 else set()  # whoever asks for all three gets them
    assert {tuple(x["hints"]) for x in told} == {
        tuple(str(n) for n in range(1, tiers + 1) if n not in answers)
    }
    dropped = sorted(name for name in made.left_out if name.startswith("hint"))
    assert dropped == [
        f"hint {n} of {name}" for n in answers for name in sorted(stubs_of(tmp_path / "root"))
    ]


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
    mine = shutil.copytree(made.folder, tmp_path / "mine")  # one to write in
    monkeypatch.chdir(mine)
    exercise = catalog.find_one("ex01a")
    exercise.stub.write_text((ROOT / "solutions" / exercise.stub.name).read_text())
    report = grader.grade("ex01a")
    assert report.passed and "Compare with ours" not in report.text()
    assert report.graded[0].debrief
    assert progress.is_passed(exercise)
    grader.reset("ex01a", yes=True)
    assert exercise.stub.read_text() == catalog.bundled(mine, exercise.name)["stub"]


def run_in(folder, *arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ
        | {
            "PYTHONPATH": f"{folder}{os.pathsep}{folder}/engine",
            "PYTHONDONTWRITEBYTECODE": "1",  # none in the folder
        },
        capture_output=True,
        text=True,
    )


def test_every_lesson_imports_and_every_grader_is_there(made):
    """All imports of all cells, in the handout's own package; then all graders are collected."""
    lines = []
    for path in sorted(made.folder.glob("notebooks/*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                source = "".join(x for x in cell["source"] if not x.startswith(("%", "!")))
                nodes = [n for n in ast.parse(source).body if isinstance(n, IMPORTS)]
                lines += [ast.unparse(node) for node in nodes]
    assert len(lines) > 24 * 2
    lines += ["import fa_numba, pytest", "print(fa_numba.__file__, fa_numba.simt.__file__)"]
    lines += ["raise SystemExit(pytest.main(['exercises', '--collect-only', '-q']))"]
    run = run_in(made.folder, "-c", "\n".join(lines))
    assert run.returncode == 0, run.stdout + run.stderr
    files, _, collected = run.stdout.partition("\n")
    names = "fa_numba/__init__.py", "engine/numba_cuda_simulator/__init__.py"
    assert files.split() == [str(made.folder / name) for name in names]
    graders = set(re.findall(r"test_(ex\d\d[a-z]_\w+)\.py", collected))
    assert graders == {e.name for e in catalog.all_exercises(ROOT)}


def solved(made, tmp_path, exercises):
    """A folder with the solutions of these exercises."""
    for exercise in exercises:
        shutil.copyfile(exercise.solution, tmp_path / exercise.stub.name)
    return f"--impl={tmp_path}"


@pytest.mark.thorough
def test_every_solution_passes(made, tmp_path):
    assert grades(made, tmp_path, catalog.all_exercises(ROOT)) == len(stubs_of(ROOT))


def grades(made, tmp_path, exercises):
    """How many solutions there are, each of which passes in the handout."""
    options = solved(made, tmp_path, exercises), f"--grade-json={tmp_path / 'grade.json'}"
    graders = [f"exercises/{e.grader.name}" for e in exercises]
    run = run_in(made.folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *graders)
    graded = json.loads((tmp_path / "grade.json").read_text())
    bad = [d["name"] for d in graded if {c["outcome"] for c in d["checks"]} - {"passed", "skipped"}]
    assert run.returncode == 0 and not bad, run.stdout
    return len(graded)


def test_its_own_tests_pass(made):
    tests = ["tests/test_workbook.py", "-k", "stub or hint or state or find or reset"]
    run = run_in(made.folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout


# --- making it


def test_it_is_made_again_in_place_and_nothing_else_is_overwritten(made, tmp_path):
    root = small_workbook(tmp_path / "root")
    again = handout.make(tmp_path / "out", root=root)
    (again.folder / "stray").touch()
    handout.make(tmp_path / "out", root=root)
    assert not (again.folder / "stray").exists()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter").touch()
    with pytest.raises(handout.Refused, match="is no handout"):
        handout.make(tmp_path / "thesis", root=root)
    assert (tmp_path / "thesis/chapter").exists()
    with pytest.raises(handout.Refused, match="a handout already"):
        handout.make(tmp_path / "twice", root=made.folder)


def test_the_zip_file_holds_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(small_workbook(tmp_path / "root"))
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
        catalog._root_of([tmp_path, catalog.PACKAGE.parent])


def test_open_exercises_are_found():
    """docs/make_open_book.py lists them for instructors."""
    listed = handout.open_book(ROOT)
    assert listed["ex19b_share_pages"] == ("exercises/ex19c_copy_on_write.py", 9, 9)
    assert "ex08b_dkdv_kernel" not in listed and 10 < len(listed) < 60


def test_the_plan_by_weeks_has_every_lesson_once_and_no_open_exercise():
    text = (ROOT / "docs/instructors.md").read_text()
    plan = text.partition("## A plan by weeks")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in plan.splitlines() if re.match(r"\| \d", line)]
    lessons = [lesson for row in rows for lesson in re.findall(r"\d\d", row[2])]
    assert sorted(lessons) == sorted({e.name[2:4] for e in catalog.all_exercises(ROOT)})
    listed = {name.split("_")[0] for name in handout.open_book(ROOT)}
    for row in rows:
        for name in re.findall(r"ex\w+", row[4]):
            assert name[2:4] in row[2] and catalog.find(name) and name not in listed
