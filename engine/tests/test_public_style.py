"""A hundred kernels in the styles of public code: engine, oracle, NumPy and compiler agree.

Each runs with the checks on, which must find nothing.
"""

import importlib
import inspect
import linecache
import math
import re
from pathlib import Path

import greenlet_oracle
import numpy as np
import pytest
from compiled import compile_ptx, compiler_available
from numba import cuda, float32, float64, from_dtype, int32
from simt_kernels import edited_zoo

import numba_cuda_simulator as simt
from numba_cuda_simulator.errors import RaceError

N = 32
FAMILIES = sorted(p.stem for p in Path(__file__).parent.glob("public_style/*.py"))
CASES = [
    case
    for name in FAMILIES
    if name != "launches"
    for case in getattr(importlib.import_module(f"public_style.{name}"), name.upper())
]
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
    family = getattr(edited_zoo("\n".join(lines)), file.stem.upper())
    broken = next(other for other in family if other.name == case.name)
    arguments = broken.arguments()
    with pytest.raises(RaceError, match="no barrier lies between|nothing orders blocks"):
        simt.run(broken.kernel, case.grid, case.block, *arguments, shared_bytes=case.shared_bytes)


def test_there_are_a_hundred():
    kernels = {case.kernel for case in CASES}
    assert len(kernels) >= 100 and len({case.name for case in CASES}) == len(CASES)
    assert all(math.prod(np.atleast_1d(case.block)) <= 1024 for case in CASES)


PAIR = np.dtype([("key", "i4"), ("value", "f4")])
WORLD = dict(cuda=cuda, float32=float32, float64=float64, int32=int32, math=math, np=np)
WORLD["pair"] = from_dtype(PAIR)

# What one meets in public kernels and the engine does not run: the statements of a kernel whose
# last line it names, and what it says. True: a GPU would run it. errors.md has more of them.
REFUSED = {
    "spin lock": (
        ("while cuda.atomic.cas(lock, 0, 0, 1) != 0:",),
        "this while loop never ends: .* waits for another thread",
        True,
    ),
    "slice of each thread's own length": (
        ("row = x[i : 2 * i]",),
        "a slice of 'x' whose length differs between threads",
        True,
    ),
    "array chosen by each thread": (
        ("a = x if i < 3 else out",),
        "threads choose between the global array 'x' and the global array 'out'",
        True,
    ),
    "local array chosen by each thread": (
        ("a, b = cuda.local.array(2, float32), cuda.local.array(2, float32)", "a = b if i else a"),
        "threads choose between the local array 'b' and the local array 'a'",
        True,
    ),
    "records in shared memory": (
        ("pairs = cuda.shared.array(8, pair)",),
        "shared and local arrays of .* do not run on the CPU engine",
        True,
    ),
    "dynamic memory, two sizes": (
        ("a = cuda.shared.array(0, float32)", "b = cuda.shared.array(0, float64)"),
        "dynamic shared memory is used with two sizes of element",
        True,
    ),
    "view of other type": (("bits = x.view(np.int32)",), r"\.view of an array does not run", True),
    "lambda": (("f = lambda v: 2 * v",), "a lambda does not run on the CPU engine", True),
    "inner function": (
        ("def f(v): return v",),
        "a function defined inside a kernel does not run on the CPU engine",
        True,
    ),
    "arithmetic on a row": (
        ("out[0] = x[0:4] * 2",),
        "a whole array takes no part in arithmetic",
        False,
    ),
    "exchange of floats": (
        ("cuda.atomic.exch(out, 0, x[i])",),
        "cuda.atomic.exch does not work on 'out', which is float32",
        False,
    ),
}


def refused_kernel(statements):
    """A kernel that ends with these statements, in a file of its own."""
    lines = ["@cuda.jit\n", "def itself(x, out, lock):\n", "    i = cuda.grid(1)\n"]
    lines += [f"    {statement}\n" for statement in statements]
    if statements[-1].startswith("while"):
        lines.append("        pass\n")
    file = f"<refused {hash(statements)}>"
    linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
    world = dict(WORLD)
    exec(compile("".join(lines), file, "exec"), world)
    return world["itself"]


def refused_arguments():
    return np.ones(N, np.float32), np.zeros(N, np.float32), np.zeros(1, int)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    statements, words, runs_on_gpu = REFUSED[name]
    kernel = refused_kernel(statements)
    with pytest.raises(simt.errors.UnsupportedError, match=words) as caught:
        simt.run(kernel, 1, N, *refused_arguments())
    assert caught.value.lines == (3 + len(statements),)
    assert runs_on_gpu == compiles(kernel, refused_arguments()) or not compiler_available()


def compiles(kernel, arguments):
    try:
        return bool(compile_ptx(kernel, arguments))
    except Exception:
        return False
