"""The facts of a GPU that a launch on the engine depends on."""

from typing import NamedTuple

from .errors import LaunchError

KIB = 1024


class Chip(NamedTuple):
    """A GPU as the engine sees it.

    Attributes
    ----------
    compute_capability : (int, int)
    num_sms : int
        Streaming multiprocessors.
    """

    compute_capability: tuple[int, int]
    num_sms: int

    @property
    def shared_bytes_per_block(self):
        """Most shared memory that a thread block can ask for."""
        return SHARED_BYTES_PER_BLOCK[self.compute_capability]


CHIPS = {
    "T4": Chip((7, 5), 40),
    "V100": Chip((7, 0), 80),
    "A100": Chip((8, 0), 108),
    "A10": Chip((8, 6), 72),
    "RTX 3090": Chip((8, 6), 82),
    "L4": Chip((8, 9), 58),
    "RTX 4090": Chip((8, 9), 128),
    "H100": Chip((9, 0), 132),
    "H200": Chip((9, 0), 132),
    "B200": Chip((10, 0), 148),
    "RTX 5090": Chip((12, 0), 170),
}
DEFAULT = "T4"  # the GPU of a free notebook in the cloud

# CUDA C++ Programming Guide, compute capabilities: most shared memory per thread block.
SHARED_BYTES_PER_BLOCK = {
    (7, 0): 96 * KIB,
    (7, 5): 64 * KIB,
    (8, 0): 163 * KIB,
    (8, 6): 99 * KIB,
    (8, 9): 99 * KIB,
    (9, 0): 227 * KIB,
    (10, 0): 227 * KIB,
    (12, 0): 99 * KIB,
}
# The most that a thread block gets without asking for dynamic shared memory, on every GPU.
STATIC_SHARED_BYTES = 48 * KIB


def chip(name):
    """Return the `Chip` of this name, or raise a LaunchError that lists the names."""
    if name not in CHIPS:
        raise LaunchError(f"unknown device {name!r}; the engine knows {', '.join(CHIPS)}")
    return CHIPS[name]
