"""Watches global memory: races between and within blocks, on the arrays a kernel stores to."""

import math

import numpy as np

from .arrays import pick, same_values
from .dtypes import as_intp
from .fences import Fences
from .lanes import ALL, ByMask
from .race_rules import AGREED, ATOMIC, LOAD, STORE
from .records import arrays_in
from .shadow import THREAD_BITS, Order, Shadow, place_of, thread_of


class GlobalWatch:
    """What a launch does in global memory.

    Blocks are ordered by nothing but fences with atomics, whatever batch they run in, so one
    shadow lasts for the whole launch and its threads are numbered through the grid.
    """

    def __init__(self, lanes, memory, findings, lockstep, arguments):
        self.lanes, self.memory, self.findings = lanes, memory, findings
        self.regions = {}  # first address -> Shadow
        self.shadows = {}  # id of a flat memory -> (Shadow, offset in it, entries per element)
        self.old = {}  # id of a flat memory -> its contents before the launch
        self.agreed = {}  # (id of a shadow, place) -> who stored one value together there: keys
        self.fences = Fences(lanes.num_threads, math.prod(lanes.grid))
        stored = [
            array
            for name, value in zip(lockstep.parameters, arguments, strict=True)
            for array in arrays_in(value)
            if array is not value or lockstep.may_store(name, array.ndim)
        ]
        stored += [a for a in memory.globals if a.captured]
        arrays = [a for a in memory.globals if a.flat.size]
        for stretch in join_overlaps([a.region for a in arrays]):
            if any(overlap(a.region, stretch) for a in stored):
                self.add([a for a in arrays if overlap(a.region, stretch)], *stretch)

    def add(self, arrays, start, end):
        """Watch one stretch of memory, in units that are parts of every element there."""
        offsets = [a.region[0] - start for a in arrays]
        unit = math.gcd(*(a.itemsize for a in arrays), *offsets)
        shadow = self.regions[start] = Shadow((end - start) // unit)
        for array, offset in zip(arrays, offsets, strict=True):
            self.shadows[id(array.flat)] = shadow, offset // unit, array.itemsize // unit

    def start_batch(self):
        if self.lanes.first_block:
            self.enter_loads()
        first = self.lanes.first_block * self.lanes.num_threads
        self.order = Order(self.lanes.num_threads, self.lanes.num_blocks, first)
        blocks = np.arange(self.lanes.num_blocks, dtype=np.int64).reshape(1, 1, 1, -1)
        self.threads = first + blocks * self.lanes.num_threads + self.lanes.thread_number
        self.threads = np.broadcast_to(self.threads, self.lanes.shape)
        self.active_threads = ByMask(lambda mask: pick(self.threads, self.lanes.shape, mask))

    def enter_loads(self):
        for shadow in self.regions.values():
            shadow.enter_loads(self.order)

    def barrier(self, blocks):
        self.enter_loads()
        self.order.sync_blocks(slice(None) if blocks is None else blocks)

    def forget(self):
        """Order all that has happened before all that follows."""
        for shadow in self.regions.values():
            shadow.clear(slice(None), self.order)
        self.old.clear()

    def warp_barrier(self, threads):
        full = np.broadcast_to(threads, (self.lanes.num_threads, self.lanes.num_blocks))
        self.enter_loads()
        self.order.sync_warps(np.flatnonzero(full.T).astype(np.int64))

    def fence(self):
        threads = pick(self.threads, self.lanes.shape, self.lanes.mask)
        self.fences.fence(threads, self.regions.values())

    def load(self, array, offset, value, site):
        tracked = self.shadows.get(id(array.flat))
        if tracked is None:
            return value
        shadow, *where = tracked
        if (one := self.one(offset, where, site, LOAD)) and shadow.load_one(*one, self.order):
            return value
        elements, now, place = self.accesses(offset, where, site, LOAD)
        clashes = self.unordered(shadow.load(elements, now, self.order), shadow, elements, now)
        if not clashes:
            return value
        elements, now, clashes = whole_elements(elements, now, clashes, where)
        stale = np.zeros(len(elements), bool)
        for clash in clashes:
            mine = self.stored_too(clash, shadow, elements, now)
            self.report(clash.where(mine), array, elements, now, place, why=AGREED)
            clash = clash.where(~mine)
            self.report(clash, array, elements, now, place)
            stale[clash.positions] = True
        old = self.old.get(id(array.flat))
        if old is None:
            return value
        where = np.zeros(self.lanes.shape, bool)
        mask = self.lanes.mask
        where[... if mask is ALL else np.broadcast_to(mask, where.shape)] = (
            stale.reshape(where.shape) if mask is ALL else stale
        )
        return np.where(where, old.take(as_intp(offset)), value)

    def store(self, array, offset, value, site):
        tracked = self.shadows.get(id(array.flat))
        if tracked is None:
            array.store(self.lanes, offset, value)
            return
        shadow, *where = tracked
        self.keep_old(array)
        if (one := self.one(offset, where, site, STORE)) and shadow.store_one(*one, self.order):
            self.fences.changed(shadow, one[0])
            array.store(self.lanes, offset, value)
            return
        elements, now, place = self.accesses(offset, where, site, STORE)
        clashes = shadow.store(elements, now, self.order)
        clashes = self.unordered(clashes, shadow, elements, now)
        self.fences.changed(shadow, elements)
        if clashes:
            elements, now, clashes = whole_elements(elements, now, clashes, where)
        before = [array.flat[elements[c.positions]] for c in clashes]
        array.store(self.lanes, offset, value)
        self.agreed.pop((id(shadow), place), None)
        together = [elements[c.positions] for c in clashes if c.at_once]
        if together:
            there = np.isin(elements, together[0])
            keys = key(elements[there], thread_of(now[there]))
            self.agreed[id(shadow), place] = np.sort(keys)
        if clashes:
            stored = pick(value, self.lanes.shape, self.lanes.mask).astype(array.dtype)
        for clash, old in zip(clashes, before, strict=True):
            if not clash.certain:
                spots = elements[clash.positions]
                here = array.flat[spots] if clash.at_once else old
                clash = clash.where(~same_values(here, stored[clash.positions]))
                if not clash.at_once:
                    again = replaced(clash, elements, now, stored)
                    self.report(clash.where(again), array, elements, now, place, why=AGREED)
                    clash = clash.where(~again)
            elif clash.kind == "WAR" and self.memory.unchanged is not None:
                same = pick(self.memory.unchanged, self.lanes.shape, self.lanes.mask)[
                    clash.positions
                ]
                self.report(clash.where(same), array, elements, now, place, unchanged=True)
                clash = clash.where(~same)
            self.report(clash, array, elements, now, place)

    def stored_too(self, clash, shadow, elements, now):
        """Tell which loads find what their own thread, too, stored in the statement before."""
        result = np.zeros(len(clash.positions), bool)
        if clash.kind == "RAW" and self.agreed:
            places = place_of(clash.earlier)
            mine = key(elements[clash.positions], thread_of(now[clash.positions]))
            for place in np.unique(places):
                keys = self.agreed.get((id(shadow), int(place)))
                if keys is not None:
                    result |= (places == place) & np.isin(mine, keys)
        return result

    def atomic(self, array, offset, site):
        tracked = self.shadows.get(id(array.flat))
        if tracked is not None:
            self.keep_old(array)
            shadow, *where = tracked
            elements, now, place = self.accesses(offset, where, site, ATOMIC)
            clashes = shadow.atomic(elements, now, self.order)
            clashes = self.unordered(clashes, shadow, elements, now)
            self.fences.changed(shadow, elements)
            elements, now, clashes = whole_elements(elements, now, clashes, where)
            for clash in clashes:
                self.report(clash, array, elements, now, place)
            self.fences.atomic(thread_of(now))

    def unordered(self, clashes, shadow, elements, now):
        """Return the clashes that no fence has ordered; all of them where nobody fences."""
        if not self.fences.said:
            return clashes
        clashes = [self.fences.unordered(c, shadow, elements, now) for c in clashes]
        return [clash for clash in clashes if len(clash.positions)]

    def keep_old(self, array):
        """Remember what is there before the launch changes it."""
        if self.findings.collect and id(array.flat) not in self.old:
            self.old[id(array.flat)] = array.flat.copy()

    def one(self, offset, where, site, action):
        """Return the element and packed access of the one active thread; None if there are more."""
        start, parts = where
        threads = self.active_threads(self.lanes.mask)
        if len(threads) > 1 or parts > 1:
            return None
        if isinstance(offset, np.ndarray):
            offset = pick(offset, self.lanes.shape, self.lanes.mask)[0]
        now = self.order.stamp(threads.item(), self.findings.place(site, action))
        return int(offset) + start, now

    def accesses(self, offset, where, site, action):
        """Return the entries of the shadow and packed accesses of the active threads."""
        start, parts = where
        elements = pick(offset, self.lanes.shape, self.lanes.mask)
        place = self.findings.place(site, action)
        now = self.order.stamp(self.active_threads(self.lanes.mask), place)
        if parts > 1:
            elements = (elements[:, None] * parts + np.arange(parts, dtype=np.int64)).reshape(-1)
            now = np.repeat(now, parts)
        return elements + start if start else elements, now, place

    def report(self, clash, array, offsets, now, place, unchanged=False, why=None):
        if not len(clash.positions):
            return
        size = self.lanes.num_threads
        places = place_of(clash.earlier)
        for earlier_place in np.unique(places):
            i = (places == earlier_place).argmax()
            position = clash.positions[i]
            block, thread = divmod(int(thread_of(clash.earlier[i])), size)
            earlier = thread, block, int(earlier_place)
            block, thread = divmod(int(thread_of(now[position])), size)
            later = thread, block, place
            count = len(clash.positions)
            element = offsets[position]
            self.findings.race(clash.kind, array, element, earlier, later, count, unchanged, why)


def key(elements, threads):
    """Return element and thread as one number."""
    return elements << THREAD_BITS | threads


def replaced(clash, elements, now, stored):
    """Tell of which clashes the earlier thread stores the same value now that the later one does.

    Thread 0 stores a, then all threads store b: b is there in the end, whatever the order.
    """
    mine = key(elements, thread_of(now))
    order = np.argsort(mine, kind="stable")
    wanted = key(elements[clash.positions], thread_of(clash.earlier))
    place = np.searchsorted(mine, wanted, sorter=order)
    found = order[np.minimum(place, len(order) - 1)]
    same = same_values(stored[found], stored[clash.positions])
    return (mine[found] == wanted) & same


def whole_elements(entries, now, clashes, where):
    """Return elements, accesses and clashes by element, where those of parts of it are given."""
    start, parts = where
    entries = entries - start
    if parts == 1:
        return entries, now, clashes
    found = []
    for clash in clashes:
        positions, first = np.unique(clash.positions // parts, return_index=True)
        found.append(clash._replace(positions=positions, earlier=clash.earlier[first]))
    return entries[::parts] // parts, now[::parts], found


def overlap(a, b):
    """Tell whether two regions have an address in common."""
    return a[0] < b[1] and b[0] < a[1]


def join_overlaps(regions):
    """Return disjoint regions that cover the given ones."""
    joined = []
    for start, end in sorted(regions):
        if joined and start < joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined
