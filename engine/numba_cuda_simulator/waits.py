"""Loops in which threads wait for each other: they never end in lockstep.

On a GPU a thread may spin until another thread stores a flag or frees a lock. Here all
threads of a loop take the same turn, and the blocks of a batch run together, so nobody is
left to do the storing. Such a loop is named, and the launch begun again in another order of the
threads (see turns.py); it is refused if no order ends.
"""

import ast
import re
import sys
import time

import numpy as np

from .errors import UnsupportedError, thread_name
from .scopes import names
from .syntax import stored, walk

MEMORY, NOTHING = "memory", "nothing"
FIXED = re.compile(r"\w+\.(shape(\[\d\])?|size|ndim)|len\(\w+\)|cuda\.\w+\.[xyz]")  # in a test
LOADS = re.compile(r"\w\(|\.[a-z]|\[|:=")
SHORT = 0.02  # seconds, where another order of the threads is left to try (see turns.py)
IMPATIENT_AFTER = 0.2  # seconds in which no thread has left a loop that waits
FIRST_LOOK = 0.05  # seconds to the first look at another loop; to the next one twice as many


def waits_for_memory(loop):
    """Tell from a while loop's syntax whether memory alone decides when it ends.

    True if every exit depends on atomics and loads from places that do not move, and on no
    variable that the loop computes itself, as `j` in `while j < seq_lens[b]`.
    """
    assigned = {}
    for s in walk(loop):
        if isinstance(s, ast.Assign):
            for target in s.targets:
                for x in walk(target):
                    if isinstance(x, ast.Name):
                        assigned.setdefault(x.id, []).append(s.value)
        elif isinstance(s, (ast.AugAssign, ast.For)) and isinstance(s.target, ast.Name):
            assigned.setdefault(s.target.id, []).append(None)

    def from_memory(e, depth=2):
        if e is None or depth < 0:
            return False
        nodes = walk(e)
        own = {x.id for x in nodes if isinstance(x, ast.Name) and x.id in assigned}
        reads = own or any(
            isinstance(x, ast.Subscript)
            or (isinstance(x, ast.Call) and "atomic" in ast.unparse(x.func))
            for x in nodes
        )
        return reads and all(from_memory(v, depth - 1) for name in own for v in assigned[name])

    def tests():
        if not isinstance(loop.test, ast.Constant):
            yield loop.test
        leaves = (ast.Break, ast.Return)
        for s in walk(loop):
            if isinstance(s, ast.If) and any(isinstance(x, leaves) for x in walk(s)):
                yield s.test

    found = map(from_memory, tests())
    return next(found, False) and all(found)


def never_ends(loop):
    """Tell from a while loop's syntax that who enters it stays: nothing in it changes the test."""
    leaves = ast.Break, ast.Return, ast.Assert, ast.Raise
    for x in (x for s in loop.body for x in walk(s)):
        of_a_record = isinstance(x, ast.Attribute) and isinstance(x.ctx, ast.Store)
        if isinstance(x, leaves) or of_a_record:
            return False
    if names(loop.test) & set(stored(*loop.body)):
        return False
    return not LOADS.search(FIXED.sub("0", ast.unparse(loop.test)))


def decided_by(loop):
    """Return what decides when a while loop ends: MEMORY alone, NOTHING, or None where unknown."""
    return NOTHING if never_ends(loop) else MEMORY if waits_for_memory(loop) else None


class Patience:
    """Watches one running while loop, and loses patience when it cannot end.

    The machine is deterministic: when memory and every variable hold what they held some
    turns ago, the loop goes round for ever. A loop that waits for memory which does not
    change is hopeless too, even if it counts its turns. `changes` tells whether a look has found
    another state than the look before.
    """

    def __init__(self, lanes, site, decided_by):
        self.lanes, self.site, self.changes = lanes, site, False
        self.waits, self.endless = decided_by == MEMORY, decided_by == NOTHING
        self.mask = self.memory = self.variables = None
        self.since, self.interval = time.monotonic(), FIRST_LOOK

    def check(self):
        if self.endless:
            self.give_up()
        now, moved = time.monotonic(), not same(self.lanes.mask, self.mask)
        if self.waits:
            self.interval = IMPATIENT_AFTER if self.lanes.turns.is_last() else SHORT
            if moved:
                self.mask, self.since, self.memory = self.lanes.mask, now, None
        if now - self.since < self.interval:
            return
        memory, variables, known = self.lanes.memory_state(), kernel_variables(), self.memory
        if known is not None:
            rests = not moved and same(memory, known)
            if rests and (self.waits or same(variables, self.variables)):
                self.give_up()
            self.changes = True
        self.mask, self.memory, self.variables = self.lanes.mask, memory, variables
        self.since, self.interval = now, 2 * self.interval

    def give_up(self):
        lanes = self.lanes
        thread, block, more = lanes.culprit(lanes.mask)
        who = thread_name(thread, block)
        waits = (
            "waits for another thread"
            if self.waits
            else "goes round without any change of the test"
        )
        error = UnsupportedError(
            f"this while loop never ends: {who}{more} {waits}", sites=[self.site], thread=thread,
            block=block, hint=self.hint(),
        )  # fmt: skip
        error.waits = self.waits
        raise error

    def hint(self):
        if not self.waits:
            return "Look at what the test depends on: nothing in the loop changes it."
        return (
            "The CPU engine ran the blocks, then the threads one after the other, and the thread "
            "waits for one that comes later. Use an atomic, or launch twice."
        )


def kernel_variables():
    """Return the local variables of the running kernel and device functions."""
    frame, found = sys._getframe(1), []
    while frame is not None:
        if "_simt_machine" in frame.f_globals:
            found.append(dict(frame.f_locals))
        frame = frame.f_back
    return found


def same(a, b):
    """Compare two states, arrays by content (NaN equals NaN)."""
    if a is b:
        return True
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.generic) and isinstance(b, np.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    return False
