"""The least and greatest number in any range of an array, in constant time for each range.

A sparse table: level j holds the least of 2^j numbers from each position on, so that two entries,
which may overlap, cover any range. n log n numbers, built once for each array.
"""

from __future__ import annotations

import numpy as np


class Ranges:
    """The least and greatest numbers of an array along its last axis."""

    def __init__(self, x):
        self.shape = x.shape
        self.least, self.most = [x], [x]
        length = x.shape[-1]
        for j in range(max(length, 1).bit_length() - 1):
            half = 1 << j
            for levels, of in ((self.least, np.minimum), (self.most, np.maximum)):
                levels.append(of(levels[j][..., :-half], levels[j][..., half:]))

    def over(self, rows, first, last):
        """Least and greatest of x[(*rows, first)] to x[(*rows, last)], both included."""
        *rows, first, last = np.broadcast_arrays(*rows, first, last)
        level = np.frexp((last - first + 1).astype(np.float64))[1] - 1  # floor of log2
        least = np.empty(first.shape, self.least[0].dtype)
        most = np.empty_like(least)
        for j in np.unique(level):
            here = level == j
            at = tuple(r[here] for r in rows)
            begin, end = first[here], last[here] - (1 << int(j)) + 1
            for out, levels, of in ((least, self.least, np.minimum), (most, self.most, np.maximum)):
                out[here] = of(levels[j][(*at, begin)], levels[j][(*at, end)])
        return least, most
