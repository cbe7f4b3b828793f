"""The key of a plan: the layouts of a call's arrays and its options, on which its steps depend.

`replay` keeps the launches of a call by it, `fa_numba.cpu.plans` the results of its checks, and
`fa_numba.torch.eager` its replays. Each says what a layout is. Options count by value and by type,
because True, 1 and 1.0 are equal.
"""

PLAIN_TYPES = frozenset((bool, int, float, str, type(None)))


def of_options(values):
    """Return the key of options that are no arrays, a tuple."""
    return values, *map(type, values)


def of_arguments(layout, values):
    """Return the arrays among the arguments, and the key of all: types, layouts, options.

    Parameters
    ----------
    layout : callable
        ``layout(x)`` for an argument that is neither plain nor a tuple: an array.
    values : tuple
    """
    kinds = (*map(type, values),)
    if PLAIN_TYPES.issuperset(kinds):
        return (), (kinds, values)
    arrays, key = (), [kinds]
    for kind, x in zip(kinds, values):  # noqa: B905 strict=True takes longer
        if kind in PLAIN_TYPES:
            key.append(x)
        elif kind is tuple:
            key += x, *map(type, x)
        else:
            key.append(layout(x))
            arrays += (x,)
    return arrays, (*key,)
