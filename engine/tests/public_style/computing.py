"""Formulas, matrices, layers, particles: numbers of all types, and records."""

import math

import numpy as np
from numba import cuda, float32
from numba.cuda.random import xoroshiro128p_dtype, xoroshiro128p_uniform_float32
from simt_kernels import Zoo, floats, zeros

ZOO = Zoo()
launched = ZOO.launched

THREADS = 32
FULL_MASK = 0xFFFFFFFF
BODY = np.dtype([("position", "f4", 3), ("mass", "f4"), ("alive", "?")], align=True)


# --- elementwise ---------------------------------------------------------------------------------


@launched(1, 64, lambda rng: (floats(rng, 64, dtype="f2"), floats(rng, 64, dtype="f2"),
    zeros(64, dtype=np.float16)),
    answer=lambda x, y, out: np.where(x > y, (x * x.astype("f4") + y).astype("f2"), x + y),
    tolerance=2e-3)  # fmt: skip
def half_intrinsics(x, y, out):
    i = cuda.grid(1)
    if cuda.fp16.hgt(x[i], y[i]):
        out[i] = cuda.fp16.hfma(x[i], x[i], y[i])
    else:
        out[i] = cuda.fp16.hadd(x[i], y[i])


@launched(1, 16, lambda rng: ((floats(rng, 16) + 1j * floats(rng, 16)).astype("c16"),
    zeros(16, dtype=np.complex128)), rtol=1e-12,
    answer=lambda x, out: np.fft.fft(x))  # fmt: skip
def fourier_transform(x, out):
    k = cuda.threadIdx.x
    total = 0j
    for n in range(x.size):
        angle = -2 * math.pi * k * n / x.size
        total += x[n] * complex(math.cos(angle), math.sin(angle))
    out[k] = total


# --- matrices ------------------------------------------------------------------------------------


@launched(2, 32, lambda rng: (floats(rng, 40, 9), floats(rng, 9), zeros(40)),
    answer=lambda a, x, y: a @ x)  # fmt: skip
def matvec(a, x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = dot_row(a[i], x)


@cuda.jit(device=True)
def dot_row(row, x):
    total = float32(0)
    for k in range(len(x)):
        total = cuda.fma(row[k], x[k], total)
    return total


@launched((2, 2), (8, 8), lambda rng: (floats(rng, 14, 10), zeros(10, 14)),
    answer=lambda x, out: x.T)  # fmt: skip
def transpose_by_view(x, out):
    i, j = cuda.grid(2)
    turned = out.T
    if i < x.shape[0] and j < x.shape[1]:
        turned[i, j] = x[i, j]


@launched((2, 1), (8, 8), lambda rng: (rng.integers(0, 256, (8, 16)).astype(np.uint8),
    zeros(4, 8, dtype=np.uint8)),
    answer=lambda x, out: ((x[::2, ::2].astype(int) + x[1::2, ::2] + x[::2, 1::2] + x[1::2,
    1::2] + 2) // 4).astype(np.uint8))  # fmt: skip
def halve_image(x, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        window = x[2 * row : 2 * row + 2, 2 * col : 2 * col + 2]
        total = 2
        for r in range(2):
            for c in range(2):
                total += window[r, c]
        out[row, col] = total // 4


@launched(
    2, THREADS, lambda rng: (floats(rng, 2, 40), zeros(2, 40, dtype=np.int8), zeros(2)),
    answer=lambda x, q, scale: (
        np.rint(x / (s := np.abs(x).max(1) / np.float32(127))[:, None]).astype(np.int8), s),
)  # fmt: skip
def quantise_rows(x, q, scale):
    """int8 with one scale per row, from the largest magnitude."""
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    largest = float32(0)
    for j in range(lane, x.shape[1], THREADS):
        largest = max(largest, abs(x[row, j]))
    for mask in (16, 8, 4, 2, 1):
        largest = max(largest, cuda.shfl_xor_sync(FULL_MASK, largest, mask))
    step = largest / float32(127)
    for j in range(lane, x.shape[1], THREADS):
        q[row, j] = round(x[row, j] / step)
    if lane == 0:
        scale[row] = step


# --- random numbers and records ------------------------------------------------------------------


@launched(1, 32, lambda rng: (generator_states(rng), zeros(32, 3)), oracle=False,
    answer=lambda states, out: np.stack([xoroshiro_answer(states) for _ in range(3)],
    1))  # fmt: skip
def numbas_own_generator(states, out):
    """cuda.random is written in Numba itself, over an array of records."""
    i = cuda.grid(1)
    for k in range(out.shape[1]):
        out[i, k] = xoroshiro128p_uniform_float32(states, i)


def generator_states(rng):
    states = np.zeros(32, xoroshiro128p_dtype)
    states["s0"], states["s1"] = rng.integers(1, 2**63, (2, 32))
    return states


def xoroshiro_answer(states):
    def rotate(x, k):
        return x << np.uint64(k) | x >> np.uint64(64 - k)

    a, b = states["s0"].copy(), states["s1"].copy()
    states["s0"] = rotate(a, 55) ^ (a ^ b) ^ ((a ^ b) << np.uint64(14))
    states["s1"] = rotate(a ^ b, 36)
    return ((a + b) >> np.uint64(11)) / 2.0**53


@launched(1, 16, lambda rng: (bodies(rng), zeros(3), bodies(rng)[::-1].copy()), rtol=1e-5)
def centre_of_mass(bodies, centre, copies):
    """Records with arrays in them, copied whole; only some are alive."""
    i = cuda.threadIdx.x
    body = bodies[i]
    if body.alive:
        for d in range(3):
            cuda.atomic.add(centre, d, body.position[d] * body.mass)
        copies[i] = body
    mass = bodies.mass
    copies[i].mass = mass[i] * 2


def bodies(rng):
    made = np.zeros(16, BODY)
    made["position"], made["mass"] = floats(rng, 16, 3), np.abs(floats(rng, 16))
    made["alive"] = np.arange(16) % 3 > 0
    return made
