"""One element per thread, or a few: copies, formulas, grids of one to three dimensions."""

import math

import numpy as np
from numba import cuda, float32
from simt_kernels import Zoo, floats, integers, zeros

ZOO = Zoo()
launched = ZOO.launched


@launched((2, 2, 2), (4, 4, 2), lambda rng: (floats(rng, 3, 7, 8), zeros(3, 7, 8)),
    answer=lambda x, out: x[:, ::-1, :] * 2)  # fmt: skip
def flip_volume(volume, out):
    x, y, z = cuda.grid(3)
    depth, height, width = volume.shape
    if x < width and y < height and z < depth:
        out[z, y, x] = 2 * volume[z, height - 1 - y, x]


@launched(2, 64, lambda rng: (floats(rng, 100), zeros(4, 100)), rtol=1e-6,
    answer=lambda x, out: np.stack([np.sin(x), np.exp(-x * x), np.sqrt(abs(x)), np.arctan2(x,
    2)]))  # fmt: skip
def formulas(x, out):
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
        out[0, i] = math.sin(v)
        out[1, i] = math.exp(-v * v)
        out[2, i] = math.sqrt(math.fabs(v))
        out[3, i] = math.atan2(v, float32(2))


@launched(2, 32, lambda rng: (rng.random(64) < 0.5, rng.random(64) < 0.5, zeros(3, 64, dtype=bool)),
    answer=lambda a, b, out: np.stack([a & b, a ^ b, ~a | b]))  # fmt: skip
def logic(a, b, out):
    i = cuda.grid(1)
    out[0, i] = a[i] and b[i]
    out[1, i] = a[i] != b[i]
    out[2, i] = not a[i] or b[i]


@launched(1, 64, lambda rng: (integers(rng, 64, high=1000), zeros(3, 64, dtype=np.int64)),
    answer=lambda x, out: np.stack([x // 7, x % 7, np.sign(x)]))  # fmt: skip
def integer_division(x, out):
    i = cuda.grid(1)
    out[0, i] = x[i] // 7
    out[1, i] = x[i] % 7
    out[2, i] = int(x[i] > 0) - int(x[i] < 0)


@launched(
    2, 32,
    lambda rng: tuple(
        rng.integers(0, 100, 64).astype(t)
        for t in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")
    ) + (zeros(64, dtype=np.float64),),
    answer=lambda *a: sum(x.astype("f8") * (k + 1) for k, x in enumerate(a[:-1])),
)  # fmt: skip
def every_integer(a, b, c, d, e, f, g, h, out):
    i = cuda.grid(1)
    out[i] = a[i] + 2 * b[i] + 3 * c[i] + 4 * d[i] + 5.0 * e[i] + 6 * f[i] + 7 * g[i] + 8.0 * h[i]


@launched(2, 32, lambda rng: (floats(rng, 64, dtype="f2"), floats(rng, 64, dtype="f2"), zeros(64)),
    answer=lambda x, y, out: (x * y + x).astype("f4") * np.float32(0.5))  # fmt: skip
def half_precision(x, y, out):
    i = cuda.grid(1)
    if i < x.size:
        h = x[i] * y[i] + x[i]
        out[i] = float32(h) * float32(0.5)


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


@launched(1, 32, lambda rng: ((floats(rng, 32) + 1j * floats(rng, 32)).astype("c8"),
    zeros(32, dtype=np.complex64), zeros(32)), rtol=1e-6,
    answer=lambda z, out, size: (z.conj() * z * 2, abs(z)))  # fmt: skip
def complex_numbers(z, out, size):
    i = cuda.grid(1)
    w = z[i].conjugate() * z[i]
    out[i] = w + w
    size[i] = abs(z[i])


N = 16


@launched(1, N, lambda rng: ((floats(rng, N) + 1j * floats(rng, N)).astype("c16"),
    zeros(N, dtype=np.complex128)), rtol=1e-12,
    answer=lambda x, out: np.fft.fft(x))  # fmt: skip
def fourier_transform(x, out):
    k = cuda.threadIdx.x
    total = 0j
    for n in range(x.size):
        angle = -2 * math.pi * k * n / x.size
        total += x[n] * complex(math.cos(angle), math.sin(angle))
    out[k] = total
