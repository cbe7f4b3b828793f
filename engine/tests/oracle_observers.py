"""What to learn from watching the greenlet oracle: memory traffic and races.

Both are computed from single accesses of single threads, in no way as the engine does it.
"""

import math
from collections import Counter, defaultdict

import numpy as np

SECTOR_BYTES = 32
BANKS = 32


class Tracer:
    """Regroups the accesses of single threads into the requests that a GPU would issue.

    A warp request is what the lanes of one warp do at one place in the code, in the same iteration
    of every surrounding `for` loop, between the same barriers. (What is left, turns of a `while`
    loop without a barrier, is counted, which is the same as long as no lane skips the place in one
    turn and reaches it in a later one.)
    """

    def __init__(self):
        self.requests = defaultdict(list)
        self.seen = Counter()
        self.itemsize = {}
        self.barriers = 0
        self.passed = Counter()  # barriers, by block and thread

    def access(self, thread, memory, op, address, value, site):
        block = thread.block
        moment = (*thread.loops, "barriers passed", self.passed[block, thread.rank])
        place = (memory.kind, memory.name, op, site, block, moment)
        self.seen[place, thread.rank] += 1
        request = (*place, thread.rank // 32, self.seen[place, thread.rank])
        self.requests[request].append((thread.lane, address))
        self.itemsize[memory.kind, memory.name] = memory.array.itemsize

    def barrier(self, threads, scope):
        self.barriers += len({t.block for t in threads}) * (scope != "warp")
        self.passed.update((t.block, t.rank) for t in threads)

    def totals(self, kind):
        """{array name: {counter: value}} for "global" or "shared" memory."""
        arrays = defaultdict(Counter)
        for (kind_, name, op, *_), lanes in self.requests.items():
            if kind_ == kind:
                itemsize = self.itemsize[kind, name]
                arrays[name][f"{op}s"] += len(lanes)
                arrays[name][f"{op}_bytes"] += len(lanes) * itemsize
                arrays[name][f"{op}_requests"] += 1
                arrays[name][f"{op}_sectors"] += sectors(lanes, itemsize)
                taken = wavefronts(lanes, itemsize, op)
                arrays[name][f"{op}_wavefronts"] += sum(taken)
                arrays[name][f"{op}_conflicts"] += sum(taken) - len(taken)
        return arrays


def sectors(lanes, itemsize):
    """How many 32-byte sectors the lanes of one request touch."""
    return len({byte // SECTOR_BYTES for _, at in lanes for byte in (at, at + itemsize - 1)})


def wavefronts(lanes, itemsize, op="load"):
    """The wavefronts that each part of a request takes, played through one by one.

    In a wavefront every bank that has something to deliver delivers one word. Elements of 4 bytes
    or less are one part; with 8 bytes each half of the warp is one, unless lanes load in pairs.
    """
    at = dict(lanes)
    paired = op == "load" and any(
        all(at.get(lane ^ step, address) == address for lane, address in lanes) for step in (1, 2)
    )
    parts = defaultdict(set)
    for lane, address in lanes:
        part = lane * itemsize // (BANKS * 4) if itemsize > 4 else 0
        parts[part // 2 if paired else part] |= {(address + i) // 4 for i in range(itemsize)}
    taken = []
    for waiting in parts.values():
        taken.append(0)
        while waiting:
            waiting -= set({word % BANKS: word for word in waiting}.values())
            taken[-1] += 1
    return taken


RIVALS = {
    "load": ("store", "atomic"), "store": ("load", "store", "atomic"), "atomic": ("load", "store"),
}  # fmt: skip


class RaceFinder:
    """Exact happens-before order, by vector clocks.

    Two accesses of one element race if one of them writes, they are not both atomic, and no chain
    of barriers orders them. Writing the value that is there already is harmless and not counted.
    `clocks[block][t, u]` is the last moment of thread u that thread t knows of.
    """

    def __init__(self):
        self.clocks = {}
        self.history = defaultdict(lambda: {op: [] for op in RIVALS})
        self.races = set()  # (array, the two lines in order)

    def barrier(self, threads, scope):
        block, ranks = threads[0].block, [thread.rank for thread in threads]
        if block not in self.clocks:
            return  # nobody has touched anything
        clocks = self.clocks[block]
        clocks[ranks] = clocks[ranks].max(axis=0)
        if scope == "block":  # it waits for those that return before it, too
            clocks[ranks] = clocks.max(axis=0)
            for where in [w for w in self.history if w[2] == block]:
                del self.history[where]  # in its shared memory nothing races with what follows
        clocks[ranks, ranks] += 1

    def access(self, thread, memory, op, address, value, site):
        block, me, line = thread.block, thread.rank, site[0]
        if block not in self.clocks:
            self.clocks[block] = np.eye(math.prod(memory.machine.block), dtype=int)
        known = self.clocks[block][me]
        past = self.history[memory.name, address, block if memory.kind == "shared" else None]
        for rival in RIVALS[op]:
            for other_block, other, moment, other_line, other_value in past[rival]:
                ordered = other_block == block and (other == me or moment <= known[other])
                same = op == rival == "store" and np.array_equal(value, other_value, equal_nan=True)
                if not ordered and not same:
                    self.races.add((memory.name, *sorted((line, other_line))))
        record = block, me, known[me], line, value
        if past[op][-1:] != [record]:
            past[op].append(record)
