"""A hundred kernels, of courses and in public code's styles: engine, oracle, NumPy and Numba agree.

Each runs with the checks on, which must find nothing.
"""

import importlib
import inspect
import math
import re
from pathlib import Path

import greenlet_oracle
import numpy as np
import pytest
from classic_kernels import CLASSICS
from compiled import compile_ptx, compiler_available
from public_style.launches import Case
from simt_kernels import edited_zoo

import numba_cuda_simulator as simt
from numba_cuda_simulator.errors import RaceError

FAMILIES = sorted(p.stem for p in Path(__file__).parent.glob("public_style/*.py"))
# NumPy's results for some classics: the last argument must hold them.
ANSWERS = {
    "game_of_life": lambda cells, out: life(cells),
    "convolution": lambda x, w, out: np.convolve(x, w[::-1], "valid"),
    "matrix_vector": lambda a, x, out: a @ x,
    "matrix_product": lambda a, b, out: a @ b,
    "transpose": lambda x, out: x.T,
    "tree_sum": lambda x, out: x.reshape(-1, 128).sum(1),
    "prefix_sum": lambda x, out: np.cumsum(x.reshape(-1, 128), 1).ravel(),
    "bitonic_sort": lambda x: np.sort(x.reshape(-1, 128)).ravel(),
    "histogram": lambda x, out: np.bincount(x, minlength=64),
    "stencil": lambda x, out: np.convolve(x, np.ones(3, int), "same"),
    "quicksort": lambda x: np.sort(x),
}


def life(cells):
    around = sum(np.roll(cells, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)) - cells
    return (around == 3) | (around == 2) & (cells == 1)


def classic_case(c):
    """Return a classic kernel's small launch as a case."""
    grid, block, *_ = c.launch(c.small)
    answer = {"answer": ANSWERS[c.name]} if c.name in ANSWERS else {}
    inputs = lambda rng: c.launch(c.small)[2:]  # noqa: E731
    return Case(
        c.kernel, grid, block, inputs, rtol=1e-5, label="_classic", oracle=not answer, **answer
    )


STYLES = [
    case
    for name in FAMILIES
    if name != "launches"
    for case in getattr(importlib.import_module(f"public_style.{name}"), name.upper())
]
CASES = [*STYLES, *map(classic_case, CLASSICS)]
CASE = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


def same(case, got, want):
    for position, (a, b) in enumerate(zip(got, want, strict=True)):
        message = f"{case.name}, argument {position}"
        if isinstance(a, tuple):
            same(case, a, b)
        elif case.rtol and np.asarray(a).dtype.names is None:
            np.testing.assert_allclose(a, b, case.rtol, case.rtol, err_msg=message)
        else:
            np.testing.assert_array_equal(a, b, err_msg=message)


@CASE
def test_engine_agrees_with_oracle_and_numpy(case):
    launch = case.kernel, case.grid, case.block
    want, got = case.arguments(), case.arguments()
    simt.run(*launch, *got, shared_bytes=case.shared_bytes)
    case.check_answer(got)
    if case.oracle:
        greenlet_oracle.launch(*launch, *want, shared_bytes=case.shared_bytes)
        same(case, got, want)


@CASE
def test_the_checks_find_nothing(case):
    arguments = case.arguments()
    trace = simt.trace(
        case.kernel, case.grid, case.block, *arguments, shared_bytes=case.shared_bytes
    )
    assert trace.races == [] and trace.uninitialised == []


@CASE
@pytest.mark.thorough
@pytest.mark.skipif(not compiler_available(), reason="libNVVM is not installed")
def test_it_compiles_for_a_gpu(case):
    compile_ptx(case.kernel, case.arguments())


def barriers(case):
    """Numbers of the lines of a kernel that are barriers and nothing else."""
    lines, first = inspect.getsourcelines(case.kernel.py_func)
    alone = re.compile(r"\s*(cuda\.sync(threads|warp)|grid\.sync)\(\)\s*")
    return [number for number, line in enumerate(lines, first) if alone.fullmatch(line)]


@pytest.mark.parametrize(
    "case, line",
    [
        pytest.param(case, line, id=f"{case.name}-{line}")
        for case in CASES
        for line in barriers(case)
    ],
)
def test_every_barrier_is_needed(case, line):
    """Without it the checks find a race."""
    file = Path(case.kernel.py_func.__code__.co_filename)
    lines = file.read_text().splitlines()
    lines[line - 1] = lines[line - 1].split("cuda.")[0].split("grid.")[0] + "pass"
    world = vars(edited_zoo("\n".join(lines)))
    family = world.get(file.stem.upper()) or map(classic_case, world["CLASSICS"])
    broken = next(other for other in family if other.name == case.name)
    arguments = broken.arguments()
    with pytest.raises(RaceError, match="no barrier lies between|nothing orders blocks"):
        simt.run(broken.kernel, case.grid, case.block, *arguments, shared_bytes=case.shared_bytes)


def test_there_are_a_hundred():
    kernels = {case.kernel for case in CASES}
    assert len(kernels) >= 100 and len({case.name for case in CASES}) == len(CASES)
    assert all(math.prod(np.atleast_1d(case.block)) <= 1024 for case in CASES)
