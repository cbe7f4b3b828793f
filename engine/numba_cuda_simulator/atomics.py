"""Atomic operations: every thread's update happens, one after the other, in thread order."""

import numpy as np

from .arrays import LaneArray, pick
from .dtypes import typed
from .errors import LaunchError, UnsupportedError
from .lanes import ALL, type_name
from .records import kernel_frame, present_site


def increment(old, limit):
    """CUDA's atomicInc: count up and wrap to 0 after the limit."""
    return np.where(old >= limit, 0, old + 1)


def decrement(old, limit):
    """CUDA's atomicDec: count down and wrap to the limit after 0."""
    return np.where((old == 0) | (old > limit), limit, old - 1)


UFUNCS = {
    "add": np.add, "sub": np.subtract, "max": np.fmax, "min": np.fmin, "nanmax": np.fmax,
    "nanmin": np.fmin, "and_": np.bitwise_and, "or_": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
OTHERS = {"exch": lambda old, new: new, "inc": increment, "dec": decrement}
# Element types that each atomic works on.
COUNTERS = "uint32", "uint64"
INTEGERS = "int32", "int64", *COUNTERS
NUMBERS = *INTEGERS, "float32", "float64"
DTYPES = {name: INTEGERS for name in "and_ or_ xor exch cas compare_and_swap".split()}
DTYPES |= {"inc": COUNTERS, "dec": COUNTERS}


class Atomics:
    """cuda.atomic.* of a launch.

    Parameters
    ----------
    lanes : Lanes
        The threads that update.
    memory : Memory
        Finds the elements.
    watch : Watch or None
        Hears every update.
    """

    def __init__(self, lanes, memory, watch):
        self.lanes, self.memory, self.watch = lanes, memory, watch

    def atomic(self, operation, site, keep, *arguments, **keywords):
        """Run an atomic; `keep` tells whether the statement uses the old value."""
        if not isinstance(operation, Atomic):
            return operation(*arguments, **keywords)
        return operation.run(self, site, keep, *arguments, **keywords)

    def element_from(self, array, start):
        """Return x[start:], the first argument of an atomic, as a Place."""
        if isinstance(array, LaneArray) and len(array.axes) == 1:
            return Place(array, start)
        return self.memory.view(array, slice(start, None, None))


class Place:
    """Where a slice x[i:] begins, which may differ between threads as no array's start may."""

    def __init__(self, array, start):
        self.array, self.start = array, start


class Atomic:
    """One of cuda.atomic.*."""

    def __init__(self, name):
        self.name = name

    def __call__(self, *arguments):
        """Run it where it is the value of a variable, as the argument of a device function."""
        atomics = kernel_frame().f_globals["_simt_machine"].atomics
        return self.run(atomics, present_site(), True, *arguments)

    def run(self, atomics, site, keep, array, index, value, new=None):
        """Run it; array, index, value, new: the kernel's arguments."""
        if self.name == "compare_and_swap":  # cas of the first element
            index, value, new = np.int64(0), index, value
        if isinstance(array, Place):
            array, index = array.array, array.start + index
        if not isinstance(array, LaneArray) or array.kind == "local":
            raise UnsupportedError(
                f"cuda.atomic.{self.name} does not work on {type_name(array)}",
                hint="Atomics are for global and shared arrays, which threads have in common.",
            )
        dtypes = DTYPES.get(self.name, NUMBERS)
        if array.dtype.name not in dtypes:
            raise UnsupportedError(
                f"cuda.atomic.{self.name} does not work on '{array.name}', which is {array.dtype}",
                hint=f"It works on {', '.join(dtypes)}.",
            )
        lanes, watch = atomics.lanes, atomics.watch
        offset = atomics.memory.locate(array, index, site)
        if isinstance(array.flat, np.ndarray) and not array.flat.flags.writeable:
            raise LaunchError(f"'{array.name}' is read-only")
        if watch is not None:
            if new is not None:
                watch.findings.swaps.add(site)
            watch.atomic(array, offset, site)
        mask = lanes.mask
        places = pick(array.addresses(lanes, offset), lanes.shape, mask)
        values = pick(value, lanes.shape, mask).astype(array.dtype)
        if self.name in ("max", "min") and array.dtype.kind == "f":
            # A NaN in memory stays there, and one that comes changes nothing.
            values = np.where(np.isnan(array.flat[places]), np.nan, values).astype(array.dtype)
        if new is not None:
            swap = pick(new, lanes.shape, mask).astype(array.dtype)
            old = compare_and_swap(array.flat, places, values, swap)
            if lanes.turns.alone and old[0] == values[0]:
                lanes.turns.held.append((array.flat, places[0], swap[0], array.element(places[0])))
        else:
            ufunc = UFUNCS.get(self.name)
            if ufunc and not keep:
                ufunc.at(array.flat, places, values)
                return None
            step = ufunc or OTHERS[self.name]
            old = in_turns(array.flat, places, values, step)
        if not keep:
            return None
        if mask is ALL:
            return typed(old.reshape(lanes.shape))
        result = np.zeros(lanes.shape, array.dtype)
        result[np.broadcast_to(mask, lanes.shape)] = old
        return typed(result)


def compare_and_swap(memory, places, expected, new):
    """Where memory holds what is expected, store new; return what each thread found.

    All threads up to the first whose swap succeeds find the same, so a lock that thousands
    contend for takes two rounds.
    """
    old = np.empty(len(places), memory.dtype)
    left = np.argsort(places, kind="stable")  # address by address, threads in order
    while len(left):
        found = memory[places[left]]
        hits = np.flatnonzero(found == expected[left])
        _, first = np.unique(places[left[hits]], return_index=True)
        winners = hits[first]
        _, address = np.unique(places[left], return_inverse=True)
        last = np.full(len(left), -1)  # address -> the thread that swaps there
        last[address[winners]] = winners
        winner = last[address]
        done = (winner < 0) | (np.arange(len(left), dtype=np.int64) <= winner)
        old[left[done]] = found[done]
        memory[places[left[winners]]] = new[left[winners]]
        left = left[~done]
    return old


def in_turns(memory, places, values, step):
    """Update places one thread after the other; return what each thread found.

    Threads that meet at one address take turns: in turn r all addresses are updated at once,
    each by the r-th thread that came to it. Where there are more turns than addresses, as at one
    counter for all threads, NumPy goes through the threads of each address instead.
    """
    old = np.empty(len(places), memory.dtype)
    if not len(places):
        return old
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    length = np.diff(np.r_[first, len(ordered)])
    if isinstance(step, np.ufunc) and len(first) < length.max():
        for threads in np.split(order, first[1:]):
            where = places[threads[0]]
            row = np.r_[memory[where], values[threads]].astype(memory.dtype)
            row = step.accumulate(row, dtype=memory.dtype)
            old[threads], memory[where] = row[:-1], row[-1]
        return old
    for turn in range(int(length.max())):
        threads = order[first[length > turn] + turn]
        where = places[threads]
        found = memory[where]
        old[threads] = found
        memory[where] = step(found, values[threads])
    return old
