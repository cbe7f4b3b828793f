"""``fa-numba board``: the counts of the learner's kernels, beside par and the best known.

On a GPU each kernel has a line of milliseconds, too: for a lesson's size where `own.JOBS` has one,
else for the largest launch that its grader traces (`gpu_times`).
The judge counts anew from the files each time. What `progress` keeps is only shown as that of the
last time, so that one sees what a change has brought; nothing trusts it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fa_numba.runtime import arrays
from fa_numba.workbook import gpu_times, own, par, progress, stubs
from fa_numba.workbook.catalog import Exercise
from fa_numba.workbook.report import as_text
from fa_numba.workbook.tables import as_markdown

COLUMNS = "exercise", "count", "yours", "last time", "par", "best known", "half of par to twice"
NUMBERS = COLUMNS[2:6]
HALF = 10  # cells of half of a scale
PAR, BEST, YOURS = "┃", "◆", "●"


@dataclass(repr=False)
class Board:
    """A line for each count of each kernel of the learner's that passes.

    Attributes
    ----------
    rows : list of tuple
        The cells of `COLUMNS`, as text.
    waiting : list of str
        Exercises with a kernel that have not passed.
    failures : list of str
        Why a kernel that has passed could not be timed.
    """

    rows: list[tuple]
    waiting: list[str]
    failures: list[str]

    @property
    def lines(self) -> list[str]:
        """The sentences below the table."""
        legend = f"{YOURS} yours, {PAR} par (our solution), {BEST} best known; less is better."
        said = [legend] if self.rows else ["No kernel of yours has passed yet."]
        said += self.failures
        if self.waiting:
            some = ", ".join(self.waiting[:8]) + (", ..." if len(self.waiting) > 8 else "")
            said.append(f"Not passed: {len(self.waiting)} exercises with a kernel ({some}).")
        return said

    def __repr__(self) -> str:
        return as_text(self).rstrip()

    def __rich__(self):
        from rich.console import Group
        from rich.table import Table

        table = Table(box=None, padding=(0, 1, 0, 0))
        for column in COLUMNS:
            table.add_column(column, justify="right" if column in NUMBERS else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        return Group(*([table] if self.rows else []), *self.lines)

    def _repr_markdown_(self) -> str:
        shown = [as_markdown(COLUMNS, self.rows, right=NUMBERS)] if self.rows else []
        return "\n\n".join([*shown, *self.lines])


def board(exercises: list[Exercise]) -> Board:
    """Grade the learner's files of these exercises, and compare their counts with par.

    Parameters
    ----------
    exercises : list of Exercise
        Those without a kernel are left out.

    Returns
    -------
    Board
    """
    from fa_numba.workbook import grader

    kernels = [e for e in exercises if par.known(e)]
    mine = [e for e in kernels if stubs.state(e) == "changed"]
    before = {e: progress.counts(e) for e in mine}
    graded = grader.grade_all(mine).graded if mine else []
    counts = {g.exercise: g.counts for g in graded if g.passed}
    passed = [e for e in kernels if e in counts]
    small = [e for e in passed if not own.has_size(e)]
    measured = gpu_times.measure(small[0].stub.parent, small) if small else {}
    rows, failures = [], []
    for e in passed:
        rows += rows_of(e, counts[e], before[e])
        try:
            times = own.times_beside_par(e) if own.has_size(e) else measured.get(e.short)
            if isinstance(times, str):
                failures.append(f"{e.short} is not timed: {times}")
            elif times is not None:
                rows.append(time_of(e, *times))
        except Exception as error:  # the learner's, and the other lines are worth having
            failures.append(f"{e.short} is not timed: {type(error).__name__}: {error}")
    return Board(rows, [e.short for e in kernels if e not in counts], failures)


def time_of(exercise: Exercise, yours: float, wanted: float) -> tuple:
    """The row of an exercise's milliseconds on this GPU, which are kept.

    The best known is the smallest of par and of all times of the learner on a GPU of this name.
    """
    gpu, before = arrays.backend().gpu, progress.times(exercise)
    last = before.get(gpu, {}).get("last")
    best = min(yours, before.get(gpu, {}).get("best", yours))
    kept = before | {gpu: {"last": yours, "best": best}}
    progress.keep(exercise.root, {exercise.name: {"ms": kept}})
    best = min(best, wanted)
    numbers = ("–" if x is None else f"{x:.3g}" for x in (yours, last, wanted, best))
    return exercise.short, f"ms, {gpu}", *numbers, scale(yours, wanted, best)


def rows_of(exercise: Exercise, counts: dict[str, int], before: dict[str, int]) -> list[tuple]:
    """The rows of one exercise; `before` is empty if nothing was kept."""
    rows = []
    for name, (wanted, best) in par.known(exercise).items():
        yours = counts.get(name, 0)
        last = f"{before.get(name, 0):,}" if before else "–"
        numbers = f"{yours:,}", last, f"{wanted:,}", f"{best:,}"
        rows.append((exercise.short, name, *numbers, scale(yours, wanted, best)))
    return rows


def scale(yours: float, wanted: float, best: float) -> str:
    """A line from half of par to twice par, with par in the middle; what is beyond is at an end.

    >>> scale(12, 12, 8)
    '────◆─────●──────────'
    """
    cells = ["─"] * (2 * HALF + 1)
    for number, mark in ((wanted, PAR), (best, BEST), (yours, YOURS)):  # the last one is on top
        place = HALF * math.log2(number / wanted) if number else -HALF
        cells[HALF + max(-HALF, min(HALF, round(place)))] = mark
    return "".join(cells)
