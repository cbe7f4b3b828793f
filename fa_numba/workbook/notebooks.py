"""The lessons' one canonical form: ``python -m fa_numba.workbook.notebooks --write FILES``.

nbformat 4.5, no outputs, no execution counts, cell ids made from the cell's text, sorted keys, the
plain python3 kernel, and a line of the file for each line of a cell. A notebook in this form has
readable diffs and no trace of who ran it.

A lesson, a file whose name begins with its number, has one cell more after its first: the set-up
for Google Colab. Its only source is here; it is written into each lesson, and is folded. It clones
the repository and runs notebooks/colab.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

import nbformat

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
REPOSITORY = "https://github.com/OWNER/fa-numba"  # a placeholder until the project has an address
COLAB = "colab"  # tag of the cell
COLAB_CELL = f"""\
# For Google Colab alone, where a fresh machine has neither the files nor the package.
import os
import sys

if "google.colab" in sys.modules:
    import runpy
    import subprocess

    # With OWNER in it the address is a placeholder: put that of your copy here.
    repository = os.environ.get("FA_NUMBA_REPOSITORY", "{REPOSITORY}")
    checkout = "/content/fa-numba"
    if not os.path.isdir(checkout):
        if "/OWNER/" in repository:
            raise SystemExit("In this cell, replace OWNER by the owner of the repository.")
        subprocess.run(["git", "clone", "--depth=1", repository, checkout], check=True)
    runpy.run_path(f"{{checkout}}/notebooks/colab.py")"""


def canonical(text: str, *, lesson: bool = False) -> str:
    """The canonical form of a notebook's text; a lesson has the cell for Colab."""
    notebook = nbformat.reads(text, as_version=4)
    if lesson:
        notebook.cells = _with_colab(notebook.cells)
    seen: dict[str, int] = {}
    cells = []
    for cell in notebook.cells:
        source = cell.source.rstrip()
        if not source:
            continue
        digest = hashlib.sha256(f"{cell.cell_type}\n{source}".encode()).hexdigest()[:12]
        seen[digest] = seen.get(digest, 0) + 1
        form = {
            "cell_type": cell.cell_type,
            "id": digest if seen[digest] == 1 else f"{digest}-{seen[digest]}",
            "metadata": _metadata(cell),
            "source": source.splitlines(keepends=True),
        }
        if cell.cell_type == "code":
            form |= {"execution_count": None, "outputs": []}
        cells.append(form)
    form = {
        "cells": cells,
        "metadata": {"kernelspec": KERNEL, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    text = _as_json(form)
    nbformat.validate(nbformat.reads(text, as_version=4))
    return text


def _as_json(form: dict) -> str:
    """A line for each line of a cell, and one for all else that the cell has."""

    def one_line(value):
        return json.dumps(value, sort_keys=True, ensure_ascii=False)

    cells = []
    for cell in form["cells"]:
        head = one_line({key: value for key, value in cell.items() if key != "source"})
        source = ",\n".join(f"   {one_line(line)}" for line in cell["source"])
        cells.append(f'  {head[:-1]}, "source": [\n{source}\n  ]}}')
    others = [
        f" {one_line(key)}: {one_line(value)}" for key, value in form.items() if key != "cells"
    ]
    return ",\n".join(['{\n "cells": [\n' + ",\n".join(cells) + "\n ]", *others]) + "\n}\n"


def is_lesson(path: Path) -> bool:
    """Whether a file is one: ``06_flash_attention_1.ipynb``."""
    return path.name[:2].isdigit() and path.name[2:3] == "_"


def is_canonical(path: Path) -> bool:
    """Whether a file is in its canonical form."""
    text = path.read_text(encoding="utf-8")
    return canonical(text, lesson=is_lesson(path)) == text


def _with_colab(cells):
    """The cells, with the cell for Colab after the title."""
    others = [cell for cell in cells if COLAB not in cell.metadata.get("tags", [])]
    folded = {"tags": [COLAB], "jupyter": {"source_hidden": True}}
    colab = nbformat.v4.new_code_cell(COLAB_CELL, metadata=folded)
    return [*others[:1], colab, *others[1:]]


def _metadata(cell):
    """Tags, and that a front end folds the cell for Colab."""
    tags = cell.metadata.get("tags")
    if not tags:
        return {}
    return {"tags": tags} | ({"jupyter": {"source_hidden": True}} if COLAB in tags else {})


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fa_numba.workbook.notebooks", description=__doc__.split("\n\n")[0]
    )
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true", help="fail on a file in another form")
    mode.add_argument("--write", action="store_true", help="bring the files into the form")
    parser.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args(argv)

    drifted = []
    for path in options.files:
        text = path.read_text(encoding="utf-8")
        wanted = canonical(text, lesson=is_lesson(path))
        if text != wanted:
            drifted.append(path)
            print(f"{'written' if options.write else 'not canonical'}  {path}")
            if options.write:
                path.write_text(wanted, encoding="utf-8", newline="\n")
    return int(bool(drifted) and options.check)


if __name__ == "__main__":
    sys.exit(main())
