"""Random kernels: the CPU engine against one greenlet per thread, races included, and compiled.

`python tests/test_fuzz.py 500 7000` runs 500 programs from seed 7000 on through each check, and
prints how many of them were wrong.
"""

import sys
import traceback
from unittest import mock

import greenlet_oracle
import numpy as np
import pytest
from oracle_observers import RaceFinder, Tracer
from random_kernels import random_program
from test_second_gear import expect_same

import numba_cuda_simulator as simt
from numba_cuda_simulator import launch

CHUNK = 10  # programs per test: few enough names, and a failure says which seed
NUM_SEEDS = 120
THOROUGH = pytest.mark.thorough


def run_oracle(program, kernel, **options):
    args = program.arguments()
    greenlet_oracle.launch(kernel, program.grid, program.block, *args, **options)
    return args


def assert_same(program, got, want, how):
    for name, a, b in zip(("x", "out", "sums", "scratch"), got, want, strict=True):
        message = f"seed {program.seed}, {how}: {name} differs\n{program.source}"
        assert np.array_equal(a, b), message


def without_a_barrier(program):
    barriers = program.barriers()
    return program.without_line(barriers[program.seed % len(barriers)])


def check_answer(program):
    """Same answer, checked and plain; no false alarm; the same number of accesses."""
    kernel = program.kernel()
    tracer = Tracer()
    want = run_oracle(program, kernel, observer=tracer)

    args = program.arguments()
    with mock.patch.object(launch, "LANES_PER_BATCH", program.seed % 3 * 64 + 1):
        simt.run(kernel, program.grid, program.block, *args, checked=False)
    assert_same(program, args, want, "plain")

    args = program.arguments()
    trace = simt.trace(kernel, program.grid, program.block, *args)
    assert_same(program, args, want, "traced")
    assert not trace.races and not trace.uninitialised, f"seed {program.seed}\n{trace.races}"

    for name, counted in tracer.totals("global").items():
        got = {what: getattr(trace.arrays[name], what) for what in ("loads", "stores")}
        assert got == {what: counted[what] for what in got}, f"seed {program.seed}, {name}"


def check_without_a_barrier(program):
    """With one barrier gone, the engine reports a race if and only if happens-before finds one.

    Whatever it reports is true, down to the two lines; it need not report every pair.
    """
    source = without_a_barrier(program)
    kernel = program.kernel(source)
    finder = RaceFinder()
    run_oracle(program, kernel, observer=finder)
    trace = simt.trace(kernel, program.grid, program.block, *program.arguments())
    found = {(race.array, *sorted(race.lines)) for race in trace.races}
    message = f"seed {program.seed}: engine {found}, oracle {finder.races}\n{source}"
    assert found <= finder.races and bool(found) == bool(finder.races), message


def check_compiled(program):
    """The second gear has the bits and the errors of lockstep, with that barrier and without."""
    for source in program.source, without_a_barrier(program):
        kernel = program.kernel(source)
        expect_same(kernel, program.grid, program.block, program.arguments)


CHECKS = check_answer, check_without_a_barrier, check_compiled


@pytest.mark.parametrize(
    "check, first",
    [
        pytest.param(check, x, marks=THOROUGH if i % 4 or check is check_compiled else [])
        for check in CHECKS
        for i, x in enumerate(range(0, NUM_SEEDS, CHUNK))
    ],
)
def test_programs(check, first):
    for seed in range(first, first + CHUNK):
        check(random_program(seed))


def main(count, first=0):
    """Print how many programs each check found wrong, and which."""
    for check in CHECKS:
        wrong = []
        for seed in range(first, first + count):
            try:
                check(random_program(seed))
            except Exception:
                traceback.print_exc()
                wrong.append(seed)
        print(f"{check.__name__}: {count} programs, {len(wrong)} wrong {wrong or ''}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
