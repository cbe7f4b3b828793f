"""The names of Numba that kernels use, for a Python that has no Numba: a browser, a new Python.

A kernel begins with ``from numba import cuda, float32``. The engine reads these names and runs
nothing of Numba, so that names are enough. The package `numba` in this folder has them, and no
compiler: what needs one raises `CompilerMissingError`. `install` takes it only where no Numba can
be imported.
"""

import importlib.util
import sys
from pathlib import Path

from .missing import needs_numba

NUMBA = Path(__file__).parent / "numba"


def install():
    """Let ``import numba`` find the names in this folder, if it finds nothing else."""
    if "numba" in sys.modules or importlib.util.find_spec("numba") is not None:
        return
    spec = importlib.util.spec_from_file_location(
        "numba", NUMBA / "__init__.py", submodule_search_locations=[str(NUMBA)]
    )
    module = sys.modules["numba"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def require(what):
    """Raise `CompilerMissingError` where there is no Numba: `what` cannot run."""
    if is_installed():
        raise needs_numba(what)


def is_installed():
    """Tell whether the ``numba`` of this process is the one in this folder."""
    return getattr(sys.modules.get("numba"), "__file__", None) == str(NUMBA / "__init__.py")
