"""Random kernels: the CPU engine against one greenlet per thread, races included.

FUZZ_SEEDS=5000 pytest tests/test_fuzz.py runs more of them; FUZZ_FIRST=123 starts there.
"""

import os

import greenlet_oracle
import numpy as np
import pytest
from oracle_observers import RaceFinder, Tracer
from random_kernels import random_program

import numba_cuda_simulator as simt

NUM_SEEDS = int(os.environ.get("FUZZ_SEEDS", 120))
FIRST_SEED = int(os.environ.get("FUZZ_FIRST", 0))
CHUNK = 10  # programs per test: few enough names, and a failure says which seed
CHUNKS = range(FIRST_SEED, FIRST_SEED + NUM_SEEDS, CHUNK)
THOROUGH = pytest.mark.thorough
SOME = [pytest.param(x, marks=THOROUGH) if i % 4 else x for i, x in enumerate(CHUNKS)]


def programs(first):
    return [random_program(seed) for seed in range(first, min(first + CHUNK, CHUNKS.stop))]


def run_oracle(program, kernel, **options):
    args = program.arguments()
    greenlet_oracle.launch(kernel, program.grid, program.block, *args, **options)
    return args


def assert_same(program, got, want, how):
    for name, a, b in zip(("x", "out", "sums", "scratch"), got, want, strict=True):
        message = f"seed {program.seed}, {how}: {name} differs\n{program.source}"
        assert np.array_equal(a, b), message


@pytest.mark.parametrize("first", SOME)
def test_programs(first, monkeypatch):
    """Same answer, checked and plain; no false alarm; the same number of accesses."""
    for program in programs(first):
        kernel = program.kernel()
        tracer = Tracer()
        want = run_oracle(program, kernel, observer=tracer)

        args = program.arguments()
        monkeypatch.setattr(
            "numba_cuda_simulator.launch.LANES_PER_BATCH", program.seed % 3 * 64 + 1
        )
        simt.run(kernel, program.grid, program.block, *args, checked=False)
        assert_same(program, args, want, "plain")

        args = program.arguments()
        trace = simt.trace(kernel, program.grid, program.block, *args)
        assert_same(program, args, want, "traced")
        assert not trace.races and not trace.uninitialised, f"seed {program.seed}\n{trace.races}"

        for name, counted in tracer.totals("global").items():
            got = {what: getattr(trace.arrays[name], what) for what in ("loads", "stores")}
            assert got == {what: counted[what] for what in got}, f"seed {program.seed}, {name}"


@pytest.mark.parametrize("first", SOME)
def test_programs_without_a_barrier(first):
    """With one barrier gone, the engine reports a race if and only if happens-before finds one.

    Whatever it reports is true, down to the two lines; it need not report every pair.
    """
    for program in programs(first):
        barriers = program.barriers()
        source = program.without_line(barriers[program.seed % len(barriers)])
        kernel = program.kernel(source)
        finder = RaceFinder()
        run_oracle(program, kernel, observer=finder)
        trace = simt.trace(kernel, program.grid, program.block, *program.arguments())
        found = {(race.array, *sorted(race.lines)) for race in trace.races}
        message = f"seed {program.seed}: engine {found}, oracle {finder.races}\n{source}"
        assert found <= finder.races and bool(found) == bool(finder.races), message
