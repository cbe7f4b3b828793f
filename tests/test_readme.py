"""README.md and docs/: their Python runs, their numbers are measured, their links lead on."""

import html
import itertools
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numba import cuda, float32

from benchmarks import bench_published, readme

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
PAGES = sorted(
    name
    for name in subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout.split()
    if (ROOT / name).exists() and not name.startswith("tests/")
) or ["README.md", *(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]


@cuda.jit
def doubled(x, y):
    tile = cuda.shared.array(32, float32)
    i = cuda.grid(1)
    if i < x.shape[0]:
        tile[cuda.threadIdx.x] = x[i]
        y[i] = 2 * tile[cuda.threadIdx.x]


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL))
def test_python_runs(block):
    x = np.ones(100, np.float32)
    world = {"kernel": doubled, "grid": 4, "block": 32, "x": x, "y": x.copy()}
    exec(compile(block, "README.md", "exec"), world)


@pytest.mark.parametrize("name", readme.DOCUMENTS)
def test_what_stands_between_markers_is_of_the_results(name):
    """After a change of either: `python -m benchmarks.plots` and `python -m benchmarks.readme`."""
    text = (ROOT / name).read_text()
    assert readme.rendered(name, text) == text


def test_ranges_in_the_text_are_those_of_the_tables_below():
    """Decimals, or rates; milliseconds in the text are mostly differences of those in a table."""
    of_text = r"(?<![\d.])(\d+\.\d+) to (\d+\.\d+)(?!\d| [mµ]s)|(\d+) to (\d+) TFLOP/s"
    number, wrong = 0, []
    for name in readme.DOCUMENTS:
        for section in re.split("^#+ .*", (ROOT / name).read_text(), flags=re.M):
            text = re.sub(r"<!-- (\w+):begin -->.*?<!-- \1:end -->", "", section, flags=re.DOTALL)
            given = [[x for x in two if x] for two in re.findall(of_text, " ".join(text.split()))]
            if text == section or not given:
                continue
            tables = re.findall(r"(?:^\|.*\n)+", section, re.M)
            known = [two for table in tables for two in ranges_of(table)]
            wrong += [(name, *x) for x in given if not any(rounds_to(two, x) for two in known)]
            number += len(given)
    assert number >= 8 and not wrong, wrong


def rounds_to(numbers, text):
    decimals = [len(x.partition(".")[2]) for x in text]
    return [f"{x:.{n}f}" for x, n in zip(numbers, decimals, strict=True)] == text


def ranges_of(table):
    """The least and largest numbers of each column of a table, and of two columns' ratios.

    Of all rows, and of those that are alike in one or two columns.
    """
    rows = [line.strip("|").split("|") for line in table.splitlines()]
    columns, groups = range(len(rows[0])), {}
    for alike in itertools.chain([()], *(itertools.combinations(columns, n) for n in (1, 2))):
        for row in rows[2:]:
            key = alike, *(row[i] for i in alike)
            cells = [re.match(r" *([\d.]+) ", x.replace(",", "")) for x in row]
            groups.setdefault(key, []).append([float(x[1]) if x else None for x in cells])
    for group in filter(lambda x: len(x) > 1, groups.values()):
        for a, b in [*((i, None) for i in columns), *itertools.permutations(columns, 2)]:
            pairs = [(row[a], 1 if b is None else row[b]) for row in group]
            if ratios := [x / y for x, y in pairs if x is not None and y]:
                yield min(ratios), max(ratios)


def test_ranges_of_a_table():
    table = "| n | a | b |\n|---|---|---|\n| x | 3 | 2 |\n| x | 4 | 1 |\n| y | 50 | 1 |\n"
    found = set(ranges_of(table))
    assert {(3, 50), (3, 4), (1.5, 50), (1.5, 4)} <= found and (2, 50) not in found


def test_the_readme_is_short():
    assert len(TEXT.splitlines()) <= 160


def test_links_lead_somewhere():
    missing, links = [], 0
    for name in PAGES:
        code = r"```.*?```|`[^`\n]+`"
        text = re.sub(code, "", (ROOT / name).read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\((?!http|mailto)([^)#\s]+)", text):
            links += 1
            if not (ROOT / name).parent.joinpath(link).exists():
                missing.append(f"{name}: {link}")
    assert links > 50 and not missing, missing


def test_files_that_the_code_names_are_there():
    """Headers and comments say where a number was measured, and which page explains it."""
    missing, found = [], 0
    for folder in "fa_numba benchmarks tests engine docs exercises solutions".split():
        for path in ROOT.joinpath(folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for name in re.findall(r"(?<![\w/])(?:docs|benchmarks)/[\w/]+\.(?:md|json|py)\b", text):
                found += 1
                if not (ROOT / name).exists() and path.name != "test_handout.py":
                    missing.append(f"{path.relative_to(ROOT)}: {name}")
    assert found > 50 and not missing, missing


def test_the_index_has_every_page():
    index = (ROOT / "docs/README.md").read_text()
    for path in sorted(ROOT.glob("docs/*.md")):
        assert path.name == "README.md" or f"({path.name})" in index, path.name
    index = (ROOT / "docs/notes/README.md").read_text()
    for path in sorted(ROOT.glob("docs/notes/*.md")):
        assert path.name == "README.md" or f"({path.name})" in index, path.name


def test_the_picture_of_a_check_is_that_of_today():
    """docs/make_pictures.py draws what the grader says."""
    drawn = (ROOT / "docs/plots/race.svg").read_text()
    drawn = "".join(html.unescape("".join(re.findall(r"<text[^>]*>(.*?)</text>", drawn))).split())
    for line in readme.failing_check().splitlines():
        assert "".join(line.split()) in drawn, line


def test_a_published_time_of_both_passes_is_a_row_of_its_own(monkeypatch):
    layout = bench_published.LAYOUTS[-1]
    seen = [
        ("fa-numba", False, 1.0, 2e-3),
        ("fa-numba", True, 2.5, 3e-3),
        ("cuDNN", False, 2, None),
    ]
    monkeypatch.setattr(bench_published, "functions", lambda *size: iter(seen))
    monkeypatch.setattr(bench_published, "time_ms", lambda ms, repeats: ms)
    *_, both = bench_published.measure(layout, 16384, True)
    work = 14 * 16 * 16384**2 * 64 / 2  # four FLOPs forward and ten backward for each pair
    assert both["pass"] == "both" and both["error"] == 3e-3
    assert both["fa-numba"] == round(work / 3.5e9, 1) and both["fa-numba, ms"] == 3.5
    assert both["published"] == round(work / 4.027e9, 1)
