"""How long does a load take from each level of memory, and how fast is L2?

Latency: one thread follows a chain, in which each load gives the address of the next one.
Bandwidth of L2: all SMs read an array that L2 holds, in another order each time: no L1 holds it.
"""

import cupy
import cupyx
import numpy as np
from numba import cuda, float32, int32, uint32, uint64

from benchmarks.timing import save, time_ms
from fa_numba.runtime.arrays import launch

LINE = 32  # integers of 4 bytes: no two steps of a chain are in one cache line
STEPS = 1 << 16  # the second half is timed: L2 has seen its chain by then, HBM's is longer
CHAINS = {"shared memory": 1 << 12, "L2 cache": 1 << 19, "HBM": 1 << 26}  # integers
ON_HOST = 1 << 22
RESIDENT, PASSES, BLOCKS, THREADS, LOADS = 1 << 22, 256, 1 << 10, 256, 8  # of 16 MiB of floats
TOLERANCE = 1e-3


def make_chase(COPIED):
    """end[0] = where a chain from 0 is after `steps`; COPIED integers go to shared memory first."""
    SIZE = COPIED or 1

    @cuda.jit
    def chase(chain, steps, end):
        tile = cuda.shared.array(SIZE, int32)
        for i in range(COPIED):
            tile[i] = chain[i]
        at = uint32(0)
        for _ in range(steps):
            at = uint32(tile[at] if COPIED else chain[at])
        end[0] = at

    return chase


def make_read(BLOCKS):
    """The kernel that reads x PASSES times and stores each thread's sum in sums[block, thread].

    In each pass a thread block reads another part of x.
    """

    @cuda.jit
    def read(x, sums):
        total = cuda.local.array(LOADS, float32)
        for i in range(LOADS):
            total[i] = float32(0)
        stride = uint64(BLOCKS * THREADS)
        parts = uint64(x.shape[0]) // (stride * uint64(LOADS))
        for turn in range(PASSES):
            block = (cuda.blockIdx.x + 7 * turn) % BLOCKS
            first = uint64(block * THREADS + cuda.threadIdx.x)
            for part in range(parts):
                for i in range(LOADS):
                    total[i] += x[first + stride * (uint64(part) * uint64(LOADS) + uint64(i))]
        for i in range(1, LOADS):
            total[0] += total[i]
        sums[cuda.blockIdx.x, cuda.threadIdx.x] = total[0]

    return read


def chain_of(length):
    """A random cycle through the first integers of all lines, and where it is after STEPS."""
    order = np.random.default_rng(0).permutation(length // LINE).astype(np.int32)
    order = np.roll(order, -int(np.flatnonzero(order == 0)[0])) * LINE
    chain = np.zeros(length, np.int32)
    chain[order] = np.roll(order, -1)
    return chain, order[STEPS % len(order)]


def latency(chain, end_of_chain, copied=0):
    """Nanoseconds of a step: what more steps take, over their number."""
    kernel, end, ms = make_chase(copied), cupy.zeros(1, np.int32), []
    for steps in (STEPS // 2, STEPS):
        ms.append(time_ms(launch, kernel, (1,), (1,), chain, np.int32(steps), end, repeats=5))
    assert int(end[0]) == end_of_chain
    return 1e6 * (ms[1] - ms[0]) / (STEPS - STEPS // 2)


def main():
    clock = cupy.cuda.Device().attributes["ClockRate"] * 1e3
    rows = []

    def add(level, chain, end, copied=0):
        ns = latency(chain, end, copied)
        rows.append({"level": level, "ns": round(ns, 1), "clocks": round(ns * clock / 1e9)})

    x = cupy.random.default_rng(0).random(RESIDENT, dtype=np.float32)
    sums, kernel = cupy.zeros((BLOCKS, THREADS), np.float32), make_read(BLOCKS)
    call = lambda: launch(kernel, (BLOCKS,), (THREADS,), x, sums)  # noqa: E731
    call()
    wanted = PASSES * float(x.sum(dtype=np.float64))
    assert abs(float(sums.sum(dtype=np.float64)) / wanted - 1) < TOLERANCE
    rate = PASSES * x.nbytes / time_ms(call) * 1e3
    rows.append(
        {"level": "L2 cache", "GB/s": round(rate / 1e9), "bytes per clock": round(rate / clock)}
    )
    try:
        for level, length in CHAINS.items():
            chain, end = chain_of(length)
            on_gpu = cupy.asarray(chain)
            add(level, on_gpu, end, length if level == "shared memory" else 0)
        chain, end = chain_of(ON_HOST)
        pinned = cupyx.zeros_pinned(chain.shape, chain.dtype)
        pinned[:] = chain
        memory = cupy.cuda.UnownedMemory(pinned.ctypes.data, pinned.nbytes, pinned, 0)
        pointer = cupy.cuda.MemoryPointer(memory, 0)
        add("the CPU's memory", cupy.ndarray(chain.shape, chain.dtype, pointer), end)
        if cupy.cuda.runtime.getDeviceCount() > 1:
            with cupy.cuda.Device(1):
                other = cupy.asarray(chain)
            cupy.cuda.runtime.deviceEnablePeerAccess(1)
            memory = cupy.cuda.UnownedMemory(other.data.ptr, other.nbytes, other, 0)
            pointer = cupy.cuda.MemoryPointer(memory, 0)
            add("another GPU", cupy.ndarray(chain.shape, chain.dtype, pointer), end)
    finally:
        note = f"clocks of {clock / 1e9:.2f} GHz; a step has a load and one integer instruction"
        save("hierarchy", rows, note=note)
