"""Settings of the engine, and the few device facts that a launch is checked against."""

from dataclasses import dataclass, replace

from .errors import LaunchError

# Shared memory that one block can have, in bytes (CUDA C++ Programming Guide, compute
# capabilities: maximum amount of shared memory per thread block).
SHARED_MEMORY = {
    "T4": 64 * 1024,  # 7.5
    "V100": 96 * 1024,  # 7.0
    "A100": 163 * 1024,  # 8.0
    "A10": 99 * 1024,  # 8.6
    "RTX 3090": 99 * 1024,  # 8.6
    "L4": 99 * 1024,  # 8.9
    "RTX 4090": 99 * 1024,  # 8.9
    "H100": 227 * 1024,  # 9.0
    "H200": 227 * 1024,  # 9.0
    "B200": 227 * 1024,  # 10.0
}
TOO_MUCH_SHARED = "Make the tiles smaller, or choose another GPU by simt.options(device=...)."


@dataclass(frozen=True)
class Options:
    """What launches check; see `options`."""

    races: bool = True
    uninitialised: bool = True
    divergence: bool = True
    device: str = "T4"
    package: bool = False


_current = Options()  # one for the process: a notebook's cells do not share a context


def current_options():
    """Return the settings in force."""
    return _current


class options:
    """Change settings, for good or for the length of a `with` block.

    Parameters
    ----------
    races : bool
        Look for races in shared and global memory.
    uninitialised : bool
        Look for reads of shared memory that no thread has written.
    divergence : bool
        Refuse barriers and warp intrinsics that some threads never reach.
    device : str
        The GPU whose shared-memory limit launches are held to.
    package : bool
        Also check the launches made by fa_numba's own functions.

    Examples
    --------
    >>> with simt.options(races=False):
    ...     kernel[1, 32](x)
    """

    def __init__(self, **changes):
        global _current
        self.previous = _current
        unknown = set(changes) - set(Options.__dataclass_fields__)
        if unknown:
            known = ", ".join(Options.__dataclass_fields__)
            raise TypeError(f"unknown option {sorted(unknown)[0]!r}; there are {known}")
        new = replace(self.previous, **changes)
        shared_memory_limit(new.device)
        _current = new

    def __enter__(self):
        return current_options()

    def __exit__(self, *error):
        global _current
        _current = self.previous


def shared_memory_limit(device):
    """Return the dynamic shared memory that a block can have on a device, in bytes."""
    if device not in SHARED_MEMORY:
        known = ", ".join(SHARED_MEMORY)
        raise LaunchError(f"unknown device {device!r}; the engine knows {known}")
    return SHARED_MEMORY[device]
