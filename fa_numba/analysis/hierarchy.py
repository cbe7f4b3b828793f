"""The levels of a GPU's memory, from a thread's registers to the links.

Sizes follow from the device table. Bandwidths, and where they come from:

registers        the operands of its FMAs: three numbers of 4 bytes for each two FLOPs of the peak
shared memory    32 banks of 4 bytes for each SM and clock
L2 cache         bytes for each clock, from the white papers of V100 and A100; NVIDIA has printed
                 none for the others. Compute capability 9.0: measured on an H200
HBM              the data sheet
NVLink, PCIe     one direction: half of what data sheets print as the sum of both
"""

from dataclasses import dataclass

from fa_numba.analysis import devices

# 9.0: benchmarks/results/hierarchy.json, `python -m benchmarks hierarchy`; so is the CPU's memory.
L2_BYTES_PER_CLOCK = {(7, 0): 2048, (8, 0): 5120, (9, 0): 4779}
CPU_CLOCKS = {(9, 0): 2388}

# Clocks until a load can be used, on A100 and H100: Luo et al., "Benchmarking and Dissecting the
# Nvidia Hopper GPU Architecture", arXiv:2402.13499, rounded. Registers: an FMA whose operand is the
# result of another.
CLOCKS = {"registers": 4, "shared memory": 30, "L2 cache": 260, "HBM": 470}
CLOCKS_KNOWN_FOR = (8, 0), (9, 0)

PCIE_GENERATION = {(7, 0): 3, (7, 5): 3, (8, 0): 4, (8, 6): 4, (8, 9): 4, (9, 0): 5, (10, 0): 5,
                   (12, 0): 5}  # fmt: skip
TRANSFERS = {3: 8e9, 4: 16e9, 5: 32e9}  # per lane and second
LANES = 16
NVLINK_BOTH = {"V100": 300e9, "A100": 600e9, "H100": 900e9, "H200": 900e9, "B200": 1800e9}


@dataclass(frozen=True)
class Level:
    """One level. Unknown values are None."""

    name: str
    seen_by: str
    num_bytes: float | None  # on the whole GPU
    # Of that, what one thread or one thread block can have at most; None where all see all
    bytes_each: float | None
    bandwidth: float | None  # bytes per second of the whole GPU; of a link, in one direction
    clocks: int | None  # from asking to having, rounded


def pcie_bandwidth(generation, lanes=LANES):
    """Bytes per second of PCIe 3, 4 or 5 in one direction, before the headers of its packets."""
    if generation not in TRANSFERS:
        raise ValueError(f"generation must be one of {list(TRANSFERS)}, got {generation!r}")
    return lanes * TRANSFERS[generation] * 128 / 130 / 8  # 128 of 130 bits are data


def nvlink_bandwidth(name):
    """Bytes per second of all NVLinks of a GPU in one direction; None for a card without them."""
    gpu = devices.device(name)
    both = NVLINK_BOTH.get(gpu.name.partition("-")[0])
    return None if both is None else both / 2


def hierarchy(name=None):
    """The levels of a GPU's memory, nearest first, and what lies behind its links.

    Parameters
    ----------
    name : str or Device, optional
        As for `devices.device`.

    Returns
    -------
    list of Level
    """
    gpu = devices.device(name)
    sms, cc = gpu.num_sms, gpu.compute_capability
    clocks = CLOCKS if cc in CLOCKS_KNOWN_FOR else {}
    operands = 12 * gpu.float32 / 2 if gpu.float32 else None
    l2 = L2_BYTES_PER_CLOCK[cc] * gpu.clock if cc in L2_BYTES_PER_CLOCK else None
    every = "every thread"
    levels = [
        Level("registers", "one thread", sms * gpu.register_bytes_per_sm,
              4 * gpu.registers_per_thread, operands, clocks.get("registers")),
        Level("shared memory", "one thread block", sms * gpu.shared_bytes_per_sm,
              gpu.shared_bytes_per_block, gpu.shared_bandwidth, clocks.get("shared memory")),
        Level("L2 cache", every, gpu.l2_bytes, None, l2, clocks.get("L2 cache")),
        Level(gpu.memory or "HBM", every, gpu.memory_bytes, None, gpu.memory_bandwidth,
              clocks.get("HBM")),
    ]  # fmt: skip
    if nvlink := nvlink_bandwidth(gpu):
        levels.append(Level("another GPU, NVLink", every, None, None, nvlink, None))
    if cc in PCIE_GENERATION:
        generation = PCIE_GENERATION[cc]
        bus = pcie_bandwidth(generation)
        levels.append(
            Level(f"the CPU, PCIe {generation}", "copies", None, None, bus, CPU_CLOCKS.get(cc))
        )
    return levels
