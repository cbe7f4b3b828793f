"""Names of Numba for the engine; see numba_cuda_simulator.without_numba."""

from numba_cuda_simulator.without_numba.missing import needs_numba

from . import types
from .types import *  # noqa: F403
from .types import from_dtype as from_dtype


class config:
    """Numba's settings, as the engine asks for them."""

    ENABLE_CUDASIM = 0


from . import cuda  # noqa: E402

__all__ = ["config", "cuda", "types", *types.__all__]


COMPILED = """carray cfunc farray generated_jit guvectorize jit jit_module njit objmode prange
    stencil typeof vectorize""".split()


def __getattr__(name):
    if name in COMPILED:
        raise needs_numba(f"numba.{name}")
    raise AttributeError(f"module 'numba' has no attribute {name!r}")
