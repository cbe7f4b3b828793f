"""How long and how much memory an answer may take. A grader can state its own, as constants."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from pathlib import Path

GRACE = 1.5  # an answer is stopped after this many times the limit: so slow is told from endless
AFTER_ENDLESS = 0.5  # and after this many times it, once another check did not end
MOST_HUNG = 2  # checks that were stopped, or failed that late; then none is run any more
CONSTANTS = {
    "SECONDS_PER_CHECK": "seconds",
    "SECONDS_IN_ALL": "seconds_in_all",
    "MEMORY_GIB": "memory_gib",
}


@dataclass(frozen=True)
class Limits:
    """Limits of an answer."""

    seconds: float = 2.5  # of one check, spent in the learner's code. Ours take at most 1.
    seconds_in_all: float = 15.0  # of all checks of an exercise together
    memory_gib: float = 2.0  # memory in addition to that of Python, NumPy and Numba
    restarts: int = 12  # how often an answer is imported anew after it has hung or crashed


def limits_of(grader: Path) -> Limits:
    """The limits of an exercise: those of `Limits`, or its grader's own."""
    stated = {}
    for node in ast.parse(grader.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id in CONSTANTS:
                stated[CONSTANTS[node.targets[0].id]] = float(ast.literal_eval(node.value))
    return replace(Limits(), **stated)
