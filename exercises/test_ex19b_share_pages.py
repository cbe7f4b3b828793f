"""Grader of ex19b: forks and frees, against a model that knows tokens and no pages."""

import random

import pytest

from fa_numba.workbook.graders.pool import Watched


class Shared(Watched):
    """A pool without `append`."""

    methods = ("free", "row", "length", "fork")


def test_fork(exercise):
    """fork shares all pages and takes none"""
    pool = Shared(exercise, 4, 4)
    a = pool.allocate(14)  # the pool is full
    b, c = pool.fork(a), pool.fork(a)
    assert len({a, b, c}) == 3, f"three sequences, three numbers: got {a}, {b}, {c}"


def test_rows_are_lists_of_their_own(exercise):
    """each sequence has a row of its own: what the one gets, the other has not"""
    pool = Shared(exercise, 4, 4).pool
    a = pool.allocate(6)
    b = pool.fork(a)
    pool.grow(a)
    rows = pool.row(a), pool.row(b)
    assert [len(row) for row in rows] == [3, 2], (
        f"two pages, forked, then one more for the first: rows {rows[0]} and {rows[1]}. Rows that "
        "share pages must not be one list"
    )


def test_free(exercise):
    """free returns what nobody else has, and keeps what others share"""
    for pages, size, length in ((8, 4, 10), (306, 1, 301), (8, 70, 201)):
        pool = Shared(exercise, pages, size)
        a = pool.allocate(length)
        b = pool.fork(a)
        pool.free(a)
        free, left = pool.pool.num_free, pages + -length // size
        assert free == left, f"b still has {pages - left} of {pages} pages; num_free is {free}"
        pool.free(b)
        free = pool.pool.num_free
        assert free == pages, f"nobody is left, and there are {pages} pages; num_free is {free}"


def test_no_double_free(exercise):
    """a sequence that was freed is a KeyError, and changes nothing"""
    pool = Shared(exercise, 4, 4)
    a = pool.allocate(4)
    pool.allocate(4)
    pool.free(a)  # and Watched tries it again
    pool.expect_gone(77, "was never there")
    pool.expect_gone(-1, "was never there")


def test_pages_can_be_taken_again(exercise):
    """pages that were freed can be taken again, each once"""
    pool = Shared(exercise, 3, 2)
    for _ in range(5):
        a = pool.allocate(5)
        pool.fork(pool.fork(a))
        for seq in list(pool.tokens):
            pool.free(seq)
    assert sorted(pool.pool.free_pages) == [0, 1, 2], f"free pages: {pool.pool.free_pages}"


def test_an_empty_sequence(exercise):
    """a sequence without tokens can be forked and freed"""
    pool = Shared(exercise, 0, 4)
    seq = pool.allocate(0)
    pool.free(pool.fork(seq))
    pool.free(seq)


@pytest.mark.parametrize("num_pages, page_size", [(1, 1), (6, 2), (12, 3)])
def test_random_steps(exercise, num_pages, page_size):
    """a hundred random steps: every sequence finds its own tokens"""
    rng = random.Random(num_pages)
    pool = Shared(exercise, num_pages, page_size)
    for _ in range(100):
        seqs = list(pool.tokens)
        if not seqs or rng.random() < 0.4:
            pool.allocate(rng.randrange(3 * page_size))
        else:
            getattr(pool, rng.choice(["fork", "free"]))(rng.choice(seqs))
    for seq in list(pool.tokens):
        pool.free(seq)
    assert pool.pool.num_free == num_pages, "all are gone, and pages are missing"
