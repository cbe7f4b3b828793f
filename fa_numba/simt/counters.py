"""What a warp's access costs: the meter's model of a GPU's memory.

A *request* is one load or store of one warp. In global memory it moves whole 32-byte sectors:
a warp that reads 32 neighbouring floats needs 4, one that reads a column of a matrix up to 32.
Shared memory has 32 banks of 4-byte words; a request takes one *wavefront* per different word
in the busiest bank, and what exceeds the first is a bank conflict. Elements of 8 bytes are
served half a warp at a time, of 16 bytes a quarter.

The cost of a request depends on its pattern, the offsets of its 32 lanes relative to the first.
Kernels repeat few patterns, so each is priced once.
"""

import numpy as np

from .lanes import ALL

SECTOR = 32  # bytes
BANKS = 32
WORD = 4  # bytes
INACTIVE = np.int64(-(1 << 40))  # the offset of a lane that takes no part


def sectors(pattern, itemsize, start):
    """Return how many sectors a request touches whose first byte lies at `start`."""
    byte = pattern[pattern != INACTIVE] * itemsize + start
    return len(np.unique(np.concatenate([byte // SECTOR, (byte + itemsize - 1) // SECTOR])))


def extra_wavefronts(pattern, itemsize, start):
    """Return the bank conflicts of a request: wavefronts beyond the unavoidable ones."""
    lanes_at_once = BANKS * WORD // max(itemsize, WORD)
    extra = 0
    for first in range(0, BANKS, lanes_at_once):
        part = pattern[first : first + lanes_at_once]
        byte = part[part != INACTIVE] * itemsize + start
        if len(byte):
            words = byte[:, None] // WORD + np.arange(max(1, itemsize // WORD))
            extra += np.bincount(np.unique(words) % BANKS).max() - 1
    return int(extra)


COST = {"global": (sectors, SECTOR), "shared": (extra_wavefronts, WORD)}


class Counters:
    """The totals of one launch, by array, place in the source and action."""

    def __init__(self, requests):
        self.requests = requests
        self.totals = {}  # (kind, array, Site, action) -> [elements, bytes, requests, cost]
        self.barriers = 0

    def count(self, array, offset, site, action):
        """Count one access of the present batch."""
        mask = self.requests.machine.mask
        self.add(array, site, action, *self.requests.count(array, offset, mask))

    def add(self, array, site, action, elements, requests, cost):
        key = array.kind, array.name, site, action
        total = self.totals.get(key)
        if total is None:
            total = self.totals[key] = [0, 0, 0, 0]
        total[0] += elements
        total[1] += elements * array.itemsize
        total[2] += requests
        total[3] += cost


class Requests:
    """Counts the warp requests of accesses and prices them."""

    def __init__(self, machine):
        self.machine = machine
        self.prices = {}  # (kind, itemsize, start, pattern) -> cost
        self.start_batch()

    def start_batch(self):
        self.last_mask = self.last_lanes = None

    def count_block(self, array, offset, mask):
        """Return elements, requests and cost for one block of an access alike in all."""
        blocks = self.machine.num_blocks
        return tuple(n // blocks for n in self.count(array, offset, mask))

    def count(self, array, offset, mask):
        """Return elements, requests and cost (sectors or conflicts) of one access.

        All blocks of the batch are counted.
        """
        machine = self.machine
        active = None if mask is ALL and not machine.padding else self.active_lanes(mask)
        if not isinstance(offset, np.ndarray):
            if active is None:
                elements = machine.num_threads * machine.num_blocks
                requests = machine.num_warps * machine.num_blocks
            else:
                times = machine.num_blocks // active.shape[2]
                elements = int(active.sum()) * times
                requests = int(active.any(1).sum()) * times
            return elements, requests, requests if array.kind == "global" else 0
        columns = offset.shape[3]
        if active is not None and active.shape[2] > 1:
            columns = machine.num_blocks
        times = machine.num_blocks // columns
        rows = np.broadcast_to(offset, (*machine.shape[:3], columns))
        rows = machine.by_warp(rows.reshape(machine.num_threads, columns))
        if active is None:
            elements, requests = rows.size, rows.shape[0] * columns
            return elements * times, requests * times, self.price_full(array, rows) * times
        active = np.broadcast_to(active, rows.shape)
        full, some = active.all(1), active.any(1)
        cost = 0
        by_lane = rows.transpose(1, 0, 2)
        if full.any():
            cost += self.price_full(array, by_lane[:, full][None])
        partial = some & ~full
        if partial.any():
            lanes = active.transpose(1, 0, 2)[:, partial]
            cost += self.price_partial(array, by_lane[:, partial], lanes)
        return int(active.sum()) * times, int(some.sum()) * times, cost * times

    def active_lanes(self, mask):
        """Return the mask as (warps, 32, 1 or blocks) booleans."""
        if self.last_lanes is None or self.last_mask is not mask:
            machine = self.machine
            rows = np.True_ if mask is ALL else mask
            columns = 1 if mask is ALL else mask.shape[3]
            rows = np.broadcast_to(rows, (*machine.shape[:3], columns))
            self.last_lanes = machine.by_warp(rows.reshape(machine.num_threads, columns))
            self.last_mask = mask
        return self.last_lanes

    def price_full(self, array, rows):
        """Return the cost of requests in which all 32 lanes take part; rows: (a, 32, b)."""
        first = rows[:, :1]
        pattern = rows - first
        if (pattern == pattern[:1, :, :1]).all():
            return self.price_starts(array, pattern[0, :, 0], first)
        if (pattern == pattern[:, :, :1]).all():  # one pattern per warp, whatever the block
            return sum(
                self.price_starts(array, pattern[w, :, 0], first[w]) for w in range(len(rows))
            )
        lanes = rows.transpose(1, 0, 2).reshape(32, -1)
        return self.price_partial(array, lanes, np.ones(lanes.shape, bool))

    def price_starts(self, array, pattern, first):
        """Return the cost of one pattern at several starting points."""
        _, unit = COST[array.kind]
        starts = (first * array.itemsize + array.alignment) % unit
        if starts.size == 1:
            return self.price(array, pattern, int(starts.item()))
        counts = np.bincount(starts.ravel(), minlength=1)
        found = np.flatnonzero(counts)
        return sum(self.price(array, pattern, int(s)) * int(counts[s]) for s in found)

    def price_partial(self, array, lanes, active):
        """Return the cost of any requests; lanes and active: (32, requests)."""
        _, unit = COST[array.kind]
        step = max(1, unit // array.itemsize)  # moving by so many elements changes no cost
        lowest = np.where(active, lanes, np.iinfo(np.int64).max).min(0)
        shift = array.alignment // array.itemsize
        lowest -= (lowest + shift) % step
        start = int((lowest[0] * array.itemsize + array.alignment) % unit)
        patterns = np.where(active, lanes - lowest, INACTIVE)
        unique, times = np.unique(patterns.T, axis=0, return_counts=True)
        pairs = zip(unique, times, strict=True)
        return sum(self.price(array, pattern, start) * int(n) for pattern, n in pairs)

    def price(self, array, pattern, start):
        key = array.kind, array.itemsize, start, pattern.tobytes()
        cost = self.prices.get(key)
        if cost is None:
            function, _ = COST[array.kind]
            cost = self.prices[key] = function(pattern, array.itemsize, start)
        return cost
