"""Grader of ex19c: one more token, against a model that knows tokens and no pages."""

import random

import pytest

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
    """a hundred and fifty random steps: every sequence finds its own tokens"""
    rng = random.Random(num_pages)
    pool = Watched(exercise, num_pages, page_size)
    for _ in range(150):
        seqs = list(pool.tokens)
        what = rng.choices(["allocate", "append", "fork", "free"], [3, 10, 2, 2])[0]
        if what == "allocate" or not seqs:
            pool.allocate(rng.randrange(3 * page_size))
        else:
            getattr(pool, what)(rng.choice(seqs))
    for seq in list(pool.tokens):
        pool.free(seq)
    assert pool.pool.num_free == num_pages, "all are gone, and pages are missing"
