"""analysis.machine_code: registers, spills, shared bytes and float64 creep, without a GPU."""

import math

import numpy as np
import pytest
from numba import cuda, float32
from numba.core.errors import TypingError

from fa_numba.analysis.machine_code import TARGETS, compile_kernel, gpu_ready, signature_of

X = np.zeros(32, np.float32)


@cuda.jit(device=True)
def twice(a):
    return a * float32(2)


@cuda.jit
def reverse(x, y):
    tile = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    cuda.syncthreads()
    y[i] = twice(math.exp(tile[31 - i]))


@cuda.jit
def creeping(x, y):
    y[0] = x[0] * 0.1  # a float64 literal


@cuda.jit
def spilling(x, y, i):
    scratch = cuda.local.array(512, float32)
    for n in range(512):
        scratch[n] = x[n % 32]
    scratch[i] = x[0]  # a run-time index: the array must live in memory
    total = float32(0)
    for n in range(512):
        total = total * total + scratch[n]
    y[0] = total


@cuda.jit
def uses_list(x, y):
    y[0] = sorted([x[0], x[1]])[0]


@pytest.mark.parametrize("cc", TARGETS)
def test_reports_what_the_kernel_takes(cc):
    code = compile_kernel(reverse, (X, X), cc=cc)
    assert code.shared_bytes == 32 * 4
    assert 4 <= code.registers <= 40
    assert (code.spill_bytes, code.local_bytes, code.float64_instructions) == (0, 0, 0)
    assert f".target sm_{''.join(map(str, cc))}" in code.ptx


def test_counts_float64_instructions():
    assert compile_kernel(creeping, (X, X)).float64_instructions > 0
    with pytest.raises(AssertionError, match="float32"):
        gpu_ready(creeping, (X, X))


def test_float64_arguments_may_compute_in_float64():
    x = X.astype(np.float64)
    gpu_ready(creeping, (x, x))


def test_sees_local_memory():
    assert compile_kernel(spilling, (X, X, 3)).local_bytes >= 512 * 4


def test_what_numba_cannot_compile_is_refused_with_its_reason():
    with pytest.raises(TypingError):
        gpu_ready(uses_list, (X, X))


def test_signature_follows_the_arguments():
    strided = np.zeros((4, 6), np.float32)[:, ::2]
    types = [str(t) for t in signature_of((X, strided, 1, 1.0, np.float32(1), True))]
    assert types[0] == "array(float32, 1d, C)"
    assert types[1] == "array(float32, 2d, A)"
    assert types[2:] == ["int64", "float64", "float32", "bool"]


def test_unknown_arguments_are_named():
    with pytest.raises(TypeError, match="str"):
        signature_of(("text",))
