"""When a launch is compiled instead: see `compiled`.

Lockstep is quick where many threads do the same, and slow where few are active. So every launch
begins on the engine. Once one is expected to take more than LIMIT seconds, or a kernel has spent
HOT seconds in its launches, Numba compiles the kernel for the CPU; if its machine code is on disk,
from an earlier process, a quarter of that is enough. What it computes counts only if it found
nothing to say: otherwise the arguments are put back and the engine runs the launch.
"""

import math
import time
import weakref

import numpy as np

from . import without_numba
from .arrays import GlobalArray
from .progress import Progress

LIMIT = 2.0  # seconds of processor time that a launch may be expected to take on the engine
HOT = 1.0  # the same in a kernel's launches until now
FULL = 2e-7  # seconds of a thread; where it takes less, all are busy and lockstep is as quick
KEPT = 0.25  # times these two, where the kernel's machine code is on disk
SHORT = 0.1  # seconds of a launch that is not worth a copy of its arguments
PATIENCE = 10.0  # seconds that a compiled launch may take, where nothing is known of it

_kernels = weakref.WeakKeyDictionary()  # function -> {types of the arguments: Kernel}


class Shift(BaseException):
    """Ends a launch on the engine: it goes on in the second gear."""


class GiveUp(Exception):
    """Ends a compiled launch: the engine would be quicker."""


class Kernel:
    """What is known of a kernel with arguments of some types."""

    def __init__(self):
        self.seconds, self.launches, self.threads = 0.0, 0, 0  # on the engine, until now
        self.done = False  # has the last compiled launch said all?
        self.compiled = None  # `Compiled`; False: it cannot be, or it does not pay

    def per_thread(self):
        return self.seconds / self.threads if self.threads else None


class Gear:
    """The choice for one launch.

    Parameters
    ----------
    machine : Machine
    function : Python function
    lockstep : LockstepCode
    values : list
        The arguments, lane values and arrays.
    forced : bool
        Whether to compile at once.
    """

    def __init__(self, machine, function, lockstep, values, forced):
        self.function, self.lockstep, self.values, self.forced = function, lockstep, values, forced
        self.grid, self.block = machine.lanes.grid, machine.lanes.block
        self.threads = int(np.prod(self.grid)) * machine.lanes.num_threads
        kinds = _kernels.setdefault(function, {})
        self.kernel = kinds.setdefault(tuple(map(type_key, values)), Kernel())
        if self.kernel.compiled and not self.kernel.compiled.is_current():
            self.kernel.compiled = None  # a global constant has changed
        self.whole = None  # the seconds that the engine would take, as far as it is known
        self.copies = None

    def starts(self):
        """Tell whether the launch begins compiled."""
        each = self.kernel.per_thread() or FULL
        return self.forced or each >= FULL and self.is_enough(self.kernel.seconds, HOT)

    def is_enough(self, seconds, limit):
        """Tell whether a kernel that takes some time on the engine is to be compiled."""
        return seconds > limit or (seconds > KEPT * limit and self.is_kept())

    def prepare(self):
        """Remember the arguments, before the engine changes them."""
        kernel = self.kernel
        often = kernel.launches > 2 and kernel.per_thread() * self.threads < SHORT
        if kernel.compiled is not False and not often:
            self.keep()

    def keep(self):
        self.copies = [
            (value.array, value.array.copy())
            for name, value in zip(self.lockstep.parameters, self.values, strict=True)
            if isinstance(value, GlobalArray)
            and value.writeable
            and self.lockstep.may_store(name, value.ndim)
        ]

    def restore(self):
        for array, copy in self.copies:
            array[...] = copy

    def consider(self, whole, known=True):
        """End the launch on the engine if it is expected to be long and can be compiled."""
        if self.copies is not None and self.is_enough(whole, LIMIT) and self.compile():
            self.whole = whole if known else math.inf
            raise Shift

    def rewrite(self):
        """Return what there is to be compiled, or what is: `Compiled`; False if it cannot be."""
        kernel = self.kernel
        if kernel.compiled is None:
            from .compiled import rewritten

            kernel.compiled = rewritten(self.function, self.lockstep, self.values) or False
        return kernel.compiled

    def compile(self):
        """Compile the kernel unless it is; tell whether it can be."""
        if self.rewrite() and not self.kernel.compiled.compile():
            self.kernel.compiled = False
        return bool(self.kernel.compiled)

    def is_kept(self):
        """Tell whether the kernel's machine code is on disk, or here."""
        return self.rewrite() and self.kernel.compiled.code is not None

    def ran(self, seconds):
        """Note a launch on the engine."""
        kernel = self.kernel
        kernel.seconds += seconds
        kernel.launches += 1
        kernel.threads += self.threads

    def shifted(self, seconds):
        """Note a launch that would have been long."""
        self.ran(max(seconds, HOT, self.whole if math.isfinite(self.whole) else 0.0))

    def run(self):
        """Run the launch compiled; tell whether that is all there is to do."""
        if self.copies is None:
            self.keep()
        else:
            self.restore()
        if not self.compile():
            return False
        start, kernel = time.process_time(), self.kernel
        try:
            done = kernel.compiled.run(self.grid, self.block, self.values, self.progress())
        except GiveUp:
            done, kernel.compiled = False, False
        except BaseException:
            self.restore()
            raise
        kernel.done = done
        if not done:
            self.restore()
            if not self.forced:
                kernel.compiled = False
            return False
        expected = kernel.per_thread()
        if not self.forced and self.whole is None and expected is not None:
            if time.process_time() - start > expected * self.threads:
                kernel.compiled = False
        return True

    def progress(self):
        """Return what watches the compiled launch: it shows how far it is, and gives it up."""
        progress = Progress(self.function.__name__, int(np.prod(self.grid)), self.threads)
        known = self.whole
        if known is None and self.kernel.threads:
            known = self.kernel.per_thread() * self.threads
        longest = max(PATIENCE, 3 * known if known else 0.0)

        def watch(share, seconds):
            if seconds < 1:
                return
            slower = known is not None and share > 0 and seconds > 2 * known * share
            if not self.forced and (slower or seconds > longest):
                raise GiveUp
            progress.done = share
            progress.look(0.0, time.process_time())

        return watch


def gear_for(machine, function, lockstep, values):
    """Return a launch's `Gear`; None if it is one for the engine alone."""
    from .options import current_options

    choice, watch = current_options().compiled, machine.watch
    if choice == "never" or (watch is not None and watch.collect) or without_numba.is_installed():
        return None
    gear = Gear(machine, function, lockstep, values, forced=choice == "always")
    return None if gear.kernel.compiled is False else gear


def known(function):
    """Return what is known of a kernel, a `Kernel` for each set of types."""
    return list(_kernels.get(function, {}).values())


def forget():
    """Forget all kernels."""
    _kernels.clear()


def type_key(value):
    if isinstance(value, GlobalArray):
        return value.dtype.char, len(value.dims), value.layout(), value.writeable
    return getattr(value, "dtype", type(value))
