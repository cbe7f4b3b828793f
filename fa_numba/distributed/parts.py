"""The mask of one step of a ring, expressed by the causal and window_size options of a kernel.

Queries and keys are spans of one sequence, with positions a, a + s, a + 2s, ... and
b, b + s, b + 2s, ... Query i sees key j if their distance is in the window:

    −right <= (a + i s) − (b + j s) <= left        causal is right = 0

So j − i lies between two bounds that depend on neither i nor j:

    lo = ⌈(a − b − left) / s⌉ <= j − i <= ⌊(a − b + right) / s⌋ = hi

This is a band. The causal and window_size options of a kernel keep a band too, measured from the
bottom right corner. First all rows and columns outside the band are removed at the edges. Then the
corner is inside the band, so both sides of window_size are at least 0. With a causal mask there are
these cases:

    chunks     a > b    every query sees every key               full
               a = b    the diagonal                             causal
               a < b    no query sees a key                      None: the rank is idle
    stripes    a >= b   the diagonal                             causal
               a < b    below the diagonal: queries 1, 2, ...    causal
                        and keys 0, 1, ...

So a kernel needs no positions.

Parts whose rows are neighbours are joined, because one call of a kernel is faster than two. In
zigzag a rank has two chunks. Its own keys are one causal part. The keys of another rank are one
full part: either all queries and the first chunk of the keys, or the second chunk of the queries
and all keys.
"""

import functools
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Part:
    """An attention problem whose mask the options of a kernel describe."""

    queries: slice  # rows of the rank's queries, and of the keys of this step
    keys: slice
    causal: bool
    window_size: tuple  # (left, right); −1 is no limit
    pairs: int  # number of pairs (query, key) that causal and window_size allow
    # Of a part that is not joined: its sequence, and the positions in it of the first query and the
    # first key; those of the others follow in steps.
    sequence: int
    first_query: int
    first_key: int
    step: int

    @property
    def mask(self):
        """The mask as keyword arguments of `flash_attn`."""
        return {"causal": self.causal, "window_size": self.window_size}

    @property
    def corner(self):
        """A kernel puts query i at position i + corner."""
        return (self.keys.stop - self.keys.start) - (self.queries.stop - self.queries.start)


def part_of(queries, keys, left, right):
    """The part of a span of queries and a span of keys that the mask allows.

    Parameters
    ----------
    queries, keys : Span
        Of one sequence, with equal steps, or queries with a count of 1.
    left, right : int
        Largest distance of a key before and after the query; −1 is no limit.

    Returns
    -------
    Part, or None where no query sees a key
    """
    distance, step = queries.start - keys.start, keys.step
    hi = keys.count if right < 0 else (distance + right) // step
    lo = -queries.count if left < 0 else -((left - distance) // step)
    m_start = max(0, -hi)  # earlier queries see no key
    n_start = max(0, m_start + lo)  # no query sees an earlier key
    m_end = min(queries.count, keys.count - lo)
    n_end = min(keys.count, m_end + hi)
    if lo > hi or m_start >= m_end or n_start >= n_end:
        return None

    seqlen_q, seqlen_k = m_end - m_start, n_end - n_start
    corner = seqlen_k - seqlen_q  # a kernel puts query i at position i + corner
    after = hi + m_start - n_start - corner  # number of later keys that it sees
    before = corner - lo - m_start + n_start
    pairs = _sum_of_ends(seqlen_q, corner + after + 1, seqlen_k)
    pairs -= _sum_of_ends(seqlen_q, corner - before, seqlen_k)
    before = -1 if before >= seqlen_k - 1 else before
    after = -1 if after >= seqlen_q - 1 else after
    return Part(
        slice(queries.offset + m_start, queries.offset + m_end),
        slice(keys.offset + n_start, keys.offset + n_end),
        after == 0,
        (before, -1 if after == 0 else after),
        pairs,
        queries.sequence,
        queries.start + step * m_start,
        keys.start + step * n_start,
        step,
    )


def _sum_of_ends(num_rows, end, most):
    """The sum of end + i over the rows i, each no less than 0 and no more than `most`."""
    first = min(max(-end, 0), num_rows)  # the first row with more than 0
    last = min(max(most - end, first), num_rows)  # the first row with `most`
    return (last - first) * (2 * end + first + last - 1) // 2 + (num_rows - last) * most


@functools.lru_cache(4096)
def parts_of(layout, rank, owner, left, right, joined=True):
    """The parts of a step in which `rank` has the keys of `owner`: a tuple of Part.

    A user's function needs positions, which two joined spans do not have: then `joined` is False.
    """
    of_owner = {}
    for keys in layout.spans(owner):
        of_owner.setdefault(keys.sequence, []).append(keys)
    found = []
    for queries in layout.spans(rank):
        parts = (part_of(queries, keys, left, right) for keys in of_owner.get(queries.sequence, ()))
        parts = [part for part in parts if part is not None]
        found += _joined(parts, _join_keys) if joined else parts
    if joined and left < 0:  # else no two parts of one sequence join, and sequences never do
        found = _joined(found, _join_queries)
    return tuple(found)


def _joined(parts, join):
    """The parts, with neighbours joined where `join` returns a part for the two."""
    made = []
    for part in parts:
        both = join(made[-1], part) if made else None
        if both is None:
            made.append(part)
        else:
            made[-1] = both
    return made


def _join_keys(a, b):
    """One part with the keys of two; None unless all queries see all keys of the first."""
    neighbours = a.queries == b.queries and a.keys.stop == b.keys.start
    if not (neighbours and _full(a) and b.window_size == (-1, -1)):
        return None
    return replace(b, keys=slice(a.keys.start, b.keys.stop), pairs=a.pairs + b.pairs)


def _join_queries(a, b):
    """One part with the queries of two that see the same keys, or keys up to one diagonal."""
    neighbours = a.queries.stop == b.queries.start and a.keys.start == b.keys.start
    if not neighbours or b.window_size != (-1, -1) or a.causal != b.causal:
        return None
    diagonals = [part.keys.stop - part.queries.stop for part in (a, b)]
    if not (diagonals[0] == diagonals[1] if a.causal else _full(a) and a.keys == b.keys):
        return None
    return replace(b, queries=slice(a.queries.start, b.queries.stop), pairs=a.pairs + b.pairs)


def _full(part):
    return not part.causal and part.window_size == (-1, -1)


@functools.lru_cache(1024)
def num_steps(layout, left, right):
    """Number of steps of a ring until no rank sees another key: at most world_size.

    It is small for a sliding window over contiguous tokens: only near neighbours hold its keys.
    """
    world_size = layout.world_size
    for t in range(world_size - 1, 0, -1):
        owners = [(rank - t) % world_size for rank in range(world_size)]
        if any(parts_of(layout, rank, owner, left, right) for rank, owner in enumerate(owners)):
            return t + 1
    return 1
