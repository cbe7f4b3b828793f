"""What some GPUs can do, on paper: the vendor's data sheets and architecture white papers.

Peaks are peaks: dense, at the boost clock, and no kernel reaches them.
"""

from dataclasses import dataclass

KIB, GB = 1024, 10**9


@dataclass(frozen=True)
class Device:
    """One GPU.

    Attributes
    ----------
    name, memory : str
    compute_capability : (int, int)
    num_sms : int
        Streaming multiprocessors; a thread block lives on one of them.
    clock : float
        Boost clock in Hz.
    memory_bytes, memory_bandwidth : float
        Off-chip memory ("HBM" here, whatever its kind), bytes and bytes per second.
    l2_bytes, l1_bytes : int
        L2 of the GPU; L1 cache and shared memory together, per SM.
    shared_bytes_per_sm, shared_bytes_per_block : int
        How much of `l1_bytes` may be shared memory, and how much one thread block may ask for.
    threads_per_sm : int
    float32, float16_tensor : float
        Peak FLOP/s without tensor cores, and with them.
    """

    name: str
    compute_capability: tuple[int, int]
    num_sms: int
    clock: float
    memory: str
    memory_bytes: float
    memory_bandwidth: float
    l2_bytes: int
    l1_bytes: int
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    threads_per_sm: int
    float32: float
    float16_tensor: float

    register_bytes_per_sm = 256 * KIB  # 65,536 registers of 4 bytes on every GPU listed here

    @property
    def shared_bandwidth(self):
        """Bytes per second from all shared memories: 32 banks of 4 bytes per SM and clock.

        None for Turing, whose load units are narrower.
        """
        return self.num_sms * 32 * 4 * self.clock if self.compute_capability >= (8, 0) else None

    @property
    def ridge(self):
        """FLOP per byte from which float32 work is no longer bound by memory."""
        return self.float32 / self.memory_bandwidth

    @property
    def tensor_ridge(self):
        """The same for float16 on the tensor cores."""
        return self.float16_tensor / self.memory_bandwidth

    def attainable(self, intensity, *, tensor=False):
        """FLOP/s that the roofline allows at this arithmetic intensity (FLOP per byte)."""
        peak = self.float16_tensor if tensor else self.float32
        return min(peak, intensity * self.memory_bandwidth)


def _device(name, cc, num_sms, ghz, memory, gb, gb_per_s, l2, l1, per_sm, per_block, threads,
            tflops, tensor_tflops):  # fmt: skip
    return Device(
        name, cc, num_sms, ghz * GB, memory, gb * GB, gb_per_s * GB, l2 * KIB * KIB, l1 * KIB,
        per_sm * KIB, per_block * KIB, threads, tflops * 1e12, tensor_tflops * 1e12,
    )  # fmt: skip


# Compute capability, SMs, GHz; memory, GB, GB/s; L2 MiB; L1 with shared KiB, shared per SM, shared
# per thread block, threads per SM; TFLOP/s in float32 and of the tensor cores in float16.
# fmt: off
DEVICES = {
    device.name: device
    for device in (
        _device("T4", (7, 5), 40, 1.59, "GDDR6", 16, 320, 4, 96, 64, 64, 1024, 8.1, 65),
        _device("A100-40GB", (8, 0), 108, 1.41, "HBM2", 40, 1555, 40, 192, 164, 163, 2048,
                19.5, 312),
        _device("A100-80GB", (8, 0), 108, 1.41, "HBM2e", 80, 2039, 40, 192, 164, 163, 2048,
                19.5, 312),
        _device("RTX 4090", (8, 9), 128, 2.52, "GDDR6X", 24, 1008, 72, 128, 100, 99, 1536,
                82.6, 165.2),
        _device("H100", (9, 0), 132, 1.98, "HBM3", 80, 3352, 50, 256, 228, 227, 2048,
                66.9, 989.4),
        _device("H200", (9, 0), 132, 1.98, "HBM3e", 141, 4800, 50, 256, 228, 227, 2048,
                66.9, 989.4),
    )
}
# fmt: on
