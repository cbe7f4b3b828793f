"""The learner's own copies of the lessons.

A lesson that runs is saved with its outputs. So learners work on copies in the folder `lessons/`,
which git ignores in a checkout, and not in `notebooks/` of the course. For each lesson:

no copy yet          the original is copied
not changed          the copy follows the original; outputs alone are no change
changed by you       the copy is kept, as long as the original has not changed
both changed         the original is copied again; your copy goes to `lessons/backup/`

`lessons/.originals/` keeps the original of each copy, to tell these cases apart.
"""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from pathlib import Path

from fa_numba.workbook.catalog import course, find_root

FOLDER = "lessons"
NEW = "copied there to work in"


def update(root: Path | None = None) -> list[str]:
    """Bring `lessons/` up to date with `notebooks/`; a line for each lesson that was touched."""
    root = find_root() if root is None else Path(root)
    copies, bases = root / FOLDER, root / FOLDER / ".originals"
    bases.mkdir(parents=True, exist_ok=True)
    said = []
    for original in sorted((course(root) / "notebooks").glob("[0-9]*.ipynb")):
        copy, base = copies / original.name, bases / original.name
        new, old = _cells(original), _cells(base)
        if copy.exists() and (new == old or new == _cells(copy)):
            shutil.copyfile(original, base)
            continue
        if not copy.exists():
            said.append(f"{FOLDER}/{copy.name}: {NEW}")
        elif old is not None and _cells(copy) == old:
            said.append(f"{FOLDER}/{copy.name}: brought up to date; run it again")
        else:
            kept = back_up(copy, copies / "backup")
            said.append(
                f"{FOLDER}/{copy.name}: the lesson has changed, and so had your copy. This is the "
                f"new lesson; yours is {FOLDER}/backup/{kept.name}"
            )
        shutil.copyfile(original, copy)
        shutil.copyfile(original, base)
    return said


def _cells(path: Path):
    """Kind and text of each cell, which a learner can change; without outputs.

    None for a file that is not there, or is no notebook.
    """
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        found = [(cell["cell_type"], "".join(cell["source"]).rstrip()) for cell in cells]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return [(kind, text) for kind, text in found if text]


def back_up(file: Path, folder: Path) -> Path:
    """Copy a file into a folder, under a name with the time."""
    folder.mkdir(exist_ok=True)
    kept = folder / f"{file.stem}.{datetime.now():%Y%m%d-%H%M%S-%f}{file.suffix}"
    shutil.copy2(file, kept)
    return kept
