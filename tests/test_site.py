"""The site, without Sphinx: its pages hang together, and each lesson says where else it runs."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "site"


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("build_of_the_site", FOLDER / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_lead_from_the_first_page_to_every_page_and_lesson(build):
    lessons = {path.relative_to(ROOT).as_posix() for path in build.LESSONS}
    todo, reached = ["README.md"], set()
    while todo:
        page = todo.pop()
        if page in reached or page not in {*build.PAGES, *lessons}:
            continue
        reached.add(page)
        for link in build.LINK.findall((ROOT / page).read_text(encoding="utf-8")):
            target = (ROOT / page).parent.joinpath(link).resolve()
            todo.append(target.relative_to(ROOT).as_posix() if target.exists() else "")
    assert reached == {*build.PAGES, *lessons} and len(lessons) == 26
    assert {"engine/from_cudasim.md", "engine/not_a_gpu.md", "docs/site.md"} <= reached


def test_a_link_to_a_file_without_a_page_leads_to_the_repository(build):
    def led(text):
        return build.with_links(text, "docs/masks.md")

    blob = f"{build.REPOSITORY}/blob/main"
    assert led("[a](../fa_numba/masks.py#L3)") == f"[a]({blob}/fa_numba/masks.py#L3)"
    assert led("[a](../solutions)") == f"[a]({build.REPOSITORY}/tree/main/solutions)"
    kept = "[a](torch.md#x) [b](../notebooks/09_masks.ipynb) ![c](plots/masks.png) `[d](nowhere)`"
    assert led(kept) == kept and led("[a](../README.md)") == "[a](../index.md)"
    with pytest.raises(FileNotFoundError, match="docs/masks.md links to nowhere.md"):
        led("[a](nowhere.md)")


def test_links_in_outputs(build):
    """A grader's HTML and an exercise's text name the learner's file; code is left alone."""
    text = '<a href="../exercises/ex00b_guard.py">f</a> [f](../exercises/README.md) k[1](x, y)'
    blob = f"{build.REPOSITORY}/blob/main/exercises"
    wanted = f'<a href="{blob}/ex00b_guard.py">f</a> [f]({blob}/README.md) k[1](x, y)'
    assert build.with_links(text, "notebooks/00_x.ipynb", build.OUTPUT_LINK) == wanted


@pytest.mark.parametrize("there", [False, True])
def test_a_lesson_says_where_else_it_runs(build, there, monkeypatch, tmp_path):
    """In the browser where the site has that; its first cell has a place for the links."""
    monkeypatch.setattr(build, "LITE", tmp_path if there else tmp_path / "nowhere")
    monkeypatch.setattr(build, "SOURCE", tmp_path)
    monkeypatch.setattr(build, "BUILD", tmp_path)  # no outputs
    for path in build.LESSONS:
        build.lesson(path, run=False)
        page = (tmp_path / "notebooks" / path.name).read_text(encoding="utf-8")
        addresses = re.findall(r'<a href=\\"([^"]+)\\">', page)
        colab, *lite = addresses
        assert colab.startswith("https://colab.research.google.com/github/")
        assert colab.endswith(f"/fa-numba/blob/main/notebooks/{path.name}")
        assert lite == [f"../lite/lab/index.html?path={path.name}"] * there


def test_the_repositorys_owner_is_named_in_one_place():
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    owner = re.match(r"https://github\.com/([^/]+)/", urls["Repository"])[1]
    assert all(f"github.com/{owner}/fa-numba" in address for address in urls.values())
    rooms = [
        ROOT,
        *map(ROOT.joinpath, "benchmarks docs engine exercises fa_numba solutions".split()),
    ]
    files = [p for room in rooms for p in (room.glob("*") if room == ROOT else room.rglob("*"))]
    texts = (p for p in files if p.suffix in (".py", ".md", ".yml", ".cff", ".toml"))
    named = {p.name for p in texts if f"github.com/{owner}" in p.read_text(encoding="utf-8")}
    assert named == {"pyproject.toml"}
