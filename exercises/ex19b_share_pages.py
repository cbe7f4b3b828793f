"""ex19b · Share pages: fork and free

Who has which page, in plain Python: no key, no kernel. A sequence is a number that the pool gives
it and never gives again; its row is the list of its pages, first to last. A page may be in the rows
of several sequences, and is free when it is in none.

Two methods of the pool are yours:

fork(seq) -> seq   a second sequence with the same tokens, in the same pages; takes no page
free(seq)          the sequence is gone; those of its pages that nobody else has are free

references[page]   how many rows a page is in; 0 for a free page
Each sequence has a row of its own: rows may name the same pages, but must not be the same list.
KeyError for a sequence that is not there (any more); then nothing has changed.

About 3 lines and 6 lines; `take`, `add`, `allocate` and `grow` are given, and show
how pages are counted.
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
        """Take in a sequence of `length` tokens; return its number.

        OutOfPages before anything has changed: count first, then take.
        """
        needed = -(-length // self.page_size)
        if needed > self.num_free:
            raise OutOfPages(f"{needed} pages needed, {self.num_free} free")
        return self.add([self.take() for _ in range(needed)], length)

    def grow(self, seq):
        """One page more at the end of a row, for tokens to come."""
        row = self.rows[seq]
        if self.num_free == 0:
            raise OutOfPages("1 page needed, 0 free")
        row.append(self.take())

    def fork(self, seq):
        """A second sequence with the same tokens; return its number."""
        # YOUR CODE HERE
        raise NotImplementedError("ex19b: fork")

    def free(self, seq):
        """Let a sequence go."""
        # YOUR CODE HERE
        raise NotImplementedError("ex19b: free")


# Stub b6073ea1 of solutions/ex19b_share_pages.py: `fa-numba reset ex19b` brings it back.
