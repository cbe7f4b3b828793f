"""Par, best known and the board: counted by the judge from the file, whatever the record says."""

import json
import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from small_workbook import make_small_workbook

from fa_numba import simt
from fa_numba.runtime import arrays
from fa_numba.workbook import board as boards
from fa_numba.workbook import catalog, gpu_times, own, par, progress
from fa_numba.workbook.board import board, rows_of, scale
from fa_numba.workbook.counts import QUANTITIES
from fa_numba.workbook.grader import grade, show

REPOSITORY = Path(__file__).parents[1]
SOLUTION = '''"""ex99a · Double

Double x, of 32 elements, into y.
"""

from numba import cuda

### HINT 1: one
### HINT 2: two
### HINT 3: three
### DEBRIEF: Done.


@cuda.jit
def double(x, y):
    """y = 2 x."""
    ### BEGIN SOLUTION
    i = cuda.threadIdx.x
    y[i] = 2 * x[i]
    ### END SOLUTION
'''
GRADER = '''"""Grader of ex99a."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.workbook.graders.causes import diagnosis


@pytest.mark.parametrize("seed", [0, 1])
def test_double(exercise, seed):
    """doubles"""
    x = np.random.default_rng(seed).random(32, np.float32)
    y = np.zeros_like(x)
    simt.trace(exercise.double, 1, 32, x, y)
    with diagnosis():
        simt.trace(exercise.double, 1, 32, x, y.copy())
    assert (y == 2 * x).all()
'''
ONCE = {"bytes": 2 * 256, "instructions": 2 * 2}  # of two checks: 32 loads and 32 stores each
TWICE = {"bytes": 2 * 384, "instructions": 2 * 3}  # of an answer that loads x twice


@pytest.fixture
def exercise(tmp_path, monkeypatch, warm_judges):
    """An exercise with a kernel, whose par is that of its solution."""
    monkeypatch.setattr(par, "all_known", lambda: {"ex99a": par.record(TWICE, [ONCE, {}])})
    return make_small_workbook(tmp_path, monkeypatch, SOLUTION, GRADER)


def answer_with(exercise, line):
    before = SOLUTION.split("    ### BEGIN")[0].split("### HINT")[0]
    kernel = '@cuda.jit\ndef double(x, y):\n    """y = 2 x."""\n    i = cuda.threadIdx.x\n'
    exercise.stub.write_text(f"{before}\n\n{kernel}    {line}\n")


def test_the_judge_counts_and_never_trusts_the_record(exercise):
    answer_with(exercise, "y[i] = x[i] + x[i]")
    report = grade("ex99a")
    assert report.passed and report.graded[0].counts == TWICE == progress.counts(exercise)
    assert "768 bytes (par 768, best known 512)" in report.text()
    file = exercise.root / progress.FILE
    forged = json.loads(file.read_text())
    forged[exercise.name]["counts"] = {"bytes": 1, "instructions": 1}
    file.write_text(json.dumps(forged))
    shown = board([exercise])
    assert [row[1:6] for row in shown.rows] == [
        ("bytes", "768", "1", "768", "512"),
        ("instructions", "6", "1", "6", "4"),
    ]
    assert progress.counts(exercise) == TWICE and not shown.waiting
    assert "768" in repr(shown) and "| 768 |" in shown._repr_markdown_()


def test_an_answer_that_fails_has_no_score(exercise):
    answer_with(exercise, "y[i] = x[i]")
    shown = board([exercise])
    assert not shown.rows and shown.waiting == ["ex99a"] and progress.counts(exercise) == {}
    assert "No kernel of yours has passed yet" in repr(shown)


def test_the_statement_names_par(exercise):
    assert "To beat: bytes par 768, best known 512; instructions par 6, best known 4." in repr(
        show("ex99a")
    )


def test_on_a_gpu_milliseconds_stand_beside_par(exercise, monkeypatch):
    """The timer and the card are replaced: 3 ms and 2 ms of par, then 1 ms and 2 ms."""
    answer_with(exercise, "y[i] = x[i] + x[i]")

    def double(module, x):
        y = np.zeros_like(x)
        simt.run(module.double, 1, 32, x, y)
        return y if wrong is None else wrong

    wrong, times = None, iter([3.0, 2.0, 1.0, 2.0])
    job = own.Job(double, timed_on=([(32,)], {}))
    monkeypatch.setitem(own.JOBS, "ex99a", job)
    monkeypatch.setattr(own, "has_cupy_and_gpu", lambda: True)
    monkeypatch.setattr(own, "_normal", lambda shapes: [np.ones(*shapes, np.float32)])
    monkeypatch.setattr(own, "gpu_ms", lambda call: next(times))
    monkeypatch.setattr(boards.arrays, "backend", lambda: arrays.Backend("Card, sm_90", "a test"))
    assert board([exercise]).rows[2][1:6] == ("ms, Card, sm_90", "3", "–", "2", "2")
    last = board([exercise])
    assert last.rows[2][1:6] == ("ms, Card, sm_90", "1", "3", "2", "1")
    assert last.rows[2][6].startswith("●") and not last.failures
    assert progress.times(exercise) == {"Card, sm_90": {"last": 1.0, "best": 1.0}}
    wrong = np.full(32, np.nan, np.float32)
    (said,) = board([exercise]).failures
    assert said.startswith("ex99a is not timed: ValueError: its result for arrays of shapes")
    monkeypatch.setattr(own, "has_cupy_and_gpu", lambda: False)
    assert len(board([exercise]).rows) == 2


def test_a_kernel_without_a_size_is_timed_in_its_largest_traced_launch(exercise, monkeypatch):
    """Times as the board takes them, in one process, with NumPy in the place of a GPU."""
    answer_with(exercise, "y[i] = x[i] + x[i]")
    monkeypatch.setattr(gpu_times, "can_be_timed", lambda exercise: True)
    monkeypatch.setattr(own, "has_cupy_and_gpu", lambda: True)
    monkeypatch.setattr(boards.arrays, "backend", lambda: arrays.Backend("Card, sm_90", "a test"))
    Path("cupy.py").write_text("import numpy\nasarray, asnumpy = numpy.array, numpy.asarray\n")
    Path("timed.py").write_text(
        "import sys\nfrom fa_numba.workbook import gpu_times\n"
        "def ms(call):\n    call()\n    return float(call.args[-1].size)\n"
        "gpu_times.own.gpu_ms, gpu_times.can_be_timed = ms, lambda exercise: True\n"
        "gpu_times.main(sys.argv[1:])\n"
    )
    monkeypatch.setattr(gpu_times, "__name__", "timed")
    paths = [".", str(REPOSITORY), str(REPOSITORY / "engine")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    shown = board([exercise])
    assert shown.rows[2][1:6] == ("ms, Card, sm_90", "32", "–", "32", "32"), shown.failures


def test_a_launch_with_other_arrays_on_the_gpu_is_not_timed(monkeypatch):
    fake = types.SimpleNamespace(asarray=np.array, asnumpy=lambda x: x)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(gpu_times.arrays, "launch", lambda *args, shared_bytes: None)
    before, after = np.ones(3, np.float32), np.array([1, 1, 1.02], np.float32)
    with pytest.raises(ValueError, match="its arrays on this GPU"):
        gpu_times.Launch(None, (1,), (1,), [before, 3], [after, 3], 0).on_gpu()
    assert gpu_times.same(after, after) and not gpu_times.same(np.arange(3), np.ones(3, int))


@pytest.mark.parametrize("kept", [3, {"Card": 1.0}, {"Card": {"last": 1, "best": 1.0}}])
def test_a_damaged_record_of_times_is_none(exercise, kept):
    (exercise.root / progress.FILE).write_text(json.dumps({exercise.name: {"ms": kept}}))
    assert progress.times(exercise) == {}


@pytest.mark.parametrize(
    "numbers, place, best",
    [((12, 12, 12), 10, 10), ((12, 12, 6), 10, 0), ((24, 12, 12), 20, 10), ((0, 12, 12), 0, 10)],
)
def test_scale(numbers, place, best):
    drawn = scale(*numbers)
    assert len(drawn) == 21 and drawn[place] == "●" and drawn[best] in "●◆"


def test_a_count_that_is_missing_is_0(exercise):
    assert [row[2] for row in rows_of(exercise, {"bytes": 5}, {})] == ["5", "0"]


@pytest.mark.parametrize("kept", [3, {"bytes": "much"}, {"bytes": True}, None])
def test_a_damaged_record_is_no_record(exercise, kept):
    (exercise.root / progress.FILE).write_text(json.dumps({exercise.name: {"counts": kept}}))
    assert progress.counts(exercise) == {}


def test_the_record_of_par():
    entries = par.all_known()
    kernels = {
        e.short for e in catalog.all_exercises(REPOSITORY) if "cuda.jit" in e.solution.read_text()
    }
    assert len(entries) >= 70 and kernels - entries.keys() <= WITHOUT_LAUNCH
    for short, entry in entries.items():
        assert entry["par"].keys() == entry["best known"].keys() <= QUANTITIES.keys(), short
        assert all(0 <= entry["best known"][n] <= x > 0 for n, x in entry["par"].items()), short


WITHOUT_LAUNCH = {"ex15d", "ex16b"}  # functions of indices: they move nothing themselves
