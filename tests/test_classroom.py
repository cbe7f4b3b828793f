"""`fa-numba grade FOLDER...`: many students, whatever their files do."""

# ruff: noqa: F811  the fixture `workbook` is imported

import csv
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_workbook import SOLUTION, workbook  # noqa: F401

from fa_numba.workbook import class_report, classroom, cli
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
    options = ["--jobs", "2", "--reports", str(tmp_path / "said"), "--report", "1"]
    assert cli.main(["grade", *folders, *options]) == 0
    said = capsys.readouterr().out
    found = rows(tmp_path / "grades.csv")
    points = {name: float(row["points"]) for name, row in found.items()}
    assert points == {
        "right": 1, "half": 0.6667, "stub": 0, "below": 1, "zipped": 1, "nothing": 0, "syntax": 0,
        "bytes": 0, "exits": 0, "killer": 0, "'=cmd()": 1,
    }  # fmt: skip
    assert {row["of"] for row in found.values()} == {"1"}
    assert "[11/11]" in said and "half: 0.6667 of 1 points, 0 passed, 1 failed" in said
    assert "The checks that most students fail: 1 of 2" in said
    (worst,) = (line for line in said.splitlines() if "5 of 9" in line)
    assert "ex99a" in worst and "halves numbers" in worst

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
    workbook, hand_in, tmp_path, monkeypatch, capsys
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


def student(name, *failed, state="failed"):
    checks = [Check(name, "failed", message, causes=causes) for name, message, causes in failed]
    mark = classroom.Mark("ex06b_flash", state, 0.0, 1.0, checks=[*checks, Check("d", "passed")])
    return classroom.Student(name, name, [mark], 0.0)


def test_failures_of_a_class_count_students_and_the_likeliest_mistake():
    late, early = ["a race in line 7"], ["m is not updated", "l is not rescaled"]
    found = class_report.failures([
        student("ada", ("a [1]", "x", late), ("a [2]", "y", early), ("a [3]", "z", late)),
        student("alan", ("a [2]", "y", early), ("b", "wrong\nby 3", []), ("c", "wrong", [])),
        student("grace", ("a [1]", "x", late)),
        student("nobody", ("a [1]", "x", late), state="not started"),
    ])  # fmt: skip
    assert [(f.behaviour, f.students, f.tried) for f in found] == [
        ("a", ["ada", "alan", "grace"], 3), ("b", ["alan"], 3),
    ]  # fmt: skip
    assert [f.sentence for f in found] == ["a race (2 of 3)", "wrong"]
    assert [f.others for f in found] == [0, 1]


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
    (["--report", "0"], "--report must be 1 or more"),
    (["--csv", "none/x.csv"], "there is no folder"),
    (["--exercises", "ex42"], "no exercise called"),
    (["--points", "none.csv"], "cannot be read"),
])  # fmt: skip
def test_bad_options_are_refused_before_anything_is_graded(
    workbook, hand_in, monkeypatch, capsys, arguments, said
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


def as_link(workbook, student, tmp_path):
    (student / f"{workbook.name}.py").symlink_to(workbook.solution)


def as_hard_link(workbook, student, tmp_path):
    os.link(workbook.solution, student / f"{workbook.name}.py")


def by_tar(kind):
    def hand_in(workbook, student, tmp_path):
        """tar unpacks a link as a link."""
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            member = tarfile.TarInfo(f"{workbook.name}.py")
            member.type, member.linkname = kind, str(workbook.solution)
            archive.addfile(member)
        with tarfile.open(tmp_path / "a.tar") as archive:
            archive.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)  # 3.11.4
            archive.extractall(student)

    return hand_in


def by_zip(unpack):
    def hand_in(workbook, student, tmp_path):
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            member = zipfile.ZipInfo(f"{workbook.name}.py")
            member.create_system, member.external_attr = 3, (stat.S_IFLNK | 0o777) << 16  # of Unix
            archive.writestr(member, str(workbook.solution))
        unpack(tmp_path / "a.zip", student)

    return hand_in


def by_unzip(archive, student):
    """It makes a link of a link."""
    subprocess.run(["unzip", "-q", archive, "-d", student], check=True)


def by_python(archive, student):
    """It makes a file of a link, which holds the path."""
    shutil.unpack_archive(archive, student)


def as_linked_folder(workbook, student, tmp_path):
    (student / "exercises").symlink_to(workbook.solution.parent)


def as_linked_student(workbook, student, tmp_path):
    student.rmdir()
    student.symlink_to(workbook.solution.parent)


def as_folder(workbook, student, tmp_path):
    (student / f"{workbook.name}.py").mkdir()


def as_fifo(workbook, student, tmp_path):
    os.mkfifo(student / f"{workbook.name}.py")


def twice(workbook, student, tmp_path):
    (student / f"{workbook.name}.py").write_text(HALF)
    (student / "exercises").mkdir()
    (student / f"exercises/{workbook.name}.py").write_text(RIGHT)


NO_FILES_OF_THEIR_OWN = {
    "link": (as_link, "failed", "is a symbolic link, and must be a file"),
    "hard_link": (as_hard_link, "failed", "is a hard link"),
    "tar": (by_tar(tarfile.SYMTYPE), "failed", "is a symbolic link, and must be a file"),
    "tar_hard_link": (by_tar(tarfile.LNKTYPE), "failed", "is a hard link"),
    "unzip": (by_zip(by_unzip), "failed", "is a symbolic link, and must be a file"),
    "python": (by_zip(by_python), "failed", "does not import: invalid syntax"),
    "folder_is_link": (
        as_linked_folder, "failed",
        "folder_is_link/exercises is a symbolic link, and must be a folder",
    ),
    "student_is_link": (
        as_linked_student, "failed", "student_is_link is a symbolic link, and must be a folder",
    ),
    "folder": (as_folder, "failed", "is a folder, and must be a file"),
    "fifo": (as_fifo, "failed", "is no ordinary file"),
    "twice": (twice, "not graded", "differ: which one counts?"),
}  # fmt: skip
if not shutil.which("unzip"):
    del NO_FILES_OF_THEIR_OWN["unzip"]


@pytest.mark.usefixtures("warm_classroom")
def test_what_is_no_file_of_its_own_is_named(workbook, hand_in, tmp_path):
    """All in one run; those beside each of them are graded as ever."""
    right = "a_first", "g_between", "z_last"
    folders = [hand_in(name, RIGHT) for name in right]
    for name, (how, _, _) in NO_FILES_OF_THEIR_OWN.items():
        folders.append(hand_in(name, None))
        (scratch := tmp_path / f"from_{name}").mkdir()
        how(workbook, Path(folders[-1]), scratch)
    assert cli.main(["grade", *sorted(folders)]) == 1  # one is not graded
    data = json.loads((tmp_path / "grades.json").read_text())["students"]
    marks = {s["student"]: s["exercises"][0] for s in data}
    wanted = {name: state for name, (_, state, _) in NO_FILES_OF_THEIR_OWN.items()}
    wanted |= dict.fromkeys(right, "passed")
    assert {name: mark["state"] for name, mark in marks.items()} == wanted
    for name, (_, _, said) in NO_FILES_OF_THEIR_OWN.items():
        assert marks[name]["points"] == 0, name
        assert said in marks[name]["checks"][0]["message"], name


@pytest.mark.usefixtures("warm_classroom")
def test_two_equal_files_count_as_one(workbook, hand_in, tmp_path):
    hand_in("ada", RIGHT)
    assert cli.main(["grade", hand_in("ada", RIGHT, "exercises")]) == 0
    assert rows(tmp_path / "grades.csv")["ada"]["passed"] == "1"


@pytest.mark.usefixtures("warm_classroom")
def test_results_for_other_systems(workbook, hand_in, tmp_path):
    folders = [hand_in("half", HALF), hand_in("none", None)]
    twice(workbook, Path(hand_in("two", None)), tmp_path)
    forms = [f"--{system}={tmp_path / system}" for system in classroom.SYSTEMS]
    assert cli.main(["grade", *folders, str(tmp_path / "class/two"), *forms]) == 1

    def results(system, student):
        return json.loads((tmp_path / system / student / "results.json").read_text())

    (test,) = results("gradescope", "half")["tests"]
    assert test["score"] == 0.6667 and test["max_score"] == 1 and test["status"] == "failed"
    assert "2 of 3" in test["output"] and test["name"] == workbook.name
    (test,) = results("gradescope", "none")["tests"]
    assert test["score"] == 0 and "missing" in test["output"]
    (test,) = results("gradescope", "two")["tests"]
    assert "score" not in test and "which one counts?" in test["output"]
    found = results("otter", "half")[workbook.name]
    assert found["score"] == 0.6667 and found["possible"] == 1 and len(found["test_cases"]) == 3
    assert [r["passed"] for r in found["test_case_results"]].count(True) == 2
    assert sum(case["points"] for case in found["test_cases"]) == pytest.approx(1)
    with pytest.raises(ValueError, match="system must be gradescope or otter, got 'moodle'"):
        classroom.results_for("moodle", {"exercises": [{"checks": [], "state": "", "passed": 0,
                                                        "total": 0}]})  # fmt: skip
