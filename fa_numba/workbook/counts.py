"""The four numbers by which the ladder and the board compare kernels: sums over launches."""

from collections import Counter

QUANTITIES = {
    "bytes": "from and to global memory",
    "shared cycles": "of its banks, conflicts included",
    "barriers": "of all thread blocks",
    "instructions": "of warps: loads, stores, shuffles",
}


def counted(traces) -> dict[str, int]:
    """The numbers of some traces, added up.

    Parameters
    ----------
    traces : iterable of Trace

    Returns
    -------
    dict of str to int
        The keys of `QUANTITIES`. The meter counts each number that a thread loads, also where a
        compiler merges four loads into one.
    """
    total = dict.fromkeys(QUANTITIES, 0)
    for trace in traces:
        arrays, shared = trace.arrays.values(), trace.shared.values()
        total["bytes"] += trace.load_bytes + trace.store_bytes
        total["shared cycles"] += sum(
            x.load_wavefronts + x.store_wavefronts + x.atomic_wavefronts for x in shared
        )
        total["barriers"] += trace.barriers
        total["instructions"] += trace.shuffles + sum(
            x.load_requests + x.store_requests + x.atomic_requests for x in (*arrays, *shared)
        )
    return {name: int(number) for name, number in total.items()}


def added(counts) -> dict[str, int]:
    """The sum of some results of `counted`, without those that are 0."""
    return dict(sum(map(Counter, counts), Counter()))
