"""A timetable of attention's products and softmax on an SM: how busy are the tensor cores?

The model has two units. The tensor cores compute the two products of a tile, one unit of time each,
in the order in which they were started; another unit computes its exponentials. All else takes no
time.
"""

from typing import NamedTuple

TENSOR, EXP = "tensor cores", "exponentials"


class Operation(NamedTuple):
    """S = Q Kᵀ, P = softmax(S) or O += P V of a tile, by a warpgroup, on one of the units."""

    unit: str
    name: str
    tile: int
    warpgroup: int
    start: float
    end: float


def overlap(num_tiles, exp_time, *, warpgroups=1, ahead=False):
    """The start and end of each product and each softmax.

    Parameters
    ----------
    num_tiles : int
        Tiles of keys of each warpgroup.
    exp_time : float
        Duration of a tile's softmax; a product takes 1.
    warpgroups : int, default=1
        Warpgroups that share both units; each operation starts as early as possible.
    ahead : bool, default=False
        A warpgroup starts S of the next tile before O += P V of this one, and does the next tile's
        softmax while P V runs. Otherwise it waits for each before it goes on to the next.

    Returns
    -------
    list of Operation
    """
    queues, needs = {}, {}
    for w in range(warpgroups):
        order = []
        for t in range(num_tiles):
            if ahead:
                needs["S", t, w] = [("P", t - 1, w), ("O", t - 2, w)]  # s and p are free again
                order += [("S", t, w)] + ([("O", t - 1, w)] if t else [])
            else:
                needs["S", t, w] = [("O", t - 1, w)]
                order += [("S", t, w), ("O", t, w)]
            needs["P", t, w] = [("S", t, w)]
            needs["O", t, w] = [("P", t, w)]
        queues[TENSOR, w] = order + ([("O", num_tiles - 1, w)] if ahead and num_tiles else [])
        queues[EXP, w] = [("P", t, w) for t in range(num_tiles)]
    free, end, done = {TENSOR: 0.0, EXP: 0.0}, {}, []
    while any(queues.values()):
        ready = {
            (unit, w): max(end.get(need, 0.0) for need in needs[queue[0]])
            for (unit, w), queue in queues.items()
            if queue and all(need in end for need in needs[queue[0]] if need[1] >= 0)
        }
        # The earliest that can start; among several, the one that has waited longest.
        start, _, w, unit = min(
            (max(free[unit], since), since, w, unit) for (unit, w), since in ready.items()
        )
        name, tile, _ = operation = queues[unit, w].pop(0)
        end[operation] = free[unit] = start + (exp_time if unit == EXP else 1.0)
        done.append(Operation(unit, name, tile, w, start, end[operation]))
    return done


def tensor_share(operations):
    """The share of the time in which the tensor cores work."""
    busy = sum(o.end - o.start for o in operations if o.unit == TENSOR)
    return busy / max(o.end for o in operations)
