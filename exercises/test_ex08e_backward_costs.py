"""Grader of ex08e: FLOPs and loads of forward and backward, against the meter."""

import functools
import math

import numpy as np
import pytest

import fa_numba
from fa_numba import simt
from fa_numba.workbook.graders.causes import Wrong

CASES = [(16, 4, 8, 8), (24, 8, 8, 4), (19, 4, 4, 8), (5, 6, 8, 8)]  # N, HEAD_DIM, tiles
LARGE = (10**12 + 7, 130, 72, 100)  # more tiles than a loop can count
CASE = pytest.mark.parametrize("case", CASES, ids=str)


@functools.cache
def metered(N, HEAD_DIM, BLOCK_M, BLOCK_N):
    """Loads of the forward kernel and of the three backward kernels, and the floats kept."""
    q, k, v, dout = np.random.default_rng(0).standard_normal((4, 1, N, 1, HEAD_DIM), np.float32)
    tiles = {"block_m": BLOCK_M, "block_n": BLOCK_N}
    with simt.tracing() as traces:
        out, lse = fa_numba.flash_attn_v2(q, k, v, **tiles)
        fa_numba.flash_attn_bwd(dout, q, k, v, out, lse, **tiles)
    return [sum(x.loads for x in t.arrays.values()) for t in traces], out.size + lse.size


def expect(name, got, want, case, mistakes=()):
    ints = all(type(x) is int for x in (got if isinstance(got, tuple | list) else (got,)))
    if type(got) is not type(want) or got != want or not ints:
        causes = [sentence for sentence, wrong in mistakes if wrong == got]
        if not ints:
            causes.insert(0, "The results are ints.")
        N, HEAD_DIM, BLOCK_M, BLOCK_N = case
        raise Wrong(
            f"{name}, {N=}, {HEAD_DIM=}, {BLOCK_M=}, {BLOCK_N=}: want {want}, got {got!r}. "
            f"{causes[0] if causes else ''}".rstrip(),
            causes=causes,
            where=f"{name}({N}, {HEAD_DIM}, ...)",
        )


@pytest.mark.parametrize("N, HEAD_DIM", [(1, 1), (16, 4), LARGE[:2]])
def test_flops(exercise, N, HEAD_DIM):
    """FLOPs of the products: 2 forward, 4 and 3 backward"""
    p = 2 * N * N * HEAD_DIM
    mistakes = [
        ("Our two kernels compute S and dP twice: 7 products.", (2 * p, 5 * p)),
        ("S must be computed again, in each of the two kernels.", (2 * p, 4 * p)),
        ("S must be computed again, in each of the two kernels.", (2 * p, 5 * p)),
        ("An FMA is two FLOPs.", (p, 7 * p // 2)),
    ]
    got = exercise.product_flops(N, HEAD_DIM)
    expect("product_flops", got, (2 * p, 7 * p), (N, HEAD_DIM, 0, 0), mistakes)


@CASE
def test_forward_loads(exercise, case):
    """the forward pass: q once, k and v once for each tile of queries, as the meter shows"""
    N, HEAD_DIM, BLOCK_M, BLOCK_N = case
    size = N * HEAD_DIM
    mistakes = [
        ("k and v are read once for each tile of queries: BLOCK_M counts, not BLOCK_N.",
         size * (1 + 2 * math.ceil(N / BLOCK_N))),
        ("A last tile that is not full counts, too: ceil.", size * (1 + 2 * (N // BLOCK_M))),
        ("k and v are two matrices.", size * (1 + math.ceil(N / BLOCK_M))),
    ]  # fmt: skip
    got = exercise.forward_loads(N, HEAD_DIM, BLOCK_M)
    expect("forward_loads", got, metered(*case)[0][0], case, mistakes)


@CASE
def test_backward_loads(exercise, case):
    """the three kernels of the backward pass, each as the meter shows"""
    N, HEAD_DIM, BLOCK_M, BLOCK_N = case
    both, rows = 2 * N * HEAD_DIM, 2 * N
    tiles_q, tiles_k = math.ceil(N / BLOCK_M), math.ceil(N / BLOCK_N)
    mistakes = [
        ("lse and delta are loaded, too.", (both, both + tiles_k * both, both + tiles_q * both)),
        ("dkdv has a thread block for each tile of keys, dq for each tile of queries.",
         (both, both + tiles_q * (both + rows), both + rows + tiles_k * both)),
        ("dkdv walks along lse and delta once for each tile of keys.",
         (both, both + rows + tiles_k * both, both + rows + tiles_q * both)),
    ]  # fmt: skip
    got = exercise.backward_loads(*case)
    expect("backward_loads", got, tuple(metered(*case)[0][1:]), case, mistakes)


@CASE
def test_kept(exercise, case):
    """out and lse, nothing quadratic"""
    N, HEAD_DIM = case[:2]
    mistakes = [
        ("m and l are one number, lse.", N * HEAD_DIM + 2 * N),
        ("P is not kept.", N * N),
        ("lse is missing.", N * HEAD_DIM),
        ("q, k and v are there anyway: count out and lse.", 4 * N * HEAD_DIM + N),
    ]
    expect("kept", exercise.kept(N, HEAD_DIM), metered(*case)[1], case, mistakes)


def test_large(exercise):
    """10^12 tokens: exact, and at once"""
    N, d, BLOCK_M, BLOCK_N = LARGE
    tiles_q, tiles_k = -(-N // BLOCK_M), -(-N // BLOCK_N)
    expect("forward_loads", exercise.forward_loads(N, d, BLOCK_M), N * d * (1 + 2 * tiles_q), LARGE)
    both, rows = 2 * N * d, 2 * N
    want = both, both + tiles_k * (both + rows), both + rows + tiles_q * both
    expect("backward_loads", exercise.backward_loads(*LARGE), want, LARGE)
    expect("kept", exercise.kept(N, d), N * d + N, LARGE)
