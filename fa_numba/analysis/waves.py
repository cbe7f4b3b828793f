"""When each thread block of a grid runs, and in which slot, given how long each takes.

A GPU has a number of slots for thread blocks: its SMs times the thread blocks that an SM keeps at a
time. It starts the thread blocks in the order of the grid: one in each slot, and each next one in
the slot that becomes free first. The last wave may be too short to fill all slots.
"""

import heapq


def schedule(durations, num_slots):
    """The slot and the start of each thread block.

    Parameters
    ----------
    durations : sequence of float
        Durations of the thread blocks, in the order of the grid.
    num_slots : int

    Returns
    -------
    list of (int, float)
        Slot and start. If several slots become free together, the first is used.
    """
    free_at = [(0, slot) for slot in range(num_slots)]  # sorted, so it is a heap
    begun = []
    for duration in durations:
        start, slot = free_at[0]
        heapq.heapreplace(free_at, (start + duration, slot))
        begun.append((slot, start))
    return begun


def makespan(durations, num_slots):
    """The time at which the last thread block ends."""
    begun = schedule(durations, num_slots)
    return max((s + d for (_, s), d in zip(begun, durations, strict=True)), default=0)
