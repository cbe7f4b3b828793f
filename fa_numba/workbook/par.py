"""Par: the counts of our solution, in the launches that the grader traces; and the best known.

`par.json` beside this file has both. ``python -m tests.wrong_answers.par`` writes it: it grades the
solutions, and the other right answers of `tests/wrong_answers`, as a learner's file is graded.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

from fa_numba.workbook.catalog import Exercise
from fa_numba.workbook.counts import QUANTITIES

FILE = Path(__file__).with_suffix(".json")


@functools.cache
def all_known() -> dict[str, dict]:
    """The entry of each exercise, as `record` makes it."""
    return {row.pop("exercise"): row for row in json.loads(FILE.read_text(encoding="utf-8"))}


def known(exercise: Exercise) -> dict[str, tuple[int, int]]:
    """Quantity -> (par, best known); {} for an exercise without a kernel.

    Quantities that are 0 in every right answer are left out.
    """
    entry = all_known().get(exercise.short, {"par": {}, "best known": {}})
    return {name: (entry["par"][name], entry["best known"][name]) for name in entry["par"]}


def line(exercise: Exercise, counts: dict[str, int] | None = None) -> str:
    """Par and best known in a sentence, after the learner's counts if there are any; or nothing."""
    wanted = known(exercise)
    if not wanted or counts == {}:
        return ""
    parts = []
    for name, (par, best) in wanted.items():
        beside = f"par {par:,}" + (f", best known {best:,}" if best != par else "")
        parts.append(f"{counts.get(name, 0):,} {name} ({beside})" if counts else f"{name} {beside}")
    return f"{'Counted: ' if counts else 'To beat: '}{'; '.join(parts)}."


def record(par: dict[str, int], others: list[dict[str, int]]) -> dict[str, dict]:
    """The entry of an exercise, from the counts of the solution and of other right answers."""
    least = {name: min(x.get(name, 0) for x in (par, *filter(None, others))) for name in par}
    names = [name for name in QUANTITIES if par.get(name)]
    return {"par": {n: par[n] for n in names}, "best known": {n: least[n] for n in names}}
