"""``fa-numba grade FOLDER...``: grades the folders of many students.

Every folder is graded by a pytest process of its own, with this workbook's graders and the limits
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
from pathlib import Path

from fa_numba.runtime import installing
from fa_numba.workbook import class_report
from fa_numba.workbook.catalog import Exercise, Refused, UnknownExercise, all_exercises, find
from fa_numba.workbook.grading.files import BadFile, read_answer
from fa_numba.workbook.grading.limits import limits_of
from fa_numba.workbook.report import Check, Graded, Report

SYSTEMS = "gradescope", "otter"
START_SECONDS = 120  # for a judge, beside the time that answers may take


@dataclass
class Mark:
    """One exercise of one student."""

    name: str
    # "passed", "failed", "not started", "missing" (no such file) or "not graded" (the grader itself
    # failed: look at it by hand)
    state: str
    points: float
    of: float
    passed: int = 0  # checks
    total: int = 0
    sha256: str = ""  # checksum of the graded file
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


def files_of(folder: Path, exercises: list[Exercise]) -> dict[str, list[Path]]:
    """{name: files} that a student has handed in, whatever they are.

    They lie in the folder, in its exercises/, or in that of its only folder, as a zip file unpacks.
    """

    def those_in(path):
        return [path / e.stub.name for e in exercises if os.path.lexists(path / e.stub.name)]

    inside = [p for p in sorted(folder.iterdir()) if p.is_dir()]
    places = [folder, folder / "exercises"]
    if len(inside) == 1:
        places.append(inside[0] / "exercises")
    found = [path for place in places for path in those_in(place)]
    if not found and any(those_in(p) or those_in(p / "exercises") for p in inside):
        raise Refused(f"{folder} holds folders of students: fa-numba grade {folder}/*")
    return {e.name: [path for path in found if path.name == e.stub.name] for e in exercises}


def trouble(folder: Path, files: list[Path]) -> tuple[str, str]:
    """The state and the message of files that cannot be graded as they lie there; else "", ""."""
    for path in files:
        for place in path.parents:
            if place.is_symlink():
                name = os.path.relpath(place, folder.parent)
                return "failed", f"{name} is a symbolic link, and must be a folder: copy the folder"
            if place == folder:
                break
    if len(files) > 1 and len({_content(path) for path in files}) > 1:
        names = " and ".join(str(path.relative_to(folder)) for path in files)
        return "not graded", f"two files of one name, {names}, differ: which one counts?"
    return "", ""


def _content(path):
    """The bytes of a file, or its path where `read_answer` will refuse it."""
    try:
        read_answer(path)
    except BadFile:
        return path
    return path.read_bytes()


def read_points(path: Path | None, exercises: list[Exercise]) -> dict[str, float]:
    """{name: points} of the exercises to grade.

    `path` is a CSV file of "exercise,points" lines, where ex06 means each exercise of the lesson;
    exercises that it does not name are not graded. None: 1 point each.
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

    `points` is {name: points}. With `whole` an exercise has all its points or none; otherwise its
    share of passed checks.
    """
    judges = judges or Judges()
    begin, folder = time.monotonic(), Path(os.path.abspath(folder))
    files = files_of(folder, exercises)
    troubles = {name: trouble(folder, found) for name, found in files.items()}
    results, places = {}, {}
    for exercise in exercises:
        if files[exercise.name] and not troubles[exercise.name][0]:
            places.setdefault(files[exercise.name][0].parent, []).append(exercise)
    for place, there in places.items():
        results |= _judged(there, place, judges)
        for exercise in there:  # one file has ended the judge: the others are graded without it
            if exercise.name not in results:
                results |= _judged([exercise], place, judges)
    marks = []
    for exercise in exercises:
        name, of = exercise.name, points[exercise.name]
        state, message = troubles[name]
        if not files[name]:
            marks.append(Mark(name, "missing", 0.0, of))
        elif state:
            check = Check("one file of its own is handed in", "failed", message)
            marks.append(Mark(name, state, 0.0, of, 0, 1, "", [check]))
        else:
            graded = Graded(exercise, results.get(name, []))
            passed, total = graded.count("passed"), len(graded.checks) - graded.count("skipped")
            share = float(graded.passed) if whole else passed / max(total, 1)
            state = graded.state if graded.checks else "not graded"
            earned = round(of * share, 4)
            checksum = _checksum(files[name][0])
            marks.append(Mark(name, state, earned, of, passed, total, checksum, graded.checks))
    return Student(folder.name, str(folder), marks, time.monotonic() - begin)


def _checksum(path):
    """Of a graded file; "" of what is no file."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


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
    """Grade folders, `jobs` at a time; in the order in which they were given.

    `points` and `whole` are those of `grade_student`; `said` gets a line for each student who is
    done.
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


def as_data(student: Student) -> dict:
    """One student as JSON: every check, with its message and the checksum of the graded file."""
    return {
        "student": student.name,
        "folder": student.folder,
        "points": student.points,
        "of": student.of,
        "seconds": round(student.seconds, 1),
        "exercises": [asdict(mark) for mark in student.marks],
    }


def write_json(path: Path, students: list[Student]) -> None:
    """All students, with date and version."""
    data = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "fa_numba": installing.version("fa-numba"),
        "students": [as_data(s) for s in students],
    }
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def results_for(system: str, student: dict) -> dict:
    """A student's results as another system reads them.

    Parameters
    ----------
    system : "gradescope" or "otter"
        Gradescope's results.json, which otter's autograder on Gradescope writes too; or the
        dict of otter's `GradingResults.to_dict`.
    student : dict
        One of `students` in grades.json.

    Returns
    -------
    dict
        An exercise that was not graded has no score in Gradescope's form, and 0 in otter's.
    """
    found = {}
    for mark in student["exercises"]:
        failed = [f"{c['name']}: {c['message'] or c['outcome']}" for c in mark["checks"]
                  if c["outcome"] not in ("passed", "skipped")]  # fmt: skip
        said = "\n".join([f"{mark['state']}: {mark['passed']} of {mark['total']}", *failed])
        if system == "gradescope":
            status = "passed" if mark["state"] == "passed" else "failed"
            found[mark["name"]] = {
                "name": mark["name"], "max_score": mark["of"], "status": status, "output": said,
            } | ({} if mark["state"] == "not graded" else {"score": mark["points"]})  # fmt: skip
        elif system == "otter":
            cases = [c for c in mark["checks"] if c["outcome"] != "skipped"]
            points = mark["of"] / max(len(cases), 1)
            results = [
                {
                    "test_case": {"name": c["name"], "body": "", "hidden": False, "points": points,
                                  "success_message": None, "failure_message": None},
                    "message": c["message"],
                    "passed": c["outcome"] == "passed",
                }
                for c in cases
            ]  # fmt: skip
            found[mark["name"]] = {
                "name": mark["name"], "path": f"{mark['name']}.py", "score": mark["points"],
                "possible": mark["of"], "all_or_nothing": False,
                "test_cases": [result["test_case"] for result in results],
                "test_case_results": results,
            }  # fmt: skip
        else:
            raise ValueError(f"system must be gradescope or otter, got {system!r}")
    if system == "otter":
        return found
    return {"execution_time": student["seconds"], "tests": list(found.values())}


def write_results(system: str, folder: Path, students: list[Student]) -> None:
    """A file for each student, in the form of another system: FOLDER/STUDENT/results.json."""
    for student in students:
        path = folder / student.name / "results.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(results_for(system, as_data(student)), indent=1)
        path.write_text(text + "\n", encoding="utf-8")


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
    group.add_argument(
        "--report", type=int, nargs="?", const=20, metavar="N",
        help="print the N checks that most students fail, and the likeliest mistake; default: 20",
    )  # fmt: skip
    for system in SYSTEMS:
        group.add_argument(
            f"--{system}",
            type=Path,
            metavar="FOLDER",
            help=f"results.json per student for {system}",
        )


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

    for option, number in (("jobs", options.jobs), ("report", options.report)):
        if number is not None and number < 1:
            raise Refused(f"--{option} must be 1 or more, got {number}")
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
    for system in SYSTEMS:
        if folder := getattr(options, system):
            write_results(system, folder, students)
    Console().print(table(students))
    if options.report:
        Console().print(class_report.table(students, options.report))
    print(f"Points: {targets[0]}. Every check: {targets[1]}.")
    return int(any(s.count("not graded") for s in students))
