"""A hundred kernels in the styles of public code: engine, oracle, NumPy and compiler agree.

Each runs with the checks on, which must find nothing.
"""

import importlib
import math
from pathlib import Path

import greenlet_oracle
import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.machine_code import compile_ptx, compiler_available

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
    greenlet_oracle.launch(*launch, *want, shared_bytes=case.shared_bytes)
    simt.run(*launch, *got, shared_bytes=case.shared_bytes)
    same(case, got, want)
    case.check_answer(got)


@CASE
def test_the_checks_find_nothing(case):
    arguments = case.arguments()
    trace = simt.trace(
        case.kernel, case.grid, case.block, *arguments, shared_bytes=case.shared_bytes
    )
    assert trace.races == [] and trace.uninitialised == []


@CASE
@pytest.mark.skipif(not compiler_available(), reason="libNVVM is not installed")
def test_it_compiles_for_a_gpu(case):
    compile_ptx(case.kernel, case.arguments())


def test_there_are_a_hundred():
    kernels = {case.kernel for case in CASES}
    assert len(kernels) >= 100 and len({case.name for case in CASES}) == len(CASES)
    assert all(math.prod(np.atleast_1d(case.block)) <= 1024 for case in CASES)
