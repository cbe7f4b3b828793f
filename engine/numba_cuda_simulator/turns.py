"""Threads that wait for each other take turns.

On a GPU a thread that spins until another frees a lock, or stores a flag, lets that other go on. In
lockstep nobody would be left to do so. A launch whose `while` loop waits for memory (see `waits`)
is begun again: first block by block, so that a block finds what the blocks before it have done;
and if threads of one block still wait for each other, thread by thread. Both are orders that a GPU
may take.
"""

import functools
import linecache
import math
import weakref
from ast import While

import numpy as np

from .errors import UnsupportedError
from .syntax import walk
from .transform import parsed
from .waits import waits_for_memory

TOGETHER, BLOCKS, THREADS = range(3)
_found = weakref.WeakKeyDictionary()  # code -> the order in which its launches end


@functools.lru_cache(maxsize=512)
def has_waiting_loop(code, file):
    last = max(line for *_, line in code.co_lines() if line)
    lines = linecache.getlines(file)[code.co_firstlineno - 1 : last]
    if not any("while" in line for line in lines):
        return False  # at once, for most kernels
    try:
        return any(isinstance(s, While) and waits_for_memory(s) for s in walk(parsed(code, file)))
    except UnsupportedError:
        return False


def may_wait(function, callees, seen=()):
    """Tell whether a kernel, or a device function that it names, has a loop that waits for memory.

    callees : gives the device functions that a function names.
    """
    code = function.__code__
    if has_waiting_loop(code, code.co_filename):
        return True
    seen = (*seen, function)
    return any(may_wait(f, callees, seen) for f in callees(function) if f not in seen)


class Turns:
    """The order of threads in one launch, and what its arrays held before.

    Attributes
    ----------
    order : TOGETHER, BLOCKS or THREADS
    alone : bool
        Whether one thread runs by itself.
    held : list of (memory, place, value, name)
        What its compare-and-swaps have stored: it may be a lock.
    """

    def __init__(self, function, lanes, arrays):
        self.code, self.lanes = function.__code__, lanes
        self.order = _found.get(self.code, TOGETHER) if arrays else TOGETHER
        self.before = [(a.array, a.array.copy()) for a in arrays if a.writeable]
        self.alone, self.held, self.error = False, [], None

    def is_last(self):
        """Tell whether no other order is left to try."""
        return self.order == THREADS or not self.before

    def again(self, error):
        """Restore the arrays and take the next order; tell whether there is one."""
        if not getattr(error, "waits", False):
            return False
        self.error = self.error or error
        if self.is_last():
            return False
        self.order = THREADS if math.prod(self.lanes.grid) == 1 else self.order + 1
        for array, values in self.before:
            array[...] = values
        return True

    def ended(self):
        if self.order > TOGETHER:
            _found[self.code] = self.order

    def masks(self):
        """Yield the threads of a batch that run at once."""
        lanes = self.lanes
        self.alone = self.order == THREADS
        if not self.alone:
            yield lanes.mask
            return
        for number in range(lanes.num_threads):
            self.held = []
            yield np.broadcast_to(lanes.thread_number == number, lanes.shape)
