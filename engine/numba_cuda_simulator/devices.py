"""The GPUs, one row each. To add a GPU, add its row to `GPUS`.

Peaks are for dense operands at the boost clock; no kernel reaches them.
"""

import re
from typing import NamedTuple

from .errors import LaunchError

KIB = 1024


class Chip(NamedTuple):
    """A GPU. Unknown values are None."""

    name: str
    compute_capability: tuple[int, int]
    num_sms: int  # streaming multiprocessors
    ghz: float  # boost clock
    memory: str
    gb: float  # size and bandwidth of that memory
    gb_per_s: float
    l2_kib: int  # L2 of the GPU
    # Of an SM: L1 with shared memory, most shared memory, most threads and thread blocks
    l1_kib: int
    shared_kib: int
    threads: int
    blocks: int
    float32: float  # TFLOP/s without tensor cores
    tf32: float | None  # TFLOP/s of the tensor cores, with sums in float32
    float16: float | None
    bfloat16: float | None
    float8: float | None
    source: str  # "unverified" marks numbers that no source confirms
    also: tuple[str, ...] = ()  # drivers' and shops' names for the same card

    @property
    def shared_bytes_reserved(self):
        """Shared memory that CUDA itself takes in each thread block."""
        return KIB if self.compute_capability >= (8, 0) else 0

    @property
    def shared_bytes_per_block(self):
        """Most shared memory that a thread block can ask for."""
        return self.shared_kib * KIB - self.shared_bytes_reserved


# The limits of an SM are those of its compute capability in the CUDA programming guide.
# fmt: off
GPUS = (
    Chip("T4", (7, 5), 40, 1.59, "GDDR6", 16, 320, 4096, 96, 64, 1024, 16,
         8.1, None, 65, None, None,
         "T4 data sheet; clock, bus (320 GB/s; the sheet's 300 is rounded) and L2 as drivers"
         " report"),
    Chip("V100", (7, 0), 80, 1.53, "HBM2", 16, 900, 6144, 128, 96, 2048, 32,
         15.7, None, 125, None, None,
         "V100 white paper, SXM2 card; also made with 32 GB", ("V100-SXM2-16GB", "V100-SXM2-32GB")),
    Chip("A10", (8, 6), 72, 1.695, "GDDR6", 24, 600, 6144, 128, 100, 1536, 16,
         31.2, 62.5, 125, 125, None,
         "A10 data sheet; clock and L2 as drivers report; unverified: that 125 holds for float32"
         " sums (it does on the A40, the same chip), TF32 as half of it (as on the A40)"),
    Chip("L4", (8, 9), 58, 2.04, "GDDR6", 24, 300, 49152, 128, 100, 1536, 24,
         30.3, 60, 121, 121, 242.5,
         "L4 data sheet, tensor figures halved (sparse); at 72 W it comes nowhere near them"),
    Chip("RTX 3090", (8, 6), 82, 1.695, "GDDR6X", 24, 936, 6144, 128, 100, 1536, 16,
         35.6, 35.6, 71, 71, None,
         "GA102 white paper, appendix A"),
    Chip("RTX 4090", (8, 9), 128, 2.52, "GDDR6X", 24, 1008, 73728, 128, 100, 1536, 24,
         82.6, 82.6, 165.2, 165.2, 330.3,
         "Ada white paper 2.1, appendix A; float8 with float32 sums as corrected there"),
    Chip("RTX 5090", (12, 0), 170, 2.407, "GDDR7", 32, 1792, 98304, 128, 100, 1536, 24,
         104.8, 104.8, 209.5, 209.5, 419,
         "RTX Blackwell white paper; unverified: the tensor figures for float32 sums, half of those"
         " for float16 sums as on every GeForce card"),
    Chip("A100-40GB", (8, 0), 108, 1.41, "HBM2", 40, 1555, 40960, 192, 164, 2048, 32,
         19.5, 156, 312, 312, None,
         "A100 white paper", ("A100-SXM4-40GB", "A100-PCIE-40GB")),
    Chip("A100-80GB", (8, 0), 108, 1.41, "HBM2e", 80, 2039, 40960, 192, 164, 2048, 32,
         19.5, 156, 312, 312, None,
         "A100 80GB data sheet, SXM card", ("A100-SXM4-80GB",)),
    Chip("H100", (9, 0), 132, 1.98, "HBM3", 80, 3352, 51200, 256, 228, 2048, 32,
         66.9, 494.7, 989.4, 989.4, 1978.9,
         "H100 white paper and data sheet, SXM card; tensor peaks are at 1.83 GHz",
         ("H100 80GB HBM3", "H100 SXM")),
    Chip("H200", (9, 0), 132, 1.98, "HBM3e", 141, 4800, 61440, 256, 228, 2048, 32,
         66.9, 494.7, 989.4, 989.4, 1978.9,
         "H200 data sheet, SXM card; L2 as its driver reports"),
    Chip("B200", (10, 0), 148, 1.98, "HBM3e", 180, 7700, 129536, 256, 228, 2048, 32,
         75, 1100, 2250, 2250, 4500,
         "HGX B200 data sheet, tensor figures halved (sparse); SMs and L2 as drivers report;"
         " unverified: the clock, from 75 TFLOP/s"),
)
# fmt: on
DEFAULT = "T4"  # the GPU of a free notebook in the cloud
# The most that a thread block gets without asking for dynamic shared memory, on every GPU.
STATIC_SHARED_BYTES = 48 * KIB
# The engine's devices: two sizes of memory are one chip, "A100".
CHIPS = {re.sub("-[0-9]+GB$", "", gpu.name): gpu for gpu in GPUS}


def chip(name):
    """Return the `Chip` of this name, or raise a LaunchError that lists the names."""
    if name not in CHIPS:
        raise LaunchError(f"unknown device {name!r}; the engine knows {', '.join(CHIPS)}")
    return CHIPS[name]


def alike(compute_capability):
    """Return the row that tells most of GPUs of a compute capability, or None.

    It is of this capability, or else of the latest one before it of the same major version.
    """
    before = (gpu for gpu in GPUS if gpu.compute_capability <= compute_capability)
    same = [gpu for gpu in before if gpu.compute_capability[0] == compute_capability[0]]
    return max(same, key=lambda gpu: gpu.compute_capability, default=None)
