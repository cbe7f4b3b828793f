"""Predictions: written down before the meter speaks, answered after it.

    guess("06 · elements loaded", 139_264)                                   # one cell
    answer({"guess": "06 · elements loaded", "formula": 139264, "meter": loads})   # a later one

A name begins with the number of its lesson. Guesses are kept in the file of the learner's progress.
"""

from __future__ import annotations

import math
import sys
from numbers import Real

from fa_numba.workbook import progress
from fa_numba.workbook.catalog import find_root
from fa_numba.workbook.note import Note
from fa_numba.workbook.recorded import say, table

KEY = "guesses"  # of the progress file
SOURCES = "meter", "GPU", "formula"  # the first that is there is the truth
EXACT, NEAR, HALF, FAR = "exact", "within 10 %", "within a factor of 2", "further off"
GRADES = EXACT, NEAR, HALF, FAR


class Request(Note):
    """A kind question for a guess, in place of the numbers."""


def guess(name: str, value=...) -> None:
    """Write a prediction down. The first one counts that was made before the answer was shown.

    Parameters
    ----------
    name : str
        The prediction, with its lesson's number: ``"06 · elements loaded"``.
    value : number or str
        Without it nothing is stored.
    """
    entry = _entries().get(name, {})
    if value is ...:
        if "guess" in entry:
            say(f"{name}: your guess is {_text(entry['guess'])}")
        else:
            say(f"{name}: no guess yet. Put yours in place of the dots, and run this cell.")
        return
    if isinstance(value, bool) or not isinstance(value, Real | str):
        raise TypeError(f"value must be a number or a text, got {value!r}")
    if isinstance(value, Real) and not math.isfinite(value):
        raise ValueError(f"value must be finite, got {value!r}")
    value = value if isinstance(value, str) else int(value) if value == int(value) else float(value)
    if entry.get("seen"):
        say(f"{name}: the answer has been shown, so that this guess does not count.")
        return
    _keep(name, entry | {"guess": value})
    say(f"{name}: your guess is {_text(value)}. Now run the cell that measures.")


def answer(*rows: dict, then: Note | None = None) -> Note:
    """Guess, formula, meter and GPU side by side; asks once where a guess is missing.

    Parameters
    ----------
    *rows : dict
        For each prediction ``"guess"``, its name, and any of ``"formula"``, ``"meter"`` and
        ``"GPU"``, which is recorded. None stands for a number that is not there.
    then : Note, optional
        Shown below, and held back with the numbers.

    Returns
    -------
    Note
        The first time without a guess it is a `Request`, and the numbers come when the cell runs
        again; where nobody can be asked, they come at once.
    """
    entries = _entries()
    missing = [
        row["guess"]
        for row in rows
        if not {"guess", "asked", "seen"} & entries.get(row["guess"], {}).keys()
    ]
    if missing and can_ask():
        for name in missing:
            _keep(name, {"asked": True})
        names = " and ".join(f"“{name}”" for name in missing)
        return Request(
            f"**Your guess first?** You have not made one yet of {names}. Put it into the cell "
            "with `guess(...)` above and run that cell, then this one. (No guess? Run this cell "
            "once more, and it shows the numbers.)"
        )
    columns = [source for source in ("formula", "meter", "GPU") if any(source in r for r in rows)]
    shown = []
    for row in rows:
        entry = entries.get(row["guess"], {})
        truth = next((row[source] for source in SOURCES if source in row), None)
        line = {"": row["guess"].partition(" · ")[2], "your guess": entry.get("guess")}
        line |= {source: row.get(source) for source in columns}
        if "guess" in entry and truth is not None:
            line["so you were"] = entry["grade"] = grade_of(entry["guess"], truth)
        shown.append(line)
        if truth is not None and can_ask():
            _keep(row["guess"], entry | {"seen": True})
        elif "guess" in entry:
            _keep(row["guess"], entry)
    text = table(shown).markdown
    return Note(text if then is None else f"{text}\n\n{then.markdown}")


def grade_of(value, truth) -> str:
    """How good a guess is: one of `GRADES`."""
    if isinstance(value, str) or isinstance(truth, str):
        same = str(value).strip().casefold() == str(truth).strip().casefold()
        return EXACT if same else FAR
    if math.isclose(value, truth, rel_tol=1e-9):
        return EXACT
    if value * truth <= 0:
        return FAR
    ratio = max(value / truth, truth / value)
    return NEAR if ratio <= 1.1 else HALF if ratio <= 2 else FAR


def summary(lesson: str | None = None) -> str:
    """A line on the guesses that were answered, "" where there are none.

    Parameters
    ----------
    lesson : str, optional
        Those of this lesson, such as ``"07"``.
    """
    entries = [e for name, e in _entries().items() if lesson is None or name[:2] == lesson]
    grades = [entry["grade"] for entry in entries if "grade" in entry]
    without = sum(bool(e.get("seen")) and "guess" not in e for e in entries)
    if not grades and not without:
        return ""
    counts = [f"{grades.count(grade)} {grade}" for grade in GRADES if grade in grades]
    counts += [f"{without} not made"] * bool(without)
    return f"{len(grades)} guess{'es' * (len(grades) != 1)} answered: {', '.join(counts)}"


def can_ask() -> bool:
    """Whether somebody reads: not where a program runs the notebook from top to bottom."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if sys.platform == "emscripten":  # a browser, whose kernel has no such mark
        return shell is not None
    # nbclient and nbconvert, which run whole notebooks, tell the kernel that nobody types.
    return bool(getattr(getattr(shell, "kernel", None), "_allow_stdin", False))


def _entries() -> dict:
    entries = progress.load(find_root()).get(KEY)
    return entries if isinstance(entries, dict) else {}


def _keep(name, entry):
    progress.keep(find_root(), {KEY: {name: entry}})


def _text(value):
    return value if isinstance(value, str) else f"{value:,}"
