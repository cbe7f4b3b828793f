"""The cost of a warp's access: the meter's model of a GPU's memory.

A *request* is one load or store of one warp. In global memory it moves whole 32-byte sectors:
a warp that reads 32 neighbouring floats needs 4, one that reads a column of a matrix up to 32.
Shared memory has 32 banks of 4-byte words; a request takes one *wavefront* per different word
in the busiest bank. A warp's elements of 8 bytes are twice what the banks deliver at once, so
each half of the warp is served by itself, unless lanes load the same in pairs; what exceeds one
wavefront for each half is a bank conflict, as what exceeds the first is for smaller elements.

Kernels repeat few patterns (the offsets of the 32 lanes relative to the first): whole warps are
priced once per pattern, and only the others request by request.
"""

import math
from typing import NamedTuple

import numpy as np

from .dtypes import as_intp, stretch
from .lanes import ALL, ByMask
from .race_rules import STORE

SECTOR = 32  # bytes
BANKS = 32
WORD = 4  # bytes
LANES = np.arange(32, dtype=np.int64)


def sectors(byte, active, itemsize, action):
    """Return how many sectors each request touches, and no conflicts: (2, requests).

    byte : where the element of each lane begins, (requests, 32); active : which lanes take part.
    """
    byte = without_idle(byte, active)
    first, last = byte // SECTOR, (byte + itemsize - 1) // SECTOR
    touched = different(np.sort(np.concatenate([first, last], axis=1))).sum(1)
    return np.stack([touched, np.zeros_like(touched)])


def wavefronts(byte, active, itemsize, action):
    """Return the wavefronts of each request, and how many of them are conflicts: (2, requests)."""
    parts = max(1, itemsize // WORD)  # of a warp, each served by itself
    part = np.broadcast_to(LANES * parts // len(LANES), byte.shape)
    if parts > 1 and action == "load":
        part = np.where(in_pairs(byte, active)[:, None], part // 2, part)
    taken = np.array([busiest_bank(byte, active & (part == p), itemsize) for p in range(parts)])
    return np.stack([taken.sum(0), (taken - 1).clip(0).sum(0)])


def busiest_bank(byte, active, itemsize):
    """Return the number of different words in the busiest bank; 0 where no lane takes part."""
    parts = np.arange(max(1, itemsize // WORD), dtype=np.int64)
    words = without_idle(byte, active)[..., None] // WORD + parts
    words = np.sort(words.reshape(len(byte), -1))
    bank = np.arange(len(words), dtype=np.int64)[:, None] * BANKS + words % BANKS
    busy = np.bincount(as_intp(bank[different(words)]), minlength=len(words) * BANKS)
    return busy.reshape(-1, BANKS).max(1) * active.any(1)


def in_pairs(byte, active):
    """Return which requests have lanes n and n^1 all at the same element, or all n and n^2.

    What a lane loads then serves two, and twice as many lanes are served at once.
    """
    return np.logical_or(
        *(
            ((byte == byte[:, other]) | ~(active & active[:, other])).all(1)
            for other in (LANES ^ 1, LANES ^ 2)
        )
    )


def without_idle(byte, active):
    """Put lanes that take no part where another lane of the request is."""
    other = np.take_along_axis(byte, active.argmax(1)[:, None], 1)
    return np.where(active, byte, other)


def different(rows):
    """Return where the first of equal numbers is in each sorted row."""
    new = np.ones(rows.shape, bool)
    new[:, 1:] = rows[:, 1:] != rows[:, :-1]
    return new


COST = {"global": (sectors, SECTOR), "shared": (wavefronts, WORD)}


class Counters:
    """The totals of one launch, by array, place in the source and action."""

    def __init__(self, requests):
        self.requests = requests
        # (kind, array, Site, action) -> [elements, bytes, requests, cost, conflicts]
        self.totals = {}
        self.samples = {}  # by the same keys: the first request, as addresses
        self.storing = {}  # name of a global array -> which threads store into it
        self.barriers = 0
        self.shuffles = 0

    def count(self, array, offset, site, action):
        """Count one access of the present batch."""
        mask = self.requests.lanes.mask
        if self.add(array, site, action, *self.requests.count(array, offset, mask, action)):
            self.sample(array, offset, mask, site, action)
        if action == STORE and array.kind == "global":
            self.note_storing(array.name, mask)

    def note_storing(self, name, mask):
        """Remember which threads of which blocks store into a global array."""
        threads = self.requests.lanes
        size = threads.num_threads, math.prod(threads.grid)
        storing = self.storing.get(name)
        if storing is None:
            storing = self.storing[name] = np.zeros(size, bool)
        first = threads.first_block
        mine = storing[:, first : first + threads.num_blocks]
        if mask is ALL:
            mine[:] = True
        else:
            mask = np.broadcast_to(mask, (*threads.shape[:3], mask.shape[3]))
            mine |= mask.reshape(threads.num_threads, -1)

    def sample(self, array, offset, mask, site, action):
        """Keep the addresses of an access if it is the first at its place in the source."""
        key = array.kind, array.name, site, action
        if key not in self.samples:
            self.samples[key] = self.requests.addresses(array, offset, mask)

    def add(self, array, site, action, elements, requests, cost, conflicts):
        """Add to the totals; return whether they began with this."""
        key = array.kind, array.name, site, action
        total = self.totals.get(key)
        is_new = total is None
        if is_new:
            total = self.totals[key] = [0, 0, 0, 0, 0]
        total[0] += elements
        total[1] += elements * array.itemsize
        total[2] += requests
        total[3] += cost
        total[4] += conflicts
        return is_new


class Active(NamedTuple):
    """Which lanes of which warps are active; the last axis is the blocks, 1 if all are alike."""

    lanes: np.ndarray  # (warps, 32, blocks)
    full: np.ndarray  # (warps, blocks): all 32
    partial: np.ndarray  # some, but not all
    elements: int
    requests: int


class Requests:
    """Counts the warp requests of accesses and prices them."""

    def __init__(self, lanes):
        self.lanes = lanes
        self.prices = {}  # (kind, itemsize, action, start, pattern) -> cost, conflicts

    def start_batch(self):
        self.active = ByMask(self.active_lanes)

    def count_block(self, array, offset, mask, action):
        """Return what `count` does for one block of an access alike in all."""
        blocks = self.lanes.num_blocks
        return tuple(n // blocks for n in self.count(array, offset, mask, action))

    def count(self, array, offset, mask, action):
        """Return elements, requests, cost (sectors or wavefronts) and conflicts of one access.

        All blocks of the batch are counted.
        """
        active = None if mask is ALL and not self.lanes.padding else self.active(mask)
        if not isinstance(offset, np.ndarray):
            if array.kind == "global" or array.itemsize <= WORD or action == "load":
                return self.count_alike(active)
            offset = np.full((1, 1, 1, 1), offset)  # halves of a warp store one after the other
        columns = offset.shape[3]
        if active is not None:
            columns = max(columns, active.lanes.shape[2])
        times = self.lanes.num_blocks // columns
        rows = stretch(offset, (*self.lanes.shape[:3], columns))
        rows = self.lanes.by_warp(rows.reshape(self.lanes.num_threads, columns))
        if active is None:
            elements, requests = rows.size * times, rows.shape[0] * columns * times
            cost = self.price_full(array, rows, action)
        else:
            repeated = self.lanes.num_blocks // active.lanes.shape[2]
            elements, requests = active.elements * repeated, active.requests * repeated
            cost = np.zeros(2, np.int64)
            by_lane = rows.transpose(0, 2, 1)  # (warps, blocks, 32)
            full, partial = (stretch(x, by_lane.shape[:2]) for x in active[1:3])
            if np.count_nonzero(full):
                cost += self.price_full(array, by_lane[full].T[None], action)
            if np.count_nonzero(partial):
                lanes = stretch(active.lanes.transpose(0, 2, 1), by_lane.shape)
                cost += self.price_each(array, by_lane[partial], action, lanes[partial])
        return elements, requests, *(int(n) * times for n in cost)

    def count_alike(self, active):
        """Return the same of an access to one element by all threads that are active."""
        if active is None:
            elements, requests = self.lanes.num_threads, self.lanes.num_warps
            times = self.lanes.num_blocks
        else:
            elements, requests = active.elements, active.requests
            times = self.lanes.num_blocks // active.lanes.shape[2]
        return elements * times, requests * times, requests * times, 0

    def addresses(self, array, offset, mask):
        """Return where each lane of the first warp that takes part reads or writes, in bytes.

        Counted from the last sector or bank 0 that lies before the array; -1: an idle lane.
        """
        columns = offset.shape[3] if isinstance(offset, np.ndarray) else 1
        rows = np.broadcast_to(offset, (*self.lanes.shape[:3], columns))
        rows = self.lanes.by_warp(rows.reshape(self.lanes.num_threads, columns))
        rows, lanes = np.broadcast_arrays(rows, self.active_lanes(mask).lanes)
        warp, block = np.argwhere(lanes.any(1))[0]
        byte = rows[warp, :, block] * array.itemsize + array.alignment
        return tuple(np.where(lanes[warp, :, block], byte, -1).tolist())

    def active_lanes(self, mask):
        rows = np.True_ if mask is ALL else mask
        columns = 1 if mask is ALL else mask.shape[3]
        rows = np.broadcast_to(rows, (*self.lanes.shape[:3], columns))
        lanes = self.lanes.by_warp(rows.reshape(self.lanes.num_threads, columns))
        full, some = lanes.all(1), lanes.any(1)
        return Active(lanes, full, some & ~full, int(lanes.sum()), int(some.sum()))

    def price_full(self, array, rows, action):
        """Return cost and conflicts of requests by whole warps; rows: (a, 32, b)."""
        first = rows[:, :1]
        pattern = rows - first
        if np.count_nonzero(pattern != pattern[:1, :, :1]) == 0:
            return self.price_starts(array, pattern[0, :, 0], first, action)
        if (pattern == pattern[:, :, :1]).all():  # one pattern per warp, whatever the block
            return sum(
                self.price_starts(array, pattern[w, :, 0], first[w], action)
                for w in range(len(rows))
            )
        return self.price_each(array, rows.transpose(0, 2, 1).reshape(-1, 32), action)

    def price_starts(self, array, pattern, first, action):
        """Return the same of one pattern at several starting points."""
        _, unit = COST[array.kind]
        starts = (first * array.itemsize + array.alignment) % unit
        if starts.size == 1:
            return self.price(array, pattern, int(starts.item()), action)
        counts = np.bincount(as_intp(starts.ravel()), minlength=1)
        found = np.flatnonzero(counts)
        return sum(self.price(array, pattern, int(s), action) * counts[s] for s in found)

    def price_each(self, array, lanes, action, active=None, start=None):
        """Return the same of any requests; lanes and active: (requests, 32)."""
        function, _ = COST[array.kind]
        active = np.ones(lanes.shape, bool) if active is None else active
        byte = lanes * array.itemsize + (array.alignment if start is None else start)
        return function(byte, active, array.itemsize, action).sum(1, dtype=np.int64)

    def price(self, array, pattern, start, action):
        key = array.kind, array.itemsize, action, start, pattern.tobytes()
        if key not in self.prices:
            self.prices[key] = self.price_each(array, pattern[None], action, start=start)
        return self.prices[key]
