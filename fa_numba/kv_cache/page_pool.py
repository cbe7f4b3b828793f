"""The pages of a KV cache, and the sequences that own them.

A pool manages a KV cache as an operating system manages memory. A sequence gets a new page when its
last one is full; any free page will do, and the sequence's row of the block table records it. A
page may be in many rows. Its references are counted, and with none left it is free again.

share      A full page is never written again, so sequences that begin with the same tokens can
           share pages. Two pages are equal if the hashes of all tokens up to their ends are equal.
           A free page keeps its hash until it is given to another sequence.
fork       A copy of a sequence has the same pages, including the partly filled last one.
write      Only the partly filled last page is written, and only by a sequence that does not share
           it. A sequence that shares it gets a copy first (copy-on-write); the last one of those
           that shared the page keeps it.
guess      A sequence may have slots behind its last token, for guesses that are verified. They are
           not its tokens, so their pages have no hash. `settle` makes some of them tokens, and
           frees the pages that are left.

The pool sees tokens and no keys. It returns the copies and the slots to write, and the caller runs
`copy_pages` and `reshape_and_cache` in every layer of the model: each layer has its own caches, and
all layers share one block table.

Paper: Kwon et al. 2023, PagedAttention, arXiv:2309.06180, sections 4.2 to 4.4.
"""

import hashlib
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fa_numba import checks
from fa_numba.tiling.block_sizes import ceil_div


class OutOfPagesError(RuntimeError):
    """Fewer pages are free than needed. Nothing has been changed."""


class Writes(NamedTuple):
    """Changes of the caches: apply them in this order, before the pool frees anything.

    Attributes
    ----------
    src, dst : int32 arrays of shape (num_copies,)
        For `copy_pages`. No page is in both, and none is twice in dst.
    slot_mapping : int32 array of shape (num_tokens,)
        For `reshape_and_cache`: the slot of each new token, sequence after sequence. −1 for a token
        whose keys and values are already in a shared page.
    """

    src: np.ndarray
    dst: np.ndarray
    slot_mapping: np.ndarray


@dataclass
class _Sequence:
    tokens: list
    pages: list


class PagePool:
    """The pages of a cache, and the block table.

    Parameters
    ----------
    num_pages, page_size : int
    share_prefixes : bool, default=True
        Reuse full pages for a prompt if they hold the same tokens, after the same earlier tokens.

    Notes
    -----
    A sequence is a number that the pool chooses; no number is used twice.

    Examples
    --------
    >>> pool = PagePool(num_pages=4, page_size=2)
    >>> a, writes = pool.allocate([11, 12, 13])
    >>> b = pool.fork(a)
    >>> pool.block_table([a, b]).tolist()
    [[0, 1], [0, 1]]
    >>> src, dst, slot_mapping = pool.append({a: [14], b: [15]})
    >>> src.tolist(), dst.tolist(), slot_mapping.tolist()
    ([1], [2], [5, 3])
    >>> pool.block_table([a, b]).tolist()
    [[0, 2], [0, 1]]
    """

    def __init__(self, num_pages, page_size, *, share_prefixes=True):
        self.num_pages, self.page_size = checks.check_pool(num_pages, page_size)
        self.share_prefixes = checks.check_flag("share_prefixes", share_prefixes)
        self._sequences = {}
        self._next_number = 0
        self._references = [0] * self.num_pages
        # First in, first out: the page that became free last keeps its keys and values longest.
        self._free = OrderedDict.fromkeys(range(self.num_pages))
        self._hash = [None] * self.num_pages  # of all tokens up to the end of a full page
        self._page_with = {}  # by hash

    @property
    def num_free(self):
        """Number of free pages."""
        return len(self._free)

    @property
    def kept_pages(self):
        """Free pages whose tokens a new sequence may still share, as a list."""
        return [page for page in self._free if self._page_with.get(self._hash[page]) == page]

    @property
    def sequences(self):
        """The sequences of the pool, oldest first."""
        return list(self._sequences)

    def tokens(self, seq):
        """The tokens of a sequence, as a list."""
        return list(self._find(seq).tokens)

    def pages(self, seq):
        """The pages of a sequence, first to last, as a list."""
        return list(self._find(seq).pages)

    def length(self, seq):
        """Number of tokens of a sequence."""
        return len(self._find(seq).tokens)

    def references(self, page):
        """Number of sequences that have a page."""
        return self._references[checks.check_page(page, self.num_pages)]

    def pages_needed(self, tokens):
        """Number of free pages that `allocate` would take for these tokens."""
        tokens = checks.check_tokens(tokens)
        return self._pages_to_take(tokens, self._pages_that_hold(self._hashes(tokens)))

    def shared_tokens(self, tokens):
        """Number of tokens, from the first, that are in pages which `allocate` would share."""
        tokens = checks.check_tokens(tokens)
        return len(self._pages_that_hold(self._hashes(tokens))) * self.page_size

    def allocate(self, tokens):
        """Add a new sequence.

        Parameters
        ----------
        tokens : sequence of int
            The prompt; may be empty.

        Returns
        -------
        seq : int
        writes : Writes
            No copies; a slot for each token, −1 for tokens in shared pages.

        Raises
        ------
        OutOfPagesError
            Nothing has been changed.
        """
        tokens = checks.check_tokens(tokens)
        hashes = self._hashes(tokens)
        shared = self._pages_that_hold(hashes)
        self._require(self._pages_to_take(tokens, shared))

        for page in shared:
            self._free.pop(page, None)
            self._references[page] += 1
        fresh = ceil_div(len(tokens), self.page_size) - len(shared)
        pages = shared + [self._take() for _ in range(fresh)]
        for page, digest in zip(pages, hashes, strict=False):  # the part-filled last one has none
            self._remember(page, digest)
        seq = self._add(tokens, pages)
        slots = self._slots(pages, 0, len(tokens))
        slots[: len(shared) * self.page_size] = -1
        return seq, _writes([], slots)

    def append(self, tokens, guesses=None):
        """Append tokens to sequences: to all of them, or to none.

        Parameters
        ----------
        tokens : dict of int to sequence of int
            The new tokens of each sequence: one in decoding, a part of a prompt, or none.
        guesses : dict of int to int, default={}
            Of some of these sequences: slots to have behind their new tokens until `settle`, which
            must come before anything else is done with them.

        Returns
        -------
        Writes
            With the slots of a sequence's guesses after those of its tokens.

        Raises
        ------
        OutOfPagesError
            Nothing has been changed.
        """
        tokens = checks.check_new_tokens(tokens)
        guesses = checks.check_guesses(guesses, tokens)
        self._require(self._pages_to_append(tokens, guesses))
        copies, slots = [], []
        for seq, new in tokens.items():
            sequence, more = self._sequences[seq], guesses.get(seq, 0)
            pages, start = sequence.pages, len(sequence.tokens)
            offset = start % self.page_size
            if (new or more) and offset and self._references[pages[-1]] > 1:  # copy on write
                shared, pages[-1] = pages[-1], self._take()
                self._references[shared] -= 1
                copies.append((shared, pages[-1]))
            sequence.tokens += new
            end = len(sequence.tokens) + more
            pages += [self._take() for _ in range(ceil_div(end, self.page_size) - len(pages))]
            if end // self.page_size > start // self.page_size:
                self._remember_filled(sequence, start)
            if end == start + 1:  # decoding
                slots.append(pages[-1] * self.page_size + start % self.page_size)
            else:
                slots += self._slots(pages, start, end).tolist()
        return _writes(copies, slots)

    def settle(self, seq, tokens):
        """Make the first guesses of a sequence its tokens; free the pages behind the last token.

        Parameters
        ----------
        seq : int
        tokens : sequence of int
            At most as many as it has slots for: their keys and values are in the first of them.
        """
        sequence, size = self._find(seq), self.page_size
        start, room = len(sequence.tokens), len(sequence.pages) * size
        sequence.tokens += checks.check_settled(tokens, room - start)
        self._remember_filled(sequence, start)
        kept = ceil_div(len(sequence.tokens), size)
        self._release(sequence.pages[kept:])
        del sequence.pages[kept:]

    def append_in_page(self, tokens):
        """Append a token to each of some sequences whose last pages have room and are not shared.

        As `append`, but nothing is checked: the token's slot is the one after the last token's. In
        a step of decoding, most sequences are like that.

        Parameters
        ----------
        tokens : iterable of (int, int)
            The sequences, and the new token of each.
        """
        for seq, token in tokens:
            sequence = self._sequences[seq]
            sequence.tokens.append(token)
            if len(sequence.tokens) % self.page_size == 0:
                self._remember_filled(sequence, len(sequence.tokens) - 1)

    def fork(self, seq):
        """A second sequence with the same tokens, and the same pages.

        Parameters
        ----------
        seq : int

        Returns
        -------
        int
        """
        sequence = self._find(seq)
        for page in sequence.pages:
            self._references[page] += 1
        return self._add(list(sequence.tokens), list(sequence.pages))

    def free(self, seq):
        """Remove a sequence, and free those of its pages that no other sequence has.

        Parameters
        ----------
        seq : int
        """
        pages = self._find(seq).pages
        del self._sequences[seq]
        self._release(pages)

    def block_table(self, seqs):
        """The pages of sequences, in the form of the kernels' argument.

        Parameters
        ----------
        seqs : sequence of int

        Returns
        -------
        array of shape (batch, max_pages), int32
            −1 past the last page of a sequence.
        """
        rows = [self._find(seq).pages for seq in checks.check_seqs(seqs)]
        table = np.full((len(rows), max(map(len, rows), default=0)), -1, np.int32)
        for row, pages in zip(table, rows, strict=True):
            row[: len(pages)] = pages
        return table

    def seq_lens(self, seqs):
        """The lengths of sequences as an int32 array, the kernels' argument."""
        return np.array([self.length(seq) for seq in checks.check_seqs(seqs)], np.int32)

    def _find(self, seq):
        found = self._sequences.get(seq) if type(seq) is int else None
        if found is None:
            checks.check_seq(seq, self._sequences)
            found = self._sequences[seq]
        return found

    def _release(self, pages):
        for page in reversed(pages):  # first pages are reused most, so they are taken last
            self._references[page] -= 1
            if self._references[page] == 0:
                self._free[page] = None

    def _add(self, tokens, pages):
        seq = self._next_number
        self._next_number += 1
        self._sequences[seq] = _Sequence(tokens, pages)
        return seq

    def _require(self, needed):
        if needed > self.num_free:
            raise OutOfPagesError(
                f"{needed} more {'page is' if needed == 1 else 'pages are'} needed, and "
                f"{self.num_free} of {self.num_pages} are free. Nothing "
                "has been changed: free or preempt a sequence, and try again"
            )

    def _pages_to_take(self, tokens, shared):
        """Free pages that a new sequence takes, including shared pages that are free."""
        fresh = ceil_div(len(tokens), self.page_size) - len(shared)
        return fresh + sum(page in self._free for page in shared)

    def _pages_to_append(self, tokens, guesses):
        needed, writers = 0, Counter()
        for seq, new in tokens.items():
            sequence, slots = self._find(seq), len(new) + guesses.get(seq, 0)
            length, pages = len(sequence.tokens), sequence.pages
            needed += ceil_div(length + slots, self.page_size) - len(pages)
            if slots and length % self.page_size:
                writers[pages[-1]] += 1
        # Every writer of a shared page takes a copy, except the last one that has it.
        return needed + sum(min(n, self._references[page] - 1) for page, n in writers.items())

    def _take(self):
        page, _ = self._free.popitem(last=False)
        self._references[page] = 1
        if self._page_with.get(self._hash[page]) == page:
            del self._page_with[self._hash[page]]
        self._hash[page] = None
        return page

    def _slots(self, pages, start, end):
        t = np.arange(start, end)
        page = np.array(pages, np.int64)[t // self.page_size]
        return page * self.page_size + t % self.page_size

    def _hashes(self, tokens, start=0, before=b""):
        """The hash of each page that `tokens` fill, from page `start`; `before` is the one before.

        A hash covers all tokens from the first: the keys of a token depend on all earlier tokens.
        """
        if not self.share_prefixes:
            return []
        hashes, size = [], self.page_size
        first, end = start * size, len(tokens) // size * size
        for page in np.array(tokens[first:end], np.int64).reshape(-1, size):
            before = hashlib.sha256(before + page.tobytes()).digest()
            hashes.append(before)
        return hashes

    def _pages_that_hold(self, hashes):
        pages = []
        for digest in hashes:
            if digest not in self._page_with:
                break
            pages.append(self._page_with[digest])
        return pages

    def _remember(self, page, digest):
        self._hash[page] = digest
        self._page_with.setdefault(digest, page)

    def _remember_filled(self, sequence, start):
        """Hash the pages of a sequence that were filled after its first `start` tokens."""
        first = start // self.page_size
        before = self._hash[sequence.pages[first - 1]] if first else b""
        hashes = self._hashes(sequence.tokens, first, before)
        for page, digest in zip(sequence.pages[first:], hashes, strict=False):
            self._remember(page, digest)


def _writes(copies, slots):
    src, dst = np.array(copies, np.int32).reshape(-1, 2).T.copy()
    return Writes(src, dst, np.array(slots, np.int32))
