"""Particles, random numbers, games and fractals: loops that end where each thread likes."""

import numpy as np
from numba import cuda, int64, uint32
from numba.cuda.random import xoroshiro128p_dtype, xoroshiro128p_uniform_float32
from simt_kernels import Zoo, floats, zeros

ZOO = Zoo()
launched = ZOO.launched

PARTICLE = np.dtype([("x", "f4"), ("y", "f4"), ("speed", "f4"), ("hits", "i4")], align=True)
BODY = np.dtype([("position", "f4", 3), ("mass", "f4"), ("alive", "?")], align=True)


@launched((3, 2), (8, 8), lambda rng: (np.float64(-2), np.float64(1), np.float64(-1), np.float64(1),
    25, zeros(15, 20, dtype=np.uint8)))  # fmt: skip
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


@launched(2, 32, lambda rng: (rng.integers(1, 2**32, 64).astype(np.uint32), 20,
    zeros(1, dtype=np.int64)))  # fmt: skip
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


@launched(1, 32, lambda rng: (rng.integers(0, 2**32, 32).astype(np.uint32),
    zeros(32, dtype=np.uint32)),
    answer=lambda x, out: (x * np.uint32(2654435761)) ^ (x >> np.uint32(15)))  # fmt: skip
def hash_words(x, out):
    """Products of 32-bit words wrap when they are stored to 32 bits."""
    i = cuda.grid(1)
    out[i] = uint32(x[i] * uint32(2654435761)) ^ (x[i] >> 15)


@launched(2, 20, lambda rng: (moving_particles(rng), np.float32(0.5)),
    answer=lambda p, dt: None)  # fmt: skip
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


@launched(1, 8, lambda rng: (np.array((0.25, 2.0, 3.0, 4), PARTICLE)[()], zeros(8)),
    answer=lambda p, out: np.arange(8) * 2 + np.float32(0.25))  # fmt: skip
def one_record(settings, out):
    i = cuda.grid(1)
    out[i] = settings.x + settings.y * i
