"""Grader of ex23d: preemption, against a pool of pages."""

import numpy as np
import pytest

from fa_numba.kv_cache import OutOfPagesError, PagePool
from fa_numba.workbook.graders.causes import Wrong


def truth(lengths, num_free, page_size):
    """Indices that leave, the last one first, until a pool can append to the others."""
    held = sum(-(-n // page_size) for n in lengths)
    pool = PagePool(held + num_free, page_size, share_prefixes=False)
    seqs, gone = [pool.allocate([0] * n)[0] for n in lengths], []
    while True:
        try:
            pool.append({seq: [0] for seq in seqs})
            return gone
        except OutOfPagesError:
            pool.free(seqs.pop())
            gone.append(len(seqs))


CHANGED = "lengths is an input: it must not be changed."
NEW_PAGES = "new_pages is wrong, and preempt calls it: mend new_pages first."


def new_pages_is_wrong(exercise, lengths, page_size):
    """Whether the answer's new_pages is wrong for these sequences, or for some of the first."""
    parts = [lengths[:n] for n in range(len(lengths) + 1)]
    try:
        found = [exercise.new_pages(part, page_size) for part in parts]
    except Exception:
        return False  # that is another check's
    return found != [sum(n % page_size == 0 for n in part) for part in parts]


def leaving(lengths, num_free, page_size, order, *, strict=False):
    """Indices that leave in this order, by count; `strict`: a free page must be left."""
    left, gone = list(range(len(lengths))), []
    for i in order:
        if sum(lengths[j] % page_size == 0 for j in left) <= num_free - strict:
            break
        left.remove(i)
        gone.append(i)
        num_free += -(-lengths[i] // page_size)
    return gone


def check(exercise, lengths, num_free, page_size):
    given = lengths.copy()
    got = exercise.preempt(given, num_free, page_size)
    if given != lengths:
        raise Wrong("preempt has changed lengths", causes=[CHANGED])
    want = truth(lengths, num_free, page_size)
    if list(got) == want and all(type(i) is int for i in got):
        return
    got = list(got)
    last = list(range(len(lengths)))[::-1]
    full = [i for i in last if lengths[i] % page_size == 0]
    by_length = [
        sorted(order, key=lambda i, sign=sign: sign * lengths[i])
        for order in (last, last[::-1])
        for sign in (-1, 1)
    ]

    def by(order, **options):
        return got == leaving(lengths, num_free, page_size, order, **options)

    causes = [
        new_pages_is_wrong(exercise, lengths, page_size) and NEW_PAGES,
        by(full) and "Any sequence may have to leave, not only those that need a page.",
        any(map(by, by_length)) and "The length does not decide: the last to come goes first.",
        by(last, strict=True) and "As many free pages as are needed are enough.",
        got == want[::-1] and len(want) > 1 and "These leave, but in the other order.",
        got == list(range(len(want)))
        and want
        and "The oldest ones leave here: the last to come goes first.",
        len(got) > len(want)
        and got == last[: len(got)]
        and "More leave than must: all pages of one that leaves are free, and it needs no new one.",
        len(got) < len(want) and got == last[: len(got)] and "Too few leave.",
        sorted(got) == sorted(lengths[i] for i in want)
        and "These are lengths: indices are asked for.",
    ]
    raise Wrong(
        f"preempt({lengths}, {num_free}, {page_size}): {want} leave, got {got}", causes=causes
    )


def test_new_pages(exercise):
    """new_pages: one for each sequence whose last page is full"""
    for lengths, page_size, want in (
        ([1, 2, 3], 4, 0), ([4], 4, 1), ([4, 8, 5, 12], 4, 3), ([1, 2, 3], 1, 3), ([16, 15], 16, 1),
        ([], 4, 0),
    ):  # fmt: skip
        got = exercise.new_pages(lengths, page_size)
        if type(got) is not int or got != want:
            raise Wrong(
                f"new_pages({lengths}, {page_size}) must be {want}, got {got!r}", causes=[NEW_PAGES]
            )


def test_all_stay(exercise):
    """enough free pages: nobody leaves"""
    check(exercise, [4, 8, 3], 2, 4)
    check(exercise, [5, 6, 7], 0, 4)
    check(exercise, [], 3, 4)


def test_one_leaves(exercise):
    """the last one leaves"""
    for lengths in ([4, 8, 8], [8, 3], [4, 4, 1], [12, 12, 12, 12]):
        check(exercise, lengths, 0, 4)


def test_it_needs_no_page(exercise):
    """the one that leaves needs no new page itself"""
    check(exercise, [5, 5, 4], 0, 4)
    check(exercise, [4, 5, 4], 1, 4)


def test_several_leave(exercise):
    """several leave where one does not free enough"""
    for num_free in range(4):
        check(exercise, [4, 4, 4, 4, 4, 3, 2, 1], num_free, 4)
        check(exercise, [4, 8, 12, 16, 20, 1], num_free, 4)


@pytest.mark.parametrize("page_size", [1, 2, 16])
def test_page_sizes(exercise, page_size):
    """other page sizes: with one slot a page, each token needs one"""
    for num_free in range(5):
        check(exercise, [32, 7, 16, 1, 2, 16], num_free, page_size)


def test_many(exercise):
    """300 sequences, pages of 70"""
    lengths = [70 + 35 * (i % 3) for i in range(301)]
    for num_free in (0, 50, 170, 300):
        check(exercise, lengths, num_free, 70)


def test_random(exercise):
    """random lengths"""
    rng = np.random.default_rng(1)
    for _ in range(25):
        page_size = int(rng.integers(1, 6))
        lengths = (rng.integers(1, 6, rng.integers(2, 12)) * page_size).tolist()
        check(exercise, lengths, int(rng.integers(0, 6)), page_size)


def test_list_stays(exercise):
    """lengths is not changed"""
    lengths = [4, 8, 8]
    exercise.preempt(lengths, 0, 4)
    if lengths != [4, 8, 8]:
        raise Wrong(f"lengths has become {lengths}", causes=[CHANGED])
