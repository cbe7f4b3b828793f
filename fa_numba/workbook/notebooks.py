"""The lessons' one canonical form: ``python -m fa_numba.workbook.notebooks --write FILES``.

nbformat 4.5, no outputs, no execution counts, cell ids made from the cell's text, sorted keys, the
plain python3 kernel, and a line of the file for each line of a cell. A notebook in this form has
readable diffs and no trace of who ran it.

A lesson, a file whose name begins with its number, has one cell more after its first once
[project.urls] of pyproject.toml has the repository's address: a folded line that sets up Google
Colab. It clones the repository and runs notebooks/colab.py. Its only source is here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tomllib
from pathlib import Path

import nbformat

from .catalog import installed_course

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
COLAB = "colab"  # tag of the cell
HIDDEN = "remove-cell"  # a tag that the site knows
COLAB_CELL = (
    'if "google.colab" in str(get_ipython()): get_ipython().run_cell("!test -d {checkout} || '
    'git clone -q --depth=1 {repository} {checkout}\\n%run {checkout}/notebooks/colab.py")'
    "  # fmt: skip  # noqa: E501, E701"
)


def repository() -> str:
    """The repository's address; "" while its owner is the placeholder OWNER."""
    project = tomllib.loads((installed_course() / "pyproject.toml").read_text(encoding="utf-8"))
    address = project["project"]["urls"]["Repository"]
    return "" if "/OWNER/" in address else address


def canonical(text: str, *, repository: str = "") -> str:
    """The canonical form of a notebook's text; with an address it has the cell for Colab."""
    notebook = nbformat.reads(text, as_version=4)
    notebook.cells = _with_colab(notebook.cells, repository)
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


def canonical_of(path: Path) -> str:
    """The canonical form of a file; ``06_flash_attention_1.ipynb`` is a lesson."""
    lesson = path.name[:2].isdigit() and path.name[2:3] == "_"
    text = path.read_text(encoding="utf-8")
    return canonical(text, repository=repository() if lesson else "")


def _with_colab(cells, repository):
    """The cells; after the title that for Colab, where there is an address."""
    cells = [cell for cell in cells if COLAB not in cell.metadata.get("tags", [])]
    if repository:
        source = COLAB_CELL.format(checkout="/content/fa-numba", repository=repository)
        cells.insert(1, nbformat.v4.new_code_cell(source, metadata={"tags": [COLAB, HIDDEN]}))
    return cells


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
        wanted = canonical_of(path)
        if path.read_text(encoding="utf-8") != wanted:
            drifted.append(path)
            print(f"{'written' if options.write else 'not canonical'}  {path}")
            if options.write:
                path.write_text(wanted, encoding="utf-8", newline="\n")
    return int(bool(drifted) and options.check)


if __name__ == "__main__":
    sys.exit(main())
