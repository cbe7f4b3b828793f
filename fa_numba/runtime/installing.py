"""The pip command that installs a missing part, as it must be typed on this machine."""

import sys
from importlib import metadata
from pathlib import Path

IN_CHECKOUT = Path(__file__).parents[2].joinpath("install.py").is_file()  # or in a handout
LAST_FOR_GPU = (3, 14)  # numba-cuda 0.30 and CuPy 14 have no wheels for later Pythons


def version(*distributions: str) -> str:
    """The version of the first of these distributions that is here, or "not installed"."""
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "not installed"


def command(extra: str) -> str:
    """``pip install "fa-numba[lessons]"``, or its form for a checkout.

    Parameters
    ----------
    extra : str
        Of pyproject.toml.
    """
    return f'pip install -e ".[{extra}]"' if IN_CHECKOUT else f'pip install "fa-numba[{extra}]"'


def command_for_gpu_code(extra: str) -> str:
    """The same for an extra that compiles GPU code or runs it; says where that cannot be had.

    Parameters
    ----------
    extra : str
        ``"compiler"``, ``"cuda12"`` or ``"cuda13"``.
    """
    if sys.version_info[:2] > LAST_FOR_GPU:
        return "with Python {}.{} or older, ".format(*LAST_FOR_GPU) + command(extra)
    return ("on Linux, " if sys.platform == "darwin" else "") + command(extra)
