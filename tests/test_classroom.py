"""`fa-numba grade FOLDER...`: many students, whatever their files do."""

# ruff: noqa: F811  the fixture `workbook` is imported

import csv
import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from test_workbook import SOLUTION, workbook  # noqa: F401

from fa_numba.workbook import classroom, cli
from fa_numba.workbook.report import Check

KEPT = "DEVNULL", "TimeoutExpired"  # of the module subprocess
RIGHT = SOLUTION
HALF = SOLUTION.replace("return x / 2", "return x / 3")  # 2 of 3 checks pass


@pytest.fixture
def warm_classroom(warm_judges, monkeypatch):
    """`classroom.Judges` forks them as `grader.grade` does in these tests."""

    class Process:
        def __init__(self, command, *, cwd, env, **streams):
            assert set(streams.values()) == {subprocess.DEVNULL}
            self.how = {"cwd": cwd, "env": env, "capture_output": True, "text": True}
            self.command = command

        def wait(self, limit):
            warm_judges(self.command, **self.how)

    warm = SimpleNamespace(Popen=Process, **{n: getattr(subprocess, n) for n in KEPT})
    monkeypatch.setattr(classroom, "subprocess", warm)


@pytest.fixture
def hand_in(workbook, tmp_path):
    """Writes a student's file and returns the folder."""

    def write(student, text, place=""):
        folder = tmp_path / "class" / student / place
        folder.mkdir(parents=True, exist_ok=True)
        if text is not None:
            (folder / f"{workbook.name}.py").write_bytes(
                text if isinstance(text, bytes) else text.encode()
            )
        return str(tmp_path / "class" / student)

    return write


def rows(path):
    return {row["student"]: row for row in csv.DictReader(path.read_text().splitlines())}


@pytest.mark.usefixtures("warm_classroom")
def test_students_are_graded_whatever_their_files_do(workbook, hand_in, tmp_path, capsys):
    folders = [
        hand_in("right", RIGHT),
        hand_in("half", HALF),
        hand_in("stub", workbook.stub.read_text()),
        hand_in("below", RIGHT, "exercises"),
        hand_in("zipped", RIGHT, "fa-numba-main/exercises"),
        hand_in("nothing", None),
        hand_in("syntax", "def double(x:"),
        hand_in("bytes", b"\xff\xfe\x00\x00"),
        hand_in("exits", "import os\nos._exit(0)\n"),
        hand_in("killer", "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n"),
        hand_in("=cmd()", RIGHT),
    ]
    assert cli.main(["grade", *folders, "--jobs", "2", "--reports", str(tmp_path / "said")]) == 0
    said = capsys.readouterr().out
    found = rows(tmp_path / "grades.csv")
    points = {name: float(row["points"]) for name, row in found.items()}
    assert points == {
        "right": 1, "half": 0.6667, "stub": 0, "below": 1, "zipped": 1, "nothing": 0, "syntax": 0,
        "bytes": 0, "exits": 0, "killer": 0, "'=cmd()": 1,
    }  # fmt: skip
    assert {row["of"] for row in found.values()} == {"1"}
    assert "[11/11]" in said and "half: 0.6667 of 1 points, 0 passed, 1 failed" in said

    students = json.loads((tmp_path / "grades.json").read_text())["students"]
    marks = {s["student"]: s["exercises"][0] for s in students}
    assert [s["student"] for s in students][:3] == ["right", "half", "stub"]  # as they were named
    assert {name: mark["state"] for name, mark in marks.items()} == {
        "right": "passed", "half": "failed", "stub": "not started", "below": "passed",
        "zipped": "passed", "nothing": "missing", "syntax": "failed", "bytes": "failed",
        "exits": "failed", "killer": "failed", "=cmd()": "passed",
    }  # fmt: skip
    assert (marks["half"]["passed"], marks["half"]["total"]) == (2, 3)
    assert [c["outcome"] for c in marks["half"]["checks"]] == ["passed", "passed", "failed"]
    assert marks["right"]["sha256"] == marks["below"]["sha256"] != marks["half"]["sha256"]
    reports = {p.name: p.read_text() for p in (tmp_path / "said").iterdir()}
    assert "halves numbers" in reports["002_half.txt"] and len(reports) == 11


def test_a_hanging_file_costs_its_own_points(workbook, hand_in, tmp_path):
    workbook.grader.write_text(
        "SECONDS_PER_CHECK = 1\nSECONDS_IN_ALL = 2\n" + workbook.grader.read_text()
    )
    hang = HALF.replace("return x / 3", "while True: pass")
    assert cli.main(["grade", hand_in("hangs", hang), hand_in("right", RIGHT)]) == 0
    found = rows(tmp_path / "grades.csv")
    assert (found["hangs"]["points"], found["right"]["points"]) == ("0.6667", "1")


def test_a_judge_that_fails_is_reported_and_others_go_on(
    workbook,
    hand_in,
    tmp_path,
    monkeypatch,
    capsys,
):
    judged = {workbook.name: [Check("doubles", "passed")]}
    monkeypatch.setattr(
        classroom, "_judged", lambda e, place, judges: {} if place.name == "first" else judged
    )
    assert cli.main(["grade", hand_in("first", RIGHT), hand_in("second", RIGHT)]) == 1
    found = rows(tmp_path / "grades.csv")
    assert found["first"][workbook.name] == "" and found["first"]["not graded"] == "1"
    assert found["second"]["points"] == "1"


def test_points(workbook, hand_in, tmp_path, monkeypatch):
    outcomes = ["passed", "passed", "failed", "skipped"]
    checks = {workbook.name: [Check(f"check {n}", o) for n, o in enumerate(outcomes)]}
    monkeypatch.setattr(classroom, "_judged", lambda *_: checks)
    folder, points = hand_in("half", HALF), tmp_path / "points.csv"
    points.write_text("exercise,points\n# a comment\nex99,30\n")
    assert cli.main(["grade", folder, "--points", str(points), "--csv", "a.csv"]) == 0
    assert rows(tmp_path / "a.csv")["half"]["points"] == "20"
    assert cli.main(["grade", folder, "--points", str(points), "--whole", "--csv", "b.csv"]) == 0
    assert rows(tmp_path / "b.csv")["half"] | {} == {
        "student": "half", workbook.name: "0", "points": "0", "of": "30", "passed": "0",
        "not graded": "0",
    }  # fmt: skip


@pytest.mark.parametrize("text, said", [
    ("ex99a", "line 1: must be exercise,points"),
    ("ex99a,ten", "line 1: must be exercise,points"),
    ("ex99a,-1", "points must be 0 or more, got -1"),
    ("ex99a,nan", "points must be 0 or more, got nan"),
    ("ex42,1", "no exercise called 'ex42'"),
    ("ex99a,1\nex99,2", "line 2: ex99a_double has its points already"),
    ("# nothing", "names no exercise"),
])  # fmt: skip
def test_a_bad_points_file_is_named(workbook, hand_in, tmp_path, capsys, text, said):
    points = tmp_path / "points.csv"
    points.write_text(text)
    assert cli.main(["grade", hand_in("a", RIGHT), "--points", str(points)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("arguments, said", [
    (["--jobs", "0"], "--jobs must be 1 or more"),
    (["--csv", "none/x.csv"], "there is no folder"),
    (["--exercises", "ex42"], "no exercise called"),
    (["--points", "none.csv"], "cannot be read"),
])  # fmt: skip
def test_bad_options_are_refused_before_anything_is_graded(
    workbook,
    hand_in,
    monkeypatch,
    capsys,
    arguments,
    said,
):
    monkeypatch.setattr(classroom, "_judged", None)
    assert cli.main(["grade", hand_in("a", RIGHT), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_of_students_is_no_student(hand_in, tmp_path, capsys):
    hand_in("a", RIGHT), hand_in("b", RIGHT)
    assert cli.main(["grade", str(tmp_path / "class")]) == 2
    assert "holds folders of students: fa-numba grade" in capsys.readouterr().err
    assert cli.main(["grade", str(tmp_path / "class" / "a"), "ex99a"]) == 2
    assert "is a folder and ex99a is none" in capsys.readouterr().err


def test_stopping_ends_the_judges():
    judges, start = classroom.Judges(), time.monotonic()
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    with classroom.ThreadPoolExecutor(1) as pool:
        job = pool.submit(judges.run, sleeper, ".", 60)
        while not judges.running:
            time.sleep(0.01)
        judges.stop()
        job.result()
    judges.run(sleeper, ".", 60)  # none starts any more
    assert time.monotonic() - start < 30


def test_a_judge_that_does_not_end_is_killed():
    judges = classroom.Judges()
    judges.run([sys.executable, "-c", "import time; time.sleep(60)"], ".", 0.2)
    assert not judges.running
    assert subprocess.run([sys.executable, "-c", ""]).returncode == 0
