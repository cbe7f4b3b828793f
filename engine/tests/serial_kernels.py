"""Kernels in which single threads work through arrays one element after the other.

That is how first kernels are written, and it is where an engine that runs all threads at once
has least to gain: one thread is a batch of one. `bench_serial` times them beside Numba's simulator.
"""

from collections.abc import Callable
from dataclasses import dataclass

import classic_kernels
import numpy as np
from numba import cuda, float32, int32
from simt_kernels import jitted

TILE = 256
BINS = 256
DEPTH = 64  # of a stack


@dataclass(frozen=True)
class Case:
    """A launch of one of these kernels.

    Attributes
    ----------
    label : str
    kernel : function decorated with ``@cuda.jit``
    grid, block : int
    arguments : callable
        Takes a random generator; returns new arguments, since kernels change them.
    simulated : bool
        Whether Numba's simulator can run it: it starts a thread of the operating system for each
        CUDA thread.
    """

    label: str
    kernel: object
    grid: int
    block: int
    arguments: Callable
    simulated: bool = True


CASES = []


def case(label, arguments, *, grid=1, block=1, **options):
    """Make a kernel of the function below, among the cases; may be repeated."""

    def add(kernel):
        kernel = jitted(kernel)
        CASES.append(Case(label, kernel, grid, block, arguments, **options))
        return kernel

    return add


# ---------------------------------------------------------------- one thread, global memory


@case("insertion sort, n = 150", lambda rng: [rng.standard_normal(150)])
@case("insertion sort, int32", lambda rng: [rng.permutation(150).astype(np.int32)])
def insertion_sort(x):
    for i in range(1, x.shape[0]):
        value = x[i]
        j = i - 1
        while j >= 0 and x[j] > value:
            x[j + 1] = x[j]
            j -= 1
        x[j + 1] = value


@case("sieve, n = 5000", lambda rng: [np.ones(5000, np.int64)])
@case("sieve, uint8", lambda rng: [np.ones(5000, np.uint8)])
def sieve(is_prime):
    n = len(is_prime)
    is_prime[0] = is_prime[1] = 0
    for i in range(2, n):
        if is_prime[i] == 1:
            for j in range(2 * i, n, i):
                is_prime[j] = 0


@case("sum, n = 20000", lambda rng: [rng.standard_normal(20000), np.zeros(1)])
def serial_sum(x, out):
    total = 0.0
    for i in range(x.shape[0]):
        total += x[i]
    out[0] = total


@case("prefix sum, n = 3000", lambda rng: [rng.standard_normal(3000), np.zeros(3000)])
@case("prefix sum, int32", lambda rng: [np.arange(3000, dtype=np.int32), np.zeros(3000)])
def serial_prefix_sum(x, out):
    total = 0.0
    for i in range(len(x)):
        total += x[i]
        out[i] = total


@case("random numbers (LCG), n = 3000", lambda rng: [np.zeros(3000, np.int64)])
def lcg(out):
    state = 1
    for i in range(len(out)):
        state = (1103515245 * state + 12345) % 2147483648
        out[i] = state


@case("shortest paths (Floyd-Warshall), n = 14", lambda rng: [rng.random((14, 14))])
def floyd_warshall(d):
    n = d.shape[0]
    for k in range(n):
        for i in range(n):
            for j in range(n):
                through = d[i, k] + d[k, j]
                if through < d[i, j]:
                    d[i, j] = through


@case("square root by bisection, 60 x 50", lambda rng: [60 * rng.random(60), np.zeros(60)])
def bisection(x, out):
    for i in range(len(x)):
        low, high = 0.0, 1.0 + x[i]
        for _ in range(50):
            middle = (low + high) / 2
            if middle * middle < x[i]:
                low = middle
            else:
                high = middle
        out[i] = low


# ---------------------------------------------------------------- one of a block's threads


@case("thread 0 adds up a shared tile", lambda rng: [rng.standard_normal(TILE).astype(np.float32),
    np.zeros(1, np.float32)], block=TILE)  # fmt: skip
@case("thread 0 adds up a shared tile, 64 blocks",
    lambda rng: [rng.standard_normal(64 * TILE).astype(np.float32), np.zeros(64, np.float32)],
    grid=64, block=TILE, simulated=False)  # fmt: skip
def thread_0_sum(x, out):
    tile = cuda.shared.array(TILE, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    if t == 0:
        total = float32(0)
        for i in range(TILE):
            total += tile[i]
        out[cuda.blockIdx.x] = total


@case("thread 0 scans a shared tile", lambda rng: [rng.standard_normal(TILE).astype(np.float32)],
    block=TILE)  # fmt: skip
def thread_0_scan(x):
    tile = cuda.shared.array(TILE, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncthreads()
    if t == 0:
        for i in range(1, TILE):
            tile[i] += tile[i - 1]
    cuda.syncthreads()
    x[t] = tile[t]


@case("thread 0 sorts a shared tile of 48", lambda rng: [rng.permutation(48).astype(np.float32)],
    block=48)  # fmt: skip
def thread_0_sort(x):
    tile = cuda.shared.array(48, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncthreads()
    if t == 0:
        for i in range(1, 48):
            value = tile[i]
            j = i - 1
            while j >= 0 and tile[j] > value:
                tile[j + 1] = tile[j]
                j -= 1
            tile[j + 1] = value
    cuda.syncthreads()
    x[t] = tile[t]


# ---------------------------------------------------------------- every thread on its own


@case("quicksort, local stack", lambda rng: [rng.standard_normal((32, 24))], block=32)
def quicksort(rows):
    x = rows[cuda.threadIdx.x]
    stack = cuda.local.array(DEPTH, int32)
    stack[0], stack[1] = 0, len(x) - 1
    top = 2
    while top > 0:
        top -= 2
        low, high = stack[top], stack[top + 1]
        if low < high:
            pivot = x[high]
            i = low
            for j in range(low, high):
                if x[j] < pivot:
                    x[i], x[j] = x[j], x[i]
                    i += 1
            x[i], x[high] = x[high], x[i]
            stack[top], stack[top + 1] = low, i - 1
            stack[top + 2], stack[top + 3] = i + 1, high
            top += 4


@case("histogram in a local array, 32 threads", lambda rng: [rng.integers(0, BINS, (32, 100)),
    np.zeros((32, BINS), np.int64)], block=32)  # fmt: skip
@case("histogram in a local array, 256 threads", lambda rng: [rng.integers(0, BINS, (256, 100)),
    np.zeros((256, BINS), np.int64)], block=256)  # fmt: skip
def local_histogram(values, counts):
    t = cuda.threadIdx.x
    bins = cuda.local.array(BINS, int32)
    for i in range(BINS):
        bins[i] = 0
    for i in range(values.shape[1]):
        bins[values[t, i]] += 1
    for i in range(BINS):
        counts[t, i] = bins[i]


case("edit distance, local row", lambda rng: [*rng.integers(0, 4, (2, 32, 24)),
    np.zeros(32, np.int64)], block=32)(classic_kernels.edit_distance)  # fmt: skip


@case("binary search", lambda rng: [np.sort(rng.random(512)), rng.random(64),
    np.zeros(64, np.int64)], block=64)  # fmt: skip
def binary_search(x, wanted, found):
    t = cuda.grid(1)
    low, high = 0, len(x)
    while low < high:
        middle = (low + high) // 2
        if x[middle] < wanted[t]:
            low = middle + 1
        else:
            high = middle
    found[t] = low


# ---------------------------------------------------------------- many threads, one counter


@case("tickets of one counter", lambda rng: [np.zeros(1, np.int64), np.zeros(128, np.int64)],
    block=128)  # fmt: skip
@case("tickets of one counter, 1M threads", lambda rng: [np.zeros(1, np.int64),
    np.zeros(2**20, np.int64)], grid=2**12, block=256, simulated=False)  # fmt: skip
def tickets(counter, out):
    out[cuda.grid(1)] = cuda.atomic.add(counter, 0, 1)
