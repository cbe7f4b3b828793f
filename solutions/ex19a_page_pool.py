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

### HINT 1: References count how many rows a page is in: 1 for a page just taken, +1 for each of a
### HINT 1: forked sequence's pages, -1 for each page of a freed one, and at 0 the page is free.
### HINT 2: Decide everything before you change anything: how many pages does this call need? If
### HINT 2: fewer are free, raise. Only then take.
### HINT 3: append: offset = length % page_size; shared = offset > 0 and references[row[-1]] > 1.
### HINT 3: One free page is needed if offset == 0 or shared. If shared: the old page loses a
### HINT 3: reference, row[-1] becomes the new page, copy = (old, new). If offset == 0: row grows.
### DEBRIEF: Your pool is the heart of PagedAttention, and there is no CUDA in it. Full pages are
### DEBRIEF: never written again, so sharing them is free; the part-filled last one is the only
### DEBRIEF: page that is ever copied, once per writer but the last. The package's PagePool adds a
### DEBRIEF: hash for each full page, so that prompts that begin alike find each other's pages, and
### DEBRIEF: appends to many sequences at once: all of them, or none.


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
        ### BEGIN SOLUTION
        needed = -(-length // self.page_size)
        if needed > self.num_free:
            raise OutOfPages(f"{needed} pages needed, {self.num_free} free")
        return self.add([self.take() for _ in range(needed)], length)
        ### END SOLUTION

    def append(self, seq):
        """One token more; return (slot, copy)."""
        ### BEGIN SOLUTION
        row, offset, copy = self.rows[seq], self.lengths[seq] % self.page_size, None
        shared = offset > 0 and self.references[row[-1]] > 1
        if (offset == 0 or shared) and self.num_free == 0:
            raise OutOfPages("1 page needed, 0 free")
        if shared:  # copy on write
            copy = row[-1], self.take()
            self.references[row[-1]] -= 1
            row[-1] = copy[1]
        elif offset == 0:
            row.append(self.take())
        self.lengths[seq] += 1
        return row[-1] * self.page_size + offset, copy
        ### END SOLUTION

    def fork(self, seq):
        """A second sequence with the same tokens; return its number."""
        ### BEGIN SOLUTION
        for page in self.rows[seq]:
            self.references[page] += 1
        return self.add(list(self.rows[seq]), self.lengths[seq])
        ### END SOLUTION

    def free(self, seq):
        """Let a sequence go."""
        ### BEGIN SOLUTION
        row = self.rows.pop(seq)
        del self.lengths[seq]
        for page in row:
            self.references[page] -= 1
            if self.references[page] == 0:
                self.free_pages.append(page)
        ### END SOLUTION
