"""Every notebook is in the canonical form and runs from top to bottom in a clean kernel."""

import json
import os
import re
from pathlib import Path

import nbclient
import nbformat
import pytest

from fa_numba.workbook import notebooks

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
EACH = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)


def test_the_lessons_are_there():
    lessons = [path.name[:2] for path in NOTEBOOKS]
    assert lessons == ["00", "01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11", "12"]


@EACH
def test_is_canonical(path):
    text = path.read_text(encoding="utf-8")
    assert notebooks.canonical(text) == text, "python -m fa_numba.workbook.notebooks --write"


@EACH
def test_links_lead_somewhere(path):
    text = "".join(c.source for c in nbformat.read(path, 4).cells if c.cell_type == "markdown")
    targets = [
        t for t in re.findall(r"\]\(([^)#\s]+)[)#]", text) if not t.startswith(("http", "mailto"))
    ]
    missing = [t for t in targets if not (FOLDER / t).exists()]
    assert not missing


@EACH
def test_runs_top_to_bottom(path, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))  # a clean kernel: no profile of the user's
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(FOLDER)}}
    )
    try:
        client.execute()
    except nbclient.exceptions.CellExecutionError as error:
        pytest.fail(f"{path.name}: {error}", pytrace=False)
    for cell in notebook.cells:
        if "raises-exception" in cell.metadata.get("tags", []):
            raised = [o for o in cell.outputs if o.output_type == "error"]
            assert raised, f"meant to fail, but ran:\n{cell.source}"


def test_canonical_form():
    cells = [
        nbformat.v4.new_markdown_cell("same"),
        nbformat.v4.new_markdown_cell("same"),
        nbformat.v4.new_code_cell("print(1)\n", execution_count=3, metadata={"collapsed": True}),
        nbformat.v4.new_code_cell("  \n"),
    ]
    cells[2].outputs = [nbformat.v4.new_output("stream", text="1")]
    messy = nbformat.writes(nbformat.v4.new_notebook(cells=cells, metadata={"author": "me"}))
    clean = notebooks.canonical(messy)
    assert notebooks.canonical(clean) == clean
    data = json.loads(clean)
    assert (data["nbformat"], data["nbformat_minor"]) == (4, 5)
    assert set(data["metadata"]) == {"kernelspec", "language_info"}
    ids = [cell["id"] for cell in data["cells"]]
    assert len(ids) == len(set(ids)) == 3, "the empty cell is gone, equal cells differ in id"
    assert data["cells"][2]["outputs"] == [] and data["cells"][2]["execution_count"] is None
    assert clean.endswith("}\n")


def test_check_fails_on_drift_and_write_mends_it(tmp_path, capsys):
    path = tmp_path / "a.ipynb"
    path.write_text(nbformat.writes(nbformat.v4.new_notebook()), encoding="utf-8")
    assert notebooks.main(["--check", str(path)]) == 1
    assert notebooks.main(["--write", str(path)]) == 0
    assert notebooks.main(["--check", str(path)]) == 0
    assert os.fspath(path) in capsys.readouterr().out
