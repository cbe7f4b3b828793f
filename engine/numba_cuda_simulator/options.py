"""Settings of the engine."""

from dataclasses import dataclass, replace

from .devices import DEFAULT, chip

TOO_MUCH_SHARED = "Make the tiles smaller, or choose another GPU by simt.options(device=...)."

GEARS = "auto", "always", "never"


@dataclass(frozen=True)
class Options:
    """What launches check; see `options`."""

    races: bool = True
    uninitialised: bool = True
    divergence: bool = True
    device: str = DEFAULT
    compiled: str = "auto"
    package: bool = False
    wrap: bool = False


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
        Look for reads of shared memory, and of local arrays, that no thread has written.
    divergence : bool
        Refuse barriers and warp intrinsics that some threads never reach.
    device : str
        The GPU whose shared-memory limit launches are held to.
    compiled : str
        Whether Numba compiles a kernel for the CPU where it can: "auto", if it runs long, "always"
        or "never". Traced launches are never compiled.
    wrap : bool
        Let a negative index count from the end of the array, as Numba compiles it. Otherwise only a
        literal does, as in x[-1]: a computed one is seldom meant.
    package : bool
        Also check the launches that a library makes in its own functions; the library reads this.

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
        chip(new.device)  # raises where there is none
        if new.compiled not in GEARS:
            raise ValueError(f"compiled must be one of {', '.join(GEARS)}, got {new.compiled!r}")
        _current = new

    def __enter__(self):
        return current_options()

    def __exit__(self, *error):
        global _current
        _current = self.previous
