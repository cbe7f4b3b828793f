"""What the checks of other projects share: NumPy in the place of CuPy, which needs a GPU."""

import sys
import types

import numpy as np


def numpy_as_cupy():
    """Return a module `cupy` whose arrays are NumPy's, enough for what surrounds a kernel."""
    module = types.ModuleType("cupy")
    module.__dict__.update({name: getattr(np, name) for name in np.__all__ if hasattr(np, name)})
    module.__version__ = "14.0.0"
    module.is_available = lambda: True
    module.asnumpy = np.asarray
    module.cuda = types.ModuleType("cupy.cuda")
    thrust = module.cuda.thrust = types.ModuleType("cupy.cuda.thrust")
    memory = types.ModuleType("cupy.cuda.memory")
    memory.OutOfMemoryError = MemoryError
    sys.modules["cupy.cuda.memory"] = memory
    module.__path__ = module.cuda.__path__ = []
    module.cuda.__getattr__ = lambda name: None  # imported, and never called
    backends = types.ModuleType("cupy_backends")
    sys.modules |= {"cupy.cuda": module.cuda, "cupy.cuda.thrust": thrust}
    sys.modules |= {"cupy_backends": backends}
    return module


sys.modules.setdefault("cupy", numpy_as_cupy())
sys.modules.setdefault("mpi4py", None)  # fbpic does without it
