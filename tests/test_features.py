"""docs/features.md: complete, up to date, and every number in it stands for tests that exist."""

import importlib.util
import re
from pathlib import Path

import pytest

import fa_numba
from fa_numba import dispatch, kv_cache

pytest.importorskip("ml_dtypes")  # without it pytest collects no test of bfloat16

DOCS = Path(__file__).parents[1] / "docs"
spec = importlib.util.spec_from_file_location("make_features", DOCS / "make_features.py")
features = importlib.util.module_from_spec(spec)
spec.loader.exec_module(features)

NODES = [
    "tests/test_a.py::test_one[gqa-causal]",
    "tests/test_a.py::test_one[gqa-full]",
    "tests/test_a.py::test_one[mqa-full]",
    "tests/test_a.py::test_one_more",
    "tests/test_b.py::test_one[flash_decode: q must be ... - an array]",
]


def test_the_page_is_what_the_tests_say():
    assert features.PAGE.read_text(encoding="utf-8") == features.page(), (
        "tests have come or gone: python docs/make_features.py writes docs/features.md anew"
    )


@pytest.mark.parametrize("name", ["make_functions", "make_lessons", "make_open_book"])
def test_a_generated_page_is_up_to_date(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), (
        f"python docs/{name}.py writes {script.PAGE.name} anew"
    )


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
    files.add("[swap_pages](../fa_numba/kv_cache/swap_pages.py)")  # launches copy_pages
    for name in ("flash_attn_padded", "flash_attn_bwd_padded"):  # they launch padded_rows
        files.add(f"[{name}](../fa_numba/tensor_core/{name}.py)")
    assert {row[0] for row in ROWS} == files


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][1:].split("]")[0])
def test_lessons_and_callers_of_a_kernel(row):
    name, lesson, callers = row[0][1:].split("]")[0], row[2], row[5]
    if lesson != "–":
        (notebook,) = DOCS.parent.glob(f"notebooks/{lesson}_*.ipynb")
        assert re.search(rf"\b{name}\b", notebook.read_text(encoding="utf-8"))
    for job in dispatch.JOBS:
        assert (f"`{job}`" in callers) == (name in dispatch.JOBS[job].candidates), job


def test_every_public_function_is_a_column():
    columns = {name for functions, _ in features.TABLES.values() for name in functions.split()}
    assert columns >= set(fa_numba.__all__) - {"backend"}
    strangers = {x for x in columns if not (hasattr(fa_numba, x) or hasattr(kv_cache, x))}
    assert not strangers


def test_links_lead_somewhere():
    links = set(re.findall(r"\]\((?!#)([^) ]+)", features.PAGE.read_text(encoding="utf-8")))
    assert len(links) > 20
    assert not [link for link in links if not (DOCS / link).exists()]


@pytest.mark.parametrize(
    "claim, number",
    [
        ("test_a::test_one", 3),
        ("test_a::test_one[gqa]", 2),
        ("test_a::test_one[gqa|mqa]", 3),
        ("test_a::test_one[gqa,full]", 1),
        ("test_a::test_one[mqa,causal]", 0),
        ("test_a::test_on", 0),
        ("test_b::test_one[flash_decode]", 1),
        ("test_b::test_one[decode]", 0),
    ],
)
def test_a_claim_counts_its_cases(claim, number):
    assert len(features.cases(claim, NODES)) == number


def table(**declared):
    return {"A table": ("f g", {"a feature": declared})}


def test_a_claim_without_a_test_is_refused():
    assert "[2](" in features.page(table(f="test_a::test_one[gqa]", g="–"), NODES)
    with pytest.raises(ValueError, match=r"no such test: test_a::test_two"):
        features.page(table(f="test_a::test_one", g="test_a::test_two"), NODES)
    with pytest.raises(ValueError, match="A table, a feature: nothing is said of g"):
        features.page(table(f="test_a::test_one"), NODES)
    with pytest.raises(ValueError, match="A table, a feature: nothing is said of g"):
        features.page(table(f="test_a::test_one", g=""), NODES)
    with pytest.raises(ValueError, match="h is unknown or there twice"):
        features.page(table(f="–", g="–", h="–"), NODES)


def test_what_is_not_offered_says_why():
    text = features.page(table(f="test_a::test_one", g=features.No("it is for another day")), NODES)
    assert "| no[^1] |" in text and "[^1]: It is for another day." in text
