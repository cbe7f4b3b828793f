"""What the checks of the CPU engine find, and what they must not find.

Kernels here are wrong on purpose, except where a test says that nothing may be reported.
"""

import inspect
from pathlib import Path

import greenlet_oracle
import numpy as np
import pytest
import simt_kernels
from numba import cuda, int64
from oracle_observers import RaceFinder
from simt_kernels import ZOO

import numba_cuda_simulator as simt
from numba_cuda_simulator.errors import (
    BarrierDivergenceError,
    RaceError,
    UninitialisedReadError,
)

N = 64
FULL_MASK = 0xFFFFFFFF


# --- one race of each kind; the racing lines are marked "# first" and "# second" ---------------


@cuda.jit
def shared_raw(x, out):
    cells = cuda.shared.array(N, int64)
    t = cuda.threadIdx.x
    cells[t] = x[t]  # first
    out[t] = cells[(t + 1) % N]  # second


@cuda.jit
def shared_war(x, out):
    cells = cuda.shared.array(N, int64)
    t = cuda.threadIdx.x
    cells[t] = x[t]
    cuda.syncthreads()
    v = cells[(t + 1) % N]  # first
    cells[t] = v  # second
    cuda.syncthreads()
    out[t] = cells[t]


@cuda.jit
def shared_waw(x, out):
    cells = cuda.shared.array(N, int64)
    t = cuda.threadIdx.x
    cells[t] = x[t]  # first
    cells[N - 1 - t] = 2 * x[t]  # second
    cuda.syncthreads()
    out[t] = cells[t]


@cuda.jit
def shared_waw_in_one_statement(x, out):
    cells = cuda.shared.array(N, int64)
    t = cuda.threadIdx.x
    cells[t] = 0
    cuda.syncthreads()
    cells[t // 2] = t  # first # second
    cuda.syncthreads()
    out[t] = cells[t]


@cuda.jit
def shared_raw_in_next_turn(x, out):
    cells = cuda.shared.array(N, int64)
    t = cuda.threadIdx.x
    cells[t] = x[t]
    total = 0
    for _ in range(3):
        cuda.syncthreads()
        total += cells[(t + 1) % N]  # first
        cells[t] = total  # second
    out[t] = total


@cuda.jit
def shared_raw_in_one_block(x, out):
    """Only the second block misses the barrier."""
    cells = cuda.shared.array(N, int64)
    t = cuda.threadIdx.x
    cells[t] = x[t]  # first
    if cuda.blockIdx.x != 1:
        cuda.syncthreads()
    out[t] = cells[(t + 1) % N]  # second


@cuda.jit
def shared_raw_across_warps(x, out):
    """syncwarp orders lanes of one warp only."""
    cells = cuda.shared.array(N, int64)
    t = cuda.threadIdx.x
    cells[t] = x[t]  # first
    cuda.syncwarp()
    out[t] = cells[(t + 32) % N]  # second


@cuda.jit
def shared_raw_through_shuffle(x, out):
    """A shuffle moves a value and orders no memory."""
    cells = cuda.shared.array(N, int64)
    t = cuda.threadIdx.x
    cells[t] = x[t]  # first
    v = cuda.shfl_xor_sync(FULL_MASK, x[t], 1)
    out[t] = cells[t ^ 1] + v  # second


@cuda.jit
def shared_atomic_then_load(x, out):
    total = cuda.shared.array(1, int64)
    t = cuda.threadIdx.x
    if t == 0:
        total[0] = 0
    cuda.syncthreads()
    cuda.atomic.add(total, 0, x[t])  # first
    out[t] = total[0]  # second


@cuda.jit
def shared_store_then_atomic(x, out):
    total = cuda.shared.array(1, int64)
    t = cuda.threadIdx.x
    if t == 0:
        total[0] = 5  # first
    cuda.atomic.add(total, 0, x[t])  # second
    cuda.syncthreads()
    out[t] = total[0]


@cuda.jit
def global_raw(x, out):
    t = cuda.threadIdx.x
    out[t] = x[t]  # first
    x[t] += out[(t + 1) % N]  # second


@cuda.jit
def global_war(x, out):
    t = cuda.threadIdx.x
    v = x[(t + 1) % N]  # first
    x[t] = v + 1  # second
    out[t] = v


@cuda.jit
def global_waw(x, out):
    t = cuda.threadIdx.x
    out[t % 8] = x[t]  # first # second


@cuda.jit
def global_raw_across_blocks(x, out):
    """A barrier orders the threads of a block, never two blocks."""
    t = cuda.threadIdx.x
    b = cuda.blockIdx.x
    if t == b:
        out[b] = x[t]  # first
    cuda.syncthreads()
    if t == 0:
        x[N - 1 - b] = out[1 - b]  # second


@cuda.jit
def global_atomic_then_load(x, out):
    t = cuda.threadIdx.x
    cuda.atomic.add(out, 0, x[t])  # first
    x[t] = out[0]  # second


RACES = [  # kernel, grid, array, kinds of which one must be reported
    (shared_raw, 1, "cells", "RAW"),
    (shared_war, 1, "cells", "WAR"),
    (shared_waw, 1, "cells", "WAW"),
    (shared_waw_in_one_statement, 1, "cells", "WAW"),
    (shared_raw_in_next_turn, 1, "cells", "WAR"),
    (shared_raw_in_one_block, 3, "cells", "RAW"),
    (shared_raw_across_warps, 1, "cells", "RAW"),
    (shared_raw_through_shuffle, 1, "cells", "RAW"),
    (shared_atomic_then_load, 1, "total", "RAW"),
    (shared_store_then_atomic, 1, "total", "RAW WAW"),
    (global_raw, 1, "out", "RAW"),
    (global_war, 1, "x", "WAR"),
    (global_waw, 1, "out", "WAW"),
    (global_raw_across_blocks, 2, "out", "RAW WAR"),
    (global_atomic_then_load, 1, "out", "RAW"),
]


RACE_IDS = [race[0].__name__ for race in RACES]


def arguments():
    return np.arange(1, N + 1) * 3 % 50 + 1, np.zeros(N, np.int64)


def marked_lines(kernel):
    """The line numbers of a kernel's comments "# first" and "# second"."""
    lines, start = inspect.getsourcelines(kernel.py_func)
    numbered = list(enumerate(lines, start))
    return tuple(next(n for n, x in numbered if f"# {mark}" in x) for mark in ("first", "second"))


@pytest.mark.parametrize("kernel, grid, array, kinds", RACES, ids=RACE_IDS)
def test_each_kind_of_race(kernel, grid, array, kinds):
    lines = marked_lines(kernel)
    race = next(r for r in simt.trace(kernel, grid, N, *arguments()).races if r.array == array)
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


@pytest.mark.parametrize("kernel, grid", [race[:2] for race in RACES], ids=RACE_IDS)
def test_races_are_what_happens_before_says(kernel, grid):
    finder = RaceFinder()
    greenlet_oracle.launch(kernel, grid, N, *arguments(), observer=finder)
    found = simt.trace(kernel, grid, N, *arguments()).races
    assert {(race.array, *sorted(race.lines)) for race in found} == finder.races


# --- no false alarms --------------------------------------------------------------------------


@cuda.jit
def same_value_stored_by_all(x, out):
    flag = cuda.shared.array(1, int64)
    t = cuda.threadIdx.x
    flag[0] = 1  # everybody says the same: harmless, and common
    cuda.syncthreads()
    out[t // 2] = flag[0]


@cuda.jit
def warp_order(x, out):
    """Within a warp, syncwarp is enough; each half by its own mask."""
    cells = cuda.shared.array(N, int64)
    t = cuda.threadIdx.x
    half = 0xFFFF if t % 32 < 16 else 0xFFFF0000
    cells[t] = x[t]
    cuda.syncwarp(half)
    v = cells[t ^ 15]
    cuda.syncwarp(half)
    cells[t] = v
    cuda.syncwarp()
    out[t] = cells[t ^ 31]


@cuda.jit
def atomics_only(x, out):
    total = cuda.shared.array(1, int64)
    t = cuda.threadIdx.x
    if t == 0:
        total[0] = 0
    cuda.syncthreads()
    cuda.atomic.add(total, 0, x[t])
    cuda.atomic.max(total, 0, 3)
    cuda.syncthreads()
    cuda.atomic.add(out, 0, total[0])


@cuda.jit
def own_elements(x, out):
    cells = cuda.shared.array(N, int64)
    t = cuda.threadIdx.x
    cells[t] = x[t]
    for _ in range(3):
        cells[t] += cells[t]
        out[t] += cells[t]


@cuda.jit
def one_thread_after_another(x, out):
    """Different threads use one element, a barrier between any two."""
    token = cuda.shared.array(1, int64)
    t = cuda.threadIdx.x
    if t == 0:
        token[0] = 1
    for turn in range(5):
        cuda.syncthreads()
        if t == turn:
            token[0] = token[0] * 2 + x[t]
    cuda.syncthreads()
    out[t] = token[0]


CLEAN = [same_value_stored_by_all, warp_order, atomics_only, own_elements, one_thread_after_another]


@pytest.mark.parametrize("kernel", CLEAN, ids=lambda kernel: kernel.__name__)
def test_no_false_alarm(kernel):
    simt.run(kernel, 1, N, *arguments())
    trace = simt.trace(kernel, 1, N, *arguments())
    assert trace.races == [] and trace.uninitialised == []


# --- one barrier deleted ----------------------------------------------------------------------

SOURCE = Path(simt_kernels.__file__).read_text()


def barrier_lines(launch):
    lines, start = inspect.getsourcelines(launch.kernel.py_func)
    return [
        n
        for n, line in enumerate(lines, start)
        if line.strip() in ("cuda.syncthreads()", "cuda.syncwarp()")
    ]


def without(line):
    """The zoo with one line gone (replaced, so that the others keep their numbers)."""
    lines = SOURCE.splitlines()
    lines[line - 1] = lines[line - 1].split("cuda.sync")[0] + "pass"
    return simt_kernels.edited_zoo("\n".join(lines))


DELETIONS = [
    pytest.param(
        launch,
        line,
        id=f"{launch.name}-{line}",
        # The oracle takes a second for each.
        marks=[pytest.mark.thorough] * (launch.name == "flash_attn_tile" and number > 0),
    )
    for launch in ZOO
    for number, line in enumerate(barrier_lines(launch))
]
SPARE = {"compact"}  # its first barrier: the thread that stores total[0] is the next to use it


@pytest.mark.parametrize("launch, line", DELETIONS)
def test_deleted_barrier(launch, line):
    """The race is named, by lines that do race; a load that came too early gets the old value."""
    broken = without(line).by_name(launch.name)
    where = broken.kernel, broken.grid, broken.block
    how = dict(shared_bytes=launch.shared_bytes)
    finder = RaceFinder()
    greenlet_oracle.launch(*where, *broken.arguments(), observer=finder, **how)
    if not finder.races:
        assert launch.name in SPARE
        simt.run(*where, *broken.arguments(), **how)
        return

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


@cuda.jit
def never_written(x, out):
    cells = cuda.shared.array(N, int64)
    t = cuda.threadIdx.x
    out[t] = cells[t]  # first # second


@cuda.jit
def partly_written(x, out):
    cells = cuda.shared.array(N + 1, int64)
    t = cuda.threadIdx.x
    cells[t] = x[t]
    cuda.syncthreads()
    out[t] = cells[t + 1]  # first # second


@cuda.jit
def written_in_other_blocks(x, out):
    cells = cuda.shared.array(N, int64)
    t = cuda.threadIdx.x
    if cuda.blockIdx.x != 2:
        cells[t] = x[t]
    if t == 0:
        out[cuda.blockIdx.x] = cells[t]  # first # second


@cuda.jit
def atomic_on_garbage(x, out):
    total = cuda.shared.array(1, int64)
    t = cuda.threadIdx.x
    cuda.atomic.add(total, 0, x[t])  # first # second
    cuda.syncthreads()
    out[t] = total[0]


UNINITIALISED = [never_written, partly_written, written_in_other_blocks, atomic_on_garbage]


@pytest.mark.parametrize("kernel", UNINITIALISED, ids=lambda kernel: kernel.__name__)
def test_uninitialised_reads(kernel):
    line, _ = marked_lines(kernel)
    [read] = simt.trace(kernel, 4, N, *arguments()).uninitialised
    assert read.line == line
    with pytest.raises(UninitialisedReadError) as error:
        simt.run(kernel, 4, N, *arguments())
    assert error.value.lines == (line,) and f"line {line}" in str(error.value)


# --- barriers that some threads never reach ---------------------------------------------------


@cuda.jit
def barrier_for_half(x, out):
    if cuda.threadIdx.x < 10:
        cuda.syncthreads()


@cuda.jit
def barriers_in_both_branches(x, out):
    if cuda.threadIdx.x < 10:
        cuda.syncthreads()
    else:
        cuda.syncthreads()


@cuda.jit
def barrier_in_uneven_loop(x, out):
    for _ in range(cuda.threadIdx.x % 3):
        cuda.syncthreads()


@cuda.jit
def barrier_of_one_block(x, out):
    if cuda.blockIdx.x == 1 and cuda.threadIdx.x > 0:
        cuda.syncthreads()


@cuda.jit
def shuffle_for_half(x, out):
    if cuda.threadIdx.x % 32 < 10:
        out[cuda.threadIdx.x] = cuda.shfl_sync(FULL_MASK, x[cuda.threadIdx.x], 0)


@cuda.jit
def ballot_for_half(x, out):
    if cuda.threadIdx.x % 2 == 0:
        out[cuda.threadIdx.x] = cuda.ballot_sync(FULL_MASK, True)


DIVERGENT = [
    barrier_for_half,
    barriers_in_both_branches,
    barrier_in_uneven_loop,
    barrier_of_one_block,
    shuffle_for_half,
    ballot_for_half,
]


@pytest.mark.parametrize("kernel", DIVERGENT, ids=lambda kernel: kernel.__name__)
def test_divergent_barriers(kernel):
    lines, start = inspect.getsourcelines(kernel.py_func)
    barriers = {n for n, line in enumerate(lines, start) if "sync" in line}
    with pytest.raises(BarrierDivergenceError) as error:
        simt.run(kernel, 2, N, *arguments())
    assert set(error.value.lines) <= barriers
    assert "thread" in str(error.value)
