"""Grader of ex18c: scores of one decoding step, the keys in pages."""

import re

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.simt.errors import KernelIndexError
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_no_races

BLOCK_N = 8
NO_TEST_OF_N = "The tile is tested, not the key: only keys n < seq_lens[b] exist."
ONE_PAGE = "One page serves a whole tile: that of the tile's first key."


def make(seq_lens, page_size, head_dim=4, seed=0):
    """(q, k_cache, block_table, seq_lens), pages shuffled, NaN where no token lives."""
    rng = np.random.default_rng(seed)
    counts = [-(-n // page_size) for n in seq_lens]
    q = rng.standard_normal((len(seq_lens), head_dim), np.float32)
    k_cache = np.full((sum(counts) + 2, page_size, head_dim), np.nan, np.float32)
    block_table = np.full((len(seq_lens), max(counts) + 1), -1, np.int32)
    pages = iter(rng.permutation(len(k_cache)))
    for b, (n, count) in enumerate(zip(seq_lens, counts, strict=True)):
        for i in range(count):
            block_table[b, i] = page = next(pages)
            filled = min(page_size, n - i * page_size)
            k_cache[page, :filled] = rng.standard_normal((filled, head_dim), np.float32)
    return q, k_cache, block_table, np.array(seq_lens, np.int32)


def launch(exercise, inputs):
    q, _, _, seq_lens = inputs
    tiles = max(1, -(-int(seq_lens.max()) // BLOCK_N))
    s = np.full((len(q), tiles * BLOCK_N), -np.inf, np.float32)
    try:
        return s, simt.trace(exercise.kernel, (tiles, len(q)), BLOCK_N, *inputs, s)
    except KernelIndexError as error:
        at = re.search(r"in thread \((\d+), .*? of block \((\d+), (\d+),", str(error))
        x, i, b = map(int, at.groups()) if at else (0, 0, 0)
        if i * BLOCK_N + x < seq_lens[b]:
            raise
        raise Wrong(f"KernelIndexError: {error}", causes=[NO_TEST_OF_N]) from None


def scores(inputs, page_of):
    """s in float64, key n in the page that page_of(n) names in its sequence's row."""
    q, k_cache, block_table, seq_lens = inputs
    page_size = k_cache.shape[1]
    s = np.full((len(q), -(-int(seq_lens.max()) // BLOCK_N) * BLOCK_N), -np.inf)
    for b, length in enumerate(seq_lens):
        for n in range(length):
            key = k_cache[block_table[b, page_of(n) // page_size], n % page_size]
            s[b, n] = q[b].astype(float) @ key
    return s


def check(exercise, inputs):
    want = scores(inputs, lambda n: n)
    got, trace = launch(exercise, inputs)
    expect_no_races(trace)
    limit = 1e-5 * np.sqrt(inputs[0].shape[1])
    right = (got == want) | (np.abs(got - np.where(np.isinf(want), 0, want)) <= limit)
    if right.all():
        return
    b, n = np.argwhere(~right)[0]
    _, k_cache, block_table, seq_lens = inputs
    page_size, row = k_cache.shape[1], block_table[b].tolist()
    if n >= seq_lens[b]:
        cause = NO_TEST_OF_N
        where = f"sequence {b} has {seq_lens[b]} tokens, so that it stays -inf"
    else:
        tile = scores(inputs, lambda n: n - n % BLOCK_N)
        same = np.isclose(got, tile, atol=1e-5, equal_nan=True)[np.isfinite(want)].all()
        cause = ONE_PAGE if same else ""
        where = f"key {n} is in page {row[n // page_size]}, slot {n % page_size}"
        taken = np.argwhere(np.isclose(k_cache.astype(float) @ inputs[0][b], got[b, n], atol=1e-5))
        if len(taken) == 1:
            where += f", and this is the score of page {taken[0][0]}, slot {taken[0][1]}"
        elif np.isnan(got[b, n]):
            where += ", and nan is in slots that hold no token"
    raise Wrong(
        f"page_size {page_size}, tiles of {BLOCK_N}: s[{b}, {n}] is {got[b, n]:.6g}, want "
        f"{want[b, n]:.6g}: {where}; the row of sequence {b} is {row}",
        causes=[cause],
        where=f"s[{b}, {n}], key {n} in tile {n // BLOCK_N}",
    )


@pytest.mark.parametrize("page_size", [8, 16])
def test_tile_within_a_page(exercise, page_size):
    """pages that tiles do not cross, whole tiles"""
    check(exercise, make([16, 8, 24], page_size))


@pytest.mark.parametrize("page_size", [3, 1, 4, 5, 12])
def test_tile_crosses_pages(exercise, page_size):
    """tiles that cross the end of a page"""
    check(exercise, make([8, 24, 16], page_size, seed=page_size))


@pytest.mark.parametrize("page_size", [4, 16])
def test_last_tile(exercise, page_size):
    """lengths that no tile and no page divides; an empty sequence"""
    check(exercise, make([13, 0, 1, 22], page_size))


def test_many(exercise):
    """37 tiles in a page of 300; 300 sequences; keys of 128 and 130 numbers"""
    check(exercise, make([293], 300, 1))
    check(exercise, make([1 + b % 2 for b in range(300)], 3, 1))
    check(exercise, make([9], 7, 128))
    check(exercise, make([9], 7, 130))


def test_loads(exercise):
    """each key is loaded once, and no slot without a token"""
    inputs = make([13, 3, 8], 5)
    _, trace = launch(exercise, inputs)
    loads, tokens = trace.arrays["k_cache"].loads, int(inputs[3].sum())
    head_dim = inputs[0].shape[1]
    if loads != tokens * head_dim:
        whole_tiles = sum(-(-int(n) // BLOCK_N) for n in inputs[3]) * BLOCK_N
        raise Wrong(
            f"{tokens} keys of {head_dim} numbers are {tokens * head_dim} loads of k_cache, the "
            f"meter says {loads}",
            causes=[NO_TEST_OF_N] if loads == whole_tiles * head_dim else [],
        )
    stores = trace.arrays["s"].stores
    assert stores == tokens, f"{tokens} scores are {tokens} stores, the meter says {stores}"
    expect_chip_memory(trace, allowed="a score is one register")


def test_inputs_unchanged(exercise):
    """the inputs are left as they were"""
    inputs = make([5, 9], 3)
    before = [x.copy() for x in inputs]
    launch(exercise, inputs)
    for name, x, y in zip(("q", "k_cache", "block_table", "seq_lens"), inputs, before, strict=True):
        assert np.array_equal(x, y, equal_nan=x.dtype == np.float32), f"{name} was changed"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    inputs = make([5], 3)
    gpu_ready(exercise.kernel, (*inputs, np.zeros((1, 8), np.float32)))
