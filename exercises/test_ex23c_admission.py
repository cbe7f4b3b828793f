"""Grader of ex23c: admission, against a pool of pages that is filled."""

import bisect

import numpy as np
import pytest

from fa_numba.kv_cache import OutOfPagesError, PagePool
from fa_numba.workbook.graders.causes import Wrong

CHANGED = "waiting and running are inputs: they must not be changed."
ONLY_FULL = "Only full last pages need a page for one more token, not every sequence."


def fits(entering, running, num_free, page_size):
    """Whether a pool has room for these, and then for one more token of every sequence."""
    held = sum(-(-n // page_size) for n in running)
    pool = PagePool(held + num_free, page_size, share_prefixes=False) if held + num_free else None
    if pool is None:
        return not entering
    seqs = [pool.allocate([0] * n)[0] for n in running]
    try:
        seqs += [pool.allocate([0] * n)[0] for n in entering]
        pool.append({seq: [0] for seq in seqs})
    except OutOfPagesError:
        return False
    return True


def truth(waiting, running, num_free, page_size):
    """How many from the head of the queue fit."""

    def full(n):
        return not fits(waiting[: n + 1], running, num_free, page_size)

    return bisect.bisect_left(range(len(waiting)), True, key=full)


def check(exercise, waiting, running, num_free, page_size):
    given = waiting.copy(), running.copy()
    got = exercise.admit(*given, num_free, page_size)
    if given != (waiting, running):
        raise Wrong("admit has changed waiting or running", causes=[CHANGED])
    want = truth(waiting, running, num_free, page_size)
    if type(got) is int and got == want:
        return
    raise Wrong(
        f"admit({waiting}, {running}, {num_free}, {page_size}): {want} can enter, got {got!r}",
        causes=[*_causes(waiting, running, num_free, page_size, got)],
    )


def _causes(waiting, running, num_free, page_size, got):
    """Mistakes that give this number."""

    def count(free, pages, *, overtaking=False, strict=False):
        entered = 0
        for n in waiting:
            if pages(n) > free - strict:
                if overtaking:
                    continue
                break
            free -= pages(n)
            entered += 1
        return entered

    to_come = sum(n % page_size == 0 for n in running)
    mistakes = {
        "A running sequence whose last page is full needs a page for its next token.": count(
            num_free, lambda n: n // page_size + 1
        ),
        "A request needs room for one more token as well: ceil((n + 1) / page_size) pages.": count(
            num_free - to_come, lambda n: -(-n // page_size)
        ),
        ONLY_FULL: count(num_free - len(running), lambda n: -(-n // page_size) + 1),
        "Count pages, not slots: a page belongs to one sequence.": count(
            num_free * page_size - len(running), lambda n: n + 1
        ),
        "Nobody overtakes: behind a request that does not fit, all wait.": count(
            num_free - to_come, lambda n: n // page_size + 1, overtaking=True
        ),
        "A request that takes the last free page fits.": count(
            num_free - to_come, lambda n: n // page_size + 1, strict=True
        ),
    }
    causes = [cause for cause, found in mistakes.items() if found == got]
    slots = "Count pages, not slots: a page belongs to one sequence."
    for said, free, pages in (
        (ONLY_FULL, num_free - len(running), lambda n: n // page_size + 1),
        (ONLY_FULL, num_free - to_come, lambda n: -(-n // page_size) + 1),
        (slots, num_free - to_come, lambda n: n + 1),
        (slots, num_free - to_come, lambda n: n),
        ("A page that is not full is a page: round up.", num_free - to_come,
         lambda n: n // page_size),
        ("A request has several pages if it has more than page_size tokens.", num_free - to_come,
         lambda n: 1),
        ("num_free are pages that nobody has: those in use are none of them.",
         num_free - sum(-(-n // page_size) for n in running), lambda n: n // page_size + 1),
        ("The last page of n tokens is full if n is a multiple of page_size, not n + 1.",
         num_free - sum((n + 1) % page_size == 0 for n in running),
         lambda n: n // page_size + 1),
        ("Room for one more token is needed, not for two.", num_free - to_come,
         lambda n: (n + 2) // page_size + 1),
    ):  # fmt: skip
        if count(free, pages) == got and said not in causes:
            causes.append(said)
    return causes


@pytest.mark.parametrize("n", [1, 3, 4, 5, 8])
def test_one_request(exercise, n):
    """one request alone: pages for its tokens, and for one more"""
    for num_free in range(5):
        check(exercise, [n], [], num_free, 4)


def test_running(exercise):
    """sequences that run: those whose last page is full need one more"""
    for running in ([3], [4], [4, 8, 3], [5, 7], [8, 4, 4, 4]):
        for num_free in range(6):
            check(exercise, [2], running, num_free, 4)


def test_several(exercise):
    """several enter at once, as long as there is room"""
    for num_free in range(9):
        check(exercise, [3, 4, 2, 7, 1], [4, 6], num_free, 4)


def test_nobody_overtakes(exercise):
    """a request that does not fit holds up those behind it"""
    for num_free in range(7):
        check(exercise, [2, 30, 1, 1], [5], num_free, 4)
    check(exercise, [30, 1], [], 3, 4)


def test_page_sizes(exercise):
    """pages of 1 and of 16 tokens"""
    for page_size in (1, 16):
        for num_free in range(0, 40, 3):
            check(exercise, [5, 16, 1, 15], [3, 16], num_free, page_size)


def test_many(exercise):
    """300 requests and 300 sequences, pages of 70"""
    lengths = [69 + i % 3 for i in range(300)]
    for num_free in (150, 590):
        check(exercise, lengths, lengths[::-1], num_free, 70)


def test_nothing(exercise):
    """an empty queue, and more to come than is free"""
    check(exercise, [], [4, 4], 1, 4)
    check(exercise, [1, 1], [4, 4, 4], 1, 4)


def test_random(exercise):
    """random queues"""
    rng = np.random.default_rng(0)
    for _ in range(25):
        waiting, running = (rng.integers(1, 20, rng.integers(0, 7)).tolist() for _ in range(2))
        page_size = int(rng.integers(1, 6))
        to_come = sum(n % page_size == 0 for n in running)
        check(exercise, waiting, running, to_come + int(rng.integers(0, 20)), page_size)


def test_lists_stay(exercise):
    """the lists are not changed"""
    waiting, running = [3, 4], [4, 5]
    exercise.admit(waiting, running, 9, 4)
    if (waiting, running) != ([3, 4], [4, 5]):
        raise Wrong("waiting or running has been written", causes=[CHANGED])
