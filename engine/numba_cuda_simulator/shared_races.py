"""Watches shared memory: footprints of accesses, histories of blocks, stale values."""

import copy
from typing import NamedTuple

import numpy as np

from .arrays import same_values
from .dtypes import stretch
from .histories import WARP_SYNC, Footprint, Histories
from .lanes import ALL, ByMask
from .race_rules import LOAD, STORE
from .shadow import place_of, thread_of

MOST_FOOTPRINTS = 50_000
MOST_COHORTS = 8  # ways in which the blocks of a batch behave; more, and each is followed alone


class Part(NamedTuple):
    """Blocks in which the same threads are active."""

    blocks: np.ndarray  # booleans, or None for all
    count: int
    mask: np.ndarray  # of each of them
    key: tuple  # stands for the mask in dictionaries
    threads: np.ndarray  # the active ones


def alike_columns(columns, chosen):
    """Group the chosen columns of a matrix by content, as (which, None for all; one of them).

    None if there are too many groups.
    """
    groups, left = [], chosen
    while left.any():
        if len(groups) == MOST_COHORTS:
            return None
        model = columns[:, left.argmax()]
        alike = left & (columns == model[:, None]).all(0)
        left = left & ~alike
        groups.append((None if alike.all() else alike, model))
    return groups


class SharedWatch:
    """What a launch does in shared memory."""

    def __init__(self, lanes, memory, findings, requests, counters, options):
        self.lanes, self.memory = lanes, memory
        self.findings, self.options = findings, options
        self.requests, self.counters = requests, counters  # None: not counting
        self.checks = options.races or options.uninitialised
        self.keeps_old = findings.collect and options.races
        self.histories = Histories(lanes.num_threads)
        self.footprints = {}

    def start_batch(self):
        self.histories.start_batch(self.lanes.num_blocks)
        self.parts = ByMask(self.part)
        self.old_rows = {}  # memory -> its contents as of the last barrier

    def end_launch(self):
        """Add up what the footprints have cost."""
        if self.counters is not None:
            for f in (f for f in self.footprints.values() if f.times):
                self.counters.add(f.array, f.site, f.action, *(f.times * n for n in f.counted))
        self.footprints.clear()

    # ------------------------------------------------------------------ accesses

    def load(self, array, offset, value, site):
        """Note a load; return the value that the threads see."""
        if self.alone(LOAD, array, offset, site):
            return value
        stale = None
        for lanes in self.access(LOAD, array, offset, site):
            stale = self.judge(lanes, stale)
        if stale is None or array.memory not in self.old_rows:
            return value
        past = copy.copy(array)
        past.use(self.old_rows[array.memory])
        where = stale.reshape(self.lanes.shape)
        return np.where(where, past.load(self.lanes, offset), value)

    def store(self, array, offset, value, site):
        """Note a store and make it."""
        self.keep_old(array)
        found = ()
        if not self.alone(STORE, array, offset, site):
            found = self.access(STORE, array, offset, site)
        if not found:
            array.store(self.lanes, offset, value)
            return
        before = [array.rows[lanes.elements, lanes.blocks] for lanes in found]
        array.store(self.lanes, offset, value)
        full = self.lanes.full(value).astype(array.dtype)
        for lanes, old in zip(found, before, strict=True):
            if not lanes.clash.certain:
                # Harmless if what was there, or what another thread stored at once, is the same.
                here = array.rows[lanes.elements, lanes.blocks] if lanes.clash.at_once else old
                lanes = lanes.where(~same_values(here, full[lanes.threads, lanes.blocks]))
            elif lanes.clash.kind == "WAR" and self.memory.unchanged is not None:
                same = self.lanes.full(self.memory.unchanged)[lanes.threads, lanes.blocks]
                self.judge(lanes.where(same), unchanged=True)
                lanes = lanes.where(~same)
            self.judge(lanes)

    def atomic(self, action, array, offset, site):
        self.keep_old(array)
        for lanes in self.access(action, array, offset, site):
            self.judge(lanes)

    def keep_old(self, array):
        """Remember what is there before the first change after a barrier."""
        if self.keeps_old and array.memory not in self.old_rows:
            self.old_rows[array.memory] = array.rows.copy()

    def warp_barrier(self, threads):
        """Let warps synchronise; threads: booleans, (threads, 1 or blocks)."""
        if not self.checks:
            return
        histories = self.histories
        groups = alike_columns(threads, threads.any(0)) if histories.crowd is None else None
        if groups is not None:
            for blocks, model in groups:
                histories.follow(blocks, self.sync_footprint(model))
            return
        if histories.crowd is None:
            histories.disperse()
        full = np.broadcast_to(threads, (self.lanes.num_threads, self.lanes.num_blocks))
        histories.crowd.enter_loads()
        histories.crowd.order.sync_warps(np.flatnonzero(full.T).astype(np.int64))

    def sync_footprint(self, threads):
        key = WARP_SYNC, threads.tobytes()
        footprint = self.footprints.get(key)
        if footprint is None:
            footprint = Footprint(
                WARP_SYNC, None, None, np.flatnonzero(threads).astype(np.int64), 0
            )
            self.footprints[key] = footprint
        return footprint

    def barrier(self, blocks):
        """Let some blocks (None = all) pass a barrier."""
        if blocks is None:
            self.old_rows.clear()
        for memory, old in self.old_rows.items():
            current = next(a for a in self.memory.allocations.values() if a.memory is memory)
            old[:, blocks] = current.rows[:, blocks]
        if self.checks:
            self.histories.barrier(blocks)

    def alone(self, action, array, offset, site):
        """Note an access by one thread in the midst of many such; tell whether that was all."""
        if isinstance(offset, np.ndarray) or self.counters is not None or not self.checks:
            return False
        parts = self.parts(self.lanes.mask)
        if parts is None or len(parts) != 1 or len(parts[0].threads) != 1:
            return False
        state = self.histories.unremembered(parts[0].blocks)
        if state is None:
            return False
        thread, place = parts[0].threads.item(), self.findings.place(site, action)
        return state.apply_one(action, array, offset, thread, place)

    def access(self, action, array, offset, site):
        """Note an access; return the lanes that clash with earlier ones, a group per clash."""
        histories, found = self.histories, []
        parts = self.footprints_of(action, array, offset, site)
        if parts is None or histories.crowd is not None:
            return self.crowd(action, array, offset, site)
        for blocks, count, footprint in parts:
            footprint.times += count
            if self.checks:
                for clashes, members in histories.follow(blocks, footprint):
                    found += [ClashLanes.of_cohort(c, footprint, members, self) for c in clashes]
        return found

    def judge(self, lanes, stale=None, unchanged=False):
        """Report what is wrong; return which lanes (threads, blocks) read a stale value."""
        if not len(lanes.elements):
            return stale
        clash, footprint = lanes.clash, lanes.footprint
        first = self.lanes.first_block
        array, count = footprint.array, len(lanes.elements)
        now = lanes.threads[0], first + lanes.blocks[0], footprint.place
        if clash.kind == "UNINIT":
            if self.options.uninitialised:
                self.findings.unwritten(array, lanes.elements[0], now, count)
            return stale
        if not self.options.races:
            return stale
        places = place_of(lanes.earlier)
        for place in np.unique(places):
            i = (places == place).argmax()
            earlier = lanes.earlier_threads[i], first + lanes.blocks[i], int(place)
            now = lanes.threads[i], first + lanes.blocks[i], footprint.place
            element = lanes.elements[i]
            self.findings.race(clash.kind, array, element, earlier, now, count, unchanged)
        if clash.kind == "RAW":
            if stale is None:
                stale = np.zeros((self.lanes.num_threads, self.lanes.num_blocks), bool)
            stale[lanes.threads, lanes.blocks] = True
        return stale

    # ------------------------------------------------------------------ footprints

    def footprints_of(self, action, array, offset, site):
        """Return the ways in which blocks behave as (blocks, how many, footprint).

        None if they are too many.
        """
        if not isinstance(offset, np.ndarray) or offset.shape[3] == 1:
            parts = self.parts(self.lanes.mask)
            return parts and [
                (part.blocks, part.count, self.footprint(action, array, offset, part, site))
                for part in parts
            ]
        places = np.where(self.lanes.active(), self.lanes.full(offset), -1)
        groups = alike_columns(places, places.max(0) >= 0)
        if groups is None:
            return None
        result = []
        for blocks, model in groups:
            lanes = model.reshape(*self.lanes.shape[:3], 1)
            part = self.new_part(blocks, lanes >= 0)
            footprint = self.footprint(action, array, np.maximum(lanes, 0), part, site)
            result.append((blocks, part.count, footprint))
        return result

    def part(self, mask):
        """Return the groups of blocks that a mask treats alike; None if they are too many."""
        if mask is ALL or mask.shape[3] == 1:
            return [self.new_part(None, mask)]
        if mask.shape[:3] == (1, 1, 1):
            return [self.new_part(mask.reshape(-1), ALL)]
        active = self.lanes.active()
        groups = alike_columns(active, active.any(0))
        column = (*self.lanes.shape[:3], 1)
        return groups and [self.new_part(blocks, model.reshape(column)) for blocks, model in groups]

    def new_part(self, blocks, mask):
        count = self.lanes.num_blocks if blocks is None else int(blocks.sum())
        if mask is ALL or mask.all():
            return Part(blocks, count, ALL, None, np.arange(self.lanes.num_threads, dtype=np.int64))
        threads = np.flatnonzero(stretch(mask, (*self.lanes.shape[:3], 1))).astype(np.int64)
        return Part(blocks, count, mask, (mask.shape, mask.tobytes()), threads)

    def active_blocks(self, mask):
        """Return which blocks have active threads; None for all."""
        parts = self.parts(mask)
        if parts is not None and len(parts) == 1:
            return parts[0].blocks
        blocks = self.lanes.active().any(0)
        return None if blocks.all() else blocks

    def footprint(self, action, array, offset, part, site):
        """Return the footprint of an access that does not depend on the block."""
        if isinstance(offset, np.ndarray):
            key = site, action, array.memory, part.key, offset.shape, offset.tobytes()
        else:
            key = site, action, array.memory, part.key, int(offset)
        footprint = self.footprints.get(key)
        return footprint or self.make_footprint(key, action, array, offset, part, site)

    def make_footprint(self, key, action, array, offset, part, site):
        if len(self.footprints) > MOST_FOOTPRINTS:
            self.end_launch()
        mask, threads = part.mask, part.threads
        if isinstance(offset, np.ndarray):
            elements = np.empty((*self.lanes.shape[:3], 1), np.int64)
            elements[...] = offset
            elements = elements.reshape(-1) if mask is ALL else elements.reshape(-1)[threads]
        else:
            elements = np.full(len(threads), offset, np.int64)
        place = self.findings.place(site, action)
        footprint = Footprint(action, array, elements, threads, place, site)
        if len(threads) == 1:
            footprint.one = elements.item(), threads.item()
        if self.counters is not None:
            footprint.counted = self.requests.count_block(array, offset, mask, action)
            self.counters.sample(array, offset, mask, site, action)
        self.footprints[key] = footprint
        return footprint

    def crowd(self, action, array, offset, site):
        """Note an access in which every block is followed alone."""
        histories = self.histories
        nt, nb = self.lanes.num_threads, self.lanes.num_blocks
        if self.counters is not None:
            self.counters.count(array, offset, site, action)
        if not self.checks:
            return []
        if histories.crowd is None:
            histories.disperse()
        active = self.lanes.active()
        elements = self.lanes.full(offset) * nb + np.arange(nb, dtype=np.int64)
        threads = np.arange(nt, dtype=np.int64)[:, None] + np.arange(nb, dtype=np.int64) * nt
        place = self.findings.place(site, action)
        footprint = Footprint(action, array, elements[active], threads[active], place, site)
        clashes = histories.crowd.apply(footprint)
        return [ClashLanes.of_crowd(c, footprint, nt, nb) for c in clashes]


class ClashLanes:
    """The lanes of a clash, one entry each: element, thread, block of the batch, and with what."""

    def __init__(self, clash, footprint, elements, threads, blocks, earlier, earlier_threads):
        self.clash, self.footprint = clash, footprint
        self.elements, self.threads, self.blocks = elements, threads, blocks
        self.earlier, self.earlier_threads = earlier, earlier_threads

    @classmethod
    def of_cohort(cls, clash, footprint, members, watch):
        blocks = np.arange(watch.lanes.num_blocks, dtype=np.int64)
        blocks = blocks if members is None else blocks[members]
        at, count = clash.positions, len(blocks)
        rows = footprint.elements[at], footprint.threads[at], clash.earlier
        elements, threads, earlier = (np.repeat(x, count) for x in rows)
        blocks = np.tile(blocks, len(at))
        return cls(clash, footprint, elements, threads, blocks, earlier, thread_of(earlier))

    @classmethod
    def of_crowd(cls, clash, footprint, num_threads, num_blocks):
        elements = footprint.elements[clash.positions]
        threads = footprint.threads[clash.positions]
        others = thread_of(clash.earlier) % num_threads
        elements, blocks = elements // num_blocks, elements % num_blocks
        return cls(clash, footprint, elements, threads % num_threads, blocks, clash.earlier, others)

    def where(self, chosen):
        parts = self.elements, self.threads, self.blocks, self.earlier, self.earlier_threads
        return ClashLanes(self.clash, self.footprint, *(p[chosen] for p in parts))
