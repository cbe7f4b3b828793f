"""Which keys several sequences share, and where it pays to read them once for all of them.

Sequences that begin with the same tokens have the same pages, which a `PagePool` finds by its
hashes. So rows of a block table are paths of a trie: an edge is a run of pages, and the sequences
below it share them.

    0 1 2 3 7       pages 0 1 for all three, 2 3 for the first two;
    0 1 2 3 8 9     then each has its own: these are the suffixes
    0 1 4 5

`cascade_plan` finds the edges that pay. An edge that does not is added to those below it.

Source: Ye et al. 2024, Cascade inference (a blog post of FlashInfer).
"""

from typing import NamedTuple

import numpy as np

from fa_numba import checks
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div


class Segment(NamedTuple):
    """Keys that some sequences share: an edge of the trie.

    Attributes
    ----------
    rows : NumPy array of int
        The sequences, as rows of the block table; at least two.
    depth : int
        Number of segments before it on the paths of these sequences.
    pages : NumPy array of shape (1, num_pages), int32
    block_table, seq_lens : arrays
        pages and the number of their keys, as the kernels take them.
    """

    rows: np.ndarray
    depth: int
    pages: np.ndarray
    block_table: object
    seq_lens: object


class CascadePlan(NamedTuple):
    """Segments that are shared, and the suffixes, as a block table and lengths of their own.

    Attributes
    ----------
    page_size, seqlen_q : int
    segments : list of Segment
    block_table : array of shape (batch, max_pages), int32
    seq_lens : array of shape (batch,), int32
    """

    page_size: int
    seqlen_q: int
    segments: list
    block_table: object
    seq_lens: object

    def on_device_of(self, like):
        """The plan with arrays of the library and on the device of `like`."""

        def there(x):
            return x._replace(
                block_table=arrays.from_numpy(like, x.block_table),
                seq_lens=arrays.from_numpy(like, x.seq_lens),
            )

        return there(self)._replace(segments=[*map(there, self.segments)])


def merge_pays(num_heads, num_kv_heads, head_dim, itemsize, *, seqlen_q=1, overhead=0):
    """The rule for a segment: it pays if it saves more bytes than the merge of its states moves.

    All sequences but one need not read its keys; the state of each row, out and lse in float32, is
    written and read.

    Parameters
    ----------
    num_heads, num_kv_heads, head_dim : int
    itemsize : int
        Bytes of a number in the cache.
    seqlen_q : int, default=1
    overhead : int, default=0
        Bytes that could be read in the time that another launch takes.

    Returns
    -------
    function of (sequences, keys)
    """

    def pays(sequences, keys):
        saved = (sequences - 1) * keys * 2 * num_kv_heads * head_dim * itemsize
        return saved > 2 * sequences * seqlen_q * num_heads * (head_dim + 1) * 4 + overhead

    return pays


def cascade_plan(block_table, seq_lens, page_size, *, seqlen_q=1, pays=None):
    """Find the shared segments of some sequences.

    Parameters
    ----------
    block_table : NumPy array of shape (batch, max_pages), int32
        As for `paged_attn_decode`.
    seq_lens : NumPy array of shape (batch,), int32
    page_size : int
    seqlen_q : int, default=1
        Queries of each sequence, its last tokens. A segment ends before the first of them, so that
        all see all its keys.
    pays : function of (sequences, keys), default=always True
        Whether a segment is worth a merge: `merge_pays`.

    Returns
    -------
    CascadePlan
    """
    table, lengths = checks.check_cascade_tables(block_table, seq_lens, page_size, seqlen_q)
    full = np.maximum(lengths - seqlen_q, 0) // page_size  # pages that may be shared
    starts, segments = np.zeros_like(lengths), []
    stack = [(np.arange(len(lengths)), 0, 0, 0)] if len(lengths) else []
    while stack:
        rows, start, column, depth = (
            stack.pop()
        )  # alike up to `column`, from `start` on not yet read
        alike = table[rows, column : full[rows].min()]
        differs = np.flatnonzero((alike != alike[0]).any(axis=0))
        column += int(differs[0]) if differs.size else alike.shape[1]
        keys = (column - start) * page_size
        if len(rows) > 1 and keys and (pays is None or pays(len(rows), keys)):
            pages = table[rows[:1], start:column]
            segments.append(Segment(rows, depth, pages, pages, np.array([keys], np.int32)))
            start, depth = column, depth + 1
        starts[rows] = start
        longer = rows[full[rows] > column]
        for page in np.unique(table[longer, column]) if len(longer) else ():
            group = longer[table[longer, column] == page]
            if len(group) > 1:
                stack.append((group, start, column, depth))
    segments.sort(key=lambda segment: segment.depth)
    left = lengths - starts * page_size
    suffixes = np.full((len(table), ceil_div(int(left.max(initial=0)), page_size)), -1, np.int32)
    for row, pages, start, n in zip(suffixes, table, starts, left, strict=True):
        count = ceil_div(int(n), page_size)
        row[:count] = pages[start : start + count]
    return CascadePlan(page_size, seqlen_q, segments, suffixes, left.astype(np.int32))
