"""Memory, limits and peaks of GPUs: a table of twelve, and the GPU in this machine.

Two tables make a `Device`: `_LIMITS` by compute capability, and `_PRODUCTS` by card. Peaks are for
dense operands at the boost clock; no kernel reaches them.
"""

import dataclasses
import re
from dataclasses import dataclass

import numpy as np
from numba import cuda

from fa_numba import simt
from numba_cuda_simulator.devices import (
    CHIPS,
    DEFAULT,
    KIB,
    SHARED_BYTES_PER_BLOCK,
    STATIC_SHARED_BYTES,
)

GB = 10**9


@dataclass(frozen=True)
class Device:
    """One GPU. Unknown values are None.

    Attributes
    ----------
    name, memory : str
    compute_capability : (int, int)
    num_sms : int
        Streaming multiprocessors. A thread block runs on one of them.
    clock : float
        Boost clock in Hz.
    memory_bytes, memory_bandwidth : float
        Off-chip memory ("HBM" here, whatever its kind), bytes and bytes per second.
    l2_bytes, l1_bytes : int
        L2 of the GPU; L1 cache and shared memory together, per SM.
    shared_bytes_per_sm, shared_bytes_per_block : int
        Largest part of `l1_bytes` that can be shared memory, and the most that one thread block can
        request. Without a request the limit is `shared_bytes_default`.
    shared_bytes_reserved : int
        Shared memory that CUDA itself takes in each thread block.
    threads_per_sm, blocks_per_sm : int
        Most threads, and most thread blocks, that an SM keeps at a time.
    float32 : float
        Peak FLOP/s without tensor cores.
    tf32_tensor, float16_tensor, bfloat16_tensor, float8_tensor : float
        Peak FLOP/s of the tensor cores, dense, sums kept in float32. None: no such instruction.
        TF32 is float32 with the 10 fraction bits of float16.
    source : str
        Origin of the numbers; "unverified" marks those that no source confirms.
    """

    name: str
    compute_capability: tuple[int, int]
    num_sms: int
    clock: float
    memory: str | None
    memory_bytes: float
    memory_bandwidth: float | None
    l2_bytes: int
    l1_bytes: int | None
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    shared_bytes_reserved: int
    threads_per_sm: int
    blocks_per_sm: int
    float32: float | None
    tf32_tensor: float | None
    float16_tensor: float | None
    bfloat16_tensor: float | None
    float8_tensor: float | None
    source: str

    # Equal on every GPU since Volta (compute capability 7.0).
    warp_size = 32
    sub_partitions = 4  # of an SM; each has a warp scheduler and a quarter of the registers
    threads_per_block = 1024
    registers_per_thread = 255
    registers_per_block = registers_per_sm = 64 * KIB  # of 4 bytes
    register_bytes_per_sm = 4 * registers_per_sm
    register_unit = 256  # registers are given to a warp in multiples of this
    shared_bytes_default = STATIC_SHARED_BYTES

    @property
    def shared_unit(self):
        """Shared memory is given to a thread block in multiples of this many bytes."""
        return 256 if self.compute_capability < (8, 0) else 128

    @property
    def shared_bandwidth(self):
        """Bytes per second from all shared memories: 32 banks of 4 bytes per SM and clock.

        None for Turing, whose load units are narrower.
        """
        return self.num_sms * 32 * 4 * self.clock if self.compute_capability != (7, 5) else None

    def peak(self, dtype):
        """Peak FLOP/s: float32 without tensor cores, narrower types with them.

        Parameters
        ----------
        dtype : "float32", "float16", "bfloat16", "float8", or a NumPy dtype of such a name

        Returns
        -------
        float

        Raises
        ------
        ValueError
            Another dtype, or one for which no peak is known.
        """
        name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
        peaks = {
            "float32": self.float32,
            "float16": self.float16_tensor,
            "bfloat16": self.bfloat16_tensor,
            "float8": self.float8_tensor,
        }
        key = "float8" if name.startswith("float8") else name  # float8_e4m3fn, float8_e5m2
        if key not in peaks:
            raise ValueError(f"dtype must be one of {', '.join(peaks)}, got {name}")
        if peaks[key] is None:
            raise ValueError(f"no {name} peak is known for {self.name}")
        return peaks[key]


# By compute capability: KiB per SM of L1 with shared memory, and of shared memory; threads and
# thread blocks per SM. CUDA programming guide, compute capabilities.
_LIMITS = {
    (7, 0): (128, 96, 2048, 32),
    (7, 5): (96, 64, 1024, 16),
    (8, 0): (192, 164, 2048, 32),
    (8, 6): (128, 100, 1536, 16),
    (8, 9): (128, 100, 1536, 24),
    (9, 0): (256, 228, 2048, 32),
    (10, 0): (256, 228, 2048, 32),
    (12, 0): (128, 100, 1536, 24),
}

# Name, boost GHz; memory, GB, GB/s; L2 KiB; TFLOP/s in float32, and of the tensor cores in TF32,
# float16, bfloat16, float8; source. Compute capability and SMs are in `simt.devices`.
# fmt: off
_PRODUCTS = [
    ("T4", 1.59, "GDDR6", 16, 320, 4096, 8.1, None, 65, None, None,
     "T4 data sheet; clock, bus (320 GB/s; the sheet's 300 is rounded) and L2 as drivers report"),
    ("V100", 1.53, "HBM2", 16, 900, 6144, 15.7, None, 125, None, None,
     "V100 white paper, SXM2 card; also made with 32 GB"),
    ("A10", 1.695, "GDDR6", 24, 600, 6144, 31.2, 62.5, 125, 125, None,
     "A10 data sheet; clock and L2 as drivers report; unverified: that 125 holds for float32 sums"
     " (it does on the A40, the same chip), TF32 as half of it (as on the A40)"),
    ("L4", 2.04, "GDDR6", 24, 300, 49152, 30.3, 60, 121, 121, 242.5,
     "L4 data sheet, tensor figures halved (sparse); at 72 W it comes nowhere near them"),
    ("RTX 3090", 1.695, "GDDR6X", 24, 936, 6144, 35.6, 35.6, 71, 71, None,
     "GA102 white paper, appendix A"),
    ("RTX 4090", 2.52, "GDDR6X", 24, 1008, 73728, 82.6, 82.6, 165.2, 165.2, 330.3,
     "Ada white paper 2.1, appendix A; float8 with float32 sums as corrected there"),
    ("RTX 5090", 2.407, "GDDR7", 32, 1792, 98304, 104.8, 104.8, 209.5, 209.5, 419,
     "RTX Blackwell white paper; unverified: the tensor figures for float32 sums, half of those"
     " for float16 sums as on every GeForce card"),
    ("A100-40GB", 1.41, "HBM2", 40, 1555, 40960, 19.5, 156, 312, 312, None,
     "A100 white paper"),
    ("A100-80GB", 1.41, "HBM2e", 80, 2039, 40960, 19.5, 156, 312, 312, None,
     "A100 80GB data sheet, SXM card"),
    ("H100", 1.98, "HBM3", 80, 3352, 51200, 66.9, 494.7, 989.4, 989.4, 1978.9,
     "H100 white paper and data sheet, SXM card; tensor peaks are at 1.83 GHz"),
    ("H200", 1.98, "HBM3e", 141, 4800, 61440, 66.9, 494.7, 989.4, 989.4, 1978.9,
     "H200 data sheet, SXM card; L2 as its driver reports"),
    ("B200", 1.98, "HBM3e", 180, 7700, 129536, 75, 1100, 2250, 2250, 4500,
     "HGX B200 data sheet, tensor figures halved (sparse); SMs and L2 as drivers report;"
     " unverified: the clock, from 75 TFLOP/s"),
]
# fmt: on


def _from_tables(product):
    name, ghz, memory, gb, gb_per_s, l2_kib, *tflops, source = product
    cc, num_sms = CHIPS[re.sub("-[0-9]+GB", "", name)]  # one chip, two sizes of memory
    float32, tf32, float16, bfloat16, float8 = (peak and peak * 1e12 for peak in tflops)
    l1, per_sm, threads, blocks = _LIMITS[cc]
    return Device(
        name=name,
        compute_capability=cc,
        num_sms=num_sms,
        clock=ghz * GB,
        memory=memory,
        memory_bytes=gb * GB,
        memory_bandwidth=gb_per_s * GB,
        l2_bytes=l2_kib * KIB,
        l1_bytes=l1 * KIB,
        shared_bytes_per_sm=per_sm * KIB,
        shared_bytes_per_block=SHARED_BYTES_PER_BLOCK[cc],
        shared_bytes_reserved=KIB if cc >= (8, 0) else 0,
        threads_per_sm=threads,
        blocks_per_sm=blocks,
        float32=float32,
        tf32_tensor=tf32,
        float16_tensor=float16,
        bfloat16_tensor=bfloat16,
        float8_tensor=float8,
        source=source,
    )


DEVICES = {product[0]: _from_tables(product) for product in _PRODUCTS}

# Drivers' and shops' names for the same cards.
_ALSO = {
    "V100-SXM2-16GB": "V100",
    "V100-SXM2-32GB": "V100",
    "A100-SXM4-40GB": "A100-40GB",
    "A100-PCIE-40GB": "A100-40GB",
    "A100-SXM4-80GB": "A100-80GB",
    "H100 80GB HBM3": "H100",
    "H100 SXM": "H100",
}


def _plain(name):
    """Spelling does not count: "NVIDIA A100-SXM4-40GB" and "a100 sxm4 40gb" are one name."""
    return re.sub("nvidia|tesla|geforce|[^a-z0-9]", "", name.lower())


_BY_NAME = {_plain(name): row for name, row in DEVICES.items()}
_BY_NAME |= {_plain(name): DEVICES[same] for name, same in _ALSO.items()}


def device(name=None):
    """A GPU by name, or the one in this machine.

    Parameters
    ----------
    name : str or Device, default=None
        A name from `DEVICES` or as drivers spell it; a `Device` is returned as it is. None is the
        GPU that Numba uses, by its driver; bandwidth and peaks, which drivers do not report, come
        from the table if it has that card, else they are None. Without a GPU, None is the T4.

    Returns
    -------
    Device

    Raises
    ------
    ValueError
        A name that is not in the table; the message lists the table's names.
    """
    if isinstance(name, Device):
        return name
    if name is None:
        if not simt.has_gpu():
            return DEVICES[DEFAULT]
        _, memory_bytes = cuda.current_context().get_memory_info()
        return _from_driver(cuda.get_current_device(), memory_bytes)
    try:
        return _BY_NAME[_plain(name)]
    except KeyError:
        raise ValueError(f"no GPU {name!r} in the table; it has {', '.join(DEVICES)}") from None


def _from_driver(gpu, memory_bytes):
    """A `Device` from Numba's device object, which answers CUDA's device attributes by name."""
    name = gpu.name.decode() if isinstance(gpu.name, bytes) else gpu.name
    asked = {
        "name": name,
        "compute_capability": tuple(gpu.compute_capability),
        "num_sms": gpu.MULTIPROCESSOR_COUNT,
        "clock": gpu.CLOCK_RATE * 1e3,
        "memory_bytes": memory_bytes,
        "l2_bytes": gpu.L2_CACHE_SIZE,
        "shared_bytes_per_sm": gpu.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
        "shared_bytes_per_block": gpu.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        "shared_bytes_reserved": gpu.RESERVED_SHARED_MEMORY_PER_BLOCK,
        "threads_per_sm": gpu.MAX_THREADS_PER_MULTIPROCESSOR,
        "blocks_per_sm": gpu.MAX_BLOCKS_PER_MULTIPROCESSOR,
    }
    known = _BY_NAME.get(_plain(name))
    if known:
        source = f"this machine's driver; {known.source}"
        return dataclasses.replace(known, **asked, source=source)
    limits = _LIMITS.get(asked["compute_capability"])
    unknown = ("memory", "memory_bandwidth", "float32", "tf32_tensor", "float16_tensor",
               "bfloat16_tensor", "float8_tensor")  # fmt: skip
    return Device(
        **asked,
        l1_bytes=limits[0] * KIB if limits else None,
        **dict.fromkeys(unknown),
        source="this machine's driver",
    )
