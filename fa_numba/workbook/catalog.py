"""Where the exercises are and what each one is called."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

NAME = re.compile(r"ex\d\d[a-z]_\w+")


class UnknownExercise(LookupError):
    """The name fits no exercise; the message lists the close ones."""


@dataclass(frozen=True)
class Exercise:
    """One exercise: the learner's file, its grader, and the solution both come from."""

    name: str
    root: Path

    @property
    def short(self) -> str:
        """``ex05a`` of ``ex05a_tile_update``."""
        return self.name.split("_", 1)[0]

    @property
    def lesson(self) -> str:
        """``05`` of ``ex05a_tile_update``."""
        return self.name[2:4]

    @property
    def stub(self) -> Path:
        return self.root / "exercises" / f"{self.name}.py"

    @property
    def grader(self) -> Path:
        return self.root / "exercises" / f"test_{self.name}.py"

    @property
    def solution(self) -> Path:
        return self.root / "solutions" / f"{self.name}.py"

    @property
    def title(self) -> str:
        """The first line of the solution's docstring, without the number."""
        first = self.solution.read_text(encoding="utf-8").split("\n", 1)[0]
        return first.strip('"').split("·", 1)[-1].strip()


def find_root() -> Path:
    """The checkout that holds ``exercises/`` and ``solutions/``.

    The working directory and its parents come first, then the checkout this package was
    installed from with ``pip install -e``.
    """
    here = Path.cwd()
    for folder in (here, *here.parents, Path(__file__).parents[2]):
        if (folder / "solutions").is_dir() and (folder / "exercises").is_dir():
            return folder
    raise FileNotFoundError(
        "no exercises/ folder here: the workbook needs the checkout, not only the installed "
        "package. Clone the repository and run this inside it."
    )


def all_exercises(root: Path | None = None) -> list[Exercise]:
    """Every exercise of the workbook, in lesson order."""
    root = find_root() if root is None else Path(root)
    paths = sorted((root / "solutions").glob("ex*.py"))
    return [Exercise(path.stem, root) for path in paths if NAME.fullmatch(path.stem)]


def find(name: str, root: Path | None = None) -> list[Exercise]:
    """The exercises a learner means: ``ex05`` or ``05`` (a lesson), ``ex05b``, or a full name."""
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
            raise UnknownExercise(f"no exercise called {name!r}: {there}")
        there = ", ".join(e.short for e in exercises if e.lesson == lesson[1])
        raise UnknownExercise(f"no exercise called {name!r}: lesson {lesson[1]} has {there}")
    choices = {key: e.name for e in exercises for key in (e.short, e.name, e.name[6:])}
    close = difflib.get_close_matches(wanted, choices, n=4, cutoff=0.6)
    close += difflib.get_close_matches(wanted.removeprefix("ex"), choices, n=4, cutoff=0.6)
    names = sorted({choices[key] for key in close})
    hint = "did you mean " + ", ".join(names) if names else "see `fa-numba status` for the list"
    raise UnknownExercise(f"no exercise called {name!r}: {hint}?".replace("list?", "list"))


def find_one(name: str, root: Path | None = None) -> Exercise:
    """Like `find`, for commands that take one exercise."""
    found = find(name, root)
    if len(found) > 1:
        names = ", ".join(e.short for e in found)
        raise UnknownExercise(f"{name!r} is a whole lesson; choose one of {names}")
    return found[0]
