"""Grader of ex04c: the formula against the engine's meter on three kernels."""

import functools
import math

import numpy as np
import pytest
from numba import cuda, float32

from fa_numba import simt
from fa_numba.workbook.graders.causes import Wrong

KEYS = ("q_reads", "k_reads", "s_writes", "s_reads", "p_writes", "p_reads", "v_reads", "out_writes")
NUM_THREADS = 32


@functools.cache
def make_pipeline(N, d, B_r, B_c):
    """The three kernels of the statement; one thread block per tile, tiles in shared memory."""

    @cuda.jit
    def scores(q, k, s):
        q_tile = cuda.shared.array((B_r, d), float32)
        k_tile = cuda.shared.array((B_c, d), float32)
        m_start, n_start = cuda.blockIdx.y * B_r, cuda.blockIdx.x * B_c
        tid = cuda.threadIdx.x
        for i in range(tid, B_r * d, NUM_THREADS):
            if m_start + i // d < N:
                q_tile[i // d, i % d] = q[m_start + i // d, i % d]
        for i in range(tid, B_c * d, NUM_THREADS):
            if n_start + i // d < N:
                k_tile[i // d, i % d] = k[n_start + i // d, i % d]
        cuda.syncthreads()
        for i in range(tid, B_r * B_c, NUM_THREADS):
            m, n = i // B_c, i % B_c
            if m_start + m < N and n_start + n < N:
                dot = float32(0.0)
                for c in range(d):
                    dot += q_tile[m, c] * k_tile[n, c]
                s[m_start + m, n_start + n] = dot

    @cuda.jit
    def softmax(s, p):  # one thread holds one row: slow, but S is loaded once
        row = cuda.local.array(N, float32)
        m = cuda.grid(1)
        if m >= N:
            return
        m_i = float32(-math.inf)
        for n in range(N):
            row[n] = s[m, n]
            m_i = max(m_i, row[n])
        l_i = float32(0.0)
        for n in range(N):
            l_i += math.exp(row[n] - m_i)
        for n in range(N):
            p[m, n] = math.exp(row[n] - m_i) / l_i

    @cuda.jit
    def values(p, v, out):
        p_tile = cuda.shared.array((B_r, B_c), float32)
        v_tile = cuda.shared.array((B_c, d), float32)
        o_tile = cuda.shared.array((B_r, d), float32)
        m_start = cuda.blockIdx.x * B_r
        tid = cuda.threadIdx.x
        for i in range(tid, B_r * d, NUM_THREADS):
            o_tile[i // d, i % d] = 0.0
        for n_start in range(0, N, B_c):
            for i in range(tid, B_r * B_c, NUM_THREADS):
                m, n = i // B_c, i % B_c
                if m_start + m < N and n_start + n < N:
                    p_tile[m, n] = p[m_start + m, n_start + n]
            for i in range(tid, B_c * d, NUM_THREADS):
                if n_start + i // d < N:
                    v_tile[i // d, i % d] = v[n_start + i // d, i % d]
            cuda.syncthreads()
            for i in range(tid, B_r * d, NUM_THREADS):
                if m_start + i // d < N:
                    for n in range(min(B_c, N - n_start)):
                        o_tile[i // d, i % d] += p_tile[i // d, n] * v_tile[n, i % d]
            cuda.syncthreads()
        for i in range(tid, B_r * d, NUM_THREADS):
            if m_start + i // d < N:
                out[m_start + i // d, i % d] = o_tile[i // d, i % d]

    return scores, softmax, values


@functools.cache
def metered(N, d, B_r, B_c):
    """Elements that the three kernels load and store, counted by the engine."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(N, d)).astype(np.float32) for _ in range(3))
    s, p, out = np.zeros((N, N), np.float32), np.zeros((N, N), np.float32), np.zeros_like(q)
    scores, softmax, values = make_pipeline(N, d, B_r, B_c)
    rows, cols = -(-N // B_r), -(-N // B_c)
    first = simt.trace(scores, (cols, rows), NUM_THREADS, q, k, s).arrays
    second = simt.trace(softmax, -(-N // NUM_THREADS), NUM_THREADS, s, p).arrays
    third = simt.trace(values, rows, NUM_THREADS, p, v, out).arrays
    weights = np.exp(q.astype(float) @ k.T)
    assert np.allclose(out, weights / weights.sum(1, keepdims=True) @ v, atol=1e-4), "our mistake"
    counts = [
        *(first["q"].loads, first["k"].loads, first["s"].stores),
        *(second["s"].loads, second["p"].stores),
        *(third["p"].loads, third["v"].loads, third["out"].stores),
    ]
    return dict(zip(KEYS, counts, strict=True))


def cause_of(key, got, want):
    """The likely mistake in one of the eight numbers, or ""."""
    tiled = ("q_reads", "k_reads", "v_reads")
    of_q, of_k = want["q_reads"], want["k_reads"]
    if of_q != of_k and (got["q_reads"], got["k_reads"]) == (of_k, of_q):
        return (
            "The counts of q_reads and k_reads are interchanged: tiles side by side need the same "
            "rows of Q, tiles one above the other the same rows of K."
        )
    if key == "v_reads" and got[key] == of_q:
        return (
            "v_reads counts the tiles side by side: the third kernel has one thread block for each "
            "row of tiles, and each of them loads all of V."
        )
    if key in ("q_reads", "k_reads") and got[key] == of_q + of_k - want[key]:
        which = "one above the other" if key == "q_reads" else "side by side"
        return (
            f"{key} counts the tiles {which}: those do not need the same rows of {key[0].upper()}."
        )
    if key in tiled and got[key] == want["out_writes"]:
        return "Each row is counted once: every thread block that needs a row loads it."
    if key in ("s_reads", "p_reads") and got[key] == 0:
        return f"{key} is 0: what a kernel has written to HBM, the next one loads."
    if key in ("s_reads", "p_reads") and got[key] % want[key] == 0:
        return f"{key} counts an element several times: each is loaded once, and kept on chip."
    return ""


def check(got, want, case):
    assert isinstance(got, dict), f"want a dict, got {type(got).__name__}"
    absent = [key for key in (*KEYS, "total") if key not in got]
    assert not absent, f"the dict has no {', '.join(absent)}; the statement lists the keys"
    for key in (*KEYS, "total"):
        value = got[key]
        assert type(value) is int, f"{case}: {key} must be an int, got {value!r}: round tiles up"
    for key in KEYS:
        if got[key] != want[key]:
            raise Wrong(
                f"{case}: {key} must be {want[key]} bytes, got {got[key]}",
                causes=[cause_of(key, got, want)],
                where=key,
            )
    total = sum(want[key] for key in KEYS)
    assert got["total"] == total, (
        f"{case}: total must be {total}, the sum of the eight lines, got {got['total']}"
    )


def check_against_meter(exercise, N, d, B_r=None, B_c=None, dtype_bytes=4):
    counts = metered(N, d, B_r or N, B_c or N)
    want = {key: count * dtype_bytes for key, count in counts.items()}
    case = f"N={N}, d={d}, B_r={B_r}, B_c={B_c}, dtype_bytes={dtype_bytes}"
    check(exercise.standard_traffic(N, d, B_r, B_c, dtype_bytes), want, case)


def test_source_problem(exercise):
    """the tutorial's exercise 3a: N=4096, d=128, fp16, every line of it"""
    N2, Nd = 2 * 4096**2, 2 * 4096 * 128
    want = dict(zip(KEYS, (Nd, Nd, N2, N2, N2, N2, Nd, Nd), strict=True))
    check(exercise.standard_traffic(4096, 128), want, "N=4096, d=128, fp16")


@pytest.mark.parametrize("N, d", [(16, 8), (13, 5), (1, 4), (8, 16)])
def test_one_tile(exercise, N, d):
    """no tiles: every matrix is moved once per use, as the meter counts it"""
    check_against_meter(exercise, N, d)


@pytest.mark.parametrize("N, B_r, B_c", [(16, 4, 8), (16, 16, 4), (24, 8, 8)])
def test_tiles(exercise, N, B_r, B_c):
    """tiles: the rows of Q and K that several thread blocks need are loaded several times"""
    check_against_meter(exercise, N, 4, B_r, B_c)


@pytest.mark.parametrize("N, B_r, B_c", [(17, 4, 8), (19, 5, 3), (7, 16, 4), (9, 2, 32)])
def test_short_last_tile(exercise, N, B_r, B_c):
    """N not divisible by the tiles, also tiles larger than N: nothing is moved that is not there"""
    check_against_meter(exercise, N, 3, B_r, B_c)


def test_either_tile_size_alone(exercise):
    """only one of B_r and B_c given: the other tile side is the whole matrix"""
    check_against_meter(exercise, 12, 4, B_r=4)
    check_against_meter(exercise, 12, 4, B_c=4)


@pytest.mark.parametrize("dtype_bytes", [1, 2, 8])
def test_element_size(exercise, dtype_bytes):
    """dtype_bytes scales every line"""
    check_against_meter(exercise, 13, 5, 4, 4, dtype_bytes)


def test_whole_numbers(exercise):
    """bytes are ints, also where N / B_r is no whole number"""
    check(exercise.standard_traffic(1000, 64, 48, 48), formula(1000, 64, 48, 48), "N=1000, d=64")


def formula(N, d, B_r, B_c, dtype_bytes=2):
    """What the three kernels move, for sizes that no meter counts through."""
    rows, cols = (N + B_r - 1) // B_r, (N + B_c - 1) // B_c
    elements = (cols * N * d, rows * N * d, N * N, N * N, N * N, N * N, rows * N * d, N * d)
    return dict(zip(KEYS, (n * dtype_bytes for n in elements), strict=True))


@pytest.mark.parametrize("N, B_r, B_c", [(2**27 + 5, 7, 1), (10**12, 128, 64), (1000, 5000, 3)])
def test_long_sequences(exercise, N, B_r, B_c):
    """a formula, exact to the last byte: sequences longer than a loop walks or a float holds"""
    case = f"N={N}, d=128, B_r={B_r}, B_c={B_c}, fp16"
    check(exercise.standard_traffic(N, 128, B_r, B_c), formula(N, 128, B_r, B_c), case)
