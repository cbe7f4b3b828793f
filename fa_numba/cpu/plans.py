"""Plans of calls: what follows from the layouts of arrays and from options, kept for later calls.

A call checks its arguments and divides its work before the first tile begins. In a program that
computes other things between two calls, this Python code is no longer in the processor's caches: it
took 100 µs, and the tiles of a small problem 210 (12 x 64 x 4, head_dim 32, two cores of an EPYC).
A later call with the same layouts and options takes the results of the first one, and begins after
50 µs. `runtime.replay` keeps the launches of a GPU in the same way.
"""

import functools

import numpy as np

from fa_numba.runtime import plan_key

MAX_KEPT = 256  # plans of one function
_MISSING = object()  # None is the plan of a function that only checks


def kept(prepare):
    """Decorate a function that checks and plans: its result is kept for equal layouts and options.

    The result may depend on dtype, shape and strides of an array, and not on its contents. A call
    that raises an error leaves no plan.
    """
    plans = {}

    @functools.wraps(prepare)
    def call(*args):
        try:
            _, key = plan_key.of_arguments(_layout, args)
            plan = plans.get(key, _MISSING)
        except TypeError:  # an argument that cannot be compared, such as a list
            return prepare(*args)
        if plan is _MISSING:
            plan = prepare(*args)
            if len(plans) >= MAX_KEPT:
                plans.clear()
            plans[key] = plan
        return plan

    return call


def _layout(x):
    """All of an array that a plan may depend on; a NumPy scalar, for instance, itself."""
    return (x.dtype, x.shape, x.strides) if isinstance(x, np.ndarray) else x
