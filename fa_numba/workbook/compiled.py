"""Compiler output for a lesson's kernels: made here if the compilers are here, else recorded.

The lessons call `compiled`. ``python -m fa_numba.workbook.compiled`` runs the lessons that
call it, on a machine with NVVM, ptxas and nvdisasm, and writes `notebooks/compiled.json`.

Numba compiles Python's bytecode, so machine code may depend on the Python. With the tools of the
record and another Python, the command adds the results that differ, under `pythons`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import sys
import tempfile
from datetime import date
from pathlib import Path

from fa_numba.workbook.catalog import course, find_root
from fa_numba.workbook.recorded import say
from fa_numba.workbook.tables import as_json

COMMAND = "python -m fa_numba.workbook.compiled"
RECORD_TO = "FA_NUMBA_RECORD_COMPILED"  # a file: `compiled` adds its results
TOOLS = ("numba-cuda", "nvidia-nvvm", "nvidia-cuda-nvcc", "nvidia-cuda-nvdisasm")
PYTHON = "{}.{}".format(*sys.version_info[:2])
CALL = re.compile(r"\bcompiled\(")


def compiled(name, make):
    """The result of `make`; without a compiler or a disassembler, the recorded result.

    Parameters
    ----------
    name : str
        Of the record, such as ``"flash_attn_v2"``.
    make : function without arguments
        Compiles, and returns numbers, text, lists and dicts of them, as JSON knows them.

    Returns
    -------
    The result of `make`, here or on the machine of the record. In the second case one line is
    printed: the reason, and the tools of the record.
    """
    try:
        # As it comes back from a file, so that a lesson reads the same in both cases.
        made = json.loads(json.dumps(make()))
    except RuntimeError as error:  # a tool is missing, or too old for NVVM's PTX
        reason = str(error).strip().splitlines()[0]
        made, tools = _recorded(name, reason)
        say(f"Recorded, not compiled here ({reason}).", f"Made by {tools}.")
        return made
    if path := os.environ.get(RECORD_TO):
        _add(Path(path), name, made)
    return made


def calls(path):
    """Whether the notebook at `path` asks for a compiler."""
    cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
    return any(CALL.search("".join(c["source"])) for c in cells if c["cell_type"] == "code")


def _recorded(name, reason):
    path = course(find_root()) / "notebooks" / "compiled.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    if name not in record["made"]:
        raise RuntimeError(f"{reason}; and {path.name} has no record of {name!r}: {COMMAND}")
    tools = f"Python {record['python']}, {record['tools']}"
    return record["made"][name], f"{tools}, {record['date']}, `{record['command']}`"


def expected(record):
    """{name: result} that the record foretells for this Python, if the tools are its own."""
    return record["made"] | record["pythons"].get(PYTHON, {})


def _add(path, name, made):
    path.write_text(json.dumps(_read(path) | {name: made}), encoding="utf-8")


def _read(path):
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def versions():
    """Of what compiles, in a line."""

    def version(distribution):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            return "of the system"

    tools = ", ".join(f"{name} {version(name)}" for name in TOOLS)
    return f"{tools} on {platform.system()} {platform.machine()}, no GPU needed"


def _run(path):
    """Execute a lesson in a kernel of its own."""
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    # Graded cells are not compiled cells.
    notebook.cells = [cell for cell in notebook.cells if not cell.source.startswith("grade(")]
    resources = {"metadata": {"path": str(path.parent)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=resources).execute()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.split("\n\n")[0])
    parser.parse_args(argv)
    folder = course(find_root()) / "notebooks"
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "made.json")
        os.environ[RECORD_TO] = str(path)
        for lesson in sorted(folder.glob("*.ipynb")):
            if calls(lesson):
                print(lesson.name)
                _run(lesson)
        made = _read(path)
    if not made:
        print("nothing was compiled: NVVM, ptxas and nvdisasm are needed", file=sys.stderr)
        return 1
    path = folder / "compiled.json"
    record = _read(path)
    if record.get("tools") == versions() and record["python"] != PYTHON:
        other = {name: told for name, told in made.items() if told != record["made"].get(name)}
        record["pythons"][PYTHON] = dict(sorted(other.items()))
    else:
        record = {
            "command": COMMAND,
            "date": f"{date.today()}",
            "made": dict(sorted(made.items())),
            "python": PYTHON,
            "pythons": {},
            "tools": versions(),
        }
    path.write_text(as_json(record) + "\n", encoding="utf-8")
    print(f"{len(made)} records in notebooks/compiled.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
