"""The Python of kernels: tuples, closures, slices, device functions, exits of all kinds."""

import math

import numba
import numpy as np
from numba import cuda, float32, int64, types
from simt_kernels import Zoo, floats, integers, zeros

ZOO = Zoo()
launched = ZOO.launched

N = 32


@launched(1, 8, lambda rng: (floats(rng, 8, 10), zeros(8, 10)),
    answer=lambda x, out: np.where(np.arange(10) % 2, x[:, ::-1], 7))  # fmt: skip
def strided_views(x, out):
    """Rows backwards, every other column, a slice filled with one value."""
    i = cuda.grid(1)
    backwards = x[i, ::-1]
    odd = out[i, 1::2]
    for j in range(odd.shape[0]):
        odd[j] = backwards[2 * j + 1]
    out[i, ::2] = 7


@launched(1, 8, lambda rng: (integers(rng, 8, 5), integers(rng, 5), zeros(8, 3, dtype=np.int64)),
    answer=lambda x, w, out: np.stack([x.sum(1), x @ np.arange(1, 6), x @ w], 1))  # fmt: skip
def loops_over_arrays(x, w, out):
    row = x[cuda.grid(1)]
    for v in row:
        out[cuda.grid(1), 0] += v
    for k, v in enumerate(row):
        out[cuda.grid(1), 1] += (k + 1) * v
    for v, weight in zip(row, w):  # noqa: B905
        out[cuda.grid(1), 2] += v * weight


@cuda.jit(device=True)
def minmax(a, b):
    return (a, b) if a < b else (b, a)


@cuda.jit(device=True, inline=True)
def sort_three(a, b, c):
    a, b = minmax(a, b)
    b, c = minmax(b, c)
    a, b = minmax(a, b)
    return a, b, c


@launched(1, N, lambda rng: (floats(rng, N, 3), zeros(N, 3)),
    answer=lambda x, out: np.sort(x, axis=1))  # fmt: skip
def nested_device_functions(x, out):
    i = cuda.grid(1)
    low, middle, high = sort_three(x[i, 0], x[i, 1], x[i, 2])
    out[i, 0], out[i, 1], out[i, 2] = low, middle, high


@cuda.jit(device=True)
def swap_ends(row, first=0):
    last = row.shape[0] - 1
    row[first], row[last] = row[last], row[first]


@launched(1, N, lambda rng: (integers(rng, N, 5),), answer=lambda x: x[:, [4, 1, 2, 3, 0]])
def functions_that_store(x):
    """A device function changes the array that it is given; it returns nothing."""
    swap_ends(x[cuda.grid(1)])


@launched(1, N, lambda rng: (floats(rng, N), zeros(3, N)), rtol=1e-6,
    answer=lambda x, out: np.stack([x.astype(int), np.float32(x) ** 2, np.hypot(x,
    1)]))  # fmt: skip
def types_by_many_names(x, out):
    i = cuda.grid(1)
    v: float32 = x[i]
    out[0, i] = numba.int32(v)
    out[1, i] = types.float32(v) * np.float32(v)
    out[2, i] = math.sqrt(numba.float64(v) ** 2 + types.int64(1))


@launched(1, N, lambda rng: (integers(rng, N, low=1, high=500), integers(rng, N, low=1, high=500),
    zeros(2, N, dtype=np.int64)),
    answer=lambda a, b, out: np.stack([np.gcd(a, b), a**3 % b]))  # fmt: skip
def euclid_and_powers(a, b, out):
    i = cuda.grid(1)
    x, y = a[i], b[i]
    while y:
        x, y = y, x % y
    out[0, i] = x
    result, base, exponent = 1, a[i] % b[i], 3
    while exponent > 0:
        if exponent & 1:
            result = result * base % b[i]
        base = base * base % b[i]
        exponent >>= 1
    out[1, i] = result % b[i]


@launched(2, N, lambda rng: (integers(rng, 64), zeros(64, 6, dtype=np.int64)))
def local_arrays_by_parts(x, out):
    i = cuda.grid(1)
    if i % 5 == 0:
        return
    cells = cuda.local.array(6, int64)
    cells[:] = 7
    if x[i] > 0:
        cells[::2] = x[i]
        cells[1::2] = i
    backwards = cells[::-1]
    backwards[0] += 1
    if i % 2:
        backwards[2:5] = 3
    half = cells[:3] if x[i] % 4 < 2 else cells[3:]
    half[1] = -x[i]
    cells[0] += x[i]
    for k in range(6):
        out[i, k] = cells[k]


@launched(2, N, lambda rng: (integers(rng, 64, low=0), zeros(64, dtype=np.int64)))
def stack_of_work(x, out):
    """Recursion by hand: each thread has a stack of its own height."""
    i = cuda.grid(1)
    stack = cuda.local.array(16, int64)
    stack[0] = x[i]
    top, acc = 1, 0
    while top > 0:
        top -= 1
        v = stack[top]
        if v <= 1:
            acc += v
            continue
        stack[top] = v // 2
        stack[top + 1] = v - v // 2 - 1
        top += 2
    out[i] = acc
