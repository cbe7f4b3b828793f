"""Lets Numba's own simulator (NUMBA_ENABLE_CUDASIM=1) import our kernels.

Its `cuda.jit` knows fewer options than numba-cuda's: no forceinline, no launch_bounds. They change
only what a compiler does, so it leaves them out here. `fa_numba/__init__.py` imports this module
before any kernel.
"""

import functools
import inspect

from numba import config, cuda


def _with_any_option(jit):
    known = inspect.signature(jit).parameters

    @functools.wraps(jit)
    def with_any_option(*args, **options):
        return jit(*args, **{name: x for name, x in options.items() if name in known})

    return with_any_option


if config.ENABLE_CUDASIM:
    cuda.jit = _with_any_option(cuda.jit)
