"""Shared by graders of kernels: a launch on copies of its arguments, and how much it moves."""

import numpy as np

from fa_numba import simt
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import expect_no_races


def launched(kernel, grid, block, written, **arguments):
    """Trace a launch; fail at a race, at a read of what nobody wrote, and at a changed input.

    Parameters
    ----------
    written : tuple of str
        The arguments that the kernel may change.
    **arguments
        Of the kernel, in the order of the statement. The kernel gets copies of the arrays.

    Returns
    -------
    dict of arrays, trace
        What the kernel has made of `written`, and the engine's trace.
    """
    __tracebackhide__ = True
    given = {n: x.copy() if isinstance(x, np.ndarray) else x for n, x in arguments.items()}
    trace = simt.trace(kernel, grid, block, *given.values())
    expect_no_races(trace)
    if trace.uninitialised:
        first = trace.uninitialised[0]
        cause = f"{first.memory.capitalize()} memory is read before it is written."
        raise Wrong(str(first), causes=[cause])
    for name, x in given.items():
        is_float = np.asarray(x).dtype.kind == "f"
        same = name in written or np.array_equal(x, arguments[name], equal_nan=is_float)
        assert same, f"{name} is an input: it must not be changed"
    return {name: given[name] for name in written}, trace


def expect_at_most(trace, **limits):
    """Fail where more elements are moved than the statement allows.

    Parameters
    ----------
    **limits : (int, str)
        The most, and how it comes about, by ``ARRAY_loads`` or ``ARRAY_stores``.
    """
    __tracebackhide__ = True
    for place, (most, why) in limits.items():
        name, _, kind = place.rpartition("_")
        got = getattr(trace.arrays[name], kind)
        if got > most:
            again = most and got % most == 0 and kind == "loads"
            advice = ": keep on the chip what you need again" if again else ""
            raise Wrong(
                f"{kind} of {name}: {most} are enough, {why}; the meter shows {got}{advice}",
                causes=[f"{name} has more {kind} than needed: {why}."],
                where=f"{kind} of {name}",
            )
