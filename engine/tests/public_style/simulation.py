"""Particles, random numbers, games and fractals: loops that end where each thread likes."""

import math

import numpy as np
from numba import cuda, float32, int64, uint32, uint64
from numba.cuda.random import xoroshiro128p_dtype, xoroshiro128p_uniform_float32
from public_style.launches import Family
from simt_kernels import floats, zeros

SIMULATION = Family()
launched = SIMULATION.launched

PARTICLE = np.dtype([("x", "f4"), ("y", "f4"), ("speed", "f4"), ("hits", "i4")], align=True)
BODY = np.dtype([("position", "f4", 3), ("mass", "f4"), ("alive", "?")], align=True)


@launched(
    (3, 2), (8, 8), lambda rng: (np.float64(-2), np.float64(1), np.float64(-1), np.float64(1), 25,
                                 zeros(15, 20, dtype=np.uint8)),
)  # fmt: skip
@cuda.jit
def mandelbrot(min_x, max_x, min_y, max_y, limit, image):
    height, width = image.shape
    start_x, start_y = cuda.grid(2)
    grid_x, grid_y = cuda.gridsize(2)
    for x in range(start_x, width, grid_x):
        re = min_x + x * (max_x - min_x) / width
        for y in range(start_y, height, grid_y):
            im = min_y + y * (max_y - min_y) / height
            image[y, x] = escape_time(re, im, limit)


@cuda.jit(device=True)
def escape_time(re, im, limit):
    c = complex(re, im)
    z = 0.0j
    for i in range(limit):
        z = z * z + c
        if (z.real * z.real + z.imag * z.imag) >= 4:
            return i
    return 255


@launched(
    2, 32, lambda rng: (rng.integers(1, 2**32, 64).astype(np.uint32), 20,
                        zeros(1, dtype=np.int64)),
)  # fmt: skip
@cuda.jit
def monte_carlo_pi(seeds, draws, inside):
    """xorshift in 32 bits; hits counted by a warp's vote."""
    state = int64(seeds[cuda.grid(1)])
    for _ in range(draws):
        x, state = next_uniform(state)
        y, state = next_uniform(state)
        votes = cuda.ballot_sync(0xFFFFFFFF, x * x + y * y < 1.0)
        if cuda.laneid == 0:
            cuda.atomic.add(inside, 0, cuda.popc(votes))


@cuda.jit(device=True)
def next_uniform(state):
    state ^= (state << 13) & 0xFFFFFFFF
    state ^= state >> 17
    state ^= (state << 5) & 0xFFFFFFFF
    return state / 4294967296.0, state


@launched(
    1, 32, lambda rng: (generator_states(rng), zeros(32, 3)), oracle=False,
    answer=lambda states, out: np.stack([xoroshiro_answer(states) for _ in range(3)], 1),
)  # fmt: skip
@cuda.jit
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


@launched(
    2, 32, lambda rng: (np.uint64(7), zeros(64, dtype=np.uint64)),
    answer=lambda seed, out: (seed + np.arange(64, dtype="u8")) * np.uint64(0x9E3779B97F4A7C15)
    >> np.uint64(11),
)  # fmt: skip
@cuda.jit
def weyl_sequence(seed, out):
    i = cuda.grid(1)
    out[i] = ((seed + uint64(i)) * uint64(0x9E3779B97F4A7C15)) >> uint64(11)


@launched(
    1, 32, lambda rng: (rng.integers(0, 2**32, 32).astype(np.uint32),
                        zeros(32, dtype=np.uint32)),
    answer=lambda x, out: (x * np.uint32(2654435761)) ^ (x >> np.uint32(15)),
)  # fmt: skip
@cuda.jit
def hash_words(x, out):
    """Products of 32-bit words wrap when they are stored to 32 bits."""
    i = cuda.grid(1)
    out[i] = uint32(x[i] * uint32(2654435761)) ^ (x[i] >> 15)


@launched(
    2, 20, lambda rng: (moving_particles(rng), np.float32(0.5)),
    answer=lambda p, dt: None,
)  # fmt: skip
@cuda.jit
def move_particles(particles, dt):
    """Records, field by field; walls reflect."""
    i = cuda.grid(1)
    if i < particles.shape[0]:
        p = particles[i]
        x = p.x + p.speed * dt
        if x < 0 or x > 1:
            p.speed = -p.speed
            particles[i].hits += 1
            x = -x if x < 0 else 2 - x
        particles[i]["x"] = x
        p.y = p["y"] + dt


def moving_particles(rng):
    particles = np.zeros(35, PARTICLE)
    particles["x"], particles["speed"] = rng.random(35), floats(rng, 35)
    return particles


@launched(1, 16, lambda rng: (bodies(rng), zeros(3), bodies(rng)[::-1].copy()), rtol=1e-5)
@cuda.jit
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


@launched(
    1, 8, lambda rng: (np.array((0.25, 2.0, 3.0, 4), PARTICLE)[()], zeros(8)),
    answer=lambda p, out: np.arange(8) * 2 + np.float32(0.25),
)  # fmt: skip
@cuda.jit
def one_record(settings, out):
    i = cuda.grid(1)
    out[i] = settings.x + settings.y * i


@launched(
    2, 32, lambda rng: (10 * rng.random(64).astype("f4"), np.float32(0.01), zeros(64)),
)  # fmt: skip
@cuda.jit
def logistic_until_cycle(x, tolerance, out):
    """Nested loops with breaks; each thread goes round until it comes near its start."""
    i = cuda.grid(1)
    v = x[i] / 10
    for _ in range(20):
        start = v
        for _ in range(10):
            v = float32(3.5) * v * (1 - v)
            if v < 0.001:
                continue
            if abs(v - start) < tolerance:
                break
        else:
            continue
        break
    out[i] = v


@launched(
    1, 64, lambda rng: (np.float64(0.0), np.float64(2.0), 8, zeros(64, dtype=np.float64)),
    rtol=1e-12,
    answer=lambda a, b, n, out: np.full(64, (math.exp(2) - 1)) * (out + 1), tolerance=1e-3,
)  # fmt: skip
@cuda.jit
def simpson(a, b, intervals, out):
    h = (b - a) / intervals
    total = integrand(a) + integrand(b)
    for k in range(1, intervals):
        total += integrand(a + k * h) * (4 if k % 2 else 2)
    out[cuda.grid(1)] = total * h / 3


@cuda.jit
def integrand(x):
    return math.exp(x)


@launched(
    1, 32, lambda rng: (rng.random((32, 2)).astype("f4"),
                        np.array([[0, 0], [1, 0], [0.5, 1]], "f4"), zeros(32, dtype=bool)),
)  # fmt: skip
@cuda.jit
def point_in_polygon(points, polygon, inside):
    """Counts crossings of a ray; the last corner joins the first."""
    i = cuda.grid(1)
    px, py = points[i]
    crossings = 0
    j = polygon.shape[0] - 1
    for k in range(polygon.shape[0]):
        xk, yk = polygon[k, 0], polygon[k, 1]
        xj, yj = polygon[j, 0], polygon[j, 1]
        if (yk > py) != (yj > py) and px < (xj - xk) * (py - yk) / (yj - yk) + xk:
            crossings += 1
        j = k
    inside[i] = crossings % 2 == 1
