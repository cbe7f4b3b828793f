"""How many thread blocks an SM keeps at a time, and which resource keeps out the next one.

While one warp waits for memory another computes, so an SM needs many warps. An SM allocates all of
a thread block's resources when the thread block starts, and starts it only if all are free:

threads        whole warps: 33 threads take the slots of 64
registers      each quarter of the SM has a quarter of the registers, for whole warps; a warp gets
               them in units of 256 (8 a thread)
shared memory  in units of 128 bytes; CUDA takes 1 KiB of every thread block for itself
               (before compute capability 8.0: units of 256 bytes, and nothing for CUDA)
thread blocks  a fixed number of slots

These are the rules of CUDA's own `cuOccupancyMaxActiveBlocksPerMultiprocessor`.
"""

from dataclasses import dataclass

from fa_numba.analysis import devices
from fa_numba.analysis.devices import Device
from fa_numba.tiling.block_sizes import ceil_div


@dataclass(frozen=True)
class Occupancy:
    """How much of a kernel fits on one SM.

    Attributes
    ----------
    device : Device
    threads, registers, shared_bytes : int
        Threads per thread block, registers per thread, bytes per thread block.
    limits : dict of str to int
        Thread blocks per SM that each resource would allow alone. A resource that the kernel does
        not use is left out. 0: not even one thread block can start.
    """

    device: Device
    threads: int
    registers: int
    shared_bytes: int
    limits: dict[str, int]

    @property
    def blocks_per_sm(self):
        """Thread blocks that an SM keeps at a time."""
        return min(self.limits.values())

    @property
    def limiters(self):
        """The resources, one or more, whose limit is `blocks_per_sm`."""
        return tuple(name for name, limit in self.limits.items() if limit == self.blocks_per_sm)

    @property
    def warps_per_sm(self):
        """Warps that an SM keeps at a time."""
        return self.blocks_per_sm * ceil_div(self.threads, self.device.warp_size)

    @property
    def fraction(self):
        """The occupancy: the share of the warps that an SM could keep."""
        return self.warps_per_sm * self.device.warp_size / self.device.threads_per_sm

    def __str__(self):
        blocks = self.blocks_per_sm
        most = self.device.threads_per_sm // self.device.warp_size
        return (
            f"{blocks} thread block{'s' * (blocks != 1)} per SM of the {self.device.name}, "
            f"{self.warps_per_sm} of {most} warps ({self.fraction:.0%}), "
            f"limited by {' and '.join(self.limiters)}"
        )


def occupancy(threads, registers, shared_bytes=0, *, device=None):
    """Thread blocks of a kernel that fit on one SM.

    Parameters
    ----------
    threads : int
        Threads per thread block.
    registers : int
        Registers per thread, as the compiler reports them.
    shared_bytes : int, default=0
        Shared memory per thread block, static and dynamic. More than 48 KiB must be dynamic.
    device : str or Device, default=None
        As for `devices.device`: None is the GPU in this machine.

    Returns
    -------
    Occupancy

    Raises
    ------
    ValueError
        Numbers that no kernel has. A kernel that is only too large for the GPU gives 0 thread
        blocks.

    Examples
    --------
    >>> print(occupancy(256, 40, device="A100-40GB"))
    6 thread blocks per SM of the A100-40GB, 48 of 64 warps (75%), limited by registers
    """
    gpu = devices.device(device)
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    if not 1 <= registers <= gpu.registers_per_thread:
        raise ValueError(f"registers must be 1 to {gpu.registers_per_thread}, got {registers}")
    if shared_bytes < 0:
        raise ValueError(f"shared_bytes must not be negative, got {shared_bytes}")
    warps = ceil_div(threads, gpu.warp_size)
    limits = {
        "threads": _by_threads(gpu, threads, warps),
        "registers": _by_registers(gpu, registers, warps),
        "shared memory": _by_shared_memory(gpu, shared_bytes),
        "thread blocks": gpu.blocks_per_sm,
    }
    limits = {name: limit for name, limit in limits.items() if limit is not None}
    return Occupancy(gpu, threads, registers, shared_bytes, limits)


def _round_up(x, unit):
    return ceil_div(x, unit) * unit


def _by_threads(gpu, threads, warps):
    if threads > gpu.threads_per_block:
        return 0
    return gpu.threads_per_sm // gpu.warp_size // warps


def _by_registers(gpu, registers, warps):
    per_warp = _round_up(registers * gpu.warp_size, gpu.register_unit)
    warps_per_quarter = gpu.registers_per_sm // gpu.sub_partitions // per_warp
    return warps_per_quarter * gpu.sub_partitions // warps


def _by_shared_memory(gpu, shared_bytes):
    taken = _round_up(shared_bytes + gpu.shared_bytes_reserved, gpu.shared_unit)
    if taken > gpu.shared_bytes_per_block + gpu.shared_bytes_reserved:
        return 0
    return gpu.shared_bytes_per_sm // taken if taken else None
