"""The second gear computes what the engine computes, and finds what it finds."""

import _thread
import inspect
import math
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from classic_kernels import CLASSICS
from numba import cuda, float32
from random_kernels import random_program
from simt_kernels import ZOO
from sources import run_text

import numba_cuda_simulator as simt
from numba_cuda_simulator import compiled, machine_code, second_gear

THOROUGH = pytest.mark.thorough
QUICK = {"quicksort", "ray_caster", "stencil", "histogram"}
# Of the zoo: what has no rule in the second gear.
NOT_HERE = """atomic_counters bit_tricks block_votes every_atomic threads_3d warp_rotate
    warp_softmax""".split()


@pytest.fixture(autouse=True)
def by_default():
    """The default, whatever the tests beside the engine's have set."""
    with simt.options(compiled="auto"):
        yield


def ran_compiled(kernel):
    """Tell whether a kernel was compiled, and what it computed was kept."""
    return [bool(k.compiled) and k.done for k in second_gear.known(kernel.py_func)] == [True]


def run(kernel, grid, block, arguments, how):
    """Return the arguments after a launch, and the error that it raises."""
    with simt.options(compiled=how):
        try:
            simt.run(kernel, grid, block, *arguments)
        except simt.errors.KernelError as error:
            return arguments, error
    return arguments, None


def expect_same(kernel, grid, block, arguments):
    """Run a kernel on the engine and compiled; expect the same bits or the same error."""
    want, engine = run(kernel, grid, block, arguments(), "never")
    got, gear = run(kernel, grid, block, arguments(), "always")
    assert (type(gear), str(gear)) == (type(engine), str(engine))
    for a, b in zip(got, want, strict=True):
        equal_nan = isinstance(a, np.ndarray) and a.dtype.kind == "f"
        assert engine or np.array_equal(a, b, equal_nan=equal_nan)
    return engine


@pytest.mark.parametrize(
    "classic",
    [pytest.param(c, id=c.name, marks=[] if c.name in QUICK else THOROUGH) for c in CLASSICS],
)
def test_classics(classic):
    grid, block, *_ = classic.launch(classic.small)
    assert not expect_same(classic.kernel, grid, block, lambda: classic.launch(classic.small)[2:])
    assert ran_compiled(classic.kernel)


@cuda.jit
def by_rows(a, out):
    tile = cuda.shared.array(8, float32)
    t = cuda.threadIdx.x
    mine = out[t]
    if t < 8:
        plane = a[t]
        row = plane[1]
        n, m = plane.shape
        tile[t] = row[2] + len(row) + plane[0, 1] + n * m + row.shape[0]
        mine[0] = row[0]
        mine[1] += plane.shape[1]
    cuda.syncthreads()
    mine[2] += tile[7 - t]


@pytest.mark.parametrize("rows", [8, 7])
def test_rows(rows):
    """A part of an array is the array, with the first indices; they are checked where it is."""
    a = np.arange(96, dtype=np.float32).reshape(8, 3, 4)
    error = expect_same(by_rows, 1, 8, lambda: (a[:rows], np.ones((8, 3), np.float32)))
    assert ran_compiled(by_rows) == (rows == 8) and (error is None) == (rows == 8)


@THOROUGH
@pytest.mark.parametrize("launch", ZOO, ids=[launch.name for launch in ZOO])
def test_zoo(launch):
    assert not expect_same(launch.kernel, launch.grid, launch.block, launch.arguments)
    found = [k.compiled is not False for k in second_gear.known(launch.kernel.py_func)]
    assert all(found) == (launch.name not in NOT_HERE)


def test_random_program():
    program = random_program(2)  # more of them: test_fuzz.py
    assert not expect_same(program.kernel(), program.grid, program.block, program.arguments)


# --- planted faults ---------------------------------------------------------------------------


SOURCES = {c.name: c for c in CLASSICS}


def planted(name, old, new, count=1):
    """Return a classic kernel with an error in it."""
    classic = SOURCES[name]
    function = classic.kernel.py_func
    text = inspect.getsource(function)
    text = "@cuda.jit\n" + text[text.index("def ") :]
    assert old in text
    return run_text(text.replace(old, new, count), dict(function.__globals__))[name], classic


BARRIER = "        cuda.syncthreads()\n"
FAULTS = {
    "no barrier before a sum": ("tree_sum", BARRIER, ""),
    "no barrier after the loads": ("stencil", BARRIER[4:], ""),
    "no second barrier": ("matrix_product", "k, tx]\n" + BARRIER, "k, tx]\n"),
    "no barrier between two turns": ("odd_even_sort", BARRIER, ""),
    "the bins are not cleared": ("histogram", "if t < 64:", "if t < 63:"),
    "two blocks store to one place": ("n_body", "out[i, 0] = ax", "out[t, 0] = ax"),
    "a neighbour's result": ("heat", "u[i, j] + float32(0.1)", "out[i, j - 1] + float32(0.1)"),
    "an index beyond the end": ("convolution", "x[i + k]", "x[i + k + 1]"),
    "a negative index": ("game_of_life", "(i + di) % n", "i + di"),
    "a division by zero": ("primes", "d = 2", "d = 0"),
    "an own element that nobody stored": ("edit_distance", "shape[1] + 1", "shape[1]"),
    "a barrier that some miss": ("tree_sum", BARRIER, BARRIER.replace("c", "if t < 9: c", 1)),
    "atomic or store": ("histogram", "cuda.atomic.add(counts, t, bins[t])", "counts[t] += bins[t]"),
}
QUICK_FAULTS = {"no barrier after the loads", "a neighbour's result"}


@pytest.mark.parametrize(
    "fault", [f if f in QUICK_FAULTS else pytest.param(f, marks=THOROUGH) for f in FAULTS]
)
def test_planted_faults(fault):
    """The second gear raises a flag, and the engine says the sentence."""
    kernel, classic = planted(*FAULTS[fault])
    grid, block, *_ = classic.launch(classic.small)
    assert expect_same(kernel, grid, block, lambda: classic.launch(classic.small)[2:])
    (known,) = second_gear.known(kernel.py_func)
    assert known.compiled and not known.done


# --- the choice -------------------------------------------------------------------------------


def test_a_long_launch_is_compiled(monkeypatch):
    """It begins on the engine, and ends compiled; the next one begins compiled."""
    monkeypatch.setattr(second_gear, "WORTH", 0.0)
    monkeypatch.setattr("numba_cuda_simulator.progress.EARLY_LOOK", 0.0)
    kernel, classic = planted("quicksort", "pivot", "middle", count=9)
    args = classic.launch(classic.large)
    x = args[2]
    want = np.sort(x, 1)
    for _ in range(2):
        simt.run(kernel, *args[:2], x)
        np.testing.assert_array_equal(x, want)
    assert ran_compiled(kernel)
    (known,) = second_gear.known(kernel.py_func)
    assert known.launches == 1


@cuda.jit
def stays(x, out):
    n = 0
    while n < x[cuda.grid(1)]:
        for _ in range(2):
            n = min(n + 1, 20)
    out[cuda.grid(1)] = n


@pytest.mark.parametrize("threads", [1, 64])
def test_a_loop_that_never_ends_stays_in_lockstep(threads, monkeypatch):
    """Only there it is seen; some threads leave it."""
    monkeypatch.setattr(second_gear, "WORTH", -1.0)
    monkeypatch.setattr("numba_cuda_simulator.progress.EARLY_LOOK", 0.0)
    with pytest.raises(simt.errors.UnsupportedError, match="never ends"):
        simt.run(stays, 1, threads, np.arange(64)[::-1], np.zeros(64))


def test_a_slow_one_is_given_up(monkeypatch):
    """What takes too long compiled is put back, and runs in lockstep."""
    monkeypatch.setattr(second_gear, "WORTH", -1.0)

    def give_up(self, *arguments):
        x[0] = 99
        raise second_gear.GiveUp

    monkeypatch.setattr(compiled.Compiled, "run", give_up)

    @cuda.jit
    def add_one(x):
        x[cuda.grid(1)] += 1

    x = np.zeros(4)
    simt.run(add_one, 1, 4, x)
    assert x.tolist() == [1] * 4
    assert [k.compiled for k in second_gear.known(add_one.py_func)] == [False]


def test_constants_are_read_at_each_launch():
    scale = 2

    @cuda.jit
    def scaled(x):
        x[cuda.grid(1)] *= scale

    x = np.ones(4)
    with simt.options(compiled="always"):
        simt.run(scaled, 1, 4, x)
        scale = 3
        simt.run(scaled, 1, 4, x)
    assert x[0] == 6 and all(k.done for k in second_gear.known(scaled.py_func))


@cuda.jit(device=True)
def one_of_two(x, first):
    if first:
        return x
    return 2.0 * x


def test_two_types_stay_in_lockstep():
    """Numba makes a float64 of both results; in lockstep the first is a float32."""

    @cuda.jit
    def kernel(x, first, out):
        out[0] = one_of_two(x[0], first) * x[0]

    x = np.full(1, 1.1, np.float32)
    expect_same(kernel, 1, 1, lambda: (x, True, np.zeros(1)))
    assert [k.compiled for k in second_gear.known(kernel.py_func)] == [False]


def test_numpy_functions_that_numba_lacks():
    text = "@cuda.jit\ndef kernel(x):\n    x[0] = np.sqrt(x[0]) + np.sin(x[0])"
    kernel = run_text(text, {"cuda": cuda, "np": np})["kernel"]
    assert expect_same(kernel, 1, 2, lambda: [np.ones(1)]).hint == "Use math.sqrt."


# --- machine code on disk ---------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMT_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


@cuda.jit(device=True)
def bent(x):
    return math.exp(x) / x


def add_mirrored(scale, dtype=np.float32):
    """Run a kernel as a new process would: with a constant, a loop of NumPy's, a spilled `v`."""

    @cuda.jit
    def kernel(x, out):
        tile = cuda.shared.array(4, float32)
        t = cuda.threadIdx.x
        v = x[t] * scale
        tile[t] = bent(v)
        cuda.syncthreads()
        out[t] = v + tile[3 - t]

    x = np.arange(1, 5, dtype=dtype)
    second_gear.forget()
    assert not expect_same(kernel, 1, 4, lambda: (x, np.zeros_like(x)))
    assert ran_compiled(kernel)


def test_machine_code_is_kept(folder, monkeypatch):
    """Another constant or another type is another file, and so is what cannot be compiled."""
    for _ in range(2):
        add_mirrored(2.0)
        add_mirrored(2.5)
        add_mirrored(2.0, np.float64)
        second_gear.forget()
        test_two_types_stay_in_lockstep()
        assert len(list(folder.glob("*" + machine_code.SUFFIX))) == 4
        monkeypatch.setattr(compiled.Compiled, "machine_code", None)
    monkeypatch.setattr(machine_code, "source_digest", lambda: "another engine")
    with pytest.raises(TypeError, match="not callable"):
        add_mirrored(2.0)


def test_a_slow_kernel_is_compiled_by_the_next_process(folder, monkeypatch):
    """It begins compiled there; not so if that turns out to be slower, or a constant changes."""
    monkeypatch.setattr(second_gear, "SLOW", 0.0)
    step = 1

    @cuda.jit
    def count(x):
        i = cuda.grid(1)
        n = x[i]
        while n < 9000:
            n += step
        x[i] = n

    def ran():
        x = np.zeros(4)
        simt.run(count, 1, 4, x)
        assert x.tolist() == [9000] * 4
        return ran_compiled(count)

    assert not ran() and not ran()
    second_gear.forget()
    assert ran()
    step = 3
    assert not ran()
    second_gear.forget()
    assert ran()
    second_gear.known(count.py_func)[0].give_up()
    second_gear.forget()
    assert not ran()


KEPT = """
import sys
import numpy as np
from numba import cuda
import numba_cuda_simulator as simt
from numba_cuda_simulator import machine_code

@cuda.jit
def kernel(x):
    x[cuda.grid(1)] += 2

x, load = np.zeros(4), machine_code.load
machine_code.load = lambda key: print(load(key) is not None) or load(key)
with simt.options(compiled="always"):
    simt.run(kernel, 1, 4, x)
assert x.tolist() == [2] * 4
"""


def test_two_processes(folder, tmp_path):
    """They may write at once; a later one loads what they wrote."""
    (program := tmp_path / "kept.py").write_text(KEPT)
    command, how = [sys.executable, program], {"stdout": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, **how) for _ in range(2)]
    assert all(process.communicate() and process.returncode == 0 for process in both)
    assert [path.suffix for path in folder.iterdir()] == [machine_code.SUFFIX]
    assert subprocess.run(command, check=True, **how).stdout == "True\n"


CODE = machine_code.MachineCode("entry", {"v": "float32"}, ["simt_loop.exp.f"], b"code\nand more")


def test_damaged_files_are_not_used(folder):
    machine_code.save("name", CODE)
    assert machine_code.load("name") == CODE and machine_code.load("other") is None
    (path,) = folder.iterdir()
    for content in (path.read_bytes()[:-1], b"", b"x" + path.read_bytes()[1:]):
        path.write_bytes(content)
        assert machine_code.load("name") is None


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for place in (str(tmp_path / "file" / "below"), ""):
        monkeypatch.setenv("SIMT_CACHE", place)
        machine_code.save("name", CODE)
        assert machine_code.load("name") is None


def test_old_files_are_removed(folder):
    folder.mkdir()
    for name, days in (("old", 61), ("new", 59)):
        (path := folder / f"{name}{machine_code.SUFFIX}").touch()
        os.utime(path, 2 * (time.time() - days * 24 * 3600,))
    machine_code.save("name", CODE)
    assert {path.stem for path in folder.iterdir()} == {"new", "name"}


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root, to chown")
def test_files_of_another_user_are_refused(folder):
    machine_code.save("name", CODE)
    for path in (*folder.iterdir(), folder):
        os.chown(path, 4711, 4711)
        with pytest.warns(RuntimeWarning, match="belongs to user 4711, who could change"):
            assert machine_code.load("name") is None
        machine_code.save("other", CODE)
        assert machine_code.load("name") is None  # and no second warning
        os.chown(path, 0, 0)
    assert machine_code.load("name") == CODE
    assert len(list(folder.iterdir())) == 2  # nothing was written to the stranger's folder


def test_interrupt():
    """Ctrl-C ends a compiled launch at once, and the arguments are what they were."""

    @cuda.jit
    def endless(x, turns):
        x[0] = 5
        for i in range(turns):
            x[0] = i

    x, pressed = np.ones(1), []

    def press():
        pressed.append(time.process_time())
        _thread.interrupt_main()

    with simt.options(compiled="always"):
        simt.run(endless, 1, 1, x, 3)
        x[0] = 1
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.3, press).start()
            simt.run(endless, 1, 1, x, 10**12)
    assert x[0] == 1 and time.process_time() - pressed[0] < 0.5


def test_traces_stay_on_the_engine(monkeypatch):
    monkeypatch.setattr(compiled, "rewritten", None)
    classic = SOURCES["heat"]
    grid, block, *args = classic.launch(classic.small)
    with simt.options(compiled="always"):
        assert simt.trace(classic.kernel, grid, block, *args).arrays["u"].loads
