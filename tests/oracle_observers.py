"""What to learn from watching the greenlet oracle: memory traffic and races.

Both are computed from single accesses of single threads, in no way as the engine does it.
"""

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
        self.barriers += scope == "block"
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
                arrays[name]["bank_conflicts"] += bank_conflicts(lanes, itemsize)
        return arrays


def sectors(lanes, itemsize):
    """How many 32-byte sectors the lanes of one request touch."""
    return len({byte // SECTOR_BYTES for _, at in lanes for byte in (at, at + itemsize - 1)})


def bank_conflicts(lanes, itemsize):
    """Wavefronts beyond the first: the most different 4-byte words that fall into one bank.

    Elements of 8 bytes are served half a warp at a time, as two requests.
    """
    halves = defaultdict(set)
    for lane, at in lanes:
        half = lane // 16 if itemsize == 8 else 0
        halves[half].update(range(at // 4, (at + itemsize - 1) // 4 + 1))
    return sum(max(Counter(w % BANKS for w in words).values()) - 1 for words in halves.values())


class RaceFinder:
    """Exact happens-before order, by vector clocks.

    Two accesses of one element race if one of them writes, they are not both atomic, and no chain
    of barriers orders them. Writing the value that is there already is harmless and not counted.
    """

    def __init__(self):
        self.clocks = {}
        self.history = defaultdict(list)
        self.races = set()  # (array, the two lines in order)

    def clock(self, thread):
        me = thread.block, thread.rank
        return self.clocks.setdefault(me, Counter({me: 1}))

    def barrier(self, threads, scope):
        if scope == "block":  # it waits for those that return before it, too
            block = threads[0].block
            clocks = [clock for (place, _), clock in self.clocks.items() if place == block]
        else:
            clocks = [self.clock(thread) for thread in threads]
        latest = Counter()
        for clock in clocks:
            latest |= clock
        for thread in threads:
            me = thread.block, thread.rank
            self.clocks[me] = latest + Counter({me: 1})

    def access(self, thread, memory, op, address, value, site):
        me, clock = (thread.block, thread.rank), self.clock(thread)
        where = (memory.name, address, thread.block if memory.kind == "shared" else None)
        for other, time, other_op, other_value, line in self.history[where]:
            ordered = other == me or clock[other] >= time
            harmless = {op, other_op} in ({"load"}, {"atomic"}) or (
                op == other_op == "store" and np.array_equal(value, other_value, equal_nan=True)
            )
            if not ordered and not harmless:
                self.races.add((memory.name, *sorted((line, site[0]))))
        self.history[where].append((me, clock[me], op, value, site[0]))
