"""The microscope: hears every access of a launch, counts it and looks for races.

In `run` the first race raises. In `trace` all are collected, and a thread that reads what
another has just stored without a barrier gets the old value, as it may on a GPU: a missing
barrier then breaks the answer too. (Plain lockstep would hide it, because each statement is
done by all threads before the next begins.)
"""

import math

from .counters import Counters, Requests
from .findings import Findings
from .flops import FlopMeter
from .global_races import GlobalWatch
from .lanes import ALL, NOBODY
from .race_rules import ATOMIC, LOAD, STORE
from .shared_races import SharedWatch


class Watch:
    """Watches one launch.

    Parameters
    ----------
    options : Options
    collect : bool
        Count everything and collect what is found, instead of raising the first.
    """

    def __init__(self, options, collect):
        self.options, self.collect = options, collect
        self.findings = None
        self.flops = FlopMeter() if collect else None

    def start_launch(self, machine, lockstep, arguments):
        lanes, memory, options = machine.lanes, machine.memory, self.options
        self.lanes, self.memory = lanes, memory
        self.findings = Findings(lanes, options, self.collect)
        self.requests = Requests(lanes)
        self.counters = Counters(self.requests) if self.collect else None
        if self.flops is not None:
            self.flops.start_launch(lanes, machine.names.builtins["pow"])
        parts = self.findings, self.requests, self.counters, options
        self.shared = SharedWatch(lanes, memory, *parts)
        self.globals = None
        if options.races and lanes.num_threads * math.prod(lanes.grid) > 1:
            self.globals = GlobalWatch(lanes, memory, self.findings, lockstep, arguments)

    def start_batch(self):
        self.requests.start_batch()
        if self.flops is not None:
            self.flops.start_batch()
        self.shared.start_batch()
        if self.globals is not None:
            self.globals.start_batch()

    def end_launch(self):
        self.shared.end_launch()

    def root_cause(self, error):
        """Return the error to raise: that of a race, if what went wrong may follow from one."""
        return self.findings.root_cause(error) if self.findings else error

    def load(self, array, offset, value, site):
        """Note a load; return the value that the threads see."""
        if array.kind == "shared":
            return self.shared.load(array, offset, value, site)
        if self.counters is not None:
            self.counters.count(array, offset, site, LOAD)
        if self.globals is not None:
            return self.globals.load(array, offset, value, site)
        return value

    def load_local(self, array, offset, site):
        """Record a finding where threads load an element before they store it."""
        missing = array.missing(self.lanes, offset)
        if missing is not NOBODY:
            bad = self.lanes.full(True if missing is ALL else missing).T
            block, thread = divmod(int(bad.argmax()), self.lanes.num_threads)
            element = int(self.lanes.full(offset)[thread, block])
            now = thread, self.lanes.first_block + block, self.findings.place(site, LOAD)
            self.findings.unwritten(array, element, now, int(bad.sum()))

    def store(self, array, offset, value, site):
        """Note a store and make it."""
        if array.kind == "shared":
            self.shared.store(array, offset, value, site)
            return
        if self.counters is not None:
            self.counters.count(array, offset, site, STORE)
        if self.globals is not None:
            self.globals.store(array, offset, value, site)
        else:
            array.store(self.lanes, offset, value)

    def atomic(self, array, offset, site):
        """Note an atomic; the caller makes it."""
        if array.kind == "shared":
            self.shared.atomic(ATOMIC, array, offset, site)
            return
        if self.counters is not None:
            self.counters.count(array, offset, site, ATOMIC)
        if self.globals is not None:
            self.globals.atomic(array, offset, site)

    def barrier(self):
        """Note a cuda.syncthreads() of the active threads."""
        blocks = self.shared.active_blocks(self.lanes.mask)
        if self.counters is not None:
            self.counters.barriers += self.lanes.num_blocks if blocks is None else int(blocks.sum())
        self.shared.barrier(blocks)
        if self.globals is not None:
            self.globals.barrier(blocks)

    def shuffle(self):
        """Note a shuffle, once for each warp with an active thread."""
        if self.counters is not None:
            active = self.lanes.by_warp(self.lanes.active())
            self.counters.shuffles += int(active.any(1).sum())

    def fence(self):
        """Note a cuda.threadfence() of the active threads."""
        if self.globals is not None:
            self.globals.fence()

    def grid_barrier(self):
        """Note a this_grid().sync(): a barrier of each block, and more."""
        self.barrier()
        if self.globals is not None:
            self.globals.forget()

    def warp_barrier(self, mask):
        """Note a cuda.syncwarp() of the active threads that the member mask names."""
        threads = self.lanes.members(mask)
        if self.lanes.mask is not ALL:
            threads = threads & self.lanes.active()
        self.shared.warp_barrier(threads)
        if self.globals is not None:
            self.globals.warp_barrier(threads)
