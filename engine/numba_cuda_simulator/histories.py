"""Shared-memory races, once for all blocks that behave alike.

The blocks of a batch nearly always do the same: the same threads touch the same elements, in
the same order. So what has happened in a block since it started is kept as a *history*, a path
in a tree whose edges are accesses and barriers, and all blocks with one history share it. When
a kernel's loop runs again, its accesses lead to nodes that exist already, with their verdict;
the shadow memory is consulted only where a node is new.

A barrier orders everything before it before everything after it. So histories start anew there:
at the root that stands for "these elements have been written, and nothing else is known".
"""

import numpy as np

from .dtypes import as_intp
from .race_rules import ATOMIC, LOAD, STORE
from .shadow import WARP, Clash, Order, Shadow

WARP_SYNC = "syncwarp"
LONGEST = 20_000  # accesses since the last barrier; later ones are checked but not remembered
LARGEST = 200_000  # nodes in all; then everything is forgotten
ALONE = 16  # accesses by one thread, one after the other; later ones are not remembered either


class Footprint:
    """One access by all threads of a block: who touches what, and where in the source."""

    def __init__(self, action, array, elements, threads, place, site=None):
        self.action = action
        self.array = array  # any of the SharedArrays that lie in this memory
        self.elements = elements  # one entry per active thread
        self.threads = threads
        self.one = None  # its element and thread as plain integers, if one thread takes part
        self.place, self.site = place, site  # a number for the site and action
        self.times = 0  # how often, counting blocks
        self.counted = ()  # of one block: elements, requests, wavefronts, conflicts


class State:
    """Shadows of all shared memory of `num_blocks` blocks (1: of blocks that behave alike)."""

    def __init__(self, num_threads, num_blocks=1):
        self.num_threads, self.num_blocks = num_threads, num_blocks
        self.order = Order(num_threads, num_blocks)
        self.shadows = {}  # memory -> Shadow
        self.written = {}  # memory -> booleans: has anybody stored there since the block began?

    def copy(self):
        other = State.__new__(State)
        other.num_threads, other.num_blocks = self.num_threads, self.num_blocks
        other.order = self.order.copy()
        other.shadows = {k: s.copy() for k, s in self.shadows.items()}
        other.written = {k: w.copy() for k, w in self.written.items()}
        return other

    def shadow(self, array):
        memory = array.memory
        if memory not in self.shadows:
            size = array.extent * self.num_blocks
            self.shadows[memory] = Shadow(size)
            self.written.setdefault(memory, np.zeros(size, bool))
        return self.shadows[memory]

    def apply(self, footprint):
        """Let an access happen; return its clashes."""
        if footprint.action == WARP_SYNC:
            self.enter_loads()
            self.order.sync_warps(footprint.threads)
            return []
        action, array, elements = footprint.action, footprint.array, footprint.elements
        if footprint.one and self.apply_one(action, array, *footprint.one, footprint.place):
            return []
        shadow = self.shadow(array)
        written = self.written[array.memory]
        now = self.order.stamp(footprint.threads, footprint.place)
        if action == STORE:
            written[elements] = True
            return shadow.store(elements, now, self.order)
        found = []
        initialised = written.take(as_intp(elements))
        if np.count_nonzero(initialised) < len(initialised):
            new = (~initialised).nonzero()[0]
            found = [Clash("UNINIT", new, np.zeros_like(new))]
        if action == ATOMIC:
            written[elements] = True
            return found + shadow.atomic(elements, now, self.order)
        return found + shadow.load(elements, now, self.order)

    def apply_one(self, action, array, element, thread, place):
        """Let a load or store by one thread happen if nothing is wrong; tell whether it did."""
        shadow = self.shadow(array)
        written = self.written[array.memory]
        now = self.order.stamp(thread, place)
        if action == STORE:
            if not shadow.store_one(element, now, self.order):
                return False
            written[element] = True
            return True
        if action != LOAD or not written.item(element):
            return False
        return shadow.load_one(element, now, self.order)

    def enter_loads(self):
        for shadow in self.shadows.values():
            shadow.enter_loads(self.order)

    def barrier(self):
        """Forget all accesses, which are ordered before everything that follows."""
        self.order = Order(self.num_threads, self.num_blocks)
        self.shadows = {}


class History:
    """A node: what a block has done since its last barrier."""

    __slots__ = ("parent", "edge", "children", "state", "clashes", "length", "alone")

    def __init__(self, parent, edge, state):
        self.parent, self.edge, self.state = parent, edge, state
        self.children = {}
        self.clashes = []
        self.length = parent.length + 1 if parent else 0
        # How many accesses in a row one thread has made: it works through elements, and making
        # history of each would take longer than to look at the shadow.
        self.alone = parent.alone + 1 if parent and edge.one else 0

    def take_state(self):
        """Return a State to go on with; a node keeps its own only until a child needs it."""
        if self.state is not None:
            state = self.state
            if self.length == 0:
                return state.copy()  # a root is come back to
            self.state = None
            return state
        path, node = [], self
        while node.state is None:
            path.append(node.edge)
            node = node.parent
        state = node.state.copy()
        for edge in reversed(path):
            state.apply(edge)
        return state

    def follow(self, footprint):
        """Return the node after one more access."""
        child = self.children.get(footprint)
        if child is None:
            if self.length >= LONGEST or (self.alone >= ALONE and footprint.one):
                child = History(None, None, self.take_state())
                child.length = LONGEST
            else:
                child = History(self, footprint, self.take_state())
                self.children[footprint] = child
            child.clashes = child.state.apply(footprint)
        return child


class Histories:
    """The tree, and at which node each block of the batch is."""

    def __init__(self, num_threads):
        self.num_threads = num_threads
        self.roots = {}  # what is written -> root
        self.start = self.root(State(num_threads))

    def start_batch(self, num_blocks):
        self.num_blocks = num_blocks
        self.cohorts = [(self.start, None)]  # (node, which blocks; None = all)
        self.crowd = None  # a State for all blocks, once too many behave differently

    def root(self, state):
        """Return the node of blocks that have just passed a barrier."""
        key = tuple((m, w.tobytes()) for m, w in sorted(state.written.items(), key=by_name))
        if len(self.roots) > LARGEST:
            self.roots.clear()
        found = self.roots.get(key)
        if found is None:
            found = self.roots[key] = History(None, None, state)
        return found

    def barrier(self, blocks):
        """Let some blocks (None = all) pass a barrier."""
        if self.crowd is not None:
            return self.crowd_barrier(blocks)
        moved = []
        for node, members in self.select(blocks):
            root = node.children.get("barrier")
            if root is None:
                state = node.take_state()
                state.barrier()
                root = self.root(state)
                if node.length < LONGEST:
                    node.children["barrier"] = root
            moved.append((root, members))
        self.settle(moved)
        return None

    def select(self, blocks):
        """Take the cohorts of some blocks (None = all) out, splitting those that are in part."""
        if blocks is None:
            taken, self.cohorts = self.cohorts, []
            return taken
        taken, left = [], []
        for node, members in self.cohorts:
            if members is blocks:
                taken.append((node, members))
                continue
            members = np.ones(self.num_blocks, bool) if members is None else members
            inside = members & blocks
            outside = members & ~blocks
            if inside.any():
                whole = (inside == blocks).all()  # keep the object: it is looked for by identity
                taken.append((node, blocks if whole else inside))
                if outside.any() and node.length >= LONGEST:
                    node = History(None, None, node.state.copy())
                    node.length = LONGEST
            if outside.any():
                left.append((node, outside))
        self.cohorts = left
        return taken

    def unremembered(self, blocks):
        """Return the State of these blocks (None = all) if none of them is being remembered."""
        if len(self.cohorts) == 1:
            node, members = self.cohorts[0]
            if node.length and node.parent is None and members is blocks:
                return node.state
        return None

    def settle(self, moved):
        """Put cohorts back, joining those that have the same history."""
        cohorts = self.cohorts + moved
        if len(cohorts) > 1:
            joined = {}
            for node, members in cohorts:
                joined[node] = members if node not in joined else joined[node] | members
            cohorts = list(joined.items())
            if len(cohorts) == 1:
                cohorts = [(cohorts[0][0], None)]
        self.cohorts = cohorts

    def follow(self, blocks, footprint):
        """Let some blocks (None = all) make an access.

        Returns a list of (clashes, blocks) where there are clashes.
        """
        for number, (node, members) in enumerate(self.cohorts):
            if members is blocks:  # the usual case
                child = node.children.get(footprint) or node.follow(footprint)
                self.cohorts[number] = child, members
                return [(child.clashes, members)] if child.clashes else ()
        moved, found = [], []
        for node, members in self.select(blocks):
            child = node.follow(footprint)
            moved.append((child, members))
            if child.clashes:
                found.append((child.clashes, members))
        self.settle(moved)
        return found

    # ------------------------------------------------------------------ blocks that differ

    def disperse(self):
        """Give every block a shadow of its own; elements and threads are counted through."""
        crowd = State(self.num_threads, self.num_blocks)
        for node, members in self.cohorts:
            state = node.take_state()
            if node.length:
                node.state = state  # it is only read here
            members = slice(None) if members is None else members
            for memory, written in state.written.items():
                target = crowd.written.setdefault(
                    memory, np.zeros(written.size * self.num_blocks, bool)
                )
                target.reshape(-1, self.num_blocks)[:, members] = written[:, None]
            self.disperse_accesses(crowd, state, members)
        self.crowd = crowd
        self.cohorts = []

    def disperse_accesses(self, crowd, state, members):
        """Copy what a cohort has done since its barrier to each of its blocks."""
        blocks = np.arange(self.num_blocks, dtype=np.int64)[members]
        size = self.num_threads
        state.enter_loads()
        order = crowd.order
        order.now = max(order.now, state.order.now)
        order.any_sync |= state.order.any_sync
        order.warp_sync.reshape(-1, size)[members] = state.order.warp_sync
        if order.heard is not None or state.order.heard is not None:
            order.heard = order.rows_heard()
            order.heard.reshape(-1, size, WARP)[members] = state.order.rows_heard()
        for memory, shadow in state.shadows.items():
            if memory not in crowd.shadows:
                crowd.shadows[memory] = Shadow(shadow.size * self.num_blocks)
            target = crowd.shadows[memory]
            for name in Shadow.FIELDS:
                field = getattr(shadow, name)
                if field is None:
                    continue
                if getattr(target, name) is None:
                    setattr(target, name, np.zeros(target.size, np.int64))
                columns = getattr(target, name).reshape(-1, self.num_blocks)
                # Thread t of block b is thread b * size + t of the crowd.
                columns[:, members] = np.where(
                    field[:, None] != 0, field[:, None] + blocks * size, 0
                )

    def crowd_barrier(self, blocks):
        crowd = self.crowd
        if blocks is None:
            written = {m: w.reshape(-1, self.num_blocks) for m, w in crowd.written.items()}
            if all((w == w[:, :1]).all() for w in written.values()):
                state = State(self.num_threads)
                state.written = {m: w[:, 0].copy() for m, w in written.items()}
                self.crowd, self.cohorts = None, [(self.root(state), None)]
            else:
                crowd.barrier()
            return
        for shadow in crowd.shadows.values():
            cleared = np.broadcast_to(blocks, (shadow.size // self.num_blocks, len(blocks)))
            shadow.clear(cleared.ravel(), crowd.order)


def by_name(item):
    return str(item[0])
