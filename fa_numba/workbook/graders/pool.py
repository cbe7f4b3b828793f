"""A page pool of a learner, watched: against a model that knows tokens and no pages."""

from collections import Counter

from fa_numba.workbook.graders.attention import expect_error
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.grading.proxies import each

FULL = "A full page is never written again: one token more takes a new page, and no copy."
TOO_HIGH = "The count of a page is too high: who takes a copy, or is freed, leaves the old page."
TOO_LOW = "The count of a page is too low: each row that has it counts, also after OutOfPages."


class Watched:
    """The learner's pool, the cache that it rules over, and what every sequence should hold.

    Each token is a number of its own, so that a slot with the wrong token shows.
    """

    methods = ("free", "row", "length", "fork", "append")  # those that know a sequence

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
        except IndexError as error:
            said = "A list is empty: the row of a sequence without pages, or the free pages."
            raise Wrong(f"{self.done}: {error}", causes=[said], where=what) from None
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
        elif copy is not None:
            raise Wrong(
                f"{what}: nothing to copy, the last page is "
                f"{'full' if offset == 0 else 'its own'}; got {copy}",
                causes=[FULL if offset == 0 else TOO_HIGH],
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
        for name in self.methods:
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
        if (found := self.pool.num_free) != free:
            raise Wrong(
                f"after {self.done}: {len(owners)} of {self.num_pages} pages are in a row, so "
                f"{free} are free, num_free is {found}",
                causes=[TOO_HIGH if found < free else TOO_LOW],
            )


def _first(found, tokens):
    return next(t for t, (a, b) in enumerate(zip(found, tokens, strict=True)) if a != b)
