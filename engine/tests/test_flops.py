"""Floating-point operations: by hand, and against another count."""

import math
from collections import Counter

import greenlet_oracle
import numpy as np
import pytest
from numba import cuda, float32
from oracle_flops import counting
from simt_kernels import ZOO, zeros
from sources import run_text
from test_counters import RACING

import numba_cuda_simulator as simt

# Thousands of numbers that count themselves take long.
LONG = "attention_row", "flash_attn_tile"


def unfused(operations):
    """{(kind, dtype)}: operations, an fma as one mul and one add."""
    totals = Counter()
    for (kind, dtype, _), n in operations.items():
        for part in ("mul", "add") if kind == "fma" else (kind,):
            totals[part, dtype] += n
    return +totals


@pytest.mark.parametrize("launch", [
    pytest.param(x, id=x.name, marks=[pytest.mark.thorough] * (x.name in LONG))
    for x in [*ZOO, *RACING]
])  # fmt: skip
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


HEAD = """@cuda.jit
def kernel(x, k, wide, out):
    i = cuda.grid(1)
    a, b, c = x[i], x[i + 1], x[i + 2]
"""
COUNTS = {  # of float32 a, b, c, k = 1, int32: what a thread does, of which FLOPs
    "out[i] = -((a + b) * (a - b) / a)": ("add 2 mul 1 div 1 neg 1", 4),
    "out[i] += a // b": ("floordiv 1 add 1", 2),
    "out[i] = b * (a % b)": ("mod 1 mul 1", 2),
    "out[i] = a * b + c": ("fma 1", 2),
    "out[i] = c - a * b": ("fma 1", 2),
    "out[i] += a * b": ("fma 1", 2),
    "out[i] = a * b - b * c": ("fma 1 mul 1", 3),
    "out[i] = a * b * c + (a + b)": ("fma 1 mul 1 add 1", 4),
    "out[i] = cuda.fma(a, b, c)": ("fma 1", 2),
    # A compiler sees what is done with a product; one line does not.
    "product = a * b; out[i] = product + c": ("mul 1 add 1", 2),
    "out[i] = a**2 + b**3": ("fma 1 mul 2", 4),
    "out[i] = math.exp(a)": ("exp 1", 1),
    "out[i] = math.log(b)": ("log 1", 1),
    "out[i] = math.sqrt(b)": ("sqrt 1", 1),
    "out[i] = math.floor(a)": ("floor 1", 0),  # choices are free
    "out[i] = max(a, b, float32(0))": ("max 2", 0),
    "out[i] = min(a, b)": ("min 1", 0),
    "out[i] = abs(a)": ("abs 1", 0),
    "out[i] = math.fabs(a)": ("abs 1", 0),
    "out[i] = math.pow(a, b)": ("pow 1", 1),
    "out[i] = pow(a, b)": ("pow 1", 1),
    "if math.isnan(a) or a < b <= float32(9): out[i] = 0": ("compare 3", 0),
    "n = (i * 7 + 3) // 2 % 5 - abs(i); n **= 2; out[i] = x[n % 32]": ("", 0),
    "if max(i, 5) > 2: out[i] = a": ("", 0),
    "cuda.atomic.add(out, i, float32(2.0**-3 + 1.0))": ("", 0),
}
FLOAT64 = {
    "out[i] = k[i] / 2": ("div 1", 1),  # int32 / int64
    "out[i] = math.sqrt(i)": ("sqrt 1", 1),
    "out[i] = k[i] * float32(2)": ("mul 1", 1),
    "wide[i] += a * 2.0": ("fma 1", 2),
}


@pytest.mark.parametrize("statements", [*COUNTS, *FLOAT64])
def test_what_a_thread_counts(statements):
    world = {"cuda": cuda, "math": math, "float32": float32}
    kernel = run_text(f"{HEAD}    {statements}\n", world)["kernel"]
    x, k = np.arange(1, 35, dtype="f4"), np.ones(32, np.int32)
    counted = flops(kernel, 1, 32, x, k, zeros(32, dtype="f8"), zeros(32))
    words, total = {**COUNTS, **FLOAT64}[statements]
    kinds = dict(zip(words.split()[::2], map(int, words.split()[1::2]), strict=True))
    assert counted.by_kind == {kind: 32 * n for kind, n in kinds.items()}
    dtype = "float64" if statements in FLOAT64 else "float32"
    assert counted.by_dtype == ({dtype: 32 * total} if words else {})
    assert counted.total == 32 * total
    assert counted.by_line == ({HEAD.count("\n") + 1: 32 * total} if words else {})


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
    trace = simt.trace(calls, 1, 32, np.ones(34, "f4"), zeros(32))
    assert trace.intensity == trace.flops.total / (4 * 32 * (4 + 1))  # four loads, one store
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

    code = calls.py_func.__code__
    plain, counting = (transform(code, code.co_filename, c) for c in (False, True))
    assert "_simt_count" in counting.code.co_names
    assert not any(name.startswith("_simt_count") for name in plain.code.co_names)
