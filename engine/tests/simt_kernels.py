"""A zoo of small kernels for the tests of the CPU engine, each with a launch.

Together they use what kernels use: every kind of barrier and control flow, shared, dynamic and
local memory, shuffles, votes, atomics, device functions, odd shapes and odd strides. Every kernel
is free of races, so its answer does not depend on the order of the threads.
"""

import math
import sys
import types
from dataclasses import dataclass, field

import numpy as np
from numba import cuda, float32, int64, uint32
from sources import run_text

from numba_cuda_simulator.names import python_function

FULL_MASK = 0xFFFFFFFF
TILE = 16
PADDED = TILE + 1  # one column more: a column of the tile then falls into 16 banks


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel: `inputs(rng)` makes its arguments, outputs included.

    `answer(*arguments)` returns what NumPy says of the last argument, or a tuple of the last ones,
    or None where nothing is said. Floats may differ from it by `tolerance`, relative and absolute:
    NumPy sums in another order. `rtol` is for the oracle: 0 where every operation is exactly
    rounded; library functions and atomics on floats may differ by a rounding. `oracle` is False
    where it takes too long, or cannot follow: NumPy's scalars do not shift a uint64 by an int64.
    """

    kernel: object
    grid: int | tuple
    block: int | tuple
    inputs: object = field(repr=False)
    shared_bytes: int = 0
    rtol: float = 0.0
    label: str = ""
    answer: object = lambda *arguments: None
    tolerance: float = 1e-5
    oracle: bool = True

    @property
    def name(self):
        return python_function(self.kernel).__name__ + self.label

    def arguments(self, seed=0):
        return self.inputs(np.random.default_rng(seed))

    def check_answer(self, arguments):
        want = self.answer(*self.arguments())
        want = () if want is None else want if isinstance(want, tuple) else (want,)
        for got, expected in zip(arguments[len(arguments) - len(want) :], want, strict=True):
            if np.asarray(got).dtype.kind in "fc":
                np.testing.assert_allclose(got, expected, self.tolerance, self.tolerance)
            else:
                np.testing.assert_array_equal(got, expected)


def jitted(function):
    """Return the kernel of a function, a kernel as it is."""
    return function if python_function(function) else cuda.jit(function)


class Zoo(list):
    """The launches of one file."""

    def launched(self, grid, block, inputs, **options):
        """Make a kernel of the function below, among them; may be repeated for a second launch."""

        def add(kernel):
            kernel = jitted(kernel)
            self.append(Launch(kernel, grid, block, inputs, **options))
            return kernel

        return add


ZOO = Zoo()
launched = ZOO.launched


def edited_zoo(source):
    """A namespace like a file's, from an edited text of it."""
    name = f"<edited kernels {hash(source)}>"
    module = sys.modules[name] = types.ModuleType(name)  # dataclasses look it up
    run_text(source, vars(module), name)
    return module


def floats(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def integers(rng, *shape, low=-100, high=100, dtype=np.int64):
    return rng.integers(low, high, shape).astype(dtype)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


# --- element by element -----------------------------------------------------------------------


@launched(5, 64, lambda rng: (floats(rng, 300), floats(rng, 300), zeros(300)))
@launched(3, 20, lambda rng: (floats(rng, 55, dtype="f8"), floats(rng, 55), zeros(55)),
    label="_block_of_20")  # fmt: skip
def vector_add(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


@launched((2, 2, 2), (4, 3, 5), lambda rng: (zeros(10, 6, 8, dtype=np.int64),))
def threads_3d(out):
    x, y, z = cuda.grid(3)
    ti, bi, bd, gd = cuda.threadIdx, cuda.blockIdx, cuda.blockDim, cuda.gridDim
    rank = (ti.z * bd.y + ti.y) * bd.x + ti.x
    block = (bi.z * gd.y + bi.y) * gd.x + bi.x
    out[z, y, x] = block * 1000 + rank


@launched(2, 64, lambda rng: (rng.integers(0, 2**32, 128).astype(np.uint32),
    rng.integers(0, 2**31, 128).astype(np.int32), zeros(5, 128, dtype=np.int64)))  # fmt: skip
def bit_tricks(u, s, out):
    i = cuda.grid(1)
    x = u[i]
    out[0, i] = cuda.popc(x & 0x0F0F0F0F)
    out[1, i] = (s[i] << 7) ^ (s[i] >> 3) | 1
    out[2, i] = ~s[i] & 0xFF
    h = s[i] & 0xFFFF
    for _ in range(4):  # xorshift
        h ^= (h << 13) & 0xFFFFFFFF
        h ^= h >> 17
        h ^= (h << 5) & 0xFFFFFFFF
    out[3, i] = h
    lowest = s[i] & -s[i]
    out[4, i] = lowest


# --- shared memory and barriers ---------------------------------------------------------------


NUM_THREADS = 128


@launched(3, NUM_THREADS, lambda rng: (floats(rng, 3, 300), zeros(3, 300)), rtol=1e-6)
def tree_softmax(x, out):
    partial = cuda.shared.array(NUM_THREADS, float32)
    row = cuda.blockIdx.x
    t = cuda.threadIdx.x
    n = x.shape[1]
    m_i = float32(-math.inf)
    for j in range(t, n, NUM_THREADS):
        m_i = max(m_i, x[row, j])
    partial[t] = m_i
    cuda.syncthreads()
    step = NUM_THREADS // 2
    while step > 0:
        if t < step:
            partial[t] = max(partial[t], partial[t + step])
        cuda.syncthreads()
        step //= 2
    m_i = partial[0]
    cuda.syncthreads()
    l_i = float32(0)
    for j in range(t, n, NUM_THREADS):
        l_i += math.exp(x[row, j] - m_i)
    partial[t] = l_i
    cuda.syncthreads()
    step = NUM_THREADS // 2
    while step > 0:
        if t < step:
            partial[t] += partial[t + step]
        cuda.syncthreads()
        step //= 2
    l_i = partial[0]
    for j in range(t, n, NUM_THREADS):
        out[row, j] = math.exp(x[row, j] - m_i) / l_i


HEAD_DIM = 32


def flash_attn_launch(size, rng):
    """Return grid, thread block and arguments for some rows."""
    qkv = (floats(rng, size, HEAD_DIM) for _ in "qkv")
    return size // TILE, (TILE, TILE), *qkv, zeros(size, HEAD_DIM), zeros(size), 0.2


@launched(2, (TILE, TILE), lambda rng: flash_attn_launch(32, rng)[2:], rtol=2e-6)
def flash_attn_tile(q, k, v, out, lse, softmax_scale):
    """FlashAttention-2, lengths a multiple of TILE; two columns of out per thread."""
    q_tile = cuda.shared.array((TILE, HEAD_DIM), float32)
    k_tile = cuda.shared.array((TILE, HEAD_DIM), float32)
    v_tile = cuda.shared.array((TILE, HEAD_DIM), float32)
    s_tile = cuda.shared.array((TILE, TILE), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    row = cuda.blockIdx.x * TILE + ty
    scale = float32(softmax_scale)
    for c in range(tx, HEAD_DIM, TILE):
        q_tile[ty, c] = q[row, c]
    acc = cuda.local.array(2, float32)
    acc[0] = 0.0
    acc[1] = 0.0
    m_i = float32(-math.inf)
    l_i = float32(0)
    for n_start in range(0, k.shape[0], TILE):
        for c in range(tx, HEAD_DIM, TILE):
            k_tile[ty, c] = k[n_start + ty, c]
            v_tile[ty, c] = v[n_start + ty, c]
        cuda.syncthreads()
        s = float32(0)
        for c in range(HEAD_DIM):
            s += q_tile[ty, c] * k_tile[tx, c]
        s_tile[ty, tx] = s * scale
        cuda.syncthreads()
        m_new = m_i
        for n in range(TILE):
            m_new = max(m_new, s_tile[ty, n])
        alpha = math.exp(m_i - m_new)
        l_i *= alpha
        acc[0] *= alpha
        acc[1] *= alpha
        for n in range(TILE):
            p = math.exp(s_tile[ty, n] - m_new)
            l_i += p
            acc[0] += p * v_tile[n, tx]
            acc[1] += p * v_tile[n, tx + TILE]
        m_i = m_new
        cuda.syncthreads()
    out[row, tx] = acc[0] / l_i
    out[row, tx + TILE] = acc[1] / l_i
    if tx == 0:
        lse[row] = m_i + math.log(l_i)


@launched(2, 20, lambda rng: (*(floats(rng, 23, HEAD_DIM) for _ in "qkv"), zeros(23, HEAD_DIM),
    0.2), rtol=2e-6)  # fmt: skip
def attention_row(q, k, v, out, softmax_scale):
    """One thread per query row, online softmax, nothing shared."""
    i = cuda.grid(1)
    if i >= q.shape[0]:
        return
    acc = cuda.local.array(HEAD_DIM, float32)
    for c in range(HEAD_DIM):
        acc[c] = 0.0
    scale = float32(softmax_scale)
    m_i = float32(-math.inf)
    l_i = float32(0)
    for j in range(k.shape[0]):
        s = float32(0)
        for c in range(HEAD_DIM):
            s += q[i, c] * k[j, c]
        s *= scale
        m_new = max(m_i, s)
        alpha = math.exp(m_i - m_new)
        p = math.exp(s - m_new)
        l_i = l_i * alpha + p
        for c in range(HEAD_DIM):
            acc[c] = acc[c] * alpha + p * v[j, c]
        m_i = m_new
    for c in range(HEAD_DIM):
        out[i, c] = acc[c] / l_i


# --- warps ------------------------------------------------------------------------------------


@cuda.jit(device=True)
def warp_max(x):
    offset = 16
    while offset > 0:
        x = max(x, cuda.shfl_down_sync(FULL_MASK, x, offset))
        offset //= 2
    return cuda.shfl_sync(FULL_MASK, x, 0)


@cuda.jit(device=True)
def warp_sum(x):
    for bit in range(5):
        x += cuda.shfl_xor_sync(FULL_MASK, x, 16 >> bit)
    return x


@launched(3, 64, lambda rng: (floats(rng, 5, 70), zeros(5, 70)), rtol=1e-6)
def warp_softmax(x, out):
    """One warp per row; the last warp has no row and leaves."""
    row = cuda.blockIdx.x * (cuda.blockDim.x // 32) + cuda.threadIdx.x // 32
    lane = cuda.threadIdx.x % 32
    if row >= x.shape[0]:
        return
    m_i = float32(-math.inf)
    for j in range(lane, x.shape[1], 32):
        m_i = max(m_i, x[row, j])
    m_i = warp_max(m_i)
    l_i = float32(0)
    for j in range(lane, x.shape[1], 32):
        l_i += math.exp(x[row, j] - m_i)
    l_i = warp_sum(l_i)
    for j in range(lane, x.shape[1], 32):
        out[row, j] = math.exp(x[row, j] - m_i) / l_i


@launched(2, 64, lambda rng: (integers(rng, 128), zeros(128, dtype=np.int64)))
def warp_rotate(x, out):
    """Shuffles with a source lane of each thread's own; one warp does not take part."""
    i = cuda.grid(1)
    value = x[i]
    if cuda.threadIdx.x // 32 == cuda.blockIdx.x:
        value = cuda.shfl_sync(FULL_MASK, value, (cuda.laneid * 7 + 3) % 32)
        value += cuda.shfl_down_sync(FULL_MASK, value, 5)
    out[i] = value


@launched(4, 48, lambda rng: (integers(rng, 192), zeros(192, 3, dtype=np.int64)))
def block_votes(x, out):
    i = cuda.grid(1)
    out[i, 0] = cuda.syncthreads_count(1 if x[i] > 50 else 0)
    out[i, 1] = 7 if cuda.syncthreads_and(1 if x[i] > -97 else 0) else 8
    out[i, 2] = 7 if cuda.syncthreads_or(1 if x[i] > 97 else 0) else 8


# --- atomics ----------------------------------------------------------------------------------


@launched(3, 48, lambda rng: (integers(rng, 144, low=1),
    np.array([0, 99, -99, -1, 0, 0, 5, 0, 9], np.int64)))  # fmt: skip
def every_atomic(x, out):
    v = x[cuda.grid(1)]
    cuda.atomic.add(out, 0, v)
    cuda.atomic.min(out, 1, v)
    cuda.atomic.max(out, 2, v)
    cuda.atomic.and_(out, 3, v | 64)
    cuda.atomic.or_(out, 4, v & 42)
    cuda.atomic.xor(out, 5, v)
    cuda.atomic.sub(out, 6, v * 2)
    cuda.atomic.cas(out, 7, 0, 77)
    cuda.atomic.exch(out, 8, 31)


@launched(2, 32, lambda rng: (zeros(3, dtype=np.uint32), zeros(64, dtype=np.int64)))
def atomic_counters(counters, seen):
    """inc and dec wrap; the old values handed out are all different."""
    cuda.atomic.inc(counters, 0, uint32(9))
    cuda.atomic.dec(counters, 1, uint32(6))
    ticket = cuda.atomic.add(counters, 2, uint32(1))
    cuda.atomic.add(seen, int64(ticket), 1)
