"""Grader of ex11d: a budget of loads from shared memory for each FMA."""

import numpy as np

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import (
    expect_chip_memory,
    expect_no_races,
    expect_stores_by,
    expect_traffic,
)
from fa_numba.workbook.graders.tiles import expect_float32, expect_product, matrices, shared_loads

BUDGET = 0.4  # loads for each FMA
PRODUCTS = 64**3
LOCAL_FLOATS = 96


def launch(exercise, p, v):
    out = np.full((64, 64), np.nan, np.float32)
    rows, cols = exercise.shape()
    block = 64 // cols, 64 // rows
    return out, simt.trace(exercise.make_pv(), 1, block, p, v, out)


def inputs(seed=0):
    return matrices((64, 64), (64, 64), seed=seed)


def test_shape(exercise):
    """shape: two divisors of 64, with 32 to 1024 threads"""
    shape = exercise.shape()
    assert isinstance(shape, tuple) and len(shape) == 2, f"want (ROWS, COLS), got {shape!r}"
    for name, number in zip(("ROWS", "COLS"), shape, strict=True):
        assert type(number) is int and number > 0 and 64 % number == 0, (
            f"{name} must be a divisor of 64, got {number!r}"
        )
    threads = 64 * 64 // (shape[0] * shape[1])
    assert 32 <= threads <= 1024, (
        f"{shape[0]} x {shape[1]} elements per thread are {threads} threads: 32 to 1024 are allowed"
    )


def test_equals_float64(exercise):
    """out = p v, as in float64"""
    for seed in range(2):
        p, v = inputs(seed)
        out, trace = launch(exercise, p, v)
        expect_no_races(trace)
        expect_product(out, p, v, f"inputs {seed}", causes=lambda wrong: causes(exercise, wrong))


def causes(exercise, wrong):
    rows, cols = exercise.shape()
    if set(wrong[:, 0] // (64 // rows)) != set(range(rows)):
        return ["Some rows of a thread are right, others not: rows are TY apart."]
    if set(wrong[:, 1] // (64 // cols)) != set(range(cols)):
        return ["Some columns of a thread are right, others not: columns are TX apart."]
    return ["The wrong numbers meet: acc[i, j] is row ty + i TY, column tx + j TX of out."]


def test_each_element(exercise):
    """each row of p meets each column of v"""
    p, v = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32)
    for r in (0, 1, 63):
        p[:], v[:] = 0, 0
        p[:, r], v[r] = 1 + np.arange(64), 100 + np.arange(64)
        out, _ = launch(exercise, p, v)
        expect_product(out, p, v, f"only r = {r} is not 0", causes=lambda w: causes(exercise, w))


def test_budget(exercise):
    """at most 0.4 loads from shared memory for each FMA"""
    _, trace = launch(exercise, *inputs())
    rows, cols = exercise.shape()
    least = (rows + cols) / (rows * cols)
    rule = f"a thread with {rows} x {cols} elements can do with {least:.3g}"
    try:
        shared_loads(trace, most=int(BUDGET * PRODUCTS), products=PRODUCTS, rule=rule)
    except Wrong as wrong:
        if least > BUDGET:
            cause = f"{rows} x {cols} elements in a thread are too few for the budget."
            raise Wrong(str(wrong), causes=[cause]) from None
        raise


def test_chip_memory(exercise):
    """p_tile and v_tile in shared memory, at most 96 floats of local arrays; no race"""
    _, trace = launch(exercise, *inputs())
    allowed = "96 floats, acc included"
    shared = 4 * (64 * 65 + 64 * 64)
    expect_chip_memory(trace, shared=shared, local=4 * LOCAL_FLOATS, allowed=allowed)
    expect_no_races(trace)


def test_hbm_traffic(exercise):
    """HBM traffic: p and v loaded once, out stored once; no shuffle"""
    _, trace = launch(exercise, *inputs())
    assert not trace.shuffles, f"{trace.shuffles} shuffles of warps, there must be none"
    wanted = {(name, "loads"): (64 * 64, "a tile, once") for name in ("p", "v")}
    wanted |= {(name, "stores"): (0, "it is an input") for name in ("p", "v")}
    wanted |= {("out", "stores"): (64 * 64, "a tile, once"), ("out", "loads"): (0, "acc has it")}
    expect_traffic(trace, wanted)
    rows, cols = exercise.shape()
    threads = 64 * 64 // (rows * cols)
    why = "each thread owns ROWS x COLS elements"
    expect_stores_by({"out": trace.arrays["out"]}, threads=threads, why=why)


def test_all_products(exercise):
    """64^3 products in all, in float32"""
    _, trace = launch(exercise, *inputs())
    expect_float32(trace)
    kinds = trace.flops.by_kind
    products = kinds.get("fma", 0) + kinds.get("mul", 0)
    assert products <= PRODUCTS, f"{PRODUCTS:,} products are enough, the meter shows {products:,}"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    p, v = inputs()
    gpu_ready(exercise.make_pv(), (p, v, np.zeros((64, 64), np.float32)))
