"""Plans of calls: what follows from the layouts of arrays and from options, kept for later calls.

A call checks its arguments and divides its work before the first tile begins. In a program that
does other things between two calls, this Python code has left the processor's caches, and took
130 µs where the tiles of a small problem take 210 (12 x 64 x 4, head_dim 32, two cores). So what it
found is kept, as `runtime.replay` keeps the launches of a GPU, and a later call with the same
layouts and options takes it from there.
"""

import functools

import numpy as np

MAX_KEPT = 256  # plans of one function


def kept(prepare):
    """Decorate a function that checks and plans: its result is kept for equal layouts and options.

    The result may depend on dtype, shape and strides of an array, and not on its contents. Nothing
    is kept of a call that raised an error.
    """
    plans = {}

    @functools.wraps(prepare)
    def call(*args):
        try:
            key = (*map(_key, args),)
            plan = plans.get(key)
        except TypeError:  # an argument that cannot be compared, such as a list
            return prepare(*args)
        if plan is None:
            plan = prepare(*args)
            if len(plans) >= MAX_KEPT:
                plans.clear()
            plans[key] = plan
        return plan

    return call


def _key(x):
    """What a plan may depend on. The types, because 1 equals True, which is another argument."""
    if isinstance(x, np.ndarray):
        return type(x), x.dtype, x.shape, x.strides
    if isinstance(x, tuple):
        return x, *map(type, x)
    return type(x), x
