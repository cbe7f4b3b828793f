"""What the checks of the CPU engine find, and what they must not find.

Kernels here are wrong on purpose, except where a test says that nothing may be reported.
"""

import inspect
import re
from pathlib import Path

import greenlet_oracle
import numpy as np
import pytest
from collection import EVERY, small
from numba import cuda, int64
from oracle_observers import RaceFinder
from simt_kernels import ZOO, edited_zoo
from sources import run_text

import numba_cuda_simulator as simt
from numba_cuda_simulator.errors import (
    BarrierDivergenceError,
    RaceError,
    UninitialisedReadError,
)

N = 64
HEAD = """@cuda.jit
def kernel(x, out):
    cells = cuda.shared.array(N, int64)
    total = cuda.shared.array(1, int64)
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
"""


def kernel_of(body):
    """Return a kernel whose body is a text below HEAD, and the lines of its marks #1 and #2."""
    text = HEAD + "".join(f"    {line}\n" for line in body.strip().splitlines())
    lines = text.splitlines()
    marked = [n for mark in ("#1", "#2") for n, line in enumerate(lines, 1) if mark in line]
    world = {"cuda": cuda, "int64": int64, "N": N}
    return run_text(text, world)["kernel"], tuple(marked)


def arguments():
    return np.arange(1, N + 1) * 3 % 50 + 1, np.zeros(N, np.int64)


# --- one race of each kind; #1 and #2 mark the racing lines ------------------------------------

RACES = {  # blocks, array, kinds of which one must be reported, body
    "a missing barrier": (1, "cells", "RAW", """
cells[t] = x[t]  #1
out[t] = cells[(t + 1) % N]  #2"""),
    "a store after a load": (1, "cells", "WAR", """
cells[t] = x[t]
cuda.syncthreads()
v = cells[(t + 1) % N]  #1
cells[t] = v  #2
cuda.syncthreads()
out[t] = cells[t]"""),
    "two stores": (1, "cells", "WAW", """
cells[t] = x[t]  #1
cells[N - 1 - t] = 2 * x[t]  #2
cuda.syncthreads()
out[t] = cells[t]"""),
    "two stores in one statement": (1, "cells", "WAW", """
cells[t] = 0
cuda.syncthreads()
cells[t // 2] = t  #1 #2
cuda.syncthreads()
out[t] = cells[t]"""),
    "a store in the next turn": (1, "cells", "WAR", """
cells[t] = x[t]
total = 0
for _ in range(3):
    cuda.syncthreads()
    total += cells[(t + 1) % N]  #1
    cells[t] = total  #2
out[t] = total"""),
    "a barrier that the second block misses": (3, "cells", "RAW", """
cells[t] = x[t]  #1
if b != 1:
    cuda.syncthreads()
out[t] = cells[(t + 1) % N]  #2"""),
    "syncwarp orders lanes of one warp only": (1, "cells", "RAW", """
cells[t] = x[t]  #1
cuda.syncwarp()
out[t] = cells[(t + 32) % N]  #2"""),
    "a shuffle moves a value and orders no memory": (1, "cells", "RAW", """
cells[t] = x[t]  #1
v = cuda.shfl_xor_sync(0xFFFFFFFF, x[t], 1)
out[t] = cells[t ^ 1] + v  #2"""),
    "a load after a shared atomic": (1, "total", "RAW", """
if t == 0:
    total[0] = 0
cuda.syncthreads()
cuda.atomic.add(total, 0, x[t])  #1
out[t] = total[0]  #2"""),
    "a shared atomic after a store": (1, "total", "RAW WAW", """
if t == 0:
    total[0] = 5  #1
cuda.atomic.add(total, 0, x[t])  #2
cuda.syncthreads()
out[t] = total[0]"""),
    "a global load after a store": (1, "out", "RAW", """
out[t] = x[t]  #1
x[t] += out[(t + 1) % N]  #2"""),
    "a global store after a load": (1, "x", "WAR", """
v = x[(t + 1) % N]  #1
x[t] = v + 1  #2
out[t] = v"""),
    "two global stores": (1, "out", "WAW", """
out[t % 8] = x[t]  #1 #2"""),
    "a barrier orders no two blocks": (2, "out", "RAW WAR", """
if t == b:
    out[b] = x[t]  #1
cuda.syncthreads()
if t == 0:
    x[N - 1 - b] = out[1 - b]  #2"""),
    "a load after a global atomic": (1, "out", "RAW", """
cuda.atomic.add(out, 0, x[t])  #1
x[t] = out[0]  #2"""),
}  # fmt: skip


@pytest.mark.parametrize("name", RACES)
def test_each_kind_of_race(name):
    """It is found and named, and what is found is what happens-before says."""
    grid, array, kinds, body = RACES[name]
    kernel, lines = kernel_of(body)
    finder = RaceFinder()
    greenlet_oracle.launch(kernel, grid, N, *arguments(), observer=finder)
    races = simt.trace(kernel, grid, N, *arguments()).races
    assert {(race.array, *sorted(race.lines)) for race in races} == finder.races

    race = next(r for r in races if r.array == array)
    assert race.kind in kinds.split()
    assert sorted(race.lines) == sorted(lines)
    assert race.threads[0] != race.threads[1] or race.blocks[0] != race.blocks[1]
    for word in (array, race.kind, *map(str, race.lines), str(race.threads[0])):
        assert word in str(race)

    with pytest.raises(RaceError) as error:
        simt.run(kernel, grid, N, *arguments())
    assert error.value.array == array
    assert set(error.value.lines) == set(lines)
    assert all(f"line {line}" in str(error.value) for line in lines)


CLEAN = {
    "one value stored by all": """
total[0] = 1
cuda.syncthreads()
out[t // 2] = total[0]""",
    "within a warp syncwarp is enough, each half by its own mask": """
half = 0xFFFF if t % 32 < 16 else 0xFFFF0000
cells[t] = x[t]
cuda.syncwarp(half)
v = cells[t ^ 15]
cuda.syncwarp(half)
cells[t] = v
cuda.syncwarp()
out[t] = cells[t ^ 31]""",
    "atomics only": """
if t == 0:
    total[0] = 0
cuda.syncthreads()
cuda.atomic.add(total, 0, x[t])
cuda.atomic.max(total, 0, 3)
cuda.syncthreads()
cuda.atomic.add(out, 0, total[0])""",
    "elements of a thread's own": """
cells[t] = x[t]
for _ in range(3):
    cells[t] += cells[t]
    out[t] += cells[t]""",
    "threads use one element in turn": """
if t == 0:
    total[0] = 1
for turn in range(5):
    cuda.syncthreads()
    if t == turn:
        total[0] = total[0] * 2 + x[t]
cuda.syncthreads()
out[t] = total[0]""",
}


@pytest.mark.parametrize("name", CLEAN)
def test_no_false_alarm(name):
    kernel, _ = kernel_of(CLEAN[name])
    simt.run(kernel, 1, N, *arguments())
    trace = simt.trace(kernel, 1, N, *arguments())
    assert trace.races == [] and trace.uninitialised == []


# --- one barrier deleted ----------------------------------------------------------------------

BARRIER = re.compile(r"\s*(cuda\.sync(threads|warp)|grid\.sync)\(\)\s*")


def barrier_lines(launch):
    """Numbers of the lines of a kernel that are barriers and nothing else."""
    lines, start = inspect.getsourcelines(launch.kernel.py_func)
    return [n for n, line in enumerate(lines, start) if BARRIER.fullmatch(line)]


def without(launch, line):
    """The launch, from its file with one line gone (replaced: others keep their numbers)."""
    file = Path(launch.kernel.py_func.__code__.co_filename)
    lines = file.read_text(encoding="utf-8").splitlines()
    lines[line - 1] = re.sub(r"\S.*", "pass", lines[line - 1])
    made = vars(edited_zoo("\n".join(lines)))
    family = made["ZOO"] if "ZOO" in made else map(small, made["CLASSICS"])
    return next(other for other in family if other.name == launch.name)


DELETIONS = [
    pytest.param(
        launch,
        line,
        id=f"{launch.name}-{line}",
        # The oracle takes a second for each.
        marks=[pytest.mark.thorough] * (launch.name == "flash_attn_tile" and number > 0),
    )
    for launch in EVERY
    for number, line in enumerate(barrier_lines(launch))
]


@pytest.mark.parametrize("launch, line", DELETIONS)
def test_deleted_barrier(launch, line):
    """The race is named, by lines that do race; a load that came too early gets the old value."""
    broken = without(launch, line)
    where = broken.kernel, broken.grid, broken.block
    how = dict(shared_bytes=launch.shared_bytes)
    if all(launch is not other for other in ZOO):
        with pytest.raises(RaceError, match="no barrier lies between|nothing orders blocks"):
            simt.run(*where, *broken.arguments(), **how)
        return
    finder = RaceFinder()
    greenlet_oracle.launch(*where, *broken.arguments(), observer=finder, **how)
    with pytest.raises(RaceError) as error:
        simt.run(*where, *broken.arguments(), **how)
    lines = error.value.lines
    assert (error.value.array, min(lines), max(lines)) in finder.races
    assert all(f"line {line}" in str(error.value) for line in lines)

    right, wrong = launch.arguments(), broken.arguments()
    simt.run(launch.kernel, launch.grid, launch.block, *right, **how)
    try:
        races = simt.trace(*where, *wrong, **how).races
    except RaceError as error:  # an index was computed from a value that had not come yet
        assert (error.array, min(error.lines), max(error.lines)) in finder.races
        assert "index" in error.hint
        return
    assert {(race.array, *sorted(race.lines)) for race in races} <= finder.races
    if any(race.kind == "RAW" and race.actions[1] == "load" for race in races):
        assert not all(map(np.array_equal, right, wrong)), "the answer should have been wrong"


# --- uninitialised reads ----------------------------------------------------------------------

UNINITIALISED = {
    "never written": "out[t] = cells[t]  #1",
    "partly written": """
cells[t // 2] = x[t // 2]
cuda.syncthreads()
out[t] = cells[t]  #1""",
    "written in other blocks": """
if b != 2:
    cells[t] = x[t]
if t == 0:
    out[b] = cells[t]  #1""",
    "never written by the thread itself": """
own = cuda.local.array(2, int64)
if t % 2:
    own[0] = 1
own[1] = t
out[t] = own[1] + own[0]  #1""",
    "at another index in each thread": """
own = cuda.local.array((2, N), int64)
for i in range(t):
    own[1, i] = i
v = own[1, t - 1] if t else 0
own[0, t] = x[t]
out[t] = own[0, N - 1]  #1""",
    "an atomic on garbage": """
cuda.atomic.add(total, 0, x[t])  #1
cuda.syncthreads()
out[t] = total[0]""",
}


@pytest.mark.parametrize("name", UNINITIALISED)
def test_uninitialised_reads(name):
    kernel, (line,) = kernel_of(UNINITIALISED[name])
    [read] = simt.trace(kernel, 4, N, *arguments()).uninitialised
    assert read.line == line
    with pytest.raises(UninitialisedReadError) as error:
        simt.run(kernel, 4, N, *arguments())
    assert error.value.lines == (line,) and f"line {line}" in str(error.value)


# --- barriers that some threads never reach ---------------------------------------------------


@pytest.mark.parametrize("body", [
    "if t < 10: cuda.syncthreads()\nelse: cuda.syncthreads()",
    "for _ in range(t % 3): cuda.syncthreads()",
    "if b == 1 and t > 0: cuda.syncthreads()",
    "if t % 2 == 0: out[t] = cuda.ballot_sync(0xFFFFFFFF, True)",
])  # fmt: skip
def test_divergent_barriers(body):
    with pytest.raises(BarrierDivergenceError) as error:
        simt.run(kernel_of(body)[0], 2, N, *arguments())
    first = HEAD.count("\n") + 1
    assert error.value.lines and set(error.value.lines) <= {first, first + 1}
    assert "thread" in str(error.value)
