"""All but the compiler works where there is no Numba, and what needs it says so."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fa_numba.workbook.pytest_plugin import NOT_COMPILED

REPOSITORY = Path(__file__).parents[1]
HIDDEN = "numba", "llvmlite", "numba_cuda", "cuda", "cupy", "torch"
# Of each kind of exercise: a kernel, a race, NumPy alone, device functions, a choice of numbers.
SOME = {"processes": "ex05b ex07d", "in process": "ex03b ex04b ex14e ex15d ex16b"}
BLOCKER = f"""
import sys
from importlib.machinery import PathFinder

find = PathFinder.find_spec.__func__


def find_spec(cls, name, path=None, target=None):
    # The engine's own folder has another module of the name.
    hidden = name.partition(".")[0] in {HIDDEN!r} and "without_numba" not in str(path)
    return None if hidden else find(cls, name, path, target)


PathFinder.find_spec = classmethod(find_spec)
# numba-cuda's own finder, which would look for it.
sys.meta_path[:] = [f for f in sys.meta_path if type(f).__module__ != "_numba_cuda_redirector"]
"""
PROGRAM = """
import importlib, json, os, pkgutil, sys
import fa_numba
import numpy as np
from numba_cuda_simulator.errors import CompilerMissingError

asked = {}
for module in pkgutil.walk_packages(fa_numba.__path__, "fa_numba.", onerror=lambda name: None):
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        asked[module.name] = str(error)

x = np.ones((1, 4, 1, 16), np.float32)
try:
    fa_numba.flash_attn(x, x, x)
except CompilerMissingError as error:
    job = str(error)
from fa_numba.workbook import catalog, doctor, grader, live
graded = {}
for in_process, shorts in enumerate(sys.argv[1:]):
    os.environ["FA_NUMBA_GRADE_IN_PROCESS"] = str(in_process)
    exercises = [e for e in catalog.all_exercises() if e.short in shorts.split()]
    for g in grader.grade_all(exercises, impl="solutions").graded:
        graded[g.exercise.short] = [[check.outcome, check.message] for check in g.checks]
print(json.dumps({
    "job": job,
    "asked": asked,
    "backend": str(fa_numba.backend()),
    "numba": dict(doctor.rows())["numba"],
    "live": live.live("flash_attn_mma").markdown,
    "lines": fa_numba.flash_attn_v2(x, x, x)[0].shape,
    "graded": graded,
}))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    site = tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text(BLOCKER)
    path = os.pathsep.join(map(str, (site, REPOSITORY, REPOSITORY / "engine")))
    how = {"cwd": REPOSITORY, "env": os.environ | {"PYTHONPATH": path}}
    return lambda *arguments: subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, **how
    )


@pytest.fixture(scope="module")
def told(run):
    done = run("-c", PROGRAM, *SOME.values())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_launch_as_a_user_writes_it(run, tmp_path):
    """The example of the engine's README, with and without the barrier that it lacks."""
    page = (REPOSITORY / "engine/README.md").read_text(encoding="utf-8")
    lines = re.search(r"```python\n(.+?)```", page, re.S)[1]
    (file := tmp_path / "example.py").write_text("import numba_cuda_simulator\n" + lines)
    assert "RaceError: RAW race on tile[63]" in run(file).stderr
    file.write_text(
        file.read_text().replace("    out[t] =", "    cuda.syncthreads()\n    out[t] =")
    )
    assert not run(file).stderr


def test_the_package_imports_but_for_what_is_compiled(told):
    asked = {name: why for name, why in told["asked"].items() if "needs Numba" in why}
    rooms = {".".join(name.split(".")[:2]) for name in asked}
    assert rooms == {"fa_numba.cpu", "fa_numba.ptx", "fa_numba.tensor_core"}, asked


def test_what_is_compiled_says_what_is_missing(told):
    assert told["job"].endswith("needs Numba, which is not installed: pip install numba")
    assert "\n" not in told["job"]
    assert "Numba is not installed. Ans" in told["backend"]
    assert told["backend"].endswith("an algorithm, such as flash_attn_v2, does not.")
    assert "the engine, lessons and graders work" in told["numba"]
    assert told["live"].startswith("*Nothing runs on a GPU here: inline PTX needs Numba, ")
    assert told["lines"] == [1, 4, 1, 16]


def test_solutions_pass(told):
    assert set(told["graded"]) == set(" ".join(SOME.values()).split())
    checks = [check for graded in told["graded"].values() for check in graded]
    skipped = ["skipped", NOT_COMPILED]
    assert skipped in checks
    assert not [check for check in checks if check[0] != "passed" and check != skipped]


def test_a_real_numba_is_never_replaced():
    import numba

    from numba_cuda_simulator import without_numba

    without_numba.install()
    assert sys.modules["numba"] is numba and not without_numba.is_installed()


NO_RUNTIME = """
from cuda.bindings import runtime

def ask():
    raise RuntimeError("libcudart is not here")

runtime.getLocalRuntimeVersion = ask
import fa_numba
from numba import cuda
assert "numba_cuda" in cuda.__file__ and runtime.getLocalRuntimeVersion is ask
"""


def test_numba_cuda_is_imported_where_there_is_no_cuda_runtime():
    pytest.importorskip("cuda.bindings.runtime")
    done = subprocess.run([sys.executable, "-c", NO_RUNTIME], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
