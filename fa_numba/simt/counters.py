"""What a warp's access costs: the meter's model of a GPU's memory.

A *request* is one load or store of one warp. In global memory it moves whole 32-byte sectors:
a warp that reads 32 neighbouring floats needs 4, one that reads a column of a matrix up to 32.
Shared memory has 32 banks of 4-byte words; a request takes one *wavefront* per different word
in the busiest bank, and what exceeds the first is a bank conflict. Elements of 8 bytes are
served half a warp at a time, of 16 bytes a quarter.

Kernels repeat few patterns (the offsets of the 32 lanes relative to the first): whole warps are
priced once per pattern, and only the others request by request.
"""

from typing import NamedTuple

import numpy as np

from .lanes import ALL, ByMask

SECTOR = 32  # bytes
BANKS = 32
WORD = 4  # bytes


def sectors(byte, active, itemsize):
    """Return how many sectors each request touches.

    byte : where the element of each lane begins, (requests, 32); active : which lanes take part.
    """
    byte = without_idle(byte, active)
    first, last = byte // SECTOR, (byte + itemsize - 1) // SECTOR
    return different(np.sort(np.concatenate([first, last], axis=1))).sum(1)


def extra_wavefronts(byte, active, itemsize):
    """Return the bank conflicts of each request: wavefronts beyond the unavoidable ones."""
    at_once = BANKS * WORD // max(itemsize, WORD)  # lanes
    byte = without_idle(byte.reshape(-1, at_once), active.reshape(-1, at_once))
    words = byte[..., None] // WORD + np.arange(max(1, itemsize // WORD))
    words = np.sort(words.reshape(len(byte), -1))
    bank = np.arange(len(words))[:, None] * BANKS + words % BANKS
    busy = np.bincount(bank[different(words)], minlength=len(words) * BANKS)
    return busy.reshape(-1, BANKS).max(1) - 1


def without_idle(byte, active):
    """Put lanes that take no part where another lane of the request is."""
    other = np.take_along_axis(byte, active.argmax(1)[:, None], 1)
    return np.where(active, byte, other)


def different(rows):
    """Return where the first of equal numbers is in each sorted row."""
    new = np.ones(rows.shape, bool)
    new[:, 1:] = rows[:, 1:] != rows[:, :-1]
    return new


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


class Active(NamedTuple):
    """Which lanes of which warps are active; the last axis is the blocks, 1 if all are alike."""

    lanes: np.ndarray  # (warps, 32, blocks)
    full: np.ndarray  # (warps, blocks): all 32
    partial: np.ndarray  # some, but not all
    elements: int
    requests: int


class Requests:
    """Counts the warp requests of accesses and prices them."""

    def __init__(self, machine):
        self.machine = machine
        self.prices = {}  # (kind, itemsize, start, pattern) -> cost

    def start_batch(self):
        self.active = ByMask(self.active_lanes)

    def count_block(self, array, offset, mask):
        """Return elements, requests and cost for one block of an access alike in all."""
        blocks = self.machine.num_blocks
        return tuple(n // blocks for n in self.count(array, offset, mask))

    def count(self, array, offset, mask):
        """Return elements, requests and cost (sectors or conflicts) of one access.

        All blocks of the batch are counted.
        """
        machine = self.machine
        active = None if mask is ALL and not machine.padding else self.active(mask)
        if not isinstance(offset, np.ndarray):
            if active is None:
                elements = machine.num_threads * machine.num_blocks
                requests = machine.num_warps * machine.num_blocks
            else:
                times = machine.num_blocks // active.lanes.shape[2]
                elements, requests = active.elements * times, active.requests * times
            return elements, requests, requests if array.kind == "global" else 0
        columns = offset.shape[3]
        if active is not None:
            columns = max(columns, active.lanes.shape[2])
        times = machine.num_blocks // columns
        rows = np.broadcast_to(offset, (*machine.shape[:3], columns))
        rows = machine.by_warp(rows.reshape(machine.num_threads, columns))
        if active is None:
            elements, requests = rows.size, rows.shape[0] * columns
            return elements * times, requests * times, self.price_full(array, rows) * times
        cost = 0
        by_lane = rows.transpose(0, 2, 1)  # (warps, blocks, 32)
        full, partial = (np.broadcast_to(x, by_lane.shape[:2]) for x in active[1:3])
        if full.any():
            cost += self.price_full(array, by_lane[full].T[None])
        if partial.any():
            lanes = np.broadcast_to(active.lanes.transpose(0, 2, 1), by_lane.shape)
            cost += self.price_each(array, by_lane[partial], lanes[partial])
        repeated = machine.num_blocks // active.lanes.shape[2]
        return active.elements * repeated, active.requests * repeated, cost * times

    def active_lanes(self, mask):
        machine = self.machine
        rows = np.True_ if mask is ALL else mask
        columns = 1 if mask is ALL else mask.shape[3]
        rows = np.broadcast_to(rows, (*machine.shape[:3], columns))
        lanes = machine.by_warp(rows.reshape(machine.num_threads, columns))
        full, some = lanes.all(1), lanes.any(1)
        return Active(lanes, full, some & ~full, int(lanes.sum()), int(some.sum()))

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
        return self.price_each(array, rows.transpose(0, 2, 1).reshape(-1, 32))

    def price_starts(self, array, pattern, first):
        """Return the cost of one pattern at several starting points."""
        _, unit = COST[array.kind]
        starts = (first * array.itemsize + array.alignment) % unit
        if starts.size == 1:
            return self.price(array, pattern, int(starts.item()))
        counts = np.bincount(starts.ravel(), minlength=1)
        found = np.flatnonzero(counts)
        return sum(self.price(array, pattern, int(s)) * int(counts[s]) for s in found)

    def price_each(self, array, lanes, active=None):
        """Return the cost of any requests; lanes and active: (requests, 32)."""
        function, _ = COST[array.kind]
        active = np.ones(lanes.shape, bool) if active is None else active
        byte = lanes * array.itemsize + array.alignment
        return int(function(byte, active, array.itemsize).sum())

    def price(self, array, pattern, start):
        key = array.kind, array.itemsize, start, pattern.tobytes()
        cost = self.prices.get(key)
        if cost is None:
            function, _ = COST[array.kind]
            byte = pattern[None] * array.itemsize + start
            cost = int(function(byte, np.ones(byte.shape, bool), array.itemsize).sum())
            self.prices[key] = cost
        return cost
