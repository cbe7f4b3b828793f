"""Grader of ex11b: a product of matrices with 4 x 4 sums in each thread."""

import math

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.meter import (
    expect_chip_memory,
    expect_no_races,
    expect_stores_by,
    expect_traffic,
)
from fa_numba.workbook.graders.tiles import expect_product, matrices, product_mistakes, shared_loads

# M, K, N, TX: one line per danger
SHAPES = {
    "one tile": (16, 4, 16, 4),
    "several values of k": (16, 12, 16, 4),
    "several tiles each way": (32, 8, 48, 4),
    "M is ragged": (263, 4, 16, 4),
    "N is ragged": (16, 4, 269, 4),
    "K is ragged": (16, 259, 16, 4),
    "all ragged": (37, 11, 45, 8),
    "one row": (1, 9, 33, 8),
    "one column": (33, 9, 1, 8),
    "one element": (1, 1, 1, 4),
    "a large thread block": (70, 20, 60, 16),
}


def multiply(exercise, a, b, TX, c=None, run=simt.run):
    """Run the kernel, on a c full of NaN: c, and what run returns."""
    c = np.full((a.shape[0], b.shape[1]), np.nan, np.float32) if c is None else c
    grid = math.ceil(c.shape[1] / (4 * TX)), math.ceil(c.shape[0] / (4 * TX))
    return c, run(exercise.make_matmul_4x4(TX), grid, (TX, TX), a, b, c)


def mistakes(a, b, TX):
    """(sentence, product) of mistakes that leave every sum in its place."""
    yield from list(product_mistakes(a, b, TX))[:4]  # which values of k count
    last = -(-a.shape[1] // TX) * TX - 1  # beyond a's columns there is 0
    k = slice(last, last + 1)
    yield "Only the last k counts: products are added to acc, with +=.", a[:, k] @ b[k]


def causes_of(c, M, N, TX):
    """Likely causes of wrong elements: where they lie says which."""

    def causes(wrong):
        found = []
        if np.isnan(c).any():
            if np.isnan(c).all():
                found.append("store writes nothing, or the sums are NaN.")
            else:
                found.append("Not every element is stored: a thread owns 16.")
        rows, cols = set(wrong[:, 0] // TX % 4), set(wrong[:, 1] // TX % 4)
        if len(rows) < 4 and M >= 4 * TX:
            found.append(
                "Some of the four rows of a thread are right, others not: see the row's index."
            )
        if len(cols) < 4 and N >= 4 * TX:
            found.append(
                "Some of the four columns of a thread are right, others not: see the index."
            )
        if not (c.any() or np.isnan(c).any()):
            found.append("The sums stay 0: nothing is added to acc.")
        return found or ["The wrong numbers meet: acc[i, j] is row ty + i TX, column tx + j TX."]

    return causes


def check(exercise, a, b, TX, what, c=None):
    c, _ = multiply(exercise, a, b, TX, c)
    expect_product(c, a, b, what, causes=causes_of(c, *c.shape, TX), mistakes=mistakes(a, b, TX))


@pytest.mark.parametrize("case", SHAPES)
def test_equals_float64(exercise, case):
    """equals the product in float64, whatever the sizes"""
    M, K, N, TX = SHAPES[case]
    check(exercise, *matrices((M, K), (K, N)), TX, f"{case} (M={M}, K={K}, N={N}, TX={TX})")


def test_known_product(exercise):
    """each element of c has a value of its own, row 100 + column"""
    a = np.stack([np.arange(32), np.ones(32)], axis=1).astype(np.float32)
    b = np.stack([np.full(32, 100), np.arange(32)]).astype(np.float32)
    check(exercise, a, b, 4, "c[m, n] = 100 m + n")


@pytest.mark.parametrize("TX", [4, 8])
def test_loads_per_fma(exercise, TX):
    """8 loads from shared memory for 16 products"""
    M, K, N = 4 * TX, 2 * TX, 8 * TX
    _, trace = multiply(exercise, *matrices((M, K), (K, N)), TX, run=simt.trace)
    rule = "for each k four numbers of a_tile and four of b_tile make 16 products"
    shared_loads(trace, most=M * K * N // 2, products=M * K * N, rule=rule)


def test_hbm_traffic(exercise):
    """HBM traffic: a and b through the tiles only, c stored once"""
    M, K, N, TX = 37, 10, 40, 4
    _, trace = multiply(exercise, *matrices((M, K), (K, N)), TX, run=simt.trace)
    tiles_m, tiles_n = math.ceil(M / 16), math.ceil(N / 16)
    wanted = {
        ("a", "loads"): (M * K * tiles_n, f"M K · {tiles_n} tiles of columns"),
        ("b", "loads"): (K * N * tiles_m, f"K N · {tiles_m} tiles of rows"),
        ("c", "stores"): (M * N, "M N"),
        ("c", "loads"): (0, "the sums are in registers"),
        ("a", "stores"): (0, "it is an input"),
        ("b", "stores"): (0, "it is an input"),
    }
    expect_traffic(trace, wanted)


def test_chip_memory(exercise):
    """the two tiles, 16 sums and 8 floats at most in a thread; no race"""
    _, trace = multiply(exercise, *matrices((64, 16), (16, 64)), 8, run=simt.trace)
    allowed = "a_tile, b_tile, acc, and 8 floats"
    expect_chip_memory(trace, shared=4 * 2 * 32 * 8, local=4 * (16 + 8), allowed=allowed)
    expect_no_races(trace)


def test_sixteen_per_thread(exercise):
    """each thread stores its own 16 elements, neighbours beside each other"""
    _, trace = multiply(exercise, *matrices((64, 8), (8, 64)), 8, run=simt.trace)
    why = "a thread block has TX x TX threads, and each owns 16 elements of its tile"
    expect_stores_by({"c": trace.arrays["c"]}, threads=256, blocks=4, why=why)
    c = trace.arrays["c"]
    assert 32 * c.store_sectors == c.store_bytes, (
        "the store of c touches more sectors than it fills: columns of neighbouring threads are "
        "neighbours, and a thread's own are TX apart"
    )


def test_nothing_else_written(exercise):
    """writes c and not one element beside it"""
    a, b = matrices((19, 5), (5, 21))
    frame = np.full((30, 40), 7, np.float32)
    check(exercise, a, b, 4, "c inside a larger array", frame[3:22, 5:26])
    frame[3:22, 5:26] = 7
    assert (frame == 7).all(), (
        f"{(frame != 7).sum()} elements around c were written: test row and col before the store"
    )


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout, the sums in registers"""
    a, b, c = matrices((8, 8), (8, 8), (8, 8))
    gpu_ready(exercise.make_matmul_4x4(16), (a, b, c))
