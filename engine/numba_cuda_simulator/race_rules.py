"""Which accesses race: the rules for shared and for global memory, atomics included.

Two accesses of one element by two threads race if `KINDS` has them and nothing orders them.

orders them                                                     is kept in
a barrier of the block, between its threads                     shadow.Order, histories
a syncwarp, between threads of a warp that it names             shadow.Order
a fence and two atomics, from one block to another              fences
this_grid().sync(), between all threads                         global_races

Atomics never race with each other. Two stores of one value do no harm and are not reported. Two
more are customary: `custom` has them, which warns once and does not raise.
"""

LOAD, STORE, ATOMIC = "load", "store", "atomic"
KINDS = {  # (earlier, later)
    (STORE, LOAD): "RAW",
    (ATOMIC, LOAD): "RAW",
    (STORE, ATOMIC): "RAW",
    (LOAD, STORE): "WAR",
    (LOAD, ATOMIC): "WAR",
    (STORE, STORE): "WAW",
    (ATOMIC, STORE): "WAW",
}
LOAD_AND_SWAP = (
    "CUDA leaves a plain load undefined beside an atomic. It is customary before a loop of "
    "compare-and-swap, which tries again if the value was old; an atomic that changes nothing, "
    "as cuda.atomic.add(x, i, 0), would be right."
)
SAME_VALUE = (
    "CUDA leaves this undefined, although the thread stores what it has just loaded there. An if "
    "around the store, or a barrier between the two, would be right."
)

AGREED = (
    "CUDA leaves this undefined, although it makes no difference: all threads store one value "
    "there, and so does the thread that meets it. One thread's store and a barrier would be "
    "right."
)


def certain(earlier, later):
    """Tell whether two accesses race whatever they store."""
    return not earlier == later == STORE


def custom(actions, swaps, unchanged):
    """Return why a race does no harm in practice, if it is one of two customary ones, else None.

    Parameters
    ----------
    actions : tuple of two str
        What the two do.
    swaps : tuple of two bool
        Whether each is a compare-and-swap.
    unchanged : bool
        Whether the later one stores what the same thread has just loaded there.
    """
    if LOAD in actions and any(swaps):
        return LOAD_AND_SWAP
    return SAME_VALUE if unchanged else None
