"""When a launch is compiled instead: see `compiled`.

Lockstep is quick where many threads do the same, and slow where few are active. So a launch begins
on the engine. Once one is expected to take WORTH seconds, about what compiling takes, or a kernel
has spent them in its launches, Numba compiles the kernel for the CPU. A file says so, or that few
threads have spent SLOW seconds; later processes compile it at once, or load what is compiled. What
it computes counts only if it found nothing to say: otherwise the arguments are put back and the
engine runs the launch.
"""

import hashlib
import math
import time
import types
import weakref

import numpy as np

from . import without_numba
from .arrays import GlobalArray
from .kept_files import KeptFiles
from .progress import Progress

WORTH = 1.0  # seconds of processor time on the engine, of a launch or until now
SLOW, ALONE = 0.2, 3e-4  # seconds of a kernel in a process, and of each of its few threads
FULL = 2e-7  # seconds of a thread; where it takes less, all are busy and lockstep is as quick
FILES = KeptFiles("SIMT_CACHE", "numba_cuda_simulator", ".slow")
SHORT = 0.1  # seconds of a launch that is not worth a copy of its arguments
PATIENCE = 10.0  # seconds that a compiled launch may take, where nothing is known of it

_kernels = weakref.WeakKeyDictionary()  # function -> {types of the arguments: Kernel}


class Shift(BaseException):
    """Ends a launch on the engine: it goes on in the second gear."""


class GiveUp(Exception):
    """Ends a compiled launch: the engine would be quicker."""


class Kernel:
    """A kernel with arguments of some kinds (`type_key`): its times, and its compiled form."""

    def __init__(self, function, kinds):
        self.seconds, self.launches, self.threads = 0.0, 0, 0  # on the engine, until now
        self.done = False  # has the last compiled launch said all?
        self.compiled = None  # `Compiled`; False: it cannot be, or it does not pay
        code, folder = function.__code__, FILES.folder()
        constants = [c for c in code.co_consts if not isinstance(c, types.CodeType)]
        meaning = repr((code.co_code, code.co_names, code.co_varnames, constants, kinds)).encode()
        name = f"{code.co_name}-{hashlib.sha256(meaning).hexdigest()[:32]}{FILES.suffix}"
        self.file = folder and folder / name
        found = folder and FILES.read(self.file)
        # Seconds of a thread on the engine, in an earlier process; 0: compiled it is no quicker.
        self.before = self.noted = float(found) if found else None

    def per_thread(self):
        return self.seconds / self.threads if self.threads else self.before

    def note(self, seconds):
        """Tell later processes, once, how many seconds of a thread they can save."""
        if self.file and (self.noted is None or not seconds):
            FILES.write(self.file, repr(seconds).encode())
            self.noted = seconds

    def give_up(self):
        """Stay on the engine."""
        self.compiled = False
        self.note(0.0)


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
        known, kinds = _kernels.setdefault(function, {}), tuple(map(type_key, values))
        self.kernel = known.get(kinds) or known.setdefault(kinds, Kernel(function, kinds))
        if self.kernel.compiled and not self.kernel.compiled.is_current():
            # A global constant has changed: it may change before each launch.
            self.kernel.compiled = self.kernel.before = None
            self.kernel.seconds, self.kernel.threads = 0.0, 0
        self.whole = None  # the seconds that the engine would take, as far as it is known
        self.copies = None

    def starts(self):
        """Tell whether the launch begins compiled."""
        kernel = self.kernel
        each = kernel.per_thread() or FULL
        return self.forced or kernel.before or (each >= FULL and kernel.seconds > WORTH)

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
        if self.copies is not None and whole > WORTH and self.compile():
            self.whole = whole if known else math.inf
            raise Shift

    def compile(self):
        """Compile the kernel unless it is; tell whether it can be."""
        kernel = self.kernel
        if kernel.compiled is None:
            from .compiled import rewritten

            kernel.compiled = rewritten(self.function, self.lockstep, self.values)
        if kernel.compiled is None or (kernel.compiled and not kernel.compiled.compile()):
            kernel.give_up()
        return bool(kernel.compiled)

    def ran(self, seconds):
        """Note a launch on the engine."""
        kernel = self.kernel
        kernel.seconds += seconds
        kernel.launches += 1
        kernel.threads += self.threads
        each = kernel.per_thread()
        if each >= FULL and kernel.seconds >= (SLOW if each >= ALONE else WORTH):
            kernel.note(each)

    def shifted(self, seconds):
        """Note a launch that would have been long."""
        self.ran(max(seconds, WORTH, self.whole if math.isfinite(self.whole) else 0.0))

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
            done = False
            kernel.give_up()
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
                kernel.give_up()
        return True

    def progress(self):
        """Return what watches the compiled launch: it shows how far it is, and gives it up."""
        progress = Progress(self.function.__name__, int(np.prod(self.grid)), self.threads)
        known = self.whole
        if known is None and self.kernel.per_thread() is not None:
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
