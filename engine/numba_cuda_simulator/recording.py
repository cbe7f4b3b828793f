"""Every access of a launch, in the order in which the engine makes them: for drawings.

A launch makes millions of accesses: record small ones. What `trace` counts needs no record.
"""

from dataclasses import dataclass

import numpy as np

from .lanes import ALL
from .launch import attempt
from .options import current_options
from .watch import Watch


@dataclass(frozen=True, eq=False)
class Access:
    """One load, store or atomic, by all threads of a batch of thread blocks at once.

    Attributes
    ----------
    kind : str
        "global" or "shared".
    array, action : str
    line : int
    blocks : array of shape (num_blocks,)
        The numbers of the thread blocks, x fastest.
    element : array of shape (num_threads, num_blocks)
        Which element, counted from the array's first.
    active : boolean array of the same shape
        Who takes part.
    """

    kind: str
    array: str
    action: str
    line: int
    blocks: np.ndarray
    element: np.ndarray
    active: np.ndarray


class Recorder(Watch):
    """A watch that also keeps every access."""

    def start_launch(self, machine, lockstep, arguments):
        self.accesses = []
        super().start_launch(machine, lockstep, arguments)

    def load(self, array, offset, value, site):
        self.keep("load", array, offset, site)
        return super().load(array, offset, value, site)

    def store(self, array, offset, value, site):
        self.keep("store", array, offset, site)
        super().store(array, offset, value, site)

    def atomic(self, array, offset, site):
        self.keep("atomic", array, offset, site)
        super().atomic(array, offset, site)

    def keep(self, action, array, offset, site):
        lanes = self.lanes
        shape = lanes.num_threads, lanes.num_blocks
        mask = True if lanes.mask is ALL else lanes.mask
        element, active = (
            np.broadcast_to(x, lanes.shape).reshape(shape).copy() for x in (offset, mask)
        )
        blocks = lanes.first_block + np.arange(lanes.num_blocks, dtype=np.int64)
        access = Access(array.kind, array.name, action, site.line, blocks, element, active)
        self.accesses.append(access)


def record(kernel, grid, block, *args, shared_bytes=0):
    """Run a kernel as `trace` does and return its accesses.

    Parameters
    ----------
    kernel, grid, block, *args, shared_bytes
        As for `run`.

    Returns
    -------
    list of Access
    """
    __tracebackhide__ = True
    recorder = Recorder(current_options(), collect=True)
    error = attempt(kernel, grid, block, args, shared_bytes, recorder)
    if error is not None:
        raise error
    return recorder.accesses
