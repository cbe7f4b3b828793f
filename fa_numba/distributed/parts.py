"""Of one step of a ring: which of a rank's queries see which of the keys that are here now.

Queries and keys are spans of one sequence, with positions a, a + s, a + 2s, ... and
b, b + s, b + 2s, ... Query i sees key j where their distance is in the window:

    −right <= (a + i s) − (b + j s) <= left        causal is right = 0

so that j − i lies between two bounds that do not depend on i and j:

    lo = ⌈(a − b − left) / s⌉ <= j − i <= ⌊(a − b + right) / s⌋ = hi

That is a band, and the kernels' causal and window_size options cut out bands, measured from the
bottom right corner. Rows above the band, columns beyond it, and what else nobody sees are cut off
first; then the corner is never outside the band, and no option would have to be negative. Three
cases are all that a causal mask leaves of contiguous and zigzag chunks, and two of stripes:

    a after b     every query sees every key      full
    a = b         the diagonal                    causal
    a before b    no query sees a key             None: the step is idle
    stripes       a >= b: causal; a < b: the diagonal itself is hidden too, which leaves
                  queries 1, 2, ... and keys 0, 1, ...: causal again

So no kernel has to know a position.
"""

import functools
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """An attention problem whose mask the kernels' options describe.

    Attributes
    ----------
    queries, keys : slice
        Rows of the rank's queries, and of the keys that are here.
    causal : bool
    window_size : (left, right)
        −1 is no limit.
    pairs : int
        How many (query, key) it has, without those that the mask hides.
    """

    queries: slice
    keys: slice
    causal: bool
    window_size: tuple
    pairs: int

    @property
    def mask(self):
        """The mask as keyword arguments of `flash_attn`."""
        return {"causal": self.causal, "window_size": self.window_size}


def part_of(queries, keys, left, right):
    """The part of a span of queries and a span of keys that is not hidden.

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
    m_start = max(0, -hi)  # queries before it see no key
    n_start = max(0, m_start + lo)  # keys before it are seen by none
    m_end = min(queries.count, keys.count - lo)
    n_end = min(keys.count, m_end + hi)
    if lo > hi or m_start >= m_end or n_start >= n_end:
        return None

    seqlen_q, seqlen_k = m_end - m_start, n_end - n_start
    corner = seqlen_k - seqlen_q  # a kernel puts query i at position i + corner
    after = hi + m_start - n_start - corner  # keys after that position that it sees
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
    )


def _sum_of_ends(num_rows, end, most):
    """The sum of end + i over the rows i, each no less than 0 and no more than `most`."""
    first = min(max(-end, 0), num_rows)  # the first row with more than 0
    last = min(max(most - end, first), num_rows)  # the first row with `most`
    return (last - first) * (2 * end + first + last - 1) // 2 + (num_rows - last) * most


@functools.lru_cache(4096)
def parts_of(layout, rank, owner, left, right):
    """The parts of a step in which `rank` has the keys of `owner`: a tuple of Part."""
    found = [
        part_of(queries, keys, left, right)
        for queries in layout.spans(rank)
        for keys in layout.spans(owner)
        if queries.sequence == keys.sequence
    ]
    return tuple(part for part in found if part is not None)


@functools.lru_cache(1024)
def num_steps(layout, left, right):
    """After how many steps of a ring no rank will see a key any more: at most world_size.

    A window over contiguous tokens ends after few: only near neighbours hold keys in it.
    """
    world_size = layout.world_size
    for t in range(world_size - 1, 0, -1):
        owners = [(rank - t) % world_size for rank in range(world_size)]
        if any(parts_of(layout, rank, owner, left, right) for rank, owner in enumerate(owners)):
            return t + 1
    return 1
