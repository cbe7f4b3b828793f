"""The generated pages of docs/ are up to date and complete."""

import importlib
import re
from pathlib import Path

import pytest

import fa_numba
from fa_numba import dispatch

DOCS = Path(__file__).parents[1] / "docs"


def script(name, monkeypatch):
    """A script of docs/, as a module."""
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module(name)


@pytest.mark.parametrize(
    "name", ["make_features", "make_functions", "make_lessons", "make_open_book"]
)
def test_a_generated_page_is_up_to_date(name, monkeypatch):
    made = script(name, monkeypatch)
    assert made.PAGE.read_text(encoding="utf-8") == made.page(), (
        f"python docs/{name}.py writes {made.PAGE.name} anew"
    )


@pytest.mark.thorough
def test_the_table_of_proofs_is_up_to_date(monkeypatch):
    pytest.importorskip("z3")
    monkeypatch.syspath_prepend(DOCS.parent)
    made = script("make_proofs", monkeypatch)
    assert made.PAGE.read_text(encoding="utf-8") == made.page()


ROOMS = "kernels", "on_cuda_cores", "tensor_core", "kv_cache"
PACKAGE = Path(fa_numba.__file__).parent
ROWS = [
    [cell.strip() for cell in line.strip("| \n").split(" | ")]
    for line in (DOCS / "kernels.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| [")
]


def test_every_kernel_has_a_row():
    """A file whose kernels are launched by a function of its own name."""
    files = {
        f"[{path.stem}](../fa_numba/{room}/{path.name})"
        for room in ROOMS
        for path in PACKAGE.joinpath(room).glob("*.py")
        if path.stem != "feature_map"  # a part of linear_attn
        and {"cuda.jit", f"\ndef {path.stem}("}
        <= set(re.findall(r"cuda\.jit|\ndef \w+\(", path.read_text()))
    }
    for name in (  # launch the kernels of another file
        "kv_cache/swap_pages",
        "kernels/flash_attn_varlen_bwd",
        "kernels/paged_attn_decode",
        "tensor_core/flash_attn_padded",
        "tensor_core/flash_attn_bwd_padded",
    ):
        files.add(f"[{name.split('/')[1]}](../fa_numba/{name}.py)")
    assert {row[0] for row in ROWS} == files


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][1:].split("]")[0])
def test_lessons_and_callers_of_a_kernel(row):
    name, lesson, callers = row[0][1:].split("]")[0], row[2], row[5]
    if lesson != "–":
        (notebook,) = DOCS.parent.glob(f"notebooks/{lesson}_*.ipynb")
        assert re.search(rf"\b{name}\b", notebook.read_text(encoding="utf-8"))
    for job in dispatch.JOBS:
        assert (f"`{job}`" in callers) == (name in dispatch.JOBS[job].candidates), job


def test_every_public_function_is_in_the_page_of_options():
    named = set(re.findall(r"`(\w+)`", DOCS.joinpath("features.md").read_text(encoding="utf-8")))
    assert named >= {*fa_numba.__all__, "Scheduler", "ContiguousCache", "RollingCache"}
