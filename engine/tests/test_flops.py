"""Floating-point operations: by hand, and against another count."""

import math
from collections import Counter

import greenlet_oracle
import numpy as np
import pytest
from numba import cuda, float32
from oracle_flops import counting
from simt_kernels import floats, zeros
from test_counters import LAUNCHES

import numba_cuda_simulator as simt

# Thousands of numbers that count themselves take long.
LONG = "attention_row", "flash_attn_tile", "mandelbrot", "tiled_matmul"


def unfused(operations):
    """{(kind, dtype)}: operations, an fma as one mul and one add."""
    totals = Counter()
    for (kind, dtype, _), n in operations.items():
        for part in ("mul", "add") if kind == "fma" else (kind,):
            totals[part, dtype] += n
    return +totals


@pytest.mark.parametrize(
    "launch",
    [pytest.param(x, id=x.name, marks=[pytest.mark.thorough] * (x.name in LONG)) for x in LAUNCHES],
)
def test_numbers_that_count_themselves_agree(launch, monkeypatch):
    how = dict(shared_bytes=launch.shared_bytes)
    with counting() as totals:
        greenlet_oracle.launch(launch.kernel, launch.grid, launch.block, *launch.arguments(), **how)
    for lanes in (512, 32768):
        monkeypatch.setattr("numba_cuda_simulator.launch.LANES_PER_BATCH", lanes)
        trace = simt.trace(launch.kernel, launch.grid, launch.block, *launch.arguments(), **how)
        assert unfused(trace.flops.operations) == totals, f"{lanes} lanes"


# --- by hand ----------------------------------------------------------------------------------


def flops(kernel, grid, block, *args):
    return simt.trace(kernel, grid, block, *args).flops


def by_kind(kernel, *args, dtype="float32", threads=32):
    """What one thread does; every thread does the same, and nothing in another float type."""
    counted = flops(kernel, 1, threads, *args)
    assert set(counted.by_dtype) == {dtype}
    return {kind: n / threads for kind, n in counted.by_kind.items()}


@cuda.jit
def every_operator(x, out):
    i = cuda.grid(1)
    a, b = x[i], x[i + 1]
    out[i] = -((a + b) * (a - b) / a)
    out[i] += a // b
    out[i] = out[i] * (a % b)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_operators(dtype):
    x = np.arange(1, 34, dtype=dtype)
    want = {"add": 3, "mul": 2, "div": 1, "neg": 1, "floordiv": 1, "mod": 1}
    counted = flops(every_operator, 1, 32, x, zeros(32, dtype=dtype))
    assert counted.by_kind == {kind: 32 * n for kind, n in want.items()}
    assert counted.total == 32 * 8 and counted.by_dtype == {dtype: 32 * 8}
    lines = every_operator.py_func.__code__.co_firstlineno + np.arange(4, 7)
    assert counted.by_line == dict(zip(lines, (32 * 4, 32 * 2, 32 * 2), strict=True))


@cuda.jit
def contractions(x, out):
    i = cuda.grid(1)
    a, b, c = x[i], x[i + 1], x[i + 2]
    out[i] = a * b + c  # fma
    out[i] = c - a * b  # fma
    out[i] += a * b  # fma
    out[i] = a * b - b * c  # fma, mul
    out[i] = a * b * c + (a + b)  # fma, mul, add
    out[i] = cuda.fma(a, b, c)  # fma
    product = a * b  # mul: a compiler sees what is done with it, one line does not
    out[i] = product + c  # add
    out[i] = a**2 + b**3  # fma, mul, mul


def test_contraction():
    counted = flops(contractions, 1, 32, np.ones(34, "f4"), zeros(32))
    assert counted.by_kind == {"fma": 32 * 7, "mul": 32 * 5, "add": 32 * 2}
    assert counted.total == 32 * (2 * 7 + 5 + 2)


@cuda.jit
def mixed_types(x, out):
    i = cuda.grid(1)
    out[i] += x[i] * x[i]  # a float32 product is rounded before it is added to a float64
    out[i] += x[i] * 2.0  # a float64 product
    if x[i] < 0.5:
        out[i] = float32(out[i])


def test_types_apart():
    counted = flops(mixed_types, 1, 32, zeros(32), zeros(32, dtype="f8"))
    assert counted.of("float32").by_kind == {"mul": 32}
    assert counted.of(np.float64).by_kind == {"add": 32, "fma": 32, "compare": 32}
    assert counted.by_dtype == {"float32": 32, "float64": 96}


@cuda.jit
def functions(x, out):
    i = cuda.grid(1)
    a, b = x[i], x[i + 1]
    out[i] = math.exp(a)
    out[i] = math.log(b)
    out[i] = math.sqrt(b)
    out[i] = math.floor(a)
    out[i] = max(a, b, float32(0))  # two
    out[i] = min(a, b)
    out[i] = abs(a)
    out[i] = math.fabs(a)
    out[i] = math.pow(a, b)
    out[i] = pow(a, b)
    if math.isnan(a) or a < b <= float32(99):
        out[i] = float32(0)


def test_functions():
    want = {"exp": 1, "log": 1, "sqrt": 1, "floor": 1, "max": 2, "min": 1, "abs": 2, "pow": 2}
    args = np.arange(1, 34, dtype="f4"), zeros(32)
    assert by_kind(functions, *args) == want | {"compare": 3}
    assert flops(functions, 1, 32, *args).total == 32 * 5  # choices are free


@cuda.jit
def no_floats(x, out):
    i = cuda.grid(1)
    n = (i * 7 + 3) // 2 % 5 - abs(i)
    if n < 3 and max(n, i) > 2:
        n **= 2
    out[i] = x[n % 32]
    cuda.atomic.add(out, i, float32(2.0**-3 + 1.0))


def test_integers_literals_and_atomics_are_none():
    counted = flops(no_floats, 1, 32, zeros(32), zeros(32))
    assert counted.by_kind == {} and counted.total == 0


@cuda.jit
def integers_become_floats(x, out):
    i = cuda.grid(1)
    out[i] = x[i] / 2  # int32 / int64 is a float64 division
    out[i] = math.sqrt(i)
    out[i] = x[i] * float32(2)  # int32 * float32 is float64


def test_integers_beside_floats():
    args = np.ones(32, np.int32), zeros(32)
    want = {"div": 1, "sqrt": 1, "mul": 1}
    assert by_kind(integers_become_floats, *args, dtype="float64") == want


@cuda.jit
def uniform(x, scale, out):
    i = cuda.grid(1)
    factor = scale * scale  # the same in all threads, which still all compute it
    if i < out.size:
        out[i] = x[0] * factor


def test_uniform_operands_and_idle_threads():
    """3 blocks of 40 threads, 100 of which store."""
    counted = flops(uniform, 3, 40, zeros(1), np.float32(2), zeros(100))
    assert counted.by_kind == {"mul": 120 + 100}


@cuda.jit
def divergent(x, out):
    i = cuda.grid(1)
    total = float32(0)
    for j in range(i % 4):  # 0 to 3 turns
        total += x[j]
    if i % 2 == 0:
        total = total * x[i]
        if i == 0:
            return
    else:
        total = math.exp(total) if i == 1 else total - x[i] - x[0]
    while total > float32(1) and x[i] > float32(0):
        total = total / float32(1000)
    out[i] = total


def test_divergence():
    """Each x is 1, so that total is 0 or 2 in even threads, exp 1 in thread 1, else -1 or 1."""
    counted = flops(divergent, 1, 32, np.ones(32, "f4"), zeros(32)).by_kind
    assert counted["add"] == 8 * (0 + 1 + 2 + 3) + 2 * 15
    assert counted["mul"] == 16 and counted["exp"] == 1
    assert counted["div"] == 8 + 1  # 2 and exp 1 are over 1
    # They compare total, x, and total again; the others look at total alone, thread 0 is gone.
    assert counted["compare"] == 9 * 3 + 22 * 1


@cuda.jit(device=True)
def horner(x, a, b, c):
    if x < float32(0):
        return float32(0)
    return (a * x + b) * x + c


@cuda.jit
def calls(x, out):
    i = cuda.grid(1)
    out[i] = horner(x[i], x[0], x[1], x[2]) + float32(1)


def test_device_functions():
    x = np.where(np.arange(64) % 4, 1, -1).astype("f4")
    counted = flops(calls, 2, 32, x, zeros(64))
    assert counted.by_kind == {"compare": 64, "fma": 2 * 48, "add": 64}
    first = horner.py_func.__code__.co_firstlineno
    assert counted.by_line[first + 4] == 4 * 48


def test_intensity_and_what_is_shown():
    x = floats(np.random.default_rng(0), 34)
    trace = simt.trace(contractions, 1, 32, x, zeros(32))
    moved = 4 * 32 * (3 + 8 + 1)  # three loads, eight stores, and one load of out[i]
    assert trace.intensity == trace.flops.total / moved
    assert f"floating-point operations: {trace.intensity:.3g} FLOP per byte" in trace.summary()
    assert "FLOPs" in trace._repr_html_()
    assert "floating" not in simt.trace(idle, 1, 32).summary()
    assert simt.trace(idle, 1, 32).intensity == math.inf  # it moves nothing


@cuda.jit
def idle():
    cuda.syncthreads()


def test_a_run_counts_nothing():
    """What is counted is another rewriting of the kernel, made for traces alone."""
    from numba_cuda_simulator.transform import transform

    code = contractions.py_func.__code__
    plain, counting = (transform(code, code.co_filename, c) for c in (False, True))
    assert "_simt_count_fma" in counting.code.co_names
    assert not any(name.startswith("_simt_count") for name in plain.code.co_names)
