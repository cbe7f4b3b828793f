"""Grader of ex15d: places of elements beyond 2^31, without an array that large."""

import numpy as np
import pytest
from numba import cuda

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong

INTEGERS = pytest.mark.parametrize("dtype", [np.int64, np.int32], ids=lambda t: t.__name__)


def places(function, tokens, heads, ds, num_heads, head_dim):
    """What a device function of the learner's returns, as a kernel stores it."""

    @cuda.jit
    def ask(tokens, heads, ds, num_heads, head_dim, got):
        i = cuda.grid(1)
        if i < got.shape[0]:
            got[i] = function(tokens[i], heads[i], ds[i], num_heads, head_dim)

    got = np.full(len(tokens), -7, np.int64)
    grid = (len(tokens) + 127) // 128
    simt.run(ask, grid, 128, tokens, heads, ds, num_heads, head_dim, got)
    return got


def wrapped(number, bits):
    half = 1 << (bits - 1)
    return (number + half) % (2 * half) - half


def check(exercise, tokens, num_heads, head_dim, dtype=np.int64):
    tokens = np.array(tokens, dtype)
    heads = np.arange(len(tokens)).astype(dtype) % num_heads
    ds = (3 * np.arange(len(tokens)) + 1).astype(dtype) % head_dim
    got = places(exercise.element, tokens, heads, ds, num_heads, head_dim)
    want = [
        (int(t) * num_heads + int(h)) * head_dim + int(d)
        for t, h, d in zip(tokens, heads, ds, strict=True)
    ]
    wrong = [i for i, (a, b) in enumerate(zip(got.tolist(), want, strict=True)) if a != b]
    if wrong:
        first = wrong[0]
        t, h, d = int(tokens[first]), int(heads[first]), int(ds[first])
        value, truth = int(got[first]), want[first]
        row = wrapped(t * num_heads + h, 32)
        causes = {
            "The place is cut to 32 bits: beyond 2^31 it becomes negative.": wrapped(truth, 32),
            "The place is cut to 32 bits without a sign: beyond 2^32 it begins anew.": truth
            % 2**32,
            "The row, token * num_heads + head, is cut to 32 bits.": row * head_dim + d,
            "The row is cut to 32 bits without a sign.": (t * num_heads + h) % 2**32 * head_dim + d,
            "A float holds whole numbers only up to 2^24, float64 up to 2^53.": int(float(truth)),
            "A float32 holds whole numbers only up to 2^24.": int(
                np.float32(t * num_heads + h) * np.float32(head_dim) + np.float32(d)
            ),
            "d is missing.": truth - d,
            "The head is missing.": truth - h * head_dim,
            "The array is (tokens, num_heads, head_dim): the last index moves fastest.": (
                (t * head_dim + d) * num_heads + h
            ),
        }
        raise Wrong(
            f"{num_heads} heads of {head_dim}, token {t:,}, head {h}, d {d}: want {truth:,}, got "
            f"{value:,}",
            causes=[cause for cause, number in causes.items() if number == value],
            where=f"token {t:,}",
        )


@INTEGERS
def test_small_arrays(exercise, dtype):
    """arrays of a few elements"""
    check(exercise, range(40), 4, 8, dtype)
    check(exercise, range(40), 1, 1, dtype)
    check(exercise, range(40), 3, 5, dtype)


@INTEGERS
def test_around_2_to_31(exercise, dtype):
    """the last element before 2^31, and those after it"""
    at = 2**31 // (32 * 128)
    check(exercise, range(at - 20, at + 20), 32, 128, dtype)


@INTEGERS
def test_around_2_to_32(exercise, dtype):
    """around 2^32, where 32 bits without a sign end"""
    at = 2**32 // (32 * 128)
    check(exercise, range(at - 20, at + 20), 32, 128, dtype)


@INTEGERS
def test_many_rows(exercise, dtype):
    """more than 2^31 rows of a token and a head"""
    at = 2**31 // 96
    check(exercise, range(at - 20, at + 20), 96, 128, dtype)
    check(exercise, range(2 * at - 20, 2 * at + 20), 96, 1, dtype)


def test_many_tokens(exercise):
    """more than 2^32 tokens"""
    for at in (2**31, 2**32, 2**40 - 40):
        check(exercise, range(at, at + 40), 1, 1)
        check(exercise, range(at, at + 40), 2, 3)


def test_exact(exercise):
    """exact beyond 2^53, where float64 rounds"""
    check(exercise, range(2**40 - 40, 2**40), 1023, 1023)


def test_broken_element_stays(exercise):
    """broken_element is as it was given"""
    tokens = np.array([0, 2**19], np.int64)
    zeros = np.zeros(2, np.int64)
    got = places(exercise.broken_element, tokens, zeros, zeros, 32, 128)
    assert got.tolist() == [0, -(2**31)], "broken_element is to stay: mend `element`"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without a float"""
    element = exercise.element

    @cuda.jit
    def ask(tokens, got):
        i = cuda.grid(1)
        if i < got.shape[0]:
            got[i] = element(tokens[i], 1, 2, 32, 128)

    arguments = np.zeros(2, np.int64), np.zeros(2, np.int64)
    simt.run(ask, 1, 2, *arguments)
    gpu_ready(ask, arguments)
