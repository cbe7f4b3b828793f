"""Where and when do thread blocks run, if each takes as long as is said?

A GPU has so many places for thread blocks, its SMs times those that an SM keeps at a time. It deals
the thread blocks of a grid out in order: to a place each, and then to the place that is first free.
What is left over for the last wave leaves the other places empty.
"""

import heapq


def schedule(durations, places):
    """The place and the beginning of each thread block.

    Parameters
    ----------
    durations : sequence of float
        Of the thread blocks, in the order of the grid; one of 0 takes a place for no time.
    places : int

    Returns
    -------
    list of (int, float)
        Of places that become free together the first is taken.
    """
    free_at = [(0, place) for place in range(places)]  # a heap: sorted as it stands
    begun = []
    for duration in durations:
        start, place = free_at[0]
        heapq.heapreplace(free_at, (start + duration, place))
        begun.append((place, start))
    return begun


def makespan(durations, places):
    """When the last thread block is done.

    Parameters
    ----------
    durations : sequence of float
    places : int

    Returns
    -------
    float
    """
    begun = schedule(durations, places)
    return max((s + d for (_, s), d in zip(begun, durations, strict=True)), default=0)
