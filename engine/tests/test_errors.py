"""Every error a learner can meet: its words, its place, and a traceback free of the engine.

The cases are in errors.md, to be read as a catalogue. After a change of wording, run this
file as a program: it writes what is said now into the catalogue, to be reviewed as a diff.
"""

import linecache
import os
import re
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest

import numba_cuda_simulator as simt

CATALOGUE = Path(__file__).with_name("errors.md")
CASE = re.compile(r"### ([^\n]+)\n```python\n(.+?)```\n```text\n(.*?)```\n", re.DOTALL)
PRELUDE = re.search(r"```python\n(.+?)```", CATALOGUE.read_text(), re.DOTALL)[1]
CASES = [case.groups() for case in CASE.finditer(CATALOGUE.read_text())]
ENGINE = os.path.dirname(simt.__file__)


def run_cell(source, world):
    """Run a text as a notebook runs a cell, and return its file name."""
    file = f"/tmp/ipykernel_1/{abs(hash(source))}.py"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    world["cell"] = file
    exec(compile(source, file, "exec"), world)


def error_of(source):
    """Run a cell that fails; return its error, the name of its file, and its processor time."""
    world = {}
    run_cell(PRELUDE, world)
    simt.enable()
    start = time.process_time()
    with pytest.raises(BaseException) as caught:
        run_cell(source, world)
    return caught.value, world["cell"], time.process_time() - start


def said(error):
    return f"{type(error).__name__}: {error}\n"


@pytest.fixture(autouse=True)
def leave_numba_as_it_was():
    enabled = simt.is_enabled()
    yield
    if not enabled:
        simt.disable()


@pytest.mark.parametrize("title, source, words", CASES, ids=[case[0] for case in CASES])
def test_error(title, source, words):
    error, cell, seconds = error_of(source)
    assert said(error) == words
    assert seconds < 1

    last = traceback.extract_tb(error.__traceback__)[-1]
    assert last.filename == cell, "the last frame is the learner's own"
    launch = source.count("\n")
    assert last.lineno in (*getattr(error, "lines", ()), launch) or "kernel" in last.name
    assert ("^" in words) == bool(getattr(error, "sites", ()))
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
for title in ("A load before the store has finished", "A missing argument"):
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
    def rewrite(case):
        title, source, _ = case.groups()
        words = said(error_of(source)[0])
        return f"### {title}\n```python\n{source}```\n```text\n{words}```\n"

    CATALOGUE.write_text(CASE.sub(rewrite, CATALOGUE.read_text()))


if __name__ == "__main__":
    write_catalogue()
