"""What has been passed and which hints were read: ``.progress.json`` beside ``exercises/``.

A result counts only while the exercise and its grader are the files that were checked: it is kept
under the checksum of both.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from fa_numba.workbook.catalog import Exercise

FILE = ".progress.json"


def _load(root: Path) -> dict:
    try:
        return json.loads((root / FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


def _update(exercise: Exercise, **values) -> None:
    data = _load(exercise.root)
    data.setdefault(exercise.name, {}).update(values)
    text = json.dumps(data, indent=1, sort_keys=True) + "\n"
    (exercise.root / FILE).write_text(text, encoding="utf-8")


def _checksum(exercise: Exercise) -> str:
    files = [p for p in (exercise.stub, exercise.grader) if p.exists()]
    return hashlib.sha256(b"\0".join(p.read_bytes() for p in files)).hexdigest()[:16]


def record(graded) -> None:
    """Keep the results of whole exercises."""
    for g in graded:
        passed, total = g.count("passed"), len(g.checks)
        _update(g.exercise, files=_checksum(g.exercise), passed=passed, total=total)


def result(exercise: Exercise) -> tuple[int, int] | None:
    """(passed, total) of the last check of these very files, or None."""
    entry = _load(exercise.root).get(exercise.name, {})
    if not exercise.stub.exists():
        return None
    if entry.get("files") != _checksum(exercise):
        return None
    return entry["passed"], entry["total"]


def is_passed(exercise: Exercise) -> bool:
    last = result(exercise)
    return last is not None and last[0] == last[1] > 0


def hints_read(exercise: Exercise) -> int:
    return _load(exercise.root).get(exercise.name, {}).get("hints", 0)


def set_hints_read(exercise: Exercise, tier: int) -> None:
    _update(exercise, hints=max(tier, hints_read(exercise)))
