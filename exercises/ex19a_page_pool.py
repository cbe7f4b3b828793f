"""ex19a · A page pool

Who has which page, in plain Python: no key, no kernel. A sequence is a number that the pool gives
it and never gives again; its row is the list of its pages, first to last. A page may be in the rows
of several sequences, and is free when it is in none.

Pool(num_pages, page_size)
allocate(length) -> seq     a new sequence of `length` tokens, in pages of its own; 0 tokens: none
append(seq) -> (slot, copy)
    one more token. slot = page * page_size + offset is its place. A new page only where the last
    one is full, or there is none. Where the last page is part-filled and shared with another
    sequence, it may not be written: seq gets a free page in its place, and copy = (that page, the
    new one) says what must be copied before the slot is written. Otherwise copy is None. Who is
    left alone with a page writes into it.
fork(seq) -> seq            a second sequence with the same tokens, in the same pages; takes none
free(seq)                   the sequence is gone; those of its pages that nobody else has are free
row(seq), length(seq), num_free     as they stand; given

OutOfPages where a free page is needed and there is none, or too few: then nothing has changed, and
the caller may free a sequence and try again. KeyError, from every method, for a sequence that is
not there (any more), whether pages are free or not.

About 25 lines in all; `take` is given.
"""


class OutOfPages(Exception):
    """Too few pages are free. Nothing has been changed."""


class Pool:
    """Pages to give out."""

    def __init__(self, num_pages, page_size):
        self.num_pages, self.page_size = num_pages, page_size
        self.free_pages = list(range(num_pages))
        self.references = [0] * num_pages  # how many rows a page is in
        self.rows, self.lengths = {}, {}  # by sequence
        self.next_seq = 0

    @property
    def num_free(self):
        """How many pages are free."""
        return len(self.free_pages)

    def row(self, seq):
        """The pages of a sequence, first to last."""
        return list(self.rows[seq])

    def length(self, seq):
        """Tokens of a sequence."""
        return self.lengths[seq]

    def take(self):
        """A free page, now in one row. The caller has made sure that there is one."""
        page = self.free_pages.pop()
        self.references[page] = 1
        return page

    def add(self, row, length):
        """A new sequence with this row; returns its number."""
        seq = self.next_seq
        self.next_seq += 1
        self.rows[seq], self.lengths[seq] = row, length
        return seq

    def allocate(self, length):
        """Take in a sequence of `length` tokens; return its number."""
        # YOUR CODE HERE
        raise NotImplementedError("ex19a: allocate")

    def append(self, seq):
        """One token more; return (slot, copy)."""
        # YOUR CODE HERE
        raise NotImplementedError("ex19a: append")

    def fork(self, seq):
        """A second sequence with the same tokens; return its number."""
        # YOUR CODE HERE
        raise NotImplementedError("ex19a: fork")

    def free(self, seq):
        """Let a sequence go."""
        # YOUR CODE HERE
        raise NotImplementedError("ex19a: free")


# Stub f0b32dea of solutions/ex19a_page_pool.py: `fa-numba reset ex19a` brings it back.
