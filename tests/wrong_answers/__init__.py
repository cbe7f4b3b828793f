"""The project's own wrong answers, and the right ones that look different.

Each exercise has a module here, named like it (``ex07a``), with three lists:

WRONG       (name of the mistake, text in the solution, what stands there instead), or
            (name, [(text, instead), ...]) where a mistake shows in several places. Each text
            occurs once in the solution's code. The grader must fail every one. A mistake that
            `fa_numba.workbook.mutants` makes by itself needs no entry. A row per line.
RIGHT       the same, or (name, source of a whole file). The grader must pass every one.
EQUIVALENT  (changed line, reason) of the generated mutants that no check can tell from the
            solution, as ``python -m tests.wrong_answers`` prints them: "old line -> new line".

``python -m tests.wrong_answers`` grades them all; tests/test_wrong_answers.py a sample.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from fa_numba.workbook.catalog import Exercise

FOLDER = Path(__file__).parent
LISTS = ("WRONG", "RIGHT", "EQUIVALENT")


def module_of(exercise: Exercise):
    """The module of an exercise, or None where nobody has written one."""
    path = FOLDER / f"{exercise.short}.py"
    if not path.exists():
        return None
    spec = importlib.util.spec_from_file_location(f"wrong_answers_{exercise.short}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answers(exercise: Exercise, which: str) -> list[tuple[str, str]]:
    """The (name, source) of the answers in the list `which`, ``"WRONG"`` or ``"RIGHT"``."""
    text = code_of(exercise)
    return [
        (name, source_of(f"{exercise.short} {name!r}", text, change))
        for name, *change in getattr(module_of(exercise), which, [])
    ]


def code_of(exercise: Exercise) -> str:
    """The solution without the statement, hints and markers: a text may occur there as well."""
    text = exercise.solution.read_text(encoding="utf-8").split('"""', 2)[2]
    kept = [line for line in text.splitlines() if not line.lstrip().startswith("### ")]
    return "\n".join(kept).strip() + "\n"


def source_of(what: str, text: str, change: list) -> str:
    """The solution `text`, changed as one entry of a list says."""
    if len(change) == 1 and isinstance(change[0], str):
        return change[0]
    pairs = [tuple(change)] if len(change) == 2 else change[0]
    for old, new in pairs:
        if (times := text.count(old)) != 1:
            raise ValueError(f"{what}: must occur once in the solution, occurs {times}×:\n{old}")
        text = text.replace(old, new)
    return text


def body_changes(name: str):
    """For a body whose lines stand elsewhere in the solution, too: BODY, and `changed`.

    ``changed((old, new), ...)`` is the end of an entry that changes the whole body.
    """
    text = (FOLDER.parents[1] / f"solutions/{name}.py").read_text(encoding="utf-8")
    body = text.split("### BEGIN SOLUTION\n")[1].split("### END SOLUTION")[0].rstrip(" ")

    def changed(*pairs):
        return body, source_of(name, body, [list(pairs)])

    return body, changed


def equivalents(exercise: Exercise) -> dict[str, str]:
    """Changed line -> reason, of the generated mutants that make no difference."""
    return dict(getattr(module_of(exercise), "EQUIVALENT", []))
