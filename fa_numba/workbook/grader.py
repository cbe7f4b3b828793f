"""A learner's functions, for a notebook and for the `fa-numba` command."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fa_numba.workbook import carry, guesses, lessons, par, progress, stubs
from fa_numba.workbook.catalog import Exercise, all_exercises, find, find_one
from fa_numba.workbook.grading import inside
from fa_numba.workbook.note import Note
from fa_numba.workbook.report import INLINE, Check, Graded, Report, as_text
from fa_numba.workbook.tables import as_markdown


class NoSuchHint(ValueError):
    """An exercise has fewer hints; the message says which it has."""


def grade(name: str, *, impl: str = "exercises", verbose: bool = False) -> Report:
    """Grade one exercise (``"ex06b"``) or a lesson's (``"ex06"``).

    The files are read fresh from disk, each in a process of its own: save first, then grade.

    Parameters
    ----------
    name : str
        An exercise or a lesson.
    impl : str, default="exercises"
        ``"solutions"`` grades ours, a folder grades the files of those names in it.
    verbose : bool, default=False
        Show every failure in full; otherwise the first one, and the names of the others.

    Returns
    -------
    Report
        Shows itself in a notebook or a terminal; true when every check passes.
    """
    return grade_all(find(name), impl=impl, verbose=verbose)


def grade_all(
    exercises: list[Exercise], *, impl: str = "exercises", verbose: bool = False
) -> Report:
    """Grade the given exercises: pytest judges, and each answer runs in a process of its own.

    Where processes cannot be started, all of it happens in this one: see `grading.inside`.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as answer:  # has no name: nothing stays
        options = [*(str(e.grader) for e in exercises), f"--impl={impl}", "-p", "no:cacheprovider"]
        judge = _judge_here if inside.is_wanted() else _judge
        said = judge(options, exercises[0].root, answer)
        answer.seek(0)
        if not (data := json.loads(answer.read() or "[]")):
            raise RuntimeError(f"the grader itself failed:\n{said}")
    by_name = {e.name: e for e in exercises}
    graded = [
        Graded(by_name[d["name"]], [Check(**c) for c in d["checks"]])
        for d in sorted(data, key=lambda d: d["name"])
    ]
    for g in graded:
        g.debrief = stubs.read(g.exercise).debrief
    learner = impl == "exercises"
    notes = [progress.why_not_kept(graded)] if learner else []
    notes += [inside.NOTE] if inside.is_wanted() else []
    return Report(graded, learner=learner, verbose=verbose, note=" ".join(filter(None, notes)))


def _judge(options, root, answer) -> str:
    """Run pytest in a process of its own, the results into a file; return what it printed."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--ends-with-parent"]
        + [f"--grade-json=/dev/fd/{answer.fileno()}"],
        cwd=root,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # ours alone, and faster
        capture_output=True,
        text=True,
        encoding="utf-8",
        pass_fds=[answer.fileno()],
    )
    return run.stdout[-3000:] + run.stderr[-3000:]


def _judge_here(options, root, answer) -> str:
    """The same in this process."""
    import pytest

    said = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
    ):
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        patch.chdir(root)
        file = Path(folder, "results.json")
        # pytest's own ways to catch output, logs and crashes want files of the system.
        options += [f"--grade-json={file}", "--capture=sys"]
        options += ["-p", "no:faulthandler", "-p", "no:logging"]
        options += ["-p", "no:unraisableexception"]  # looks through all of a notebook's objects
        pytest.main(options)
        if file.exists():
            answer.write(file.read_text(encoding="utf-8"))
    return said.getvalue()[-3000:]


def hint(name: str, tier: int | None = None) -> Note:
    """The next hint of an exercise, of three: a nudge, the idea, nearly the code.

    Parameters
    ----------
    name : str
        One exercise.
    tier : int, optional
        1, 2 or 3; without it, the first one not yet read. Earlier ones are shown with it.
    """
    exercise = find_one(name)
    hints = stubs.read(exercise).hints
    tier = min(progress.hints_read(exercise) + 1, len(hints)) if tier is None else tier
    if tier not in hints:
        raise NoSuchHint(f"tier must be one of {sorted(hints)}, got {tier}")
    progress.set_hints_read(exercise, tier)
    parts = [f"**Hint {n} of {len(hints)}.** {_prose(hints[n])}" for n in range(1, tier + 1)]
    return Note(_heading(exercise) + "\n\n".join(parts))


def _heading(exercise: Exercise) -> str:
    return f"### {exercise.short} · {exercise.title}\n\n"


def _prose(text: str) -> str:
    """Formulas in hints hold bare * and _, which Markdown would read as emphasis."""
    pattern = f"{INLINE.pattern}|([*_<~])"
    return re.sub(pattern, lambda part: "\\" * bool(part[3]) + part[0], text)


def show(name: str) -> Note:
    """The statement of an exercise, and a link to its file."""
    notes = []
    for exercise in find(name):
        statement = ast.get_docstring(ast.parse(exercise.text)).split("\n", 1)[-1].strip()
        link = f"[exercises/{exercise.stub.name}](../exercises/{exercise.stub.name})"
        note = f"{_heading(exercise)}```text\n{statement}\n```\n\nYour file: {link}"
        notes.append("\n\n".join(filter(None, (note, par.line(exercise)))))
    return Note("\n\n".join(notes))


def solution(name: str, *, force: bool = False) -> Note:
    """Our solution of an exercise, once yours passes; `force` shows it earlier."""
    exercise = find_one(name)
    if not exercise.solution.exists():
        return Note("This copy of the workbook has no solutions: ask your teacher.")
    if not (force or progress.is_passed(exercise)):
        return Note(
            f"`{exercise.short}` has not passed, as your file is now. `hint('{exercise.short}')` "
            f"helps; `solution('{exercise.short}', force=True)`, on the command line `fa-numba "
            f"solution {exercise.short} --force`, shows the answer all the same."
        )
    code = exercise.solution.read_text(encoding="utf-8")
    kept = [line for line in code.splitlines() if not line.lstrip().startswith("###")]
    debrief = stubs.read(exercise).debrief
    return Note("```python\n" + "\n".join(kept).strip() + f"\n```\n\n{_prose(debrief)}")


def debrief(name: str, *, force: bool = False) -> Note:
    """The point of an exercise, once yours passes; `force` shows it earlier."""
    exercise = find_one(name)
    if not (force or progress.is_passed(exercise)):
        return Note(
            f"`{exercise.short}` has not passed, as your file is now. Its debrief tells its "
            f"point: `debrief('{exercise.short}', force=True)`, on the command line `fa-numba "
            f"debrief {exercise.short} --force`, shows it all the same."
        )
    return Note(_heading(exercise) + _prose(stubs.read(exercise).debrief))


def reset(name: str, *, start: str | None = None, yes: bool = False) -> Note:
    """Bring back the untouched stub. Asks first; your file is kept in ``exercises/.backup/``.

    Parameters
    ----------
    name : str
        One exercise.
    start : str, optional
        An earlier exercise that has passed, such as ``"ex16c"``: the stub then has your code of it
        where it would be blank.
    yes : bool, default=False
        Do not ask.
    """
    exercise = find_one(name)
    file = f"exercises/{exercise.stub.name}"
    new, done = stubs.read(exercise).stub, f"`{file}` is the stub again."
    if start is not None:
        earlier = find_one(start)
        if not progress.is_passed(earlier):
            return Note(
                f"`{earlier.short}` has not passed, as your file is now: `{exercise.short}` can "
                f"start from it once it has. Nothing was changed."
            )
        try:
            new, functions = carry.carried(exercise, earlier)
        except carry.CannotStart as error:
            return Note(f"{error}. Nothing was changed.")
        done = (
            f"`{file}` now has your code of {earlier.short} in "
            f"{', '.join(f'`{function}`' for function in functions)}: make it fit its statement."
        )
    elif stubs.state(exercise) == "pristine":
        return Note(f"`{file}` is untouched: nothing to reset.")
    mine = exercise.stub.exists() and stubs.state(exercise) == "changed"
    if mine and not yes:
        question = f"Reset {file}? Your file is kept as a backup. [y/N] "
        try:
            answer = input(question)
        except EOFError:  # no answer: a script, a closed terminal
            print()
            return Note("No answer: nothing was changed. `--yes` (`yes=True`) does not ask.")
        if answer.strip().lower() not in ("y", "yes"):
            return Note("Nothing was changed.")
    if mine:
        backup = lessons.back_up(exercise.stub, exercise.stub.parent / ".backup")
        done += f" Your file is now `exercises/.backup/{backup.name}`."
    exercise.stub.write_text(new, encoding="utf-8", newline="\n")
    return Note(done)


BAR = 24  # cells of a progress bar


@dataclass(repr=False)
class Status:
    """A line per exercise: (short name, title, state, score); how good the guesses were."""

    rows: list[tuple[str, str, str, str]]
    guesses: str = ""

    @property
    def passed(self) -> int:
        return sum(state == "passed" for _, _, state, _ in self.rows)

    @property
    def line(self) -> str:
        """A progress bar, the number of exercises that have passed, and the next one."""
        full = BAR * self.passed // max(1, len(self.rows))
        bar = "█" * full + "░" * (BAR - full)
        waiting = [(name, title) for name, title, state, _ in self.rows if state != "passed"]
        then = f"next: {waiting[0][0]} · {waiting[0][1]}" if waiting else "all done"
        return f"{bar} {self.passed} of {len(self.rows)} exercises passed; {then}"

    def __repr__(self) -> str:
        return as_text(self).rstrip()

    def __rich__(self):
        from rich.console import Group
        from rich.table import Table

        colours = {"passed": "green", "started": "yellow", "not checked": "cyan"}
        table = Table()
        for column in ("exercise", "title", "state", "checks"):
            table.add_column(column)
        for row in self.rows:
            table.add_row(*row, style=colours.get(row[2]))
        return Group(self.line, table, *([self.guesses] if self.guesses else []))

    def _repr_markdown_(self) -> str:
        table = as_markdown(["exercise", "title", "state", "checks"], self.rows)
        return f"**{self.line}**\n\n{table}" + (f"\n\n{self.guesses}" if self.guesses else "")


def status(name: str | None = None) -> Status:
    """Progress, from the last check of each file; a file edited since then is "not checked".

    Parameters
    ----------
    name : str, optional
        A lesson (``"06"``) or an exercise; without it, the whole workbook.
    """
    exercises = all_exercises() if name is None else find(name)
    whole_lesson = name is not None and len(exercises) > 1
    return Status(
        [_state(exercise) for exercise in exercises],
        guesses.summary(exercises[0].lesson if whole_lesson else None),
    )


def progress_line(exercises: list[Exercise]) -> str:
    """How far one is with these exercises, and the next of them, in one line."""
    return Status([_state(exercise) for exercise in exercises]).line


def _state(exercise: Exercise) -> tuple[str, str, str, str]:
    last, state, score = progress.result(exercise), "not checked", ""
    if stubs.state(exercise) in ("pristine", "stale", "missing"):
        state = "not started"
    elif last is not None:
        state = "passed" if progress.is_passed(exercise) else "started"
        score = f"{last[0]}/{last[1]}"
    return exercise.short, exercise.title, state, score
