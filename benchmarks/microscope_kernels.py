"""Kernels for checking the CPU engine's microscope against a GPU's own counters.

Each small kernel asks one question of the model: what does this pattern of addresses cost? It
loads once and stores once, so that the compiler has nothing to merge, hoist or drop. The last
ones show the microscope's limits: each comes with a twin in which the compiler has nothing to do.
`CASES` lists them with their arguments, and after them the kernels of the lessons at small sizes.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numba import cuda, float32, float64, int8, uint64

import fa_numba
from fa_numba import reference
from fa_numba.runtime import arrays

SIZE = 4096  # elements that a small kernel moves: 32 thread blocks of 4 warps
THREADS = 128
TILE = 32


@dataclass(frozen=True)
class Case:
    """A kernel, and the arguments of its launch.

    Attributes
    ----------
    name : str
    call : callable
        Takes the arguments; NumPy arrays run on the CPU engine, device arrays on the GPU.
    arguments : callable
        Returns them, NumPy arrays and scalars, always the same.
    kernel : function decorated with ``@cuda.jit``, or None
        Of a small kernel; None for a function of the package, which may launch several.
    accesses : dict
        The kernel's memory instructions, by their PTX name.
    """

    name: str
    call: Callable
    arguments: Callable
    kernel: object = None
    accesses: dict = field(default_factory=dict)


# ---------------------------------------------------------------- global memory


@cuda.jit
def copy(x, y):
    i = cuda.grid(1)
    y[i] = x[i]


@cuda.jit
def strided(x, y, step):
    i = cuda.grid(1)
    y[i] = x[i * step]


@cuda.jit
def strided_store(x, y, step):
    i = cuda.grid(1)
    y[i * step] = x[i]


@cuda.jit
def broadcast(x, y):
    """All threads of a block read the same element."""
    y[cuda.grid(1)] = x[cuda.blockIdx.x]


@cuda.jit
def few_addresses(x, y):
    """Groups of four threads read the same element."""
    i = cuda.grid(1)
    y[i] = x[i >> 2]


@cuda.jit
def misaligned(x, y):
    i = cuda.grid(1)
    y[i] = x[i + 1]


@cuda.jit
def misaligned_store(x, y):
    i = cuda.grid(1)
    y[i + 1] = x[i]


@cuda.jit
def backwards(x, y):
    i = cuda.grid(1)
    y[i] = x[x.shape[0] - 1 - i]


@cuda.jit
def gather(x, index, y):
    i = cuda.grid(1)
    y[i] = x[index[i]]


@cuda.jit
def scatter(x, index, y):
    i = cuda.grid(1)
    y[index[i]] = x[i]


@cuda.jit
def tail(x, y):
    """The last warp is partly out of range, those after it wholly."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = x[i]


@cuda.jit
def odd_lanes(x, y):
    i = cuda.grid(1)
    if i & 1:
        y[i] = x[i]


@cuda.jit
def transpose_naive(x, y):
    col, row = cuda.grid(2)
    y[col, row] = x[row, col]


# ---------------------------------------------------------------- shared memory


@functools.cache
def make_transpose(COLUMNS):
    """Transpose through a shared tile with rows of COLUMNS elements."""

    @cuda.jit
    def transpose_shared(x, y):
        tile = cuda.shared.array((TILE, COLUMNS), float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        row, col = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
        tile[ty, tx] = x[row + ty, col + tx]
        cuda.syncthreads()  # the tile is complete: safe to read
        y[col + ty, row + tx] = tile[tx, ty]

    return transpose_shared


@functools.cache
def make_shared_stride(STEP, TYPE=float32):
    """Neighbouring threads use shared elements STEP apart."""
    LENGTH = STEP * THREADS

    @cuda.jit
    def shared_stride(x, y):
        tile = cuda.shared.array(LENGTH, TYPE)
        t, i = cuda.threadIdx.x, cuda.grid(1)
        tile[t * STEP] = x[i]
        cuda.syncthreads()  # the tile is complete: safe to read
        y[i] = tile[(t ^ 1) * STEP]  # a neighbour's: one's own would stay in a register

    return shared_stride


@functools.cache
def make_shared_group(GROUP, TYPE=float32):
    """GROUP neighbouring threads read the same shared element."""

    @cuda.jit
    def shared_group(x, y):
        tile = cuda.shared.array(THREADS, TYPE)
        t, i = cuda.threadIdx.x, cuda.grid(1)
        tile[t] = x[i]
        cuda.syncthreads()  # the tile is complete: safe to read
        y[i] = tile[t // GROUP]

    return shared_group


@functools.cache
def make_shared_gather(TYPE):
    """Shared elements in random order."""

    @cuda.jit
    def shared_gather(x, index, y):
        tile = cuda.shared.array(THREADS, TYPE)
        t, i = cuda.threadIdx.x, cuda.grid(1)
        tile[t] = x[i]
        cuda.syncthreads()  # the tile is complete: safe to read
        y[i] = tile[index[i]]

    return shared_gather


@cuda.jit
def shared_odd_lanes(x, y):
    """8-byte elements side by side, used by every second thread: a warp's fill the banks once."""
    tile = cuda.shared.array(THREADS, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if t & 1:
        tile[t >> 1] = x[i]
    cuda.syncthreads()  # the tile is complete: safe to read
    if t & 1:
        y[i] = tile[(t >> 1) ^ 1]


@cuda.jit
def shared_half_warps(x, y):
    """8-byte elements: only the first half of each warp stores and loads."""
    tile = cuda.shared.array(THREADS, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if t & 16 == 0:
        tile[t] = x[i]
    cuda.syncthreads()  # the tile is complete: safe to read
    if t & 16 == 0:
        y[i] = tile[t ^ 1]


# ---------------------------------------------------------------- tree reductions


@cuda.jit
def reduce_divergent(x, y):
    """Every second thread works, then every fourth: all warps stay busy to the end."""
    partial = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    partial[t] = x[cuda.grid(1)]
    cuda.syncthreads()  # every thread's element is there
    width = 1
    while width < THREADS:
        if t % (2 * width) == 0:
            partial[t] += partial[t + width]
        cuda.syncthreads()  # this level is complete: the next one reads it
        width *= 2
    if t == 0:
        y[cuda.blockIdx.x] = partial[0]


@cuda.jit
def reduce_interleaved(x, y):
    """The first threads work, on elements ever further apart: bank conflicts."""
    partial = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    partial[t] = x[cuda.grid(1)]
    cuda.syncthreads()  # every thread's element is there
    width = 1
    while width < THREADS:
        i = 2 * width * t
        if i < THREADS:
            partial[i] += partial[i + width]
        cuda.syncthreads()  # this level is complete: the next one reads it
        width *= 2
    if t == 0:
        y[cuda.blockIdx.x] = partial[0]


@cuda.jit
def reduce_sequential(x, y):
    """The first threads work, on neighbouring elements: no conflicts, and warps retire."""
    partial = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    partial[t] = x[cuda.grid(1)]
    cuda.syncthreads()  # every thread's element is there
    width = THREADS // 2
    while width > 0:
        if t < width:
            partial[t] += partial[t + width]
        cuda.syncthreads()  # this level is complete: the next one reads it
        width //= 2
    if t == 0:
        y[cuda.blockIdx.x] = partial[0]


# ---------------------------------------------------------------- arithmetic


@cuda.jit
def add(a, b, y):
    i = cuda.grid(1)
    y[i] = a[i] + b[i]


@cuda.jit
def multiply(a, b, y):
    i = cuda.grid(1)
    y[i] = a[i] * b[i]


@cuda.jit
def multiply_add(a, b, c, y):
    """One fused instruction on a GPU, two operations."""
    i = cuda.grid(1)
    y[i] = a[i] * b[i] + c[i]


@cuda.jit
def divide(a, b, y):
    i = cuda.grid(1)
    y[i] = a[i] / b[i]


@cuda.jit
def exponential(x, y):
    i = cuda.grid(1)
    y[i] = math.exp(x[i])


@cuda.jit
def larger(a, b, y):
    i = cuda.grid(1)
    y[i] = max(a[i], b[i])


# ---------------------------------------------------------------- what the compiler merges


@cuda.jit
def same_element_twice(x, y):
    i = cuda.grid(1)
    y[i] = x[i] * x[i]


@cuda.jit
def two_elements(x, y):
    """The twin of `same_element_twice`."""
    i = cuda.grid(1)
    y[i] = x[i] * x[i ^ 1]


@functools.cache
def make_four_neighbours(APART, GROUP=1):
    """Four shared loads side by side, of rows APART long; GROUP threads load the same."""
    LENGTH = APART * THREADS

    @cuda.jit
    def four_neighbours(x, y):
        tile = cuda.shared.array(LENGTH, float32)
        t, i = uint64(cuda.threadIdx.x), uint64(cuda.grid(1))
        for part in range(4):
            tile[uint64(part * THREADS + t)] = x[uint64(part * SIZE + i)]
        cuda.syncthreads()  # all writes are complete: safe to read
        first = uint64(APART) * (t // uint64(GROUP) % uint64(THREADS // 2))
        one, two, three = first + uint64(1), first + uint64(2), first + uint64(3)
        y[i] = (tile[first] + tile[one]) + (tile[two] + tile[three])

    return four_neighbours


@cuda.jit
def rows(x, y):
    """A thread block per row; some threads have one iteration more than others."""
    row = cuda.blockIdx.x
    for col in range(cuda.threadIdx.x, x.shape[1], THREADS):
        y[row, col] = x[row, col] * float32(2.0)


@cuda.jit
def rows_in_fours(x, y):
    """The same as NVVM rewrites it: single iterations first, then four at a time."""
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    iterations = (x.shape[1] - t + THREADS - 1) // THREADS
    col = t
    for _ in range(iterations % 4):
        y[row, col] = x[row, col] * float32(2.0)
        col += THREADS
    for _ in range(iterations // 4):
        a, b = x[row, col], x[row, col + THREADS]
        c, d = x[row, col + 2 * THREADS], x[row, col + 3 * THREADS]
        y[row, col] = a * float32(2.0)
        y[row, col + THREADS] = b * float32(2.0)
        y[row, col + 2 * THREADS] = c * float32(2.0)
        y[row, col + 3 * THREADS] = d * float32(2.0)
        col += 4 * THREADS


@cuda.jit
def guard_after_load(x, y, n):
    """Every thread loads, few store: the compiler loads for those few alone."""
    tile = cuda.shared.array(THREADS, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = x[i]
    cuda.syncthreads()  # the tile is complete: safe to read
    value = tile[t ^ 1]
    if i < n:
        y[i] = value


@cuda.jit
def guard_before_load(x, y, n):
    """The twin of `guard_after_load`."""
    tile = cuda.shared.array(THREADS, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = x[i]
    cuda.syncthreads()  # the tile is complete: safe to read
    if i < n:
        y[i] = tile[t ^ 1]


# ---------------------------------------------------------------- the list


def numbers(size, dtype=np.float32, seed=0):
    """Reproducible values: floats from a normal distribution, integers from all that there are."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(size).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, size, dtype, endpoint=True)


def small(name, kernel, inputs=SIZE, outputs=SIZE, *scalars, **options):
    """Make the case of a small kernel, launched as (inputs..., outputs, scalars...).

    `inputs` and `outputs` are sizes of float32 arrays, or functions that make the arrays.
    """
    grid = options.pop("grid", (SIZE // THREADS,))
    block = options.pop("block", (THREADS,))
    dtype = options.pop("dtype", np.float32)
    shared = options.pop("shared", False)
    accesses = {"ld.global": 1, "st.global": 1, "ld.shared": 0, "st.shared": 0}
    accesses |= {"ld.shared": 1, "st.shared": 1} if shared else {}
    accesses |= options.pop("accesses", {})

    def arguments():
        given = inputs() if callable(inputs) else (numbers(inputs, dtype),)
        return *given, np.zeros(outputs, dtype), *scalars

    call = functools.partial(arrays.launch, kernel, grid, block)
    return Case(name, call, arguments, kernel, accesses, **options)


def vectors(count, dtype):
    return lambda: tuple(numbers(SIZE, dtype, seed) for seed in range(count))


def with_index(make_index):
    return lambda: (numbers(SIZE), make_index(np.random.default_rng(2)).astype(np.int32))


def random_within_block(rng):
    return rng.integers(0, THREADS, SIZE)


def sliced():
    """A view that starts 4 bytes into its allocation."""
    return (numbers(SIZE + 1)[1:],)


def row_numbers():
    return (numbers((32, 500)),)


WIDTHS = (np.int8, np.int16, np.float16, np.int64, np.float64)
SIDE = 64  # rows and columns of the transposed matrix
TILES = (SIDE // TILE, SIDE // TILE)


def global_cases():
    yield small("copy", copy)
    for dtype in WIDTHS:
        yield small(f"copy {np.dtype(dtype)}", copy, dtype=dtype)
    for step in (2, 8, 32):
        yield small(f"strided by {step}", strided, SIZE * step, SIZE, step)
    yield small("strided by 2, float64", strided, SIZE * 2, SIZE, 2, dtype=np.float64)
    yield small("stored strided by 8", strided_store, SIZE, SIZE * 8, 8)
    yield small("broadcast", broadcast)
    yield small("one address per 4 threads", few_addresses)
    yield small("misaligned by 1", misaligned, SIZE + 1)
    yield small("misaligned by 1, float64", misaligned, SIZE + 1, dtype=np.float64)
    yield small("misaligned store", misaligned_store, SIZE, SIZE + 1)
    yield small("copy of x[1:]", copy, sliced)
    yield small("backwards", backwards)
    index = {"accesses": {"ld.global": 2}}
    anywhere = with_index(lambda rng: rng.integers(0, SIZE, SIZE))
    yield small("random gather", gather, anywhere, **index)
    yield small("random scatter", scatter, with_index(lambda rng: rng.permutation(SIZE)), **index)
    yield small("tail", tail, 1000, 1000)
    yield small("tail, blocks of 48", tail, 1000, 1000, block=(48,))
    yield small("odd lanes", odd_lanes)
    matrix = {"inputs": (SIDE, SIDE), "outputs": (SIDE, SIDE)}
    yield small("transpose, naive", transpose_naive, **matrix, grid=TILES, block=(TILE, TILE))


LANES = np.arange(32)
# Which elements the lanes of a warp load: when are its halves served together?
PAIRS = {
    "pairs of n and n^2": LANES // 4 * 2 + LANES % 2,
    "halves alike": LANES & ~16,
    "all pairs but one": np.where(LANES < 31, LANES // 2, 7),
    "pairs in the same banks": LANES // 2 * 8,
}


def shared_cases():
    tile = {"shared": True, "grid": TILES, "block": (TILE, TILE)}
    tile |= {"inputs": (SIDE, SIDE), "outputs": (SIDE, SIDE)}
    yield small("transpose, shared tile", make_transpose(TILE), **tile)
    yield small("transpose, padded tile", make_transpose(TILE + 1), **tile)
    for step in (1, 2, 8, 32, 33):
        yield small(f"shared, stride {step}", make_shared_stride(step), shared=True)
    for dtype, step in ((float64, 1), (float64, 2), (float64, 16), (int8, 1), (int8, 4)):
        name = f"shared {dtype}, stride {step}"
        kernel = make_shared_stride(step, dtype)
        yield small(name, kernel, shared=True, dtype=np.dtype(str(dtype)))
    for group in (2, 32, THREADS):
        yield small(f"shared, {group} to a word", make_shared_group(group), shared=True)
        name = f"shared float64, {group} to an element"
        yield small(name, make_shared_group(group, float64), shared=True, dtype=np.float64)
    index = {"shared": True, "accesses": {"ld.global": 2}}
    inputs = with_index(random_within_block)
    yield small("shared, random", make_shared_gather(float32), inputs, **index)

    def inputs_float64():
        x, where = inputs()
        return x.astype(np.float64), where

    gather64 = {"kernel": make_shared_gather(float64), "dtype": np.float64, **index}
    yield small("shared float64, random", inputs=inputs_float64, **gather64)
    for what, where in PAIRS.items():

        def inputs_pairs(where=where):
            return numbers(SIZE, np.float64), np.tile(where, SIZE // 32).astype(np.int32)

        yield small(f"shared float64, {what}", inputs=inputs_pairs, **gather64)
    yield small("shared float64, half warps", shared_half_warps, shared=True, dtype=np.float64)
    yield small("shared float64, odd lanes", shared_odd_lanes, shared=True, dtype=np.float64)
    # The compilers may unroll the trees: their instructions are not counted.
    tree = {name: None for name in ("ld.shared", "st.shared")}
    for kernel in (reduce_divergent, reduce_interleaved, reduce_sequential):
        name = kernel.py_func.__name__.replace("_", ", ")
        yield small(name, kernel, SIZE, SIZE // THREADS, accesses=tree)


def arithmetic_cases():
    for dtype in (np.float32, np.float64):
        for kernel in (add, multiply, multiply_add, divide, larger, exponential):
            count = {multiply_add: 3, exponential: 1}.get(kernel, 2)
            name = f"{kernel.py_func.__name__} {np.dtype(dtype)}"
            inputs, accesses = vectors(count, dtype), {"ld.global": count}
            yield small(name, kernel, inputs, dtype=dtype, accesses=accesses)


def compiled_cases():
    """Kernels that the compilers change, and twins of them that the compilers leave as they are."""
    yield small("same element twice", same_element_twice)
    yield small("two elements", two_elements, accesses={"ld.global": 2})
    four = {"inputs": 4 * SIZE, "accesses": {"ld.global": 4, "ld.shared": None, "st.shared": 4}}
    yield small("four neighbours", make_four_neighbours(4), **four)
    yield small("four neighbours, for 2 threads", make_four_neighbours(4, 2), **four)
    yield small("four neighbours, rows of 5", make_four_neighbours(5), **four)
    many = {"inputs": row_numbers, "outputs": (32, 500), "grid": (32,)}
    many["accesses"] = {"ld.global": None, "st.global": None}
    yield small("rows", rows, **many)
    yield small("rows in fours", rows_in_fours, **many)
    for kernel in (guard_after_load, guard_before_load):
        name = kernel.py_func.__name__.replace("_", " ")
        yield small(name, kernel, SIZE, SIZE, 1000, shared=True)


def lesson_cases():
    """Every function of the package, at sizes with whole tiles and with tails."""

    def qkv(seqlen_q=40, seqlen_k=56):
        q = numbers((1, seqlen_q, 2, 32))
        k, v = (numbers((1, seqlen_k, 1, 32), seed=seed) for seed in (1, 2))
        return q, k, v

    def gradients():
        q, k, v = qkv()
        forward = reference.attention(q, k, v, causal=True, dtype=np.float32)
        out, lse = (np.array(x, np.float32, order="C") for x in forward)
        return numbers(q.shape, seed=3), q, k, v, out, lse

    def pages():
        k_cache, v_cache = (numbers((8, 16, 2, 48), seed=seed) for seed in (4, 5))
        block_table = np.array([[5, 2, 7], [0, 3, 1]], np.int32)
        return k_cache, v_cache, block_table, np.array([37, 48], np.int32)

    for name in ("naive_softmax", "safe_softmax", "online_softmax"):
        yield Case(name, getattr(fa_numba, name), row_numbers)
    for name in ("naive_attn", "flash_attn_v1", "flash_attn_v2"):
        function = getattr(fa_numba, name)
        yield Case(name, function, qkv)
        yield Case(f"{name}, causal", functools.partial(function, causal=True), qkv)
    backward = functools.partial(fa_numba.flash_attn_bwd, causal=True)
    yield Case("flash_attn_bwd, causal", backward, gradients)
    lookup = functools.partial(fa_numba.paged_kv_lookup, max_len=48)
    yield Case("paged_kv_lookup", lookup, pages)


CASES = (*global_cases(), *shared_cases(), *arithmetic_cases(), *compiled_cases(), *lesson_cases())
