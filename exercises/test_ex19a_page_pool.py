"""Grader of ex19a: a page pool, against a model that knows tokens and no pages."""

import random
from collections import Counter

import pytest

from fa_numba.workbook.graders.attention import expect_error
from fa_numba.workbook.grading.proxies import each


class Watched:
    """The learner's pool, the cache that it rules over, and what every sequence should hold.

    Each token is a number of its own, so that a slot with the wrong token shows.
    """

    def __init__(self, exercise, num_pages, page_size):
        self.exercise, self.num_pages, self.page_size = exercise, num_pages, page_size
        self.pool = exercise.Pool(num_pages, page_size)
        self.slots = [None] * (num_pages * page_size)
        self.tokens, self.used, self.next_token = {}, set(), 0
        self.done = "nothing yet"

    def new_token(self):
        self.next_token += 1
        return self.next_token

    def count(self, length):
        return -(-length // self.page_size)

    def owners(self):
        """How many sequences have each page."""
        return Counter(page for row in each(self.pool.row, self.tokens) for page in row)

    def state(self):
        rows, lengths = each(self.pool.row, self.tokens), each(self.pool.length, self.tokens)
        seen = zip(rows, lengths, strict=True)
        return dict(zip(self.tokens, seen, strict=True)), self.pool.num_free

    def attempt(self, call, needed, what):
        """Call; it must run out just where more pages are needed than are free."""
        before = self.state()
        free = self.num_pages - len(self.owners())
        self.done = f"{what}, {needed} of {free} free pages needed"
        try:
            result = call()
        except self.exercise.OutOfPages:
            assert needed > free, f"{self.done}: OutOfPages, and there were enough"
            assert self.state() == before, (
                f"{self.done}: OutOfPages is right, but something has changed: before "
                f"{before}, after {self.state()}. Count what is needed before you take anything"
            )
            return None
        assert needed <= free, f"{self.done}: want OutOfPages, got {result!r}"
        return result

    def allocate(self, length):
        what = f"allocate({length})"
        seq = self.attempt(lambda: self.pool.allocate(length), self.count(length), what)
        if seq is None:
            return None
        assert seq not in self.used, f"{what} returned sequence {seq}: that number was given before"
        self.used.add(seq)
        self.tokens[seq] = []
        row = self.pool.row(seq)
        assert len(row) == self.count(length), (
            f"{what}: {length} tokens in pages of {self.page_size} take {self.count(length)} "
            f"pages, got the row {row}"
        )
        for t in range(length):  # the caller writes the prompt
            self.tokens[seq].append(self.new_token())
            self.slots[row[t // self.page_size] * self.page_size + t % self.page_size] = (
                self.next_token
            )
        self.check()
        return seq

    def append(self, seq):
        owners, row = self.owners(), self.pool.row(seq)
        length = len(self.tokens[seq])
        offset = length % self.page_size
        shared = offset > 0 and owners[row[-1]] > 1
        others = [other for other in self.tokens if other != seq]
        rows_before = each(self.pool.row, others)
        what = f"append to sequence {seq} of {length} tokens, row {row}"
        result = self.attempt(lambda: self.pool.append(seq), int(shared or offset == 0), what)
        if result is None:
            return None
        slot, copy = result
        after = self.pool.row(seq)
        rows_now = each(self.pool.row, others)
        for other, before, now in zip(others, rows_before, rows_now, strict=True):
            assert now == before, (
                f"{what}: the row of sequence {other} was {before} and is now {now}. Each sequence "
                "has a list of its own: rows that share pages must not be one list"
            )
        if shared:
            assert copy is not None, (
                f"{what}: page {row[-1]} is part-filled and in {owners[row[-1]]} rows: whoever "
                "writes needs a copy of its own, got copy None"
            )
            assert tuple(copy) == (row[-1], after[-1]) and after[-1] not in owners, (
                f"{what}: copy must be (page {row[-1]}, a free page, which is now last in the "
                f"row), got {tuple(copy)} and the row {after}"
            )
            size = self.page_size
            source = self.slots[copy[0] * size : (copy[0] + 1) * size]
            self.slots[copy[1] * size : (copy[1] + 1) * size] = source
        else:
            assert copy is None, (
                f"{what}: nothing to copy, the last page is "
                f"{'full' if offset == 0 else 'its own'}; got {copy}"
            )
        assert after[: length // self.page_size] == row[: length // self.page_size], (
            f"{what}: full pages stay where they are, but the row became {after}"
        )
        want = after[-1] * self.page_size + offset
        assert slot == want, f"{what}: the slot is page * page_size + offset = {want}, got {slot}"
        writers = self.owners()[slot // self.page_size]
        assert writers == 1, (
            f"{what}: slot {slot} is in page {slot // self.page_size}, which {writers} rows have: "
            "two could write it"
        )
        self.tokens[seq].append(self.new_token())
        self.slots[slot] = self.next_token
        self.check()
        return slot, copy

    def fork(self, seq):
        what = f"fork of sequence {seq}"
        new = self.attempt(lambda: self.pool.fork(seq), 0, what)
        assert new not in self.used, f"{what} returned {new}: that number was given before"
        self.used.add(new)
        self.tokens[new] = list(self.tokens[seq])
        assert self.pool.row(new) == self.pool.row(seq), (
            f"{what}: the same pages, {self.pool.row(seq)}, got {self.pool.row(new)}"
        )
        self.check()
        return new

    def free(self, seq):
        self.done = f"free of sequence {seq}, row {self.pool.row(seq)}"
        self.pool.free(seq)
        del self.tokens[seq]
        self.expect_gone(seq, "was freed")
        self.check()

    def expect_gone(self, seq, why):
        """No method knows the sequence, and none changes anything."""
        before = self.state()
        for name in ("free", "row", "length", "append", "fork"):
            call = getattr(self.pool, name)
            what = f"sequence {seq} {why}: {name}({seq})"
            expect_error(KeyError, lambda call=call: call(seq), what)
            assert self.state() == before, (
                f"{what} raised KeyError, but something has changed: before {before}, after "
                f"{self.state()}"
            )

    def check(self):
        """Everything that can be seen of the pool is as it must be."""
        owners = self.owners()
        rows, lengths = each(self.pool.row, self.tokens), each(self.pool.length, self.tokens)
        for (seq, tokens), row, length in zip(self.tokens.items(), rows, lengths, strict=True):
            assert length == len(tokens), (
                f"after {self.done}: sequence {seq} has {len(tokens)} tokens, not {length}"
            )
            assert len(row) == len(set(row)) == self.count(length), (
                f"after {self.done}: sequence {seq} has {length} tokens in the row {row}"
            )
            size = self.page_size
            found = [self.slots[row[t // size] * size + t % size] for t in range(length)]
            assert found == tokens, (
                f"after {self.done}: token {_first(found, tokens)} of sequence {seq}, row {row}, "
                "was overwritten by another sequence, or not copied"
            )
        free = self.num_pages - len(owners)
        assert self.pool.num_free == free, (
            f"after {self.done}: {len(owners)} of {self.num_pages} pages are in a row, so {free} "
            f"are free, num_free is {self.pool.num_free}"
        )


def _first(found, tokens):
    return next(t for t, (a, b) in enumerate(zip(found, tokens, strict=True)) if a != b)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 12])
def test_allocate(exercise, length):
    """allocate takes as many pages as the tokens need, each once"""
    Watched(exercise, 5, 4).allocate(length)


def test_allocate_two(exercise):
    """two sequences have no page in common"""
    pool = Watched(exercise, 8, 4)
    a, b = pool.allocate(9), pool.allocate(13)
    common = set(pool.pool.row(a)) & set(pool.pool.row(b))
    assert not common, f"pages {common} are in both rows"


def test_append(exercise):
    """append: a new page only where the last one is full"""
    pool = Watched(exercise, 4, 3)
    seq = pool.allocate(0)
    rows = []
    for _ in range(10):
        pool.append(seq)
        rows.append(len(pool.pool.row(seq)))
    assert rows == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4], f"pages after each of ten tokens: {rows}"


def test_fork(exercise):
    """fork shares all pages and takes none"""
    pool = Watched(exercise, 4, 4)
    a = pool.allocate(14)  # the pool is full
    b, c = pool.fork(a), pool.fork(a)
    assert len({a, b, c}) == 3, f"three sequences, three numbers: got {a}, {b}, {c}"


def test_copy_on_write(exercise):
    """copy on write: who writes into a shared, part-filled page gets a copy first"""
    pool = Watched(exercise, 8, 4)
    a = pool.allocate(6)
    b = pool.fork(a)
    before = pool.pool.row(a)
    _, copy = pool.append(b)
    assert copy is not None and pool.pool.row(a) == before, "the other sequence's row has changed"
    assert pool.pool.row(b)[:1] == before[:1], "the first page is full: it stays shared"


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


def test_free(exercise):
    """free gives back what nobody else has, and keeps what others share"""
    pool = Watched(exercise, 8, 4)
    a = pool.allocate(10)
    b = pool.fork(a)
    pool.append(b)  # a copy of the last page
    pool.free(a)
    assert pool.pool.num_free == 5, f"b still has 3 of 8 pages; num_free is {pool.pool.num_free}"
    pool.free(b)
    assert pool.pool.num_free == 8, f"nobody is left; num_free is {pool.pool.num_free}"


def test_no_double_free(exercise):
    """a sequence that was freed is a KeyError, and changes nothing"""
    pool = Watched(exercise, 4, 4)
    a = pool.allocate(4)
    pool.allocate(4)
    pool.free(a)  # and Watched tries it again
    pool.expect_gone(77, "was never there")
    pool.expect_gone(-1, "was never there")


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


@pytest.mark.parametrize("length", [13, 100])
def test_out_of_pages_allocate(exercise, length):
    """running out in allocate changes nothing"""
    pool = Watched(exercise, 4, 4)
    a = pool.allocate(3)
    assert pool.allocate(length) is None
    pool.append(a)
    assert pool.allocate(12) is not None, "three pages are free, and 12 tokens fit"


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
    """forty rounds leave every page free"""
    pool = Watched(exercise, 6, 2)
    for _ in range(40):
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
