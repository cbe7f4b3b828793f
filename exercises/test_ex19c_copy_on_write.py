"""Grader of ex19c: one more token, against a model that knows tokens and no pages."""

import random

import numpy as np
import pytest

from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.elements import expect_neighbours
from fa_numba.workbook.graders.kernels import expect_at_most, launched
from fa_numba.workbook.graders.meter import expect_chip_memory
from fa_numba.workbook.graders.pool import Watched


def test_append(exercise):
    """append: a new page only where the last one is full"""
    pool = Watched(exercise, 4, 3)
    seq = pool.allocate(0)
    rows = []
    for _ in range(10):
        pool.append(seq)
        rows.append(len(pool.pool.row(seq)))
    assert rows == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4], f"pages after each of ten tokens: {rows}"


def test_copy_on_write(exercise):
    """copy on write: who writes into a shared, part-filled page gets a copy first"""
    for pages, size, length in ((8, 4, 6), (303, 2, 601), (8, 70, 136)):
        pool = Watched(exercise, pages, size)
        a = pool.allocate(length)
        b = pool.fork(a)
        before = pool.pool.row(a)
        _, copy = pool.append(b)
        assert copy is not None and pool.pool.row(a) == before, "the other row has changed"
        assert pool.pool.row(b)[:-1] == before[:-1], "pages before the last are full: they stay"


def test_the_last_needs_no_copy(exercise):
    """no copy for the one that is left alone with the page"""
    pool = Watched(exercise, 8, 4)
    a = pool.allocate(6)
    b, c = pool.fork(a), pool.fork(a)
    copies = [pool.append(seq)[1] for seq in (a, b, c)]
    assert [copy is None for copy in copies] == [False, False, True], (
        f"three sequences share a part-filled page: two copies, and the third keeps it: {copies}"
    )


def test_no_copy_after_free(exercise):
    """no copy where the others have been freed"""
    pool = Watched(exercise, 8, 4)
    a = pool.allocate(6)
    b = pool.fork(a)
    pool.free(a)
    assert pool.append(b)[1] is None, "nobody else has the page any more"


def test_full_last_page(exercise):
    """no copy where the shared last page is full: a new page each"""
    pool = Watched(exercise, 8, 4)
    a = pool.allocate(8)
    b = pool.fork(a)
    assert pool.append(a)[1] is None and pool.append(b)[1] is None
    assert pool.pool.row(a)[-1] != pool.pool.row(b)[-1], "each needs a page of its own"


def test_unknown_sequence_in_a_full_pool(exercise):
    """a sequence that is not there is a KeyError, also where no page is free"""
    pool = Watched(exercise, 2, 4)
    a = pool.allocate(4)
    b = pool.fork(a)
    pool.allocate(4)
    pool.free(a)
    assert pool.pool.num_free == 0, "both pages are still in a row"
    pool.expect_gone(77, "was never there")
    pool.free(b)


def test_an_empty_pool(exercise):
    """a pool without pages: sequences without tokens alone"""
    pool = Watched(exercise, 0, 4)
    seq = pool.allocate(0)
    assert pool.append(seq) is None and pool.allocate(1) is None
    pool.free(pool.fork(seq))
    pool.free(seq)


def test_out_of_pages_append(exercise):
    """running out in append, for a new page or for a copy, changes nothing"""
    pool = Watched(exercise, 2, 4)
    a = pool.allocate(8)
    assert pool.append(a) is None, "the last page is full, and no page is free"
    pool.free(a)
    a = pool.allocate(7)
    b = pool.fork(a)
    assert pool.append(b) is None, "the last page is shared, and no page is free for a copy"
    pool.free(a)
    assert pool.append(b) is not None, "now it is alone with its pages"


def test_no_leak(exercise):
    """twelve rounds leave every page free"""
    pool = Watched(exercise, 6, 2)
    for _ in range(12):
        a = pool.allocate(5)
        b = pool.fork(a)
        pool.append(b)
        pool.free(a)
        pool.append(b)
        pool.free(b)
    assert pool.pool.num_free == 6


@pytest.mark.parametrize("num_pages, page_size", [(1, 1), (5, 1), (6, 2), (12, 3), (9, 16)])
def test_random_steps(exercise, num_pages, page_size):
    """eighty random steps: every sequence finds its own tokens"""
    rng = random.Random(num_pages)
    pool = Watched(exercise, num_pages, page_size)
    for _ in range(80):
        seqs = list(pool.tokens)
        what = rng.choices(["allocate", "append", "fork", "free"], [3, 10, 2, 2])[0]
        if what == "allocate" or not seqs:
            pool.allocate(rng.randrange(3 * page_size))
        else:
            getattr(pool, what)(rng.choice(seqs))
    for seq in list(pool.tokens):
        pool.free(seq)
    assert pool.pool.num_free == num_pages, "all are gone, and pages are missing"


def copy(exercise, copies, filled, page_size=4, heads=2, head_dim=3, num_pages=8, threads=64):
    """Make copies in a cache with NaN where no token lives; fail unless each token is there."""
    rng = np.random.default_rng(page_size)
    copies, filled = np.array(copies, np.int32).reshape(-1, 2), np.array(filled, np.int32)
    caches = rng.standard_normal((2, num_pages, page_size, heads, head_dim), np.float32)
    for (source, _), n in zip(copies, filled, strict=True):
        caches[:, source, n:] = np.nan
    given = {"copies": copies, "filled": filled, "k_cache": caches[0], "v_cache": caches[1]}
    names = "k_cache", "v_cache"
    got, trace = launched(exercise.copy_pages, len(copies), threads, names, **given)
    for name, before in zip(names, caches, strict=True):
        for i, ((source, target), n) in enumerate(zip(copies, filled, strict=True)):
            want, found = before[source, :n], got[name][target, :n]
            wrong = np.argwhere(found != want)
            if len(wrong):
                at = [int(x) for x in wrong[0]]
                causes = {
                    "Nothing was copied.": np.array_equal(found, before[target, :n]),
                    "The copy goes the other way: from copies[i, 0] into copies[i, 1].": (
                        np.array_equal(got[name][source, :n], before[target, :n])
                    ),
                }
                raise Wrong(
                    f"copy {i}: {name}[{target}, {at[0]}, {at[1]}, {at[2]}] must be that of page "
                    f"{source}, {want[tuple(at)]:.5g}, got {found[tuple(at)]:.5g}",
                    causes=[said for said, holds in causes.items() if holds],
                    where=name,
                )
        others = np.setdiff1d(np.arange(num_pages), copies[:, 1])
        same = np.array_equal(got[name][others], before[others], equal_nan=True)
        assert same, f"{name}: a page that is no target of a copy was changed"
    return trace


def test_one_copy(exercise):
    """copy_pages: a whole page, and a part-filled one"""
    copy(exercise, [(5, 2)], [4])
    copy(exercise, [(0, 7)], [3])
    copy(exercise, [(7, 0)], [1])


def test_many_copies(exercise):
    """copy_pages: several copies, two of one page; 300 at once"""
    copy(exercise, [(5, 2), (1, 3), (5, 7)], [2, 4, 2])
    pairs = np.random.default_rng(0).permutation(600).reshape(300, 2)
    copy(exercise, pairs, [1 + i % 2 for i in range(300)], 2, 1, 2, 600)


@pytest.mark.parametrize(
    "page_size, heads, head_dim", [(1, 1, 1), (3, 70, 2), (70, 2, 3), (2, 3, 128)]
)
@pytest.mark.parametrize("threads", [32, 96])
def test_copy_sizes(exercise, page_size, heads, head_dim, threads):
    """copy_pages: any sizes, any number of threads"""
    filled = max(1, page_size - 1)
    copy(exercise, [(3, 1), (2, 0)], [filled, page_size], page_size, heads, head_dim, 4, threads)


def test_copy_traffic(exercise):
    """copy_pages: tokens are loaded once and stored once, by neighbouring threads"""
    trace = copy(exercise, [(5, 2), (1, 3)], [4, 4], 4, 4, 16, threads=32)
    once = (2 * 4 * 64, "once for each number of a token")
    expect_at_most(
        trace, k_cache_loads=once, v_cache_loads=once, k_cache_stores=once, v_cache_stores=once
    )
    expect_neighbours(trace, ["k_cache", "v_cache"], "Thread x moves x, x + blockDim.x, ...")
    expect_chip_memory(trace, allowed="a number is moved through a register")
    assert not trace.barriers, "nobody reads what another thread wrote: no barrier"


def test_slots_without_a_token(exercise):
    """copy_pages: slots that hold no token are not loaded"""
    trace = copy(exercise, [(5, 2), (1, 3)], [3, 1], 4, 2, 8)
    got = trace.arrays["k_cache"].loads
    if got > 4 * 16:
        raise Wrong(
            f"the 4 tokens of two pages are 64 numbers of k_cache, {got} are loaded",
            causes=["Slots behind the first filled[i] hold no token, and are copied, too."],
        )


def test_compiles_for_a_gpu(exercise):
    """copy_pages compiles for a GPU"""
    cache = np.zeros((4, 4, 2, 8), np.float32)
    copies, filled = np.array([[0, 1]], np.int32), np.ones(1, np.int32)
    gpu_ready(exercise.copy_pages, (copies, filled, cache, cache))
