"""`follow`: each line that runs, who runs it, and the variables after it."""

import sys

import numpy as np
import pytest
from numba import cuda, float32

import numba_cuda_simulator as simt


@cuda.jit(device=True)
def doubled(part):
    part[0] *= 2
    return part[0]


@cuda.jit
def kernel(x, out):
    tile = cuda.shared.array(4, float32)
    part = cuda.local.array(1, float32)
    t = cuda.threadIdx.x
    tile[t] = x[4 * cuda.blockIdx.x + t]
    cuda.syncthreads()
    part[0] = tile[3 - t]
    y = doubled(part)
    if t < 2:
        y = -y
    out[4 * cuda.blockIdx.x + t] = y


def test_variables_after_each_line():
    x, out = np.arange(8, dtype=np.float32), np.full(8, np.nan, np.float32)
    before = sys.gettrace()
    lines = simt.follow(kernel, 2, 4, x, out)
    assert sys.gettrace() is before
    start = kernel.py_func.__code__.co_firstlineno
    by_line = {(at.function, at.line - start): at for at in lines}
    stored = by_line["kernel", 5].values
    assert np.array_equal(stored["tile"], x.reshape(2, 4).T)
    assert (stored["t"] == [[0, 0], [1, 1], [2, 2], [3, 3]]).all()
    assert "y" not in stored and np.isnan(stored["out"]).all()
    turned = x.reshape(2, 4)[:, ::-1].T
    assert np.array_equal(by_line["kernel", 7].values["part"], turned[None])
    assert np.array_equal(by_line["kernel", 8].values["y"], 2 * turned)
    negated = by_line["kernel", 10]
    assert (negated.active == [[True, True]] * 2 + [[False, False]] * 2).all()
    assert by_line["kernel", 11].active.all() and (by_line["kernel", 11].blocks == [0, 1]).all()
    assert np.array_equal(by_line["kernel", 11].values["out"], out)
    assert np.array_equal(out.reshape(2, 4).T, np.where(negated.active, -2, 2) * turned)


def test_a_device_function_s_lines_come_before_the_line_that_calls_it():
    lines = simt.follow(kernel, 1, 4, *np.zeros((2, 4), np.float32), names=["part", "y"])
    functions = [at.function for at in lines]
    inside = functions.index("doubled")
    call = next(at for at in lines[inside:] if at.function == "kernel")
    assert call.line == kernel.py_func.__code__.co_firstlineno + 8 and "y" in call.values
    assert {name for at in lines for name in at.values} == {"part", "y"}


def test_an_error_of_the_kernel_is_raised():
    with pytest.raises(simt.errors.KernelIndexError, match="out of bounds"):
        simt.follow(kernel, 2, 4, *np.zeros((2, 4), np.float32))
