"""ex19c · One more token: copy on write

The pool of ex19b, complete but for the method that each step of a server calls:

append(seq) -> (slot, copy)
    one more token. slot = page * page_size + offset is its place. A new page only where the last
    one is full, or there is none. Where the last page is part-filled and shared with another
    sequence, it may not be written: seq gets a free page in its place, and copy = (that page, the
    new one) says what must be copied before the slot is written. Otherwise copy is None. Who is
    left alone with a page writes into it.

OutOfPages where a free page is needed and there is none: then nothing has changed, and the caller
may free a sequence and try again. KeyError for a sequence that is not there, whether pages are free
or not. About 12 lines.

copy_pages[len(copies), threads](copies, filled, k_cache, v_cache), any number of threads
    the kernel that makes the copies of a step, a thread block for each: page copies[i, 0] into page
    copies[i, 1]. copies (n, 2), filled (n,) int32; the caches (num_pages, page_size, num_kv_heads,
    head_dim) float32. The first filled[i] slots hold tokens, and are loaded once and stored once by
    neighbouring threads; other slots are not loaded. No shared memory, no barrier. About 8 lines.
"""

from numba import cuda

### HINT 1: Decide everything before you change anything: does this token need a free page, and is
### HINT 1: there one?
### HINT 2: offset = length % page_size. A page is needed where offset is 0, or where the last page
### HINT 2: is shared: offset > 0 and references[row[-1]] > 1.
### HINT 3: If shared: the old page loses a reference, row[-1] becomes the new page, copy = (old,
### HINT 3: new). If offset == 0: the row grows. Then the length grows. In the kernel the tokens of
### HINT 3: a page are filled[i] * num_kv_heads * head_dim numbers in one piece: thread x moves x, x
### HINT 3: + blockDim.x, ...
### DEBRIEF: Your pool is the heart of PagedAttention, and its only CUDA is a copy. Full pages are
### DEBRIEF: never written again, so sharing them is free; the part-filled last one is the only page
### DEBRIEF: that is ever copied, once per writer but the last. The package's PagePool adds a hash
### DEBRIEF: for each full page, so that prompts that begin alike find each other's pages, and
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
        """Take in a sequence of `length` tokens; return its number.

        OutOfPages before anything has changed: count first, then take.
        """
        needed = -(-length // self.page_size)
        if needed > self.num_free:
            raise OutOfPages(f"{needed} pages needed, {self.num_free} free")
        return self.add([self.take() for _ in range(needed)], length)

    def fork(self, seq):
        """A second sequence with the same tokens; return its number."""
        for page in self.rows[seq]:
            self.references[page] += 1
        return self.add(list(self.rows[seq]), self.lengths[seq])

    def free(self, seq):
        """Let a sequence go."""
        row = self.rows.pop(seq)
        del self.lengths[seq]
        for page in row:
            self.references[page] -= 1
            if self.references[page] == 0:
                self.free_pages.append(page)

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


@cuda.jit
def copy_pages(copies, filled, k_cache, v_cache):
    """Copy the tokens of pages into other pages, a thread block for each copy."""
    ### BEGIN SOLUTION
    i = cuda.blockIdx.x
    source, target = copies[i, 0], copies[i, 1]
    num_kv_heads, head_dim = k_cache.shape[2], k_cache.shape[3]
    for j in range(cuda.threadIdx.x, filled[i] * num_kv_heads * head_dim, cuda.blockDim.x):
        t, h, d = j // (num_kv_heads * head_dim), j // head_dim % num_kv_heads, j % head_dim
        k_cache[target, t, h, d] = k_cache[source, t, h, d]
        v_cache[target, t, h, d] = v_cache[source, t, h, d]
    ### END SOLUTION
