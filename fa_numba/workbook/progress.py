"""Passed exercises, hints that were read, guesses: ``.progress.json`` beside ``exercises/``.

A result counts only while the exercise and its grader are the files that were checked: it is kept
under the checksum of both.

Several processes may write, `fa-numba watch` and a notebook for instance. A lock on the folder of
the file lets one of them at a time read, change and replace the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path

from fa_numba.runtime.replacing import replacing
from fa_numba.workbook.catalog import Exercise, find_root

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # Windows, a browser
    flock = None

FILE = ".progress.json"
LONGEST_WAIT = 5.0  # seconds for the lock; a stopped process may have it
NOT_KEPT = "Progress was not kept: {file} cannot be written in {root}."


def load(root: Path) -> dict:
    """All that is kept, {} where nothing can be read."""
    try:
        data = json.loads((root / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _update(root: Path, changes: dict[str, dict]) -> None:
    """Write values over those that are kept; of two numbers of hints, the larger one is kept."""
    with _lock(root):
        data = load(root)
        for name, values in changes.items():
            entry = data.setdefault(name, {})
            hints = max(entry.get("hints", 0), values.get("hints", 0))
            entry.update(values | ({"hints": hints} if hints else {}))
        text = json.dumps(data, indent=1, sort_keys=True) + "\n"
        with replacing(root / FILE) as file:  # no reader sees half a file
            file.write(text.encode())


@contextlib.contextmanager
def _lock(root: Path):
    """Keep other writers out; where the file system has no locks, or after a long wait, do not."""
    if flock is None:
        yield
        return
    folder = os.open(root, os.O_RDONLY)
    end = time.monotonic() + LONGEST_WAIT
    try:
        while time.monotonic() < end:
            try:
                flock(folder, LOCK_EX | LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.002)
            except OSError:
                break
        yield
    finally:
        os.close(folder)  # and with it the lock


def _checksum(exercise: Exercise) -> str:
    files = [p for p in (exercise.stub, exercise.grader) if p.is_file()]
    return hashlib.sha256(b"\0".join(p.read_bytes() for p in files)).hexdigest()[:16]


def record(graded) -> str:
    """Keep the results of whole exercises; return the reason if that fails, else ""."""
    changes = {
        g.exercise.name: {
            "files": _checksum(g.exercise),
            "passed": g.count("passed"),
            "total": len(g.checks) - g.count("skipped"),
        }
        | ({"counts": g.counts} if g.counts else {})
        for g in graded
    }
    root = graded[0].exercise.root
    try:
        _update(root, changes)
    except OSError:
        return NOT_KEPT.format(file=FILE, root=root)
    return ""


def why_not_kept(graded) -> str:
    """The message if results of whole exercises are missing after grading, else ""."""
    kept = [result(g.exercise) is not None for g in graded if g.exercise.stub.is_file()]
    return "" if all(kept) else NOT_KEPT.format(file=FILE, root=graded[0].exercise.root)


def result(exercise: Exercise) -> tuple[int, int] | None:
    """(passed, total) of the last check of these very files, or None."""
    entry = load(exercise.root).get(exercise.name, {})
    if not exercise.stub.is_file():
        return None
    if entry.get("files") != _checksum(exercise):
        return None
    return entry["passed"], entry["total"]


def counts(exercise: Exercise) -> dict[str, int]:
    """What the last check that passed has counted, of whatever file; {} if there was none."""
    kept = load(exercise.root).get(exercise.name, {}).get("counts")
    if not isinstance(kept, dict) or not all(type(x) is int for x in kept.values()):
        return {}
    return kept


def times(exercise: Exercise) -> dict[str, dict[str, float]]:
    """The last and the best milliseconds on each GPU, by its name; {} if there are none."""
    kept = load(exercise.root).get(exercise.name, {}).get("ms")
    if not isinstance(kept, dict):
        return {}
    good = {"last", "best"}
    return {
        gpu: ms
        for gpu, ms in kept.items()
        if isinstance(ms, dict) and ms.keys() == good and all(type(x) is float for x in ms.values())
    }


def is_passed(exercise: Exercise) -> bool:
    last = result(exercise)
    return last is not None and last[0] == last[1] > 0


def save(file: str | Path = "progress.json", root: Path | None = None) -> Path:
    """Write all progress into a file of your own, to keep it or to take it to another place.

    Parameters
    ----------
    file : path, default="progress.json"
    root : path, optional
        The workbook; without it, the one around the working directory.
    """
    data = load(find_root() if root is None else Path(root))
    Path(file).write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return Path(file)


def restore(file: str | Path = "progress.json", root: Path | None = None) -> None:
    """Take over progress that `save` has written; what is kept here and not in the file stays."""
    data = json.loads(Path(file).read_text(encoding="utf-8"))
    if not isinstance(data, dict) or not all(isinstance(x, dict) for x in data.values()):
        raise ValueError(f"file must be one that `save` has written, got {file}")
    _update(find_root() if root is None else Path(root), data)


def hints_read(exercise: Exercise) -> int:
    return load(exercise.root).get(exercise.name, {}).get("hints", 0)


def set_hints_read(exercise: Exercise, tier: int) -> None:
    keep(exercise.root, {exercise.name: {"hints": tier}})


def keep(root: Path, changes: dict[str, dict]) -> None:
    """Write what may be lost: a folder that cannot be written is no reason to stop."""
    with contextlib.suppress(OSError):
        _update(root, changes)
