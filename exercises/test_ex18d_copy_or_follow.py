"""Grader of ex18d: predictions of bytes, against the meter."""

import numpy as np
import pytest

import fa_numba
from fa_numba import simt
from fa_numba.kernels.flash_decode import flash_decode
from fa_numba.kernels.paged_attn_decode import paged_attn_decode
from fa_numba.workbook.graders.causes import Wrong

OPTIONS = {"num_splits": 1, "block_m": 4, "block_n": 16}
CASES = [([9], 1, 8), ([7, 12, 3], 2, 8), ([20, *[1] * 17], 1, 16)]


def metered(seq_lens, num_kv_heads, head_dim, route):
    """Bytes of K and V, dense and in pages, that the package's kernels move on the engine."""
    page_size = 4
    pages = [-(-n // page_size) for n in seq_lens]
    caches = np.zeros((2, sum(pages), page_size, num_kv_heads, head_dim), np.float32)
    block_table = np.full((len(seq_lens), max(pages)), -1, np.int32)
    first = 0
    for b, count in enumerate(pages):
        block_table[b, :count] = range(first, first + count)
        first += count
    lengths = np.array(seq_lens, np.int32)
    q = np.zeros((len(seq_lens), 1, num_kv_heads, head_dim), np.float32)
    with simt.tracing() as traces:
        if route == "follow":
            paged_attn_decode(q, *caches, block_table, lengths, **OPTIONS)
        else:
            dense = fa_numba.paged_kv_lookup(*caches, block_table, lengths)
            flash_decode(q, *dense, lengths, **OPTIONS)
    names = ("k_cache", "v_cache", "k", "v")
    moved = [trace.arrays[name] for trace in traces for name in names if name in trace.arrays]
    return sum(array.load_bytes + array.store_bytes for array in moved)


def compare(got, seq_lens, num_kv_heads, head_dim, route):
    assert type(got) is int, f"{route}_bytes must return an int, got {got!r}"
    want = metered(seq_lens, num_kv_heads, head_dim, route)
    if got == want:
        return
    token = 2 * num_kv_heads * head_dim * 4
    tokens, padded = sum(seq_lens), len(seq_lens) * max(seq_lens)
    padding = "Padding is stored, and never loaded."
    known = [(want / 2, "Keys and values are two arrays: one of them is missing.")]
    if route == "follow":
        known += [(2 * tokens * token, "Nothing is stored on this route.")]
    else:
        known += [
            (3 * tokens * token, "The zeros behind shorter sequences are stored as well."),
            ((tokens + padded) * token, "flash_decode reads the keys and values again."),
            ((tokens + 2 * padded) * token, padding),
            (3 * padded * token, padding),
        ]
    raise Wrong(
        f"lengths {seq_lens}, {num_kv_heads} heads of {head_dim}, float32: the meter says "
        f"{want:,} bytes, you {got:,} ({got / token:g} against {want / token:g} tokens)",
        causes=[cause for moved, cause in known if got == moved],
        where=f"{route}_bytes({seq_lens}, ...)",
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_follow(exercise, case):
    """follow_bytes is what the meter counts for paged_attn_decode"""
    compare(exercise.follow_bytes(*case, 4), *case, "follow")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_copy(exercise, case):
    """copy_bytes is what the meter counts for the lookup and flash_decode together"""
    compare(exercise.copy_bytes(*case, 4), *case, "copy")


def test_itemsize(exercise):
    """numbers of two bytes move half as many bytes, 70 heads of 300 numbers 21000 times as many"""
    for name in ("follow_bytes", "copy_bytes"):
        two, four = (getattr(exercise, name)([5, 9], 2, 8, size) for size in (2, 4))
        assert 2 * two == four, f"{name}: {four} bytes in float32, {two} in float16"
        one, many = (getattr(exercise, name)([5, 9], *size, 4) for size in ((1, 1), (70, 300)))
        assert 21000 * one == many, f"{name}: {one} bytes of 1 head of 1, {many} of 70 heads of 300"


def test_table(exercise):
    """table_share: four bytes over the keys and values of a page"""
    for args, want in (((16, 8, 128, 2), 1 / 16384), ((1, 1, 64, 4), 1 / 128)):
        got = exercise.table_share(*args)
        if abs(got - want) <= 1e-12:
            continue
        known = (
            (2, "Keys and values are two arrays: one of them is missing."),
            (100, "The share is a fraction, not per cent."),
        )
        raise Wrong(
            f"table_share{args} must be {want:.6g}, got {got:.6g}",
            causes=[cause for factor, cause in known if abs(got - factor * want) <= 1e-12],
        )
