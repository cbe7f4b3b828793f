"""``fa-numba grade FOLDER...``: grades the folders of many students.

Every folder is graded by a pytest process of its own, with this checkout's graders and the limits
that a student has: whatever a file does, the other files and the other students are graded. Results
go to a CSV file, a row for each student, and to a JSON file with every check.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from fa_numba.workbook.catalog import Exercise, UnknownExercise, all_exercises, find
from fa_numba.workbook.grading.limits import limits_of
from fa_numba.workbook.report import Check, Graded, Report

START_SECONDS = 120  # for a judge, beside the time that answers may take


class Refused(ValueError):
    """The command line is wrong; the message names the option or folder."""


@dataclass
class Mark:
    """One exercise of one student.

    Attributes
    ----------
    name : str
    state : str
        "passed", "failed", "not started", "missing" (no such file) or "not graded" (the grader
        itself failed: look at it by hand).
    points, of : float
    passed, total : int
        Checks.
    sha256 : str
        Checksum of the graded file.
    checks : list of Check
    """

    name: str
    state: str
    points: float
    of: float
    passed: int = 0
    total: int = 0
    sha256: str = ""
    checks: list[Check] = field(default_factory=list)


@dataclass
class Student:
    """One folder, graded."""

    name: str
    folder: str
    marks: list[Mark]
    seconds: float

    @property
    def points(self) -> float:
        return round(sum(mark.points for mark in self.marks), 4)

    @property
    def of(self) -> float:
        return round(sum(mark.of for mark in self.marks), 4)

    def count(self, state: str) -> int:
        return sum(mark.state == state for mark in self.marks)


def files_of(folder: Path, exercises: list[Exercise]) -> Path:
    """The folder that holds a student's files: itself, or an exercises/ in it or one below.

    Parameters
    ----------
    folder : path
        The folder that a student handed in.
    exercises : list of Exercise
        Those to grade.
    """
    wanted = {e.stub.name for e in exercises}

    def holds(path):
        return any((path / name).is_file() for name in wanted)

    if holds(folder):
        return folder
    inside = [p for p in sorted(folder.iterdir()) if p.is_dir()]
    for path in (folder / "exercises", *(p / "exercises" for p in inside if len(inside) == 1)):
        if holds(path):  # the second: as a zip file unpacks
            return path
    if any(holds(p) or holds(p / "exercises") for p in inside):
        raise Refused(f"{folder} holds folders of students: fa-numba grade {folder}/*")
    return folder  # nothing handed in: every file is missing


def read_points(path: Path | None, exercises: list[Exercise]) -> dict[str, float]:
    """{name: points} of the exercises to grade.

    Parameters
    ----------
    path : path or None
        A CSV file of "exercise,points" lines, where ex06 means each exercise of the lesson.
        Exercises that it does not name are not graded. None: 1 point each.
    exercises : list of Exercise
        Those that may be graded.
    """
    if path is None:
        return {e.name: 1.0 for e in exercises}
    allowed, points = {e.name for e in exercises}, {}
    try:
        rows = list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines()))
    except OSError as error:
        raise Refused(f"--points {path} cannot be read: {error.strerror}") from None
    for number, row in enumerate(rows, 1):
        cells = [cell.strip() for cell in row]
        if not any(cells) or cells[0].startswith("#") or (number == 1 and cells[0] == "exercise"):
            continue
        where = f"--points {path}, line {number}"
        try:
            name, value = cells[0], float(cells[1])
        except (IndexError, ValueError):
            raise Refused(f"{where}: must be exercise,points such as ex06b,10; got {row}") from None
        if not 0 <= value < float("inf"):
            raise Refused(f"{where}: points must be 0 or more, got {cells[1]}")
        try:
            named = [e.name for e in find(name)]
        except UnknownExercise as error:
            raise Refused(f"{where}: {error}") from None
        for exercise in named:
            if exercise in points:
                raise Refused(f"{where}: {exercise} has its points already")
            if exercise in allowed:
                points[exercise] = value
    if not points:
        raise Refused(f"--points {path} names no exercise to grade")
    return points


def grade_student(folder, exercises, points, *, whole=False, judges=None) -> Student:
    """Grade the files of one folder.

    Parameters
    ----------
    folder : path
    exercises : list of Exercise
    points : dict
        {name: points}.
    whole : bool, default=False
        All points of an exercise or none; otherwise its share of passed checks.
    judges : Judges, optional
    """
    judges = judges or Judges()
    begin, folder = time.monotonic(), Path(folder)
    files = files_of(folder, exercises).resolve()
    there = [e for e in exercises if (files / e.stub.name).is_file()]
    results = _judged(there, files, judges)
    for exercise in there:  # one file has ended the judge: the others are graded without it
        if exercise.name not in results:
            results |= _judged([exercise], files, judges)
    marks = []
    for exercise in exercises:
        of = points[exercise.name]
        if exercise not in there:
            marks.append(Mark(exercise.name, "missing", 0.0, of))
            continue
        graded = Graded(exercise, results.get(exercise.name, []))
        passed, total = graded.count("passed"), len(graded.checks) - graded.count("skipped")
        share = float(graded.passed) if whole else passed / max(total, 1)
        marks.append(
            Mark(
                exercise.name,
                graded.state if graded.checks else "not graded",
                round(of * share, 4),
                of,
                passed,
                total,
                hashlib.sha256((files / exercise.stub.name).read_bytes()).hexdigest(),
                graded.checks,
            )
        )
    return Student(folder.resolve().name, str(folder), marks, time.monotonic() - begin)


class Judges:
    """The pytest processes that run; `stop` ends them, and no other one starts."""

    def __init__(self):
        self.lock, self.running, self.stopped = threading.Lock(), set(), False

    def run(self, command, folder, limit):
        with self.lock:
            if self.stopped:
                return
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # faster
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            self.running.add(process)
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        finally:
            self.running.discard(process)

    def stop(self):
        with self.lock:
            self.stopped = True
            for process in list(self.running):
                process.kill()  # its answering processes end with it


def _judged(exercises, folder, judges) -> dict[str, list[Check]]:
    """{name: checks} by a pytest process; without those that it could not finish."""
    if not exercises or judges.stopped:
        return {}
    # The grader's own limits end an answer long before, on a machine that is not overloaded.
    limit = START_SECONDS + sum(6 * limits_of(e.grader).seconds_in_all for e in exercises)
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch, "grade.json")
        command = [sys.executable, "-m", "pytest", *(str(e.grader) for e in exercises)]
        command += [f"--impl={folder}", f"--grade-json={answer}", "-p", "no:cacheprovider"]
        command += ["--ends-with-parent", "-q"]
        judges.run(command, exercises[0].root, limit)
        try:
            data = json.loads(answer.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # it was stopped, or an answer ended it
            return {}
    return {d["name"]: [Check(**check) for check in d["checks"]] for d in data}


def grade_folders(folders, exercises, points, *, jobs=1, whole=False, said=print) -> list[Student]:
    """Grade folders, several at a time; in the order in which they were given.

    Parameters
    ----------
    folders : list of path
    exercises : list of Exercise
    points : dict
    jobs : int, default=1
        How many students at a time.
    whole : bool, default=False
    said : function, default=print
        Gets a line for each student who is done.
    """
    done, judges = 0, Judges()

    def grade(folder):
        nonlocal done
        try:
            student = grade_student(folder, exercises, points, whole=whole, judges=judges)
        except Exception as error:  # an error in one folder must not stop the others
            marks = [Mark(e.name, "not graded", 0.0, points[e.name]) for e in exercises]
            student = Student(Path(folder).name, str(folder), marks, 0.0)
            said(f"{folder}: not graded: {type(error).__name__}: {error}")
        done += 1
        if not judges.stopped:
            said(f"[{done}/{len(folders)}] {_line(student)}")
        return student

    with ThreadPoolExecutor(jobs) as pool:
        try:
            return list(pool.map(grade, folders))
        except BaseException:
            judges.stop()
            pool.shutdown(cancel_futures=True)
            raise


def _line(student):
    words = [f"{student.points:g} of {student.of:g} points", f"{student.count('passed')} passed"]
    for state in ("failed", "missing", "not graded"):
        if count := student.count(state):
            words.append(f"{count} {state}")
    return f"{student.name}: {', '.join(words)} ({student.seconds:.0f} s)"


# --- output files


def write_csv(path: Path, students: list[Student]) -> None:
    """A row for each student: points by exercise, their sum, and out of how many."""
    names = [mark.name for mark in students[0].marks]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["student", *names, "points", "of", "passed", "not graded"])
        for s in students:
            points = [f"{mark.points:g}" if mark.state != "not graded" else "" for mark in s.marks]
            # A spreadsheet would run a cell that begins with one of these.
            name = f"'{s.name}" if s.name[:1] in "=+-@" else s.name
            counts = [s.count("passed"), s.count("not graded")]
            writer.writerow([name, *points, f"{s.points:g}", f"{s.of:g}", *counts])


def write_json(path: Path, students: list[Student]) -> None:
    """Every check of every exercise, with its message and the checksum of the graded file."""
    data = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "fa_numba": _version(),
        "students": [
            {
                "student": s.name,
                "folder": s.folder,
                "points": s.points,
                "of": s.of,
                "seconds": round(s.seconds, 1),
                "exercises": [asdict(mark) for mark in s.marks],
            }
            for s in students
        ],
    }
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _version():
    try:
        return metadata.version("fa-numba")
    except metadata.PackageNotFoundError:
        return "not installed"


def write_reports(folder: Path, students: list[Student], exercises: list[Exercise]) -> None:
    """A text file for each student, as `fa-numba check` would print it."""
    folder.mkdir(parents=True, exist_ok=True)
    by_name = {e.name: e for e in exercises}
    for number, s in enumerate(students, 1):
        graded = [Graded(by_name[m.name], m.checks) for m in s.marks if m.checks]
        head = "".join(f"{m.name}: {m.points:g} of {m.of:g} points, {m.state}\n" for m in s.marks)
        text = f"{s.name}: {s.points:g} of {s.of:g} points\n\n{head}\n"
        text += Report(graded, learner=False).text(width=100)
        (folder / f"{number:03d}_{s.name}.txt").write_text(text, encoding="utf-8")


def table(students: list[Student]):
    """The summary, for a terminal."""
    from rich.table import Table
    from rich.text import Text

    found = Table("student", title=f"{len(students)} students", title_justify="left")
    for column in ("points", "of", "passed", "failed", "not started", "missing", "not graded"):
        found.add_column(column, justify="right")
    for s in students:
        counts = [s.count(state) for state in ("passed", "failed", "not started", "missing")]
        cells = [f"{s.points:g}", f"{s.of:g}", *map(str, counts), str(s.count("not graded"))]
        found.add_row(Text(s.name), *cells, style="red" if s.count("not graded") else None)
    return found


# --- the command


def add_options(parser):
    """Declare the options of `fa-numba grade` for folders."""
    group = parser.add_argument_group("folders of students (see docs/instructors.md)")
    group.add_argument("--jobs", type=int, default=1, metavar="N", help="students at a time")
    group.add_argument(
        "--exercises", metavar="NAMES", help="only these, such as ex06,ex07d; otherwise all"
    )
    group.add_argument("--points", type=Path, metavar="FILE", help="CSV: exercise,points")
    group.add_argument(
        "--whole", action="store_true", help="all points of an exercise or none, no shares"
    )
    group.add_argument("--csv", type=Path, metavar="FILE", help="the default is grades.csv")
    group.add_argument("--json", type=Path, metavar="FILE", help="the default is grades.json")
    group.add_argument("--reports", type=Path, metavar="FOLDER", help="a text file per student")


def are_folders(names: list[str]) -> bool:
    """Whether a command line names folders, and not exercises."""
    folders = [name for name in names if Path(name).is_dir()]
    if folders and len(folders) < len(names):
        other = next(name for name in names if name not in folders)
        raise Refused(f"{folders[0]} is a folder and {other} is none: name folders or exercises")
    return bool(folders)


def main(options) -> int:
    """Grade the folders; 0 where each of them could be graded."""
    from rich.console import Console

    if options.jobs < 1:
        raise Refused(f"--jobs must be 1 or more, got {options.jobs}")
    names = (options.exercises or "").replace(",", " ").split()
    exercises = list(dict.fromkeys(e for n in names for e in find(n))) or all_exercises()
    points = read_points(options.points, exercises)
    exercises = [e for e in exercises if e.name in points]
    folders = [Path(name) for name in options.name]
    for folder in folders:
        files_of(folder, exercises)  # raises before anything is graded
    targets = [options.csv or Path("grades.csv"), options.json or Path("grades.json")]
    for target in targets:
        if not target.absolute().parent.is_dir():
            raise Refused(f"{target}: there is no folder {target.absolute().parent}")
    count = "1 student" if len(folders) == 1 else f"{len(folders)} students"
    print(f"{count}, {len(exercises)} exercises, {options.jobs} at a time")
    students = grade_folders(
        folders,
        exercises,
        points,
        jobs=options.jobs,
        whole=options.whole,
        said=lambda line: print(line, flush=True),
    )
    write_csv(targets[0], students)
    write_json(targets[1], students)
    if options.reports:
        write_reports(options.reports, students, exercises)
    Console().print(table(students))
    print(f"Points: {targets[0]}. Every check: {targets[1]}.")
    return int(any(s.count("not graded") for s in students))
