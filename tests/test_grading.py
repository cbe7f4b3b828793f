"""What the judge and the answering process say to each other, and what a learner is told."""

import importlib.util
import shutil
import sys
import textwrap
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.machine_code import compiler_available
from fa_numba.workbook import catalog, grader, stubs
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.kernels import expect_at_most
from fa_numba.workbook.graders.loops import expect_no_loop
from fa_numba.workbook.grading import inside, launches, processes, wire
from fa_numba.workbook.grading.answer import Answer, charged
from fa_numba.workbook.grading.failures import AnswerError
from fa_numba.workbook.grading.inside import InsideAnswer
from fa_numba.workbook.grading.limits import Limits, limits_of
from fa_numba.workbook.grading.proxies import Module, each

REPOSITORY = Path(__file__).parents[1]
needs_compiler = pytest.mark.skipif(not compiler_available(), reason="needs NVVM and NVRTC")

ANSWER = """
import math
from collections import deque, namedtuple
import numpy as np
from numba import cuda, float32

SIZE = 7

class Empty(Exception):
    pass

class Stack:
    def __init__(self, items):
        self.items = list(items)
    def pop(self):
        if not self.items:
            raise Empty("nothing left")
        return self.items.pop()
    def __len__(self):
        return len(self.items)
    @property
    def top(self):
        return self.items[-1]

def same(x):
    return x

def add_one(x):
    x += 1

def view(x):
    return x[1:3]

def extend(items):
    items.append("new")

def count(n):
    yield from range(n)

def apply(f, x):
    return f(x)

def deep():
    return {"a": (1, [2.5, None]), 3: {True, "x"}, "r": range(3), "n": float("nan")}

def named():
    return namedtuple("P", "x y")(1, 2), deque([1, 2])

def objects():
    return np.array([object()])

def power_of_two(n):
    return 1 << n

def by_for(x):
    for row in x:
        row += 1

def by_comprehension(x):
    return [row + 1 for row in x]

def by_map(x):
    return list(map(lambda row: row + 1, x))

def by_vectorize(x):
    return np.vectorize(lambda number: number + 1)(x)

def at_once(x):
    return sum(x + add for add in range(10))

@cuda.jit(device=True)
def twice(x):
    return x + x

@cuda.jit
def scale(source, result):
    i = cuda.grid(1)
    if i < result.shape[0]:
        print("thread", i) if i == 0 else None
        result[i] = 2 * source[i]

def make_scale():
    @cuda.jit
    def hidden(source, result):
        result[cuda.grid(1)] = 2 * source[cuda.grid(1)]

    return hidden
"""


@pytest.fixture(scope="module", params=[Answer, InsideAnswer])
def exercise(tmp_path_factory, request):
    """A module in an answering process, or in this one, and simt as graders see it."""
    root = tmp_path_factory.mktemp("answer")
    path = root / "ex99a_answer.py"
    path.write_text(ANSWER)
    reference = "@cuda.jit\ndef scale(x, out):\n    pass\n"
    answer = request.param(path, root, Limits(5), reference=reference)
    launches.install()
    answer.begin_check(None)
    yield Module(answer, path=[], name="ex99a_answer")
    answer.stop()
    launches.uninstall()
    processes.close_fork_server()


VALUES = [
    None, True, 3, -(10**30), 2.5, -0.0, float("inf"), "text \ud800", 1 + 2j, (1, (2,)), [1, [2]],
    {1: "a", (2, 3): []}, {1, 2}, b"bytes", range(2, 9, 3), slice(1, None), Fraction(1, 3), ...,
    np.float32(1.5), np.int64(-3), np.bool_(True), np.dtype("int8"), np.float16,
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_go_there_and_back(exercise, value):
    got = exercise.same(value)
    assert got == value and type(got) is type(value)


ARRAYS = {
    "matrix": np.arange(12, dtype=np.float32).reshape(3, 4),
    "transposed": np.arange(12).reshape(3, 4).T,
    "every second": np.arange(10)[::2],
    "backwards": np.arange(10.0)[::-1],
    "empty": np.zeros((0, 3), np.int16),
    "no axes": np.array(4.5),
    "broadcast": np.broadcast_to(np.float32(2), (3, 3)),
    "bool": np.array([True, False]),
    "half": np.ones(3, np.float16),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_go_there_and_back(exercise, name):
    x = ARRAYS[name]
    assert exercise.same(x) is x or not x.size, (
        "what is returned as it was given is the same array here too"
    )
    copied = exercise.apply(np.ascontiguousarray if x.ndim else np.copy, x)
    assert copied.dtype == x.dtype and (copied == x).all()


def test_changes_come_back_and_overlap(exercise):
    base = np.zeros(10)
    x = base[2:6]
    exercise.add_one(x)
    assert base.tolist() == [0, 0, 1, 1, 1, 1, 0, 0, 0, 0]
    got = exercise.view(x)
    got[:] = 5
    assert base.tolist() == [0, 0, 1, 5, 5, 1, 0, 0, 0, 0], "a view that is returned is a view"
    items = [1]
    exercise.extend(items)
    assert items == [1, "new"]


def test_what_is_read_only_stays_so(exercise):
    x = np.zeros(3)
    x.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        exercise.add_one(x)


def test_nested_values_and_those_of_other_types(exercise):
    deep = exercise.deep()
    assert deep["a"] == (1, [2.5, None]) and deep[3] == {True, "x"} and deep["n"] != deep["n"]
    assert exercise.named() == ((1, 2), [1, 2])
    assert list(exercise.count(1300)) == list(range(1300))
    with pytest.raises(TypeError, match="array of Python objects"):
        exercise.objects()
    assert exercise.SIZE == 7 and not hasattr(exercise, "nothing")


def test_objects_and_their_errors(exercise):
    stack = exercise.Stack([1, 2])
    assert len(stack) == 2 and stack.top == 2 and stack.pop() == 2
    assert each(exercise.same, [1, (2,)]) == [1, (2,)]
    stack.pop()
    with pytest.raises(exercise.Empty, match="nothing left"):
        stack.pop()
    with pytest.raises(TypeError):
        stack < 3  # noqa: B015


def test_no_message_makes_an_array_of_addresses():
    for name in ("O", [["x", "O"]]):
        with pytest.raises(wire.WireError):
            wire.dtype_of(name)


def test_functions_of_the_grader(exercise):
    seen = []
    factor = 3
    assert exercise.apply(lambda x: factor * x, 2) == 6  # goes over as code
    assert exercise.apply(lambda x: seen.append(x) or exercise.same(x), 4) == 4  # stays here
    assert seen == [4]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        exercise.apply(lambda x: seen[0] // x, 0)


@pytest.mark.parametrize("name", ["by_for", "by_comprehension", "by_map", "by_vectorize"])
def test_a_loop_over_rows_is_found(exercise, name):
    expect_no_loop(exercise.at_once, np.zeros(300), over="rows")
    with pytest.raises(Wrong, match="is there a loop over rows"):
        expect_no_loop(getattr(exercise, name), np.zeros(300), over="rows")


def test_arrays_of_a_trace_have_the_names_of_the_statement(exercise):
    x, out = np.arange(40, dtype=np.float32), np.zeros(40, np.float32)
    trace = simt.trace(exercise.scale, 2, 32, x, out)
    assert (out == 2 * x).all()
    assert (trace.arrays["x"].loads, trace.arrays["out"].stores) == (40, 40)
    assert {line.array for line in trace.lines} == {"x", "out"}
    assert trace.launched.arguments[0] is x and "floating-point" in trace.summary()
    assert "thread 0" in exercise._answer.take_output()


def test_a_kernel_by_another_name_has_the_names_of_the_statement(exercise):
    x, out = np.ones(32, np.float32), np.zeros(32, np.float32)
    trace = simt.trace(exercise.make_scale(), 1, 32, x, out)
    assert (trace.arrays["x"].loads, trace.arrays["out"].stores) == (32, 32)


def test_a_kernel_of_the_grader_that_calls_the_answer(exercise):
    from numba import cuda

    twice, offset = exercise.twice, 10

    @cuda.jit
    def kernel(x):
        i = cuda.grid(1)
        x[i] = twice(x[i]) + offset

    x = np.arange(4.0)
    simt.run(kernel, 1, 4, x)
    assert x.tolist() == [10, 12, 14, 16]
    trace = simt.trace(kernel, 1, 4, x)
    assert trace.arrays["x"].loads == 4


def test_an_engine_error_keeps_its_class_and_its_lines(exercise):
    with pytest.raises(simt.errors.LaunchError, match="takes 2 arguments, got 1"):
        simt.run(exercise.scale, 1, 4, np.zeros(4))


def test_a_process_that_ends_is_replaced(exercise):
    answer = exercise._answer
    if isinstance(answer, InsideAnswer):
        pytest.skip("this one is not to end")
    answer.begin_check("one")
    stack = exercise.Stack([])
    answer.process.kill()
    with pytest.raises(AnswerError, match="killed|ended"):
        exercise.same(1)
    with pytest.raises(AnswerError):
        exercise.same(1)
    answer.begin_check("two")
    assert exercise.same(1) == 1, "functions are found again in the new process"
    with pytest.raises(TypeError, match="started anew"):
        stack.pop()


def test_a_process_with_an_interpreter_of_its_own(exercise, monkeypatch, tmp_path):
    monkeypatch.setattr(processes.os, "fork", None)
    monkeypatch.delattr(processes.os, "fork")
    path = tmp_path / "ex99b_answer.py"
    path.write_text(ANSWER)
    answer = Answer(path, tmp_path)
    answer.begin_check(None)
    assert Module(answer, path=[], name="x").same((1, 2)) == (1, 2)
    assert isinstance(answer.process, processes.Spawned)
    answer.stop()


ENDLESS = {
    "in a kernel": "@cuda.jit\ndef go(x):\n    i = 0\n    while i < 1:\n        i -= 1\n",
    "outside of one": "def go(x):\n    for _ in iter(int, 1):\n        pass\n",
    "swallows errors": (
        "def go(x):\n    while True:\n        try:\n            x[0] += 1\n"
        "        except BaseException:\n            pass\n"
    ),
}


@pytest.mark.parametrize("place", ENDLESS)
def test_steps_run_out_where_there_is_no_process(place, tmp_path, monkeypatch):
    if place == "swallows errors" and not hasattr(sys, "monitoring"):
        pytest.skip("Python 3.11 cannot stop it")
    monkeypatch.setattr(inside, "MOST_STEPS", 50_000)
    path = tmp_path / "ex99a_answer.py"
    path.write_text(
        f"from numba import cuda\n\n\n{ENDLESS[place]}\n\n\ndef quick():\n    return 1\n"
    )
    answer, tracer = InsideAnswer(path, tmp_path), sys.gettrace()
    module = Module(answer, path=[], name="ex99a_answer")
    answer.begin_check("one")
    with pytest.raises(
        AnswerError,
        match=r"stopped after 50,000 steps: .* It was in line \d: (while|for|try|except|pass|x|i)",
    ):
        if place == "in a kernel":
            launches.run(module.go, 1, 1, np.zeros(2))
        module.go(np.zeros(2))
    assert sys.gettrace() is tracer
    answer.begin_check("two")
    assert module.quick() == 1, "the next check has steps of its own"
    with pytest.raises(AnswerError, match="not run: another case of this check did not end"):
        answer.begin_check("one")


def test_grading_without_processes_is_the_same(monkeypatch, tmp_path):
    exercise = catalog.find_one("ex00b", REPOSITORY)
    wrong = exercise.solution.read_text(encoding="utf-8").replace("<", "<=")
    (tmp_path / exercise.stub.name).write_text(wrong + "\nprint('said')\n")
    run, here, told = simt.run, Path.cwd(), []
    for way in "0", "1":
        monkeypatch.setenv("FA_NUMBA_GRADE_IN_PROCESS", way)
        (graded,) = grader.grade_all([exercise], impl=str(tmp_path)).graded
        told.append([(c.name, c.outcome, c.message, c.output) for c in graded.checks])
    assert told[0] == told[1] and "failed" in {outcome for _, outcome, _, _ in told[0]}
    assert simt.run is run and Path.cwd() == here


def test_a_grader_states_its_own_limits(tmp_path):
    path = tmp_path / "test_ex99a_x.py"
    path.write_text("SECONDS_PER_CHECK = 30\nMEMORY_GIB = 4\n")
    assert limits_of(path) == Limits(seconds=30, memory_gib=4)
    path.write_text("x = 1\n")
    assert limits_of(path) == Limits(seconds=2.5, memory_gib=2)


@pytest.mark.parametrize(
    "used, clock, seconds", [(3, 3, 3), (3, 60, 6), (0.1, 60, 0.2), (2, 7, 3.5), (1, 1.5, 1)]
)
def test_the_clock_counts_half_and_at_most_some_times_the_own_time(used, clock, seconds):
    assert charged(used, clock) == seconds


def test_what_json_cannot_hold_is_named(exercise):
    answer = exercise._answer
    answer.begin_check("one")
    with pytest.raises(TypeError, match="a whole number of 40,000,001 bits"):
        exercise.power_of_two(40_000_000)
    assert exercise.power_of_two(4000) == 1 << 4000


# --- what a learner is told

SOLUTION = '''"""ex99a · Many mistakes

One function for each mistake.
"""

from numba import cuda


def first(x):
    """A."""
    ### BEGIN SOLUTION
    raise IndexError(f"there is no {x}, nor 386")
    ### END SOLUTION


def second(x):
    """B."""
    ### BEGIN SOLUTION
    return x
    ### END SOLUTION


@cuda.jit
def kernel(x, out):
    """C."""
    ### BEGIN SOLUTION
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = x[i]
    ### END SOLUTION


LANES = 32
'''

GRADER = """
import numpy as np
import pytest
from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready


def test_wants_an_error(exercise):
    '''first: no such place'''
    with pytest.raises(IndexError):
        exercise.first(1)


def test_wants_words(exercise):
    '''first: says how many'''
    with pytest.raises(IndexError, match="386"):
        exercise.first(1)


@pytest.mark.parametrize("behaviour", ["second: itself"])  # no docstring: named by the parameter
def test_second(exercise, behaviour):
    assert exercise.second(2) == 2, f"must be 2, got {exercise.second(2)}"


def test_kernel(exercise):
    '''kernel: copies'''
    x, out = np.ones(4, np.float32), np.full(4, np.nan, np.float32)
    simt.run(exercise.kernel, 1, 4, x, out)
    assert out[3] == 1, f"out[3] must be 1, got {out[3]}"


def test_compiles(exercise):
    '''kernel: compiles for a GPU'''
    gpu_ready(exercise.kernel, (np.ones(4, np.float32), np.ones(4, np.float32)))
"""

RIGHT = {
    "first": 'raise IndexError("386")',
    "second": "return x",
    "kernel": "i = cuda.grid(1)\nif i < out.shape[0]:\n    out[i] = x[i]",
}


@pytest.fixture
def told(tmp_path, monkeypatch, warm_judges):
    """A function that grades a file with these bodies and returns {check: Check}."""
    for folder in ("solutions", "exercises"):
        (tmp_path / folder).mkdir()
    (tmp_path / "solutions/ex99a_many.py").write_text(
        SOLUTION + "\n".join(f"### HINT {n}: x" for n in (1, 2, 3)) + "\n### DEBRIEF: x\n"
    )
    (tmp_path / "exercises/test_ex99a_many.py").write_text(GRADER)
    shutil.copy(REPOSITORY / "exercises/conftest.py", tmp_path / "exercises")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    exercise = catalog.find_one("ex99a")

    def grade(**bodies):
        text = stubs.read(exercise).stub
        for name, body in (RIGHT | bodies).items():
            stub = f'    raise NotImplementedError("ex99a: {name}")'
            text = text.replace(stub, textwrap.indent(body.replace("STUB", stub.strip()), "    "))
        exercise.stub.write_text(text)
        report = grader.grade("ex99a")
        return {c.name.split(":")[1].strip(): c for c in report.graded[0].checks}, report

    return grade


def test_a_raise_that_was_left_is_named(told):
    checks, report = told(second="y = x\nSTUB\nreturn y")
    message = checks["itself"].message
    assert message == "line 19 still raises the stub's NotImplementedError: delete it"
    checks, report = told(second="STUB")
    assert checks["itself"].outcome == "not started" and checks["itself"].message == ""


def test_another_error_than_the_one_asked_for(told):
    checks, _ = told(first="raise ValueError('no')")
    assert checks["no such place"].message.startswith(
        "wanted IndexError, got ValueError: no\n  line"
    )
    checks, _ = told(first="raise IndexError('no')")
    assert checks["no such place"].outcome == "passed"
    message = checks["says how many"].message
    assert message.startswith("the message of IndexError must have '386' in it, got 'no'")
    checks, _ = told(first="return 3")
    assert checks["no such place"].message == "want IndexError, and nothing was raised"


def test_what_was_never_written(told):
    checks, _ = told(kernel="i = cuda.grid(1)\nif i < out.shape[0] - 1:\n    out[i] = x[i]")
    assert checks["copies"].message == "out[3] must be 1, got nan: it was never written"
    checks, _ = told(kernel="i = cuda.grid(1)\nout[i] = (x[i] - x[i]) / (x[i] - x[i])")
    assert "never written" not in checks["copies"].message


@needs_compiler
def test_one_mistake_is_one_screen(told):
    checks, report = told(second="print('seen', x)\nreturn 3", kernel="out[0] = 0.1 * x[0]")
    text = repr(report)
    assert "3 of 5 checks fail; first: second: itself" in text  # three mistakes, no common cause
    assert "must be 2, got 3" in text and "| seen 2" in text
    assert text.index("second: itself") < text.index("kernel: compiles for a GPU")
    assert "out[3] must be" not in text and "float64" not in text
    assert "✓ 2 checks" in text and "fa-numba check ex99a --verbose" in text
    shown, _, folded = report._repr_html_().partition("<details>")
    assert "must be 2, got 3" in shown and "float64" not in shown and "float64" in folded
    report.verbose = True
    assert "out[3] must be" in repr(report) and "float64" in repr(report)


def test_causes_of_errors():
    """One sentence for all cases of a mistake: its lines, in order, and nothing of the case."""
    from fa_numba.workbook.grading.explain import causes_of
    from fa_numba.workbook.grading.failures import AnswerError
    from numba_cuda_simulator import errors

    for lines in ((101, 58), (58, 101)):
        race = errors.RaceError("a race, and no barrier lies between")
        race.sites = [SimpleNamespace(line=line) for line in lines]
        cause = "threads race in lines 58 and 101, and no barrier lies between."
        assert causes_of(race) == ([cause], "")
    race.message, race.sites = "a race", [SimpleNamespace(line=7)] * 2
    assert causes_of(race) == (["threads race in line 7 itself."], "")
    race.message = (
        "WAW race on c[0]: threads 1 and 2 both store different values, nothing orders blocks"
    )
    cause = (
        "threads of different thread blocks store different values into one element of c in line 7"
    )
    assert causes_of(race) == ([f"{cause}."], "")
    for kind, message, words in (
        ("KernelIndexError", "index 9 is out of bounds for axis 0 of 'x', whose size is 8, in "
         "thread (1, 0, 0) of block (0, 0, 0)", "an index of x is out of bounds"),
        ("UninitialisedReadError", "uninitialised read of part[64]: thread (0, 0, 0) loads it",
         "nothing has been stored yet where part is read"),
        ("BarrierDivergenceError", "cuda.syncthreads() is reached by 1 of the 2 running threads",
         "not all threads reach cuda.syncthreads()"),
        ("BarrierDivergenceError", "cuda.shfl_sync(): thread (0, 0, 0) is here", "not all threads "
         "reach cuda.shfl_sync()"),
        ("UnsupportedError", "this while loop never ends: thread (0, 0, 0) of block (0, 0, 0)",
         "this while loop never ends"),
        ("KernelZeroDivisionError", "division by zero in thread (3, 0, 0)", "division by zero"),
    ):  # fmt: skip
        error = getattr(errors, kind)(message)
        error.sites = [SimpleNamespace(line=7)]
        assert causes_of(error) == ([f"{words} in line 7."], "")
    assert causes_of(Wrong("x", causes=["a", ""], where="out[0]")) == (["a"], "out[0]")
    assert causes_of(AnswerError("it ended\nfor ever")) == (["it ended"], "")
    assert causes_of(AnswerError("")) == ([], "") == causes_of(AssertionError("no"))


def test_nan_of_two_empty_parts_has_one_cause():
    """ex17a: powers of 2 without a guard give NaN, too, but are no second explanation."""
    path = REPOSITORY / "exercises/test_ex17a_merge_states.py"
    spec = importlib.util.spec_from_file_location("grader_of_ex17a", path)
    grader_of_ex17a = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(grader_of_ex17a)
    grader_of_ex17a.weights = lambda exercise, a, b: np.full((3, len(a)), np.nan, np.float32)
    with pytest.raises(Wrong) as error:
        grader_of_ex17a.test_two_empty_parts(None)
    assert error.value.causes == ["Two empty parts: -inf - -inf is NaN. Return zeros before."]


@pytest.mark.parametrize("loads, advised", [(4480, True), (2241, False)])
def test_loads_that_are_a_multiple_come_with_advice(loads, advised):
    trace = SimpleNamespace(arrays={"q": SimpleNamespace(loads=loads)})
    with pytest.raises(Wrong, match=f"2240 are enough.*meter shows {loads}") as error:
        expect_at_most(trace, q_loads=(2240, "each once"))
    assert ("keep on the chip what you need again" in str(error.value)) == advised


@needs_compiler
@pytest.mark.parametrize("body", ["out[0] = np.zeros(3)[0]", "out[0] = x[0]\nreturn 3"])
def test_the_compiler_speaks_plainly(told, body):
    checks, _ = told(kernel=body)
    assert len(checks["compiles for a GPU"].message.splitlines()) <= 3


@needs_compiler
def test_float64_is_named_where_it_comes_from(told):
    checks, _ = told(kernel="l = 0.0\nfor i in range(4):\n    l += x[i]\nout[3] = l + out[0]")
    message = checks["compiles for a GPU"].message
    assert "line 25:  l = 0.0\n        write float32(0.0)" in message and "line 27" not in message


def test_a_shape_that_is_no_constant_is_named_first(told):
    body = "n = x.shape[0]\ntile = cuda.shared.array(n, 'float32')\ntile[n + 1] = 1\nout[3] = 1"
    checks, _ = told(kernel=body)
    message = checks["copies"].message
    assert message.startswith("UnsupportedError: the shape of cuda.shared.array must be a constant")
    assert "line 26" in message and "out of bounds" not in message


@needs_compiler
@pytest.mark.parametrize("shape", ["(4, LANES + 1)", "size"])
def test_a_shape_that_is_computed_says_what_to_write(told, shape):
    body = f"size = 2 * LANES\ntile = cuda.shared.array({shape}, 'float32')\nout[3] = 1"
    checks, _ = told(kernel=body)
    wanted = shape.strip("()").rpartition(", ")[2].replace("size", "2 * LANES")
    assert f"Write SIZE = {wanted} above the kernel" in checks["copies"].message
    assert "SIZE = N + 1" in checks["compiles for a GPU"].message


def test_print_is_shown_where_all_is_well(told):
    _, report = told(second="print('all', 'is well')\nreturn x")
    assert report.passed and "| all is well" in repr(report)
