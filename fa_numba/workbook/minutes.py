"""How long a lesson takes, by one formula: ``fa-numba lessons``.

    words / 120  +  4 s for each code line shown  +  4 min for each exercise and 1 min for each line
    of its solution

The sum stands below the title of each lesson. `fa_numba.workbook.notebooks` writes it there.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from fa_numba.workbook import progress, stubs
from fa_numba.workbook.catalog import Exercise, find_one, find_root

WORDS_PER_MINUTE = 120
SECONDS_PER_CODE_LINE = 4
MINUTES_PER_EXERCISE = 4
MINUTES_PER_SOLUTION_LINE = 1
LIMIT = 90  # minutes of a lesson

LINE = re.compile(r"^\*About (\d+) minutes[^\n]*\*$", re.MULTILINE)  # as `Minutes.line` writes it
GRADED = re.compile(r'^grade\("(\w+)"\)', re.MULTILINE)


@dataclass(frozen=True)
class Minutes:
    """What a lesson consists of.

    Attributes
    ----------
    words : int
        Of the text.
    code_lines : int
        Shown, and not empty.
    solution_lines : tuple of int
        For each exercise.
    """

    words: int
    code_lines: int
    solution_lines: tuple[int, ...]

    @property
    def reading(self) -> float:
        return self.words / WORDS_PER_MINUTE

    @property
    def code(self) -> float:
        return self.code_lines * SECONDS_PER_CODE_LINE / 60

    @property
    def exercises(self) -> float:
        return (
            MINUTES_PER_EXERCISE * len(self.solution_lines)
            + sum(self.solution_lines) * MINUTES_PER_SOLUTION_LINE
        )

    @property
    def total(self) -> int:
        return round(self.reading + self.code + self.exercises)

    @property
    def line(self) -> str:
        """The sentence at the head of the lesson."""
        parts = [f"{self.reading:.0f} to read", f"{self.code:.0f} for the code"]
        if number := len(self.solution_lines):
            parts.append(f"{self.exercises:.0f} for {number} exercise{'s' * (number > 1)}")
        return f"*About {self.total} minutes: {', '.join(parts)}.*"


def of_cells(cells, root: Path | None = None) -> Minutes | None:
    """What the cells of a lesson consist of; None in a copy of the workbook without solutions.

    Parameters
    ----------
    cells : list of notebook cells
        With `cell_type`, `source` (a text or its lines) and `metadata`.
    root : path, optional
        The checkout with its exercises.
    """
    words = code_lines = 0
    names = []
    for cell in cells:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            words += len(LINE.sub("", text).split())
        elif not cell.get("metadata", {}).get("jupyter", {}).get("source_hidden"):
            code_lines += sum(bool(line.strip()) for line in text.splitlines())
            names += GRADED.findall(text)
    exercises = [find_one(name, root) for name in names]
    if not all(exercise.solution.exists() for exercise in exercises):
        return None
    return Minutes(words, code_lines, tuple(map(solution_lines, exercises)))


def solution_lines(exercise: Exercise) -> int:
    """Lines of code that a solution adds to the stub; comments and empty lines aside.

    Lines that the stub has already, such as those of a kernel with a bug in it, are not written.
    Nor are those of the exercise that the learner starts from.
    """
    given, added = _lines(exercise)
    known = set()
    if start := stubs.read(exercise).start:
        before, known = _lines(find_one(start, exercise.root))
        known = {_bare(line) for line in (*before, *known)}
    new = [line for line in added if line not in given and _bare(line) not in known]
    return sum(bool(line) and not line.startswith("#") for line in new)


def _lines(exercise):
    """Lines of a solution that the stub has, and those that it has not."""
    inside, given, added = False, set(), []
    for line in exercise.solution.read_text(encoding="utf-8").splitlines():
        word = line.strip()
        if word in (stubs.BEGIN, stubs.END):
            inside = word == stubs.BEGIN
        elif inside:
            added.append(word)
        else:
            given.add(word)
    return given, added


def _bare(line):
    """A line without the comment at its end."""
    return line.partition("  #")[0].strip()


def with_line(title: str, minutes: Minutes) -> str:
    """The text of a lesson's first cell, with the sentence below its heading."""
    heading, _, text = LINE.sub("", title).partition("\n")
    return f"{heading}\n\n{minutes.line}\n\n{text.strip()}".rstrip()


@dataclass(repr=False)
class Lessons:
    """A line for each lesson: number, title, minutes, exercises, passed."""

    rows: list[tuple[str, str, str, str, str]]

    def __rich__(self):
        from rich.table import Table

        table = Table()
        for name in ("lesson", "title", "minutes", "exercises", "passed"):
            table.add_column(name, justify="right" if name in ("minutes", "passed") else "left")
        for row in self.rows:
            table.add_row(*row)
        return table


def lessons(root: Path | None = None) -> Lessons:
    """All lessons with their minutes, and the kinds and numbers of their exercises."""
    root = find_root() if root is None else Path(root)
    rows, minutes, kinds_of_all, done = [], 0, Counter(), 0
    for path in sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        title = "".join(cells[0]["source"])
        names = GRADED.findall("\n".join("".join(c["source"]) for c in cells))
        exercises = [find_one(name, root) for name in names]
        kinds = Counter(stubs.read(exercise).kind for exercise in exercises)
        passed = sum(map(progress.is_passed, exercises))
        printed = int(LINE.search(title)[1]) if LINE.search(title) else 0
        heading = title.partition("\n")[0].partition("·")[2].strip()
        rows.append((path.name[:2], heading, f"{printed}", _counted(kinds), _passed(passed, names)))
        minutes, kinds_of_all, done = minutes + printed, kinds_of_all + kinds, done + passed
    total = sum(kinds_of_all.values())
    rows.append(("all", "", f"{minutes}", _counted(kinds_of_all), f"{done}/{total}"))
    return Lessons(rows)


def _counted(kinds):
    return ", ".join(f"{kinds[kind]} {kind}" for kind in stubs.KINDS if kinds[kind])


def _passed(passed, names):
    return f"{passed}/{len(names)}" if names else ""
