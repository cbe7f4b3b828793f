"""``fa-numba watch``: grade an exercise whenever its file is saved."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console

from fa_numba.workbook import grader
from fa_numba.workbook.catalog import Exercise

POLL_SECONDS = 0.25


def watch(
    exercises: list[Exercise],
    *,
    console: Console | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Grade each of these exercises when its file changes, until Ctrl-C.

    A file is graded once it has not changed between two looks: an editor may write it in pieces, or
    under another name that it renames.
    """
    console = console or Console()
    console.print(grader.progress_line(exercises))
    console.print("Save a file of exercises/ and it is graded. Ctrl-C ends.", style="dim")
    graded = last = _stamps(exercises)
    try:
        while True:
            wait(POLL_SECONDS)
            now = _stamps(exercises)
            saved = [e for e in exercises if now[e] == last[e] != graded[e] and now[e] is not None]
            last = now
            if saved:
                graded = graded | {e: now[e] for e in saved}
                _grade(saved, exercises, console)
    except KeyboardInterrupt:
        console.print("stopped")


def _grade(saved, exercises, console):
    """Show the report of what was saved, then how far one is."""
    if console.is_terminal:
        console.clear()
    try:
        console.print(grader.grade_all(saved))
    except RuntimeError as error:  # of the grader itself: the next save is another chance
        console.print(str(error), markup=False)
    console.print()
    console.print(grader.progress_line(exercises))


def _stamps(exercises) -> dict[Exercise, tuple[int, int] | None]:
    """Time of the last change and size of each file; None for one that is not there."""
    stamps = {}
    for exercise in exercises:
        try:
            found = exercise.stub.stat()
        except OSError:
            stamps[exercise] = None
        else:
            stamps[exercise] = found.st_mtime_ns, found.st_size
    return stamps
