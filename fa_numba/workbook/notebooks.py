"""The lessons' one canonical form: ``python -m fa_numba.workbook.notebooks --write FILES``.

nbformat 4.5, no outputs, no execution counts, cell ids made from the cell's text, sorted keys, the
plain python3 kernel. A notebook in this form has readable diffs and no trace of who ran it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

import nbformat

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def canonical(text: str) -> str:
    """The canonical form of a notebook's text."""
    notebook = nbformat.reads(text, as_version=4)
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
            "metadata": {"tags": cell.metadata.tags} if cell.metadata.get("tags") else {},
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
    text = json.dumps(form, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    nbformat.validate(nbformat.reads(text, as_version=4))
    return text


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
        wanted = canonical(text)
        if text != wanted:
            drifted.append(path)
            print(f"{'written' if options.write else 'not canonical'}  {path}")
            if options.write:
                path.write_text(wanted, encoding="utf-8", newline="\n")
    return int(bool(drifted) and options.check)


if __name__ == "__main__":
    sys.exit(main())
