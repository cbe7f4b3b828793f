"""Few cases of a test that meet all that is to be met: the others are thorough.

A kernel is compiled for each set of its compile-time values: head_dim, dtype, kind of mask. Their
full product takes hours to compile, and finds little more than each pair of values does. Sizes that
a kernel gets at run time compile nothing. So a test names what its cases have to meet, a value
alone, or values together::

    @pytest.mark.few(lambda case, dtype, mask: [case, *pairs(case[-1], dtype, mask)])

The cases that are left out run by `pytest -m "gpu and thorough"`.
"""

import inspect
from itertools import combinations

import pytest


def pairs(*values):
    """All pairs of values, each with its place: equal values in two places are different."""
    return list(combinations(enumerate(values), 2))


def cover(sets):
    """Return indices of few sets whose union is that of all: the largest gain first, then order."""
    left, chosen = set().union(*sets), []
    while left:
        best = max(range(len(sets)), key=lambda i: len(sets[i] & left))  # the first of the largest
        chosen.append(best)
        left -= sets[best]
    return sorted(chosen)


def mark_thorough(items):
    """Mark those cases of tests with the mark `few` that are left out."""
    families = {}
    for item in items:
        if mark := item.get_closest_marker("few"):
            family = families.setdefault(item.nodeid.partition("[")[0], (mark, []))
            family[1].append(item)
    for mark, cases in families.values():
        (facts,) = mark.args
        names = inspect.signature(facts).parameters
        params = [case.callspec.params for case in cases]
        # By repr: a mask is a dict, which has no hash.
        kept = cover([{repr(x) for x in facts(*[p[name] for name in names])} for p in params])
        for i in set(range(len(cases))) - set(kept):
            cases[i].add_marker(pytest.mark.thorough)
