"""The contents of the lessons: titles, minutes, exercises. ``fa-numba lessons`` lists them."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from fa_numba.workbook import progress, stubs
from fa_numba.workbook.catalog import Exercise, course, find_one, find_root

# Below a lesson's title; a long lesson has two sittings, and names the section of the second one.
MINUTES = re.compile(
    r"^\*About (\d+)(?: \+ (\d+))? minutes(?:, with a break before “(.+)”)?\.\*$", re.MULTILINE
)
BREAK = "*A good place for a break.*"
GRADED = re.compile(r'^grade\("(\w+)"\)', re.MULTILINE)


@dataclass(frozen=True)
class Lesson:
    """A lesson: its file, title (without the number), minutes of each sitting, exercises."""

    path: Path
    title: str
    sittings: tuple[int, ...]
    exercises: tuple[Exercise, ...]

    @property
    def minutes(self) -> int:
        return sum(self.sittings)

    @property
    def number(self) -> str:
        return self.path.name[:2]

    def kinds(self) -> Counter:
        """How many exercises of each kind it has."""
        return Counter(stubs.read(exercise).kind for exercise in self.exercises)


def lessons(root: Path | None = None) -> list[Lesson]:
    """All lessons in their order."""
    root = find_root() if root is None else Path(root)
    found = []
    for path in sorted((course(root) / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        cells = ["".join(c["source"]) for c in json.loads(path.read_text("utf-8"))["cells"]]
        title = cells[0].partition("\n")[0].partition("·")[2].strip()
        said = MINUTES.search(cells[0])
        exercises = (find_one(name, root) for name in GRADED.findall("\n".join(cells)))
        sittings = tuple(int(minutes) for minutes in said.groups()[:2] if minutes) if said else (0,)
        found.append(Lesson(path, title, sittings, tuple(exercises)))
    return found


def counted(kinds: Counter) -> str:
    """``"2 write, 1 find the bug"``."""
    return ", ".join(f"{kinds[kind]} {kind}" for kind in stubs.KINDS if kinds[kind])


def listed(root: Path | None = None):
    """A table for the terminal: the lessons, and how many of their exercises have passed."""
    from rich.table import Table

    table, every = Table("lesson", "title", "minutes", "exercises", "passed"), lessons(root)
    total, passed = Counter(), 0
    for lesson in every:
        kinds, done = lesson.kinds(), sum(map(progress.is_passed, lesson.exercises))
        share = f"{done}/{len(lesson.exercises)}" if lesson.exercises else ""
        table.add_row(lesson.number, lesson.title, f"{lesson.minutes}", counted(kinds), share)
        total, passed = total + kinds, passed + done
    minutes = sum(lesson.minutes for lesson in every)
    table.add_row("all", "", f"{minutes}", counted(total), f"{passed}/{total.total()}")
    return table
