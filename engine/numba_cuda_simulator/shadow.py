"""Shadow memory: who touched each element last, and is that ordered before what comes now?

`race_rules` says which accesses race. A `Shadow` remembers for each element the last store, the
last atomic and two loads, each packed into one integer:

    time (21 bits) | place in the source (12) | thread + 1 (30)      0 = nobody yet

`Order` answers whether an earlier access happened before: the clock ticks at each barrier, and
an access is ordered before what follows a barrier that both threads have passed since.
"""

import operator
from typing import NamedTuple

import numpy as np

from .dtypes import as_intp
from .race_rules import ATOMIC, KINDS, LOAD, STORE, certain

THREAD_BITS, PLACE_BITS = 30, 12
THREAD_MASK = (1 << THREAD_BITS) - 1
PLACE_MASK = (1 << PLACE_BITS) - 1
WARP = 32
MOST_PENDING = 64  # loads that a shadow puts off recording
NOWHERE = np.zeros(0, np.int64)


def thread_of(packed):
    return (packed & THREAD_MASK) - 1


def place_of(packed):
    return packed >> THREAD_BITS & PLACE_MASK


class Clash(NamedTuple):
    """Accesses that race with earlier ones."""

    kind: str  # RAW, WAR, WAW, or UNINIT for a load of what nobody wrote
    positions: np.ndarray  # which of the accesses
    earlier: np.ndarray  # the packed earlier accesses
    certain: bool = True  # False: harmless if both stored the same value
    at_once: bool = False  # in the same statement

    def where(self, chosen):
        """Return the clash of some of the positions."""
        return self._replace(positions=self.positions[chosen], earlier=self.earlier[chosen])


class Order:
    """Which accesses happened before which; threads are numbered block by block."""

    def __init__(self, num_threads, num_blocks=1, first_thread=0):
        self.num_threads = num_threads
        self.first_thread = first_thread
        self.now = 1
        self.warp_sync = np.zeros(num_blocks * num_threads, np.int64)  # when a thread last synced
        self.block_sync = np.zeros(num_blocks, np.int64)
        self.heard = None  # once parts of a warp synchronise apart: see `hear`
        self.any_sync = False

    def copy(self):
        other = object.__new__(Order)
        other.__dict__.update(self.__dict__)
        other.warp_sync, other.block_sync = self.warp_sync.copy(), self.block_sync.copy()
        other.heard = None if self.heard is None else self.heard.copy()
        return other

    def sync_warps(self, threads):
        """These threads (counted from the first, in order) pass a warp barrier."""
        if not len(threads):
            return
        self.now += 1
        if len(threads) < len(self.warp_sync):
            self.hear(threads)
        elif self.heard is not None:
            self.heard[:] = self.now
        self.warp_sync[threads] = self.now
        self.any_sync = True

    def hear(self, threads):
        """Let the threads of each warp tell each other what they know.

        While only whole warps synchronise, `warp_sync` says it all. Then each thread has a row
        that says, for each lane of its warp, up to when it has heard of what that lane did: from
        the lane itself, or by way of a third.
        """
        warp = self.warp(threads)
        starts = np.flatnonzero(np.r_[True, warp[1:] != warp[:-1]])
        counts = np.diff(np.r_[starts, len(threads)])
        if self.heard is None:
            sizes = np.minimum(WARP, self.num_threads - warp[starts] % WARP * WARP)
            if (counts == sizes).all():
                return
            self.heard = self.rows_heard()
        rows = self.heard[threads]
        rows[np.arange(len(threads)), threads % self.num_threads % WARP] = self.now
        rows = np.maximum.reduceat(rows, starts, axis=0)
        self.heard[threads] = np.repeat(rows, counts, axis=0)

    def rows_heard(self):
        """Return what each thread has heard of each lane of its warp."""
        return np.repeat(self.warp_sync[:, None], WARP, 1) if self.heard is None else self.heard

    def sync_blocks(self, blocks):
        """These blocks pass a barrier."""
        self.now += 1
        self.block_sync[blocks] = self.now
        self.any_sync = True

    def stamp(self, threads, place):
        """Return present accesses, packed."""
        return threads + (1 + (place << THREAD_BITS | self.now << THREAD_BITS + PLACE_BITS))

    def warp(self, threads):
        return threads // self.num_threads * WARP + threads % self.num_threads // WARP

    def precedes(self, earlier, now):
        """Tell whether one packed access is no clash with a later one: two plain integers."""
        a, b = earlier & THREAD_MASK, now & THREAD_MASK
        if a == b or not earlier:
            return True
        if not self.any_sync:
            return False
        size = self.num_threads
        block = (b - 1) // size
        if (a - 1) // size != block:
            return False
        time = earlier >> THREAD_BITS + PLACE_BITS
        if time < self.block_sync[block - self.first_thread // size]:
            return True
        return bool(self.ordered(np.array([earlier]), np.array([now]))[0])

    def clashes(self, earlier, now):
        """Return the positions where an earlier access of another thread is not ordered."""
        if not np.count_nonzero(earlier):
            return NOWHERE
        others = (earlier ^ now) & THREAD_MASK
        if not np.count_nonzero(others):
            return NOWHERE
        found = np.logical_and(others, earlier).nonzero()[0]
        if len(found) and self.any_sync:
            found = found[~self.ordered(earlier[found], now[found])]
        return found

    def ordered(self, earlier, now):
        size = self.num_threads
        a, b = thread_of(earlier), thread_of(now)
        time = earlier >> THREAD_BITS + PLACE_BITS
        same_block = a // size == b // size
        b_here = b - self.first_thread
        a_here = np.where(same_block, a - self.first_thread, b_here)
        by_block = time < self.block_sync[b_here // size]
        same_warp = self.warp(a) == self.warp(b)
        if self.heard is None:
            by_warp = time < np.minimum(self.warp_sync[a_here], self.warp_sync[b_here])
        else:
            by_warp = time < self.heard[b_here, a_here % size % WARP]
        return same_block & (by_block | (same_warp & by_warp))


HOLDS = {"writer": STORE, "reader": LOAD, "other_reader": LOAD, "updater": ATOMIC}
# For each later access the fields of a shadow that it may clash with, and how.
AGAINST, RULES = {}, {}
for later in (LOAD, STORE, ATOMIC):
    fields = {name: (held, later) for name, held in HOLDS.items() if (held, later) in KINDS}
    AGAINST[later] = operator.attrgetter(*fields)
    RULES[later] = [(KINDS[pair], certain(*pair)) for pair in fields.values()]


class Shadow:
    """The last accesses of each element of one piece of memory.

    Loads matter only to a later store, and most memory that is read is not written before the
    next barrier. So they are put off: entered all together when somebody asks.
    """

    FIELDS = tuple(HOLDS)

    def __init__(self, size):
        self.size = size
        self.writer = self.updater = self.reader = self.other_reader = None  # once needed
        self.pending = []  # (elements, packed accesses) of loads

    def copy(self):
        other = Shadow(self.size)
        for name in self.FIELDS:
            field = getattr(self, name)
            setattr(other, name, None if field is None else field.copy())
        other.pending = self.pending.copy()
        return other

    def clear(self, elements, order):
        """Forget the accesses of some elements."""
        self.enter_loads(order)
        for name in self.FIELDS:
            field = getattr(self, name)
            if field is not None:
                field[elements] = 0

    def load(self, elements, now, order):
        """Record loads; return the clashes."""
        found = self.clashes(LOAD, elements, now, order)
        self.pending.append((elements, now))
        if len(self.pending) == MOST_PENDING:
            self.enter_loads(order)
        return found

    def load_one(self, element, now, order):
        """Record a load by one thread if it clashes with nothing; tell whether that is so.

        A thread that works alone, element by element, makes far more accesses than threads that
        work together: this does what `load` does, without arrays.
        """
        for field in AGAINST[LOAD](self):
            if field is not None and not order.precedes(field.item(element), now):
                return False
        if self.pending:
            self.enter_loads(order)
        if self.reader is None:
            self.reader = np.zeros(self.size, np.int64)
            self.other_reader = np.zeros(self.size, np.int64)
        before = self.reader.item(element)
        if before and (before ^ now) & THREAD_MASK:
            self.pending.append((np.array([element]), np.array([now])))
        else:
            self.reader[element] = now
        return True

    def store_one(self, element, now, order):
        """Record a store by one thread if it clashes with nothing; tell whether that is so."""
        if self.pending:
            self.enter_loads(order)
        for field in AGAINST[STORE](self):
            if field is not None and not order.precedes(field.item(element), now):
                return False
        if self.writer is None:
            self.writer = np.zeros(self.size, np.int64)
        self.writer[element] = now
        return True

    def store(self, elements, now, order):
        """Record stores; return the clashes.

        Two threads may clash in one statement. Two stores of one value are harmless, which
        only the caller can tell: those clashes are not certain.
        """
        self.enter_loads(order)
        found = self.clashes(STORE, elements, now, order)
        if self.writer is None:
            self.writer = np.zeros(self.size, np.int64)
        self.writer[elements] = now
        last = self.writer.take(as_intp(elements))
        beaten = (last != now).nonzero()[0]
        if len(beaten):
            found.append(Clash(KINDS[STORE, STORE], beaten, last[beaten], False, at_once=True))
        return found

    def atomic(self, elements, now, order):
        """Record atomics; return the clashes."""
        self.enter_loads(order)
        found = self.clashes(ATOMIC, elements, now, order)
        if self.updater is None:
            self.updater = np.zeros(self.size, np.int64)
        self.updater[elements] = now
        return found

    def clashes(self, action, elements, now, order):
        """Return the accesses that race with earlier ones, by the rules."""
        found = []
        for field, (kind, sure) in zip(AGAINST[action](self), RULES[action], strict=True):
            if field is not None:
                earlier = field.take(as_intp(elements))
                positions = order.clashes(earlier, now)
                if len(positions):
                    found.append(Clash(kind, positions, earlier[positions], sure))
        return found

    def enter_loads(self, order):
        """Record the loads put off; called before the order changes by a barrier of a warp.

        Two loads are kept so that every later store that clashes with any load clashes with
        one of them. A store is ordered after loads of other warps only by barriers, which clear
        the shadow or are known to the order; so two loads of different warps are enough. As
        long as one warp alone has read, two of its threads are kept that no warp barrier
        separates.
        """
        if not self.pending:
            return
        elements, now = self.pending[0]
        if len(self.pending) > 1:
            elements, now = map(np.concatenate, zip(*self.pending, strict=True))
        self.pending = []
        if self.reader is None:
            self.reader = np.zeros(self.size, np.int64)
            self.other_reader = np.zeros(self.size, np.int64)
        before = self.reader.take(as_intp(elements))
        self.reader[elements] = now
        newest = self.reader.take(as_intp(elements))
        self.keep_other(elements, now, newest, order)  # put off together
        self.keep_other(elements, before, newest, order)  # read earlier

    def keep_other(self, elements, loads, newest, order):
        """Keep loads by threads other than the newest reader, those of other warps first."""
        others = (loads ^ newest) & THREAD_MASK
        if not np.count_nonzero(others):
            return
        differs = np.logical_and(others, loads).nonzero()[0]
        if not len(differs):
            return
        spots, loads, newest = elements[differs], loads[differs], newest[differs]
        warp = order.warp(thread_of(newest))
        far = order.warp(thread_of(loads)) != warp
        kept = self.other_reader[spots]
        near = ~far & ((kept == 0) | (order.warp(thread_of(kept)) == warp))
        if order.any_sync:
            near[near] = ~order.ordered(loads[near], newest[near])
        # Of several the first lane's, as far as can be from the newest, which is the last lane's.
        self.other_reader[spots[near][::-1]] = loads[near][::-1]
        self.other_reader[spots[far]] = loads[far]
