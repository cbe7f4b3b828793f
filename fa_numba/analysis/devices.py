"""Memory, limits and peaks of GPUs: those of the engine's table, and this machine's."""

import dataclasses
import re
from dataclasses import dataclass

import numpy as np
from numba import cuda

from fa_numba import simt
from numba_cuda_simulator.devices import DEFAULT, GPUS, KIB, STATIC_SHARED_BYTES

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


def of_row(row):
    """Return the `Device` of a row of the table.

    Parameters
    ----------
    row : numba_cuda_simulator.devices.Chip

    Returns
    -------
    Device
    """
    types = "float32", "tf32", "float16", "bfloat16", "float8"
    peaks = [getattr(row, name) for name in types]
    float32, tf32, float16, bfloat16, float8 = (peak and peak * 1e12 for peak in peaks)
    return Device(
        name=row.name,
        compute_capability=row.compute_capability,
        num_sms=row.num_sms,
        clock=row.ghz * GB,
        memory=row.memory,
        memory_bytes=row.gb * GB,
        memory_bandwidth=row.gb_per_s * GB,
        l2_bytes=row.l2_kib * KIB,
        l1_bytes=row.l1_kib * KIB,
        shared_bytes_per_sm=row.shared_kib * KIB,
        shared_bytes_per_block=row.shared_bytes_per_block,
        shared_bytes_reserved=row.shared_bytes_reserved,
        threads_per_sm=row.threads,
        blocks_per_sm=row.blocks,
        float32=float32,
        tf32_tensor=tf32,
        float16_tensor=float16,
        bfloat16_tensor=bfloat16,
        float8_tensor=float8,
        source=row.source,
    )


DEVICES = {row.name: of_row(row) for row in GPUS}


def _plain(name):
    """Spelling does not count: "NVIDIA A100-SXM4-40GB" and "a100 sxm4 40gb" are one name."""
    return re.sub("nvidia|tesla|geforce|[^a-z0-9]", "", name.lower())


_BY_NAME = {_plain(name): DEVICES[row.name] for row in GPUS for name in (row.name, *row.also)}


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
    same = (row for row in GPUS if row.compute_capability == asked["compute_capability"])
    row = next(same, None)
    unknown = ("memory", "memory_bandwidth", "float32", "tf32_tensor", "float16_tensor",
               "bfloat16_tensor", "float8_tensor")  # fmt: skip
    return Device(
        **asked,
        l1_bytes=row.l1_kib * KIB if row else None,
        **dict.fromkeys(unknown),
        source="this machine's driver",
    )
