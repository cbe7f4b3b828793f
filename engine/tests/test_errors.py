"""Every error a learner can meet: its words, its place, and a traceback free of the engine.

The cases are in errors.md, to be read as a catalogue. After a change of wording, run this
file as a program: it writes what is said now into the catalogue, to be reviewed as a diff.
"""

import os
import re
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest
from sources import run_text

import numba_cuda_simulator as simt

CATALOGUE = Path(__file__).with_name("errors.md")
CASE = re.compile(r"### ([^\n]+)\n```\n(.+?)\n\n(\w+Error: .*?)```\n", re.DOTALL)
ROW = re.compile(r"^\| `([^\n]+)` \| (\w+Error: [^\n]+) \|$", re.MULTILINE)
WRITTEN = CATALOGUE.read_text(encoding="utf-8")
PRELUDE = re.search(r"```python\n(.+?)```", WRITTEN, re.DOTALL)[1]
HEAD = "@cuda.jit\ndef kernel(x, out):\n"
COPY = f"{HEAD}    i = cuda.grid(1)\n    if i < out.size:\n        out[i] = x[i]\n"
FRAME = re.compile(r"  this notebook, line (\d+)\n    (.+)\n    ( *)(\^+)$", re.MULTILINE)
ENGINE = os.path.dirname(simt.__file__)


def whole(text):
    """Return the cell that a text of the catalogue stands for."""
    *_, last = text.splitlines()
    launch = "" if last[0] != " " else "\nkernel[1, 1](x, out)"
    if text[0] == " ":
        text = HEAD + text
    elif "def " not in text:
        text = COPY + text
    return f"{text}{launch}\n"


def row(code, words):
    """Return a row of a table as a case: the text of its cell, and the message."""
    said, _, hint = words.replace(r"]\(", "](").partition(" <br> ")  # no link
    found = re.finditer("«(.+?)»", code)
    sites = [f"  {3 + code[: m.start()].count('⏎')}: {m[1]}" for m in found]
    lines = [said, *sites, *[f"  {h}" for h in [hint] if h]]
    code = code.replace("«", "").replace("»", "").replace(" ⏎ ", "\n    ")
    head, launched, launch = code.partition("; kernel[")
    text = "    " * bool(sites or launched) + head + launched.replace("; ", "\n") + launch
    return text, "\n".join([*lines, ""])


CASES = [(title, whole(text), words) for title, text, words in CASE.findall(WRITTEN)]
ROWS = [(code, *row(code, words)) for code, words in ROW.findall(WRITTEN)]
CASES += [(code, whole(text), words) for code, text, words in ROWS]


def run_cell(source, world):
    """Run a text as a notebook runs a cell, and return its file name."""
    world["cell"] = f"/tmp/ipykernel_1/{abs(hash(source))}.py"
    run_text(source, world, world["cell"])


def error_of(source):
    """Run a cell that fails; return its error, the name of its file, and its processor time."""
    world = {}
    run_cell(PRELUDE, world)
    start = time.process_time()
    with pytest.raises(BaseException) as caught:
        run_cell(source, world)
    return caught.value, world["cell"], time.process_time() - start


def said(error, cell):
    """Return the message, a line that is shown with carets as `5: tile[t]`."""

    def short(frame):
        line, text, indent, carets = frame.groups()
        assert text == cell.splitlines()[int(line) - 1].strip()
        return f"  {line}: {text[len(indent) :][: len(carets)]}"

    return FRAME.sub(short, f"{type(error).__name__}: {error}\n")


@pytest.mark.parametrize("title, source, words", CASES, ids=[case[0] for case in CASES])
def test_error(title, source, words):
    error, cell, seconds = error_of(source)
    assert said(error, source) == words
    assert seconds < 1

    last = traceback.extract_tb(error.__traceback__)[-1]
    assert last.filename == cell, "the last frame is the learner's own"
    launch = source.count("\n")
    assert last.lineno in (*getattr(error, "lines", ()), launch) or "kernel" in last.name
    assert bool(re.search(r"^  \d+: ", words, re.M)) == bool(getattr(error, "sites", ()))
    assert error.__suppress_context__ or error.__context__ is None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        inside = os.path.dirname(frame.f_code.co_filename) == ENGINE
        assert not inside or "__tracebackhide__" in frame.f_locals


NOTEBOOK = """
from IPython.core.interactiveshell import InteractiveShell
from test_errors import CASES, PRELUDE

shell = InteractiveShell.instance(colors="nocolor")
shell.history_manager.enabled = False
shell.run_cell(PRELUDE, store_history=True)
shell.run_cell("simt.enable()", store_history=True)
for title in ("A load before the store has finished", "kernel[1, 64](x)"):
    [source] = [source for name, source, _ in CASES if name == title]
    kernel, launch = source.strip().rsplit("\\n", 1)
    shell.run_cell(kernel, store_history=True)
    shell.run_cell(launch, store_history=True)
"""


def test_notebook(tmp_path):
    """In a notebook IPython draws the traceback: the cells are named and the engine is hidden."""
    pytest.importorskip("IPython")
    here = os.path.dirname(__file__)
    path = os.pathsep.join([here, os.path.dirname(here)])
    environment = os.environ | {"PYTHONPATH": path, "IPYTHONDIR": str(tmp_path)}
    program = [sys.executable, "-W", "ignore", "-c", NOTEBOOK]
    shown = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    race, launch = shown.stdout.split("LaunchError ", 1)
    assert re.search(r"-> 6 +out\[t\] = tile\[63 - t\]\n\nRaceError: RAW race", race)
    assert re.search(r"thread \(63, 0, 0\) stores at Cell\s+In\[3\], line 5", race)
    assert re.search(r"-> 1 kernel\[1, 64\]\(x\)\n\nLaunchError: kernel\(x, out\)", launch)
    assert "numba_cuda_simulator" not in shown.stdout


def write_catalogue():
    def again(case):
        title, text, _ = case.groups()
        words = said(error_of(whole(text))[0], whole(text))
        return f"### {title}\n```\n{text}\n\n{words}```\n"

    def row_again(match):
        text, _ = row(*match.groups())
        words = said(error_of(whole(text))[0], whole(text))
        first, *rest = re.sub(r"^  \d+: .*\n", "", words, flags=re.M).splitlines()
        said_in_a_row = " <br> ".join([first, *map(str.strip, rest)]).replace("](", r"]\(")
        return f"| `{match[1]}` | {said_in_a_row} |"

    simt.enable()
    text = ROW.sub(row_again, CASE.sub(again, WRITTEN))
    CATALOGUE.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    write_catalogue()
