"""Where the workbook's files lie, and the names of its exercises.

A learner's files lie in one folder, the root: `exercises/`, `lessons/`, the progress. The course,
graders, solutions, notebooks, documents and recorded numbers, lies there too in a checkout and in a
handout. A folder that `fa-numba init` has made has the file `.fa-numba`, and its course is that of
the installed package.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from pathlib import Path

BUNDLE = "exercises/.workbook.json"  # of a handout; see `handout`
MARKER = ".fa-numba"  # of a folder that `fa-numba init` has made: the version it was brought up to
PACKAGE = Path(__file__).parents[1].resolve()
NAME = re.compile(r"ex\d\d[a-z]_\w+")


class UnknownExercise(LookupError):
    """The name fits no exercise; the message lists the close ones."""


class Refused(ValueError):
    """A command refuses its arguments; the message gives the reason."""


@dataclass(frozen=True)
class Exercise:
    """One exercise: the learner's file, its grader, and the solution both come from."""

    name: str
    root: Path

    @property
    def short(self) -> str:
        """``ex06a`` of ``ex06a_tile_update``."""
        return self.name.split("_", 1)[0]

    @property
    def lesson(self) -> str:
        """``06`` of ``ex06a_tile_update``."""
        return self.name[2:4]

    @property
    def stub(self) -> Path:
        return self.root / "exercises" / f"{self.name}.py"

    @property
    def grader(self) -> Path:
        return course(self.root) / "exercises" / f"test_{self.name}.py"

    @property
    def solution(self) -> Path:
        return course(self.root) / "solutions" / f"{self.name}.py"

    @property
    def text(self) -> str:
        """The file with the statement: the solution, or in a handout the untouched stub."""
        if self.solution.exists():
            return self.solution.read_text(encoding="utf-8")
        return bundled(self.root, self.name)["stub"]

    @property
    def title(self) -> str:
        """The first line of the statement, without the number."""
        return self.text.split("\n", 1)[0].strip('"').split("·", 1)[-1].strip()


def installed_course() -> Path:
    """The course of the installed package: in a wheel a folder of its own, else the checkout."""
    inside = PACKAGE / "course"
    return inside if inside.is_dir() else PACKAGE.parent


def course(root: Path) -> Path:
    """The folder with the course that a learner's folder belongs to; see this file's first lines.

    Parameters
    ----------
    root : path
        A learner's folder, a checkout or a handout.
    """
    return installed_course() if (Path(root) / MARKER).is_file() else Path(root)


def bundled(root: Path, name: str | None = None) -> dict:
    """A handout's substitute for solutions: {name: {stub, hints, debrief}}, or that of one name."""
    try:
        bundle = json.loads((course(root) / BUNDLE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        bundle = {}
    if name is None:
        return bundle
    if name not in bundle:
        raise FileNotFoundError(
            f"solutions/{name}.py is not there, from which the stub and the hints of {name} are "
            f"made. A copy without solutions is made by `make handout`: it has {BUNDLE} instead"
        )
    return bundle[name]


def find_root() -> Path:
    """The learner's folder: a checkout, a handout, or what ``fa-numba init`` has made.

    The working directory and its parents come first, then the checkout this package was
    installed from with ``pip install -e``.
    """
    here = Path.cwd()
    return _root_of([here, *here.parents, PACKAGE.parent])


def _root_of(folders: list[Path]) -> Path:
    for folder in folders:
        whole = (folder / "solutions").is_dir() and (folder / "exercises").is_dir()
        if whole or (folder / BUNDLE).is_file() or (folder / MARKER).is_file():
            return folder
        if list((folder / "exercises").glob("test_ex*.py")):  # never another folder's exercises
            raise FileNotFoundError(
                f"{folder} has exercises/, but neither solutions/ nor {BUNDLE}, from which stubs "
                "and hints come. Bring solutions/ back (git checkout solutions), make a folder of "
                "your own (fa-numba init my-workbook), or the copy for a class (make handout)"
            )
    raise FileNotFoundError(
        "no workbook here: `fa-numba init my-workbook` makes one, a folder. Run this inside it"
    )


def all_exercises(root: Path | None = None) -> list[Exercise]:
    """Every exercise of the workbook, in lesson order."""
    root = find_root() if root is None else Path(root)
    names = {path.stem for path in (course(root) / "solutions").glob("ex*.py")} or bundled(root)
    return [Exercise(name, root) for name in sorted(names) if NAME.fullmatch(name)]


def find(name: str, root: Path | None = None) -> list[Exercise]:
    """The exercises a learner means: ``ex06`` or ``06`` (a lesson), ``ex06b``, or a full name."""
    exercises = all_exercises(root)
    wanted = Path(name).name.removesuffix(".py").removeprefix("test_").lower()
    wanted = wanted if wanted.startswith("ex") else f"ex{wanted}"
    wanted = re.sub(r"^ex(\d)(?!\d)", r"ex0\1", wanted)  # ex5b
    for attribute in ("name", "short"):
        if found := [e for e in exercises if getattr(e, attribute) == wanted]:
            return found
    if found := [e for e in exercises if f"ex{e.lesson}" == wanted]:
        return found
    lessons = sorted({e.lesson for e in exercises})
    if (lesson := re.match(r"ex(\d+)", wanted)) and lessons:
        if lesson[1] not in lessons:
            there = f"the lessons with exercises are {lessons[0]} to {lessons[-1]}"
            what = f"lesson {name}" if name.isdigit() else f"exercise called {name!r}"
            raise UnknownExercise(f"no {what}: {there}")
        there = ", ".join(e.short for e in exercises if e.lesson == lesson[1])
        raise UnknownExercise(f"no exercise called {name!r}: lesson {lesson[1]} has {there}")
    choices = {key: e.name for e in exercises for key in (e.short, e.name, e.name[6:])}
    close = difflib.get_close_matches(wanted, choices, n=4, cutoff=0.6)
    close += difflib.get_close_matches(wanted.removeprefix("ex"), choices, n=4, cutoff=0.6)
    names = sorted({choices[key] for key in close})
    hint = f"did you mean {', '.join(names)}?" if names else "see `fa-numba status` for the list"
    raise UnknownExercise(f"no exercise called {name!r}: {hint}")


def find_one(name: str, root: Path | None = None) -> Exercise:
    """Like `find`, for commands that take one exercise."""
    found = find(name, root)
    if len(found) > 1:
        names = ", ".join(e.short for e in found)
        raise UnknownExercise(f"{name!r} is a whole lesson; choose one of {names}")
    return found[0]
