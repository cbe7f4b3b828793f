"""What only a GPU has: lanes that talk, votes, atomics of every kind, bits, kinds of memory."""

import numpy as np
from numba import boolean, cuda, float32, float64, int32, uint32, uint64
from simt_kernels import Zoo, floats, integers, zeros

ZOO = Zoo()
launched = ZOO.launched

FULL_MASK = 0xFFFFFFFF
N = 32
TABLE = np.array([1, 1, 2, 6, 24, 120, 720], np.int64)
GRID_TABLE = np.arange(12, dtype=np.float32).reshape(3, 4)


# --- bits -------------------------------------------------------------------------------------


@launched(1, N, lambda rng: (integers(rng, N, low=1, high=2**62), zeros(3, N, dtype=np.int64)),
    answer=lambda x, out: np.array([[int(v).bit_count(), 64 - int(v).bit_length(),
    (int(v) & -int(v)).bit_length()] for v in x]).T)  # fmt: skip
def count_bits(x, out):
    i = cuda.grid(1)
    out[0, i] = cuda.popc(x[i])
    out[1, i] = cuda.clz(x[i])
    out[2, i] = cuda.ffs(x[i])


@launched(1, N, lambda rng: (rng.integers(0, 2**63, N).astype(np.uint64),
    zeros(N, dtype=np.uint64)),
    answer=lambda x, out: np.array([int(f"{v:064b}"[::-1], 2) for v in x], np.uint64))  # fmt: skip
def reverse_bits(x, out):
    i = cuda.grid(1)
    out[i] = cuda.brev(x[i])


@launched(1, N, lambda rng: (rng.integers(0, 2**16, (2, N)), zeros(2, N, dtype=np.int64)),
    answer=lambda xy, out: np.stack([xy[0] ^ (xy[0] >> 1),
    spread_bits(xy[0]) | spread_bits(xy[1]) << 1]))  # fmt: skip
def gray_and_morton_codes(xy, out):
    i = cuda.grid(1)
    out[0, i] = xy[0, i] ^ (xy[0, i] >> 1)
    code = 0
    for bit in range(16):
        code |= (xy[0, i] >> bit & 1) << 2 * bit
        code |= (xy[1, i] >> bit & 1) << (2 * bit + 1)
    out[1, i] = code


def spread_bits(x):
    return sum((x >> bit & 1) << 2 * bit for bit in range(16))


@launched(1, N, lambda rng: (rng.integers(0, 256, 4 * N).astype(np.uint8),
    zeros(N, dtype=np.uint32), zeros(4 * N, dtype=np.uint8)),
    answer=lambda x, words, back: (x.view(np.uint32), x[::-1]))  # fmt: skip
def pack_bytes(x, words, back):
    i = cuda.grid(1)
    word = uint32(0)
    for k in range(4):
        word |= uint32(x[4 * i + k]) << (8 * k)
    words[i] = word
    for k in range(4):
        back[back.size - 1 - 4 * i - k] = (word >> 8 * k) & 0xFF


# --- lanes ------------------------------------------------------------------------------------


@launched(1, 64, lambda rng: (integers(rng, 64, low=0, high=4), zeros(64, dtype=np.int64),
    zeros(64, dtype=np.int64)),
    answer=lambda x, mask, rank: match_answer(x))  # fmt: skip
def match_peers(x, mask, rank):
    """Which lanes hold the same value, and how many of them come before this one?"""
    i = cuda.grid(1)
    peers = cuda.match_any_sync(FULL_MASK, x[i])
    mask[i] = peers
    rank[i] = cuda.popc(peers & cuda.lanemask_lt())


def match_answer(x):
    same = x.reshape(2, 1, 32) == x.reshape(2, 32, 1)
    masks = (same << np.arange(32)).sum(2).astype(np.uint32).view(np.int32)
    ranks = np.tril(same, -1).sum(2)
    return masks.ravel(), ranks.ravel()


@launched(1, 64, lambda rng: (np.repeat([5, 0], 32) + np.r_[np.zeros(33, int), np.ones(31, int)],
    zeros(64, 2, dtype=np.int64)),
    answer=lambda x, out: np.repeat([[-1, 1], [0, 0]], 32, axis=0))  # fmt: skip
def match_all(x, out):
    mask, agree = cuda.match_all_sync(FULL_MASK, x[cuda.grid(1)])
    out[cuda.grid(1), 0] = mask
    out[cuda.grid(1), 1] = 1 if agree else 0


@launched(1, 64, lambda rng: (integers(rng, 64, low=0, high=3), zeros(3, dtype=np.int64)),
    answer=lambda x, counts: np.bincount(x, minlength=3))  # fmt: skip
def aggregated_atomics(x, counts):
    """One atomic for all lanes that hit the same counter: their leader adds for them."""
    i = cuda.grid(1)
    peers = cuda.match_any_sync(FULL_MASK, x[i])
    if peers & cuda.lanemask_lt() == 0:
        cuda.atomic.add(counts, x[i], cuda.popc(peers))


@launched(2, 48, lambda rng: (integers(rng, 96), zeros(96, 4, dtype=np.int64)))
def votes_of_partial_warps(x, out):
    """Blocks of a warp and a half; who is here is asked, too."""
    i = cuda.grid(1)
    here = cuda.activemask()
    out[i, 0] = here
    out[i, 1] = cuda.ballot_sync(FULL_MASK, x[i] & 1)
    out[i, 2] = 1 if cuda.any_sync(FULL_MASK, x[i] > 95) else 0
    out[i, 3] = 1 if cuda.all_sync(FULL_MASK, x[i] < 90) else 0


@launched(1, N, lambda rng: (floats(rng, N), zeros(N)),
    answer=lambda x, out: x[::-1] + np.roll(x, -1))  # fmt: skip
def reverse_and_rotate(x, out):
    lane = cuda.laneid
    v = x[lane]
    out[lane] = cuda.shfl_sync(FULL_MASK, v, 31 - lane) + cuda.shfl_sync(FULL_MASK, v, lane + 1)


@launched(1, N, lambda rng: (integers(rng, N), zeros(N, dtype=np.int64)),
    answer=lambda x, out: np.sort(x))  # fmt: skip
def sort_in_a_warp(x, out):
    """Bitonic network in registers: compare with a partner lane, keep one."""
    lane = cuda.laneid
    v = x[lane]
    size = 2
    while size <= 32:
        step = size // 2
        while step:
            other = cuda.shfl_xor_sync(FULL_MASK, v, step)
            keep_small = ((lane & size) == 0) == ((lane & step) == 0)
            v = min(v, other) if keep_small else max(v, other)
            step //= 2
        size *= 2
    out[lane] = v


@launched(
    1, 64, lambda rng: (integers(rng, 64), zeros(2, 2, dtype=np.int64)),
    answer=lambda x, out: np.stack(
        [x.reshape(2, 2, 16).sum(2)[:, 0], x.reshape(2, 2, 16).max(2)[:, 1]], 1),
)  # fmt: skip
def two_halves(x, out):
    """Each half of a warp does something else, with a member mask of its own."""
    lane, warp = cuda.laneid, cuda.threadIdx.x // 32
    v = x[cuda.threadIdx.x]
    if lane < 16:
        for step in (8, 4, 2, 1):
            v += cuda.shfl_xor_sync(0xFFFF, v, step)
        if lane == 0:
            out[warp, 0] = v
    else:
        for step in (8, 4, 2, 1):
            v = max(v, cuda.shfl_xor_sync(0xFFFF0000, v, step))
        if lane == 16:
            out[warp, 1] = v


# --- atomics ----------------------------------------------------------------------------------


@launched(
    2, N, lambda rng: (integers(rng, 64, low=1, dtype=np.int32),
                       np.array([0, 0, 999, -999, -1, 0, 0], np.int32)),
    answer=lambda x, out: np.array([
        x.sum(), -x.sum(), x.min(), x.max(), np.bitwise_and.reduce(x), np.bitwise_or.reduce(x),
        np.bitwise_xor.reduce(x)]),
)  # fmt: skip
def integer_atomics(x, out):
    v = x[cuda.grid(1)]
    cuda.atomic.add(out, 0, v)
    cuda.atomic.sub(out, 1, v)
    cuda.atomic.min(out, 2, v)
    cuda.atomic.max(out, 3, v)
    cuda.atomic.and_(out, 4, v)
    cuda.atomic.or_(out, 5, v)
    cuda.atomic.xor(out, 6, v)


@launched(2, N, lambda rng: (floats(rng, 64, dtype="f8"), np.array([0, 0, 99, -99, 99, -99.0])),
    rtol=1e-12,
    answer=lambda x, out: np.array([x.sum(), -x.sum(), x.min(), x.max(), x.min(),
    x.max()]))  # fmt: skip
def float_atomics(x, out):
    v = x[cuda.grid(1)]
    cuda.atomic.add(out, 0, v)
    cuda.atomic.sub(out, 1, v)
    cuda.atomic.min(out, 2, v)
    cuda.atomic.max(out, 3, v)
    cuda.atomic.nanmin(out, 4, v)
    cuda.atomic.nanmax(out, 5, v)


@launched(2, N, lambda rng: (zeros(2, dtype=np.uint64), zeros(64, dtype=np.int64)),
    answer=lambda counters, seen: (np.array([64 % 50, 2]), np.ones(64)))  # fmt: skip
def tickets(counters, seen):
    """inc wraps after its limit; a plain counter hands out every number once."""
    cuda.atomic.inc(counters, 0, uint64(49))
    ticket = cuda.atomic.add(seen, 0, 0)
    cuda.atomic.add(seen, cuda.grid(1), 1 + 0 * ticket)
    cuda.atomic.dec(counters, 1, uint64(2))


@launched(2, N, lambda rng: (integers(rng, 64, low=0, high=40), np.full(64, -1),
    zeros(64, dtype=bool)),
    answer=lambda keys, table, first: None)  # fmt: skip
def hash_table(keys, table, found):
    """Linear probing with compare-and-swap; equal keys share a slot."""
    key = keys[cuda.grid(1)]
    slot = key % table.size
    while True:
        old = cuda.atomic.cas(table, slot, -1, key)
        if old == -1 or old == key:
            break
        slot = (slot + 1) % table.size
    found[cuda.grid(1)] = True


@launched(1, N, lambda rng: (np.array([7], np.int32), zeros(N, dtype=np.int64)))
def one_winner(flag, out):
    old = cuda.atomic.compare_and_swap(flag, 7, 8)
    cuda.atomic.exch(flag, 0, 9)
    cuda.atomic.add(out, 0, 1 if old == 7 else 0)


@launched(2, 64, lambda rng: (floats(rng, 128), zeros(4, dtype=np.float64)), rtol=1e-12,
    tolerance=1e-6,
    answer=lambda x, out: np.array([x.astype("f8")[k::4].sum() for k in range(4)]))  # fmt: skip
def atomics_in_shared(x, out):
    sums = cuda.shared.array(4, float64)
    t = cuda.threadIdx.x
    if t < 4:
        sums[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(sums, t & 3, float64(x[cuda.grid(1)]))
    cuda.syncthreads()
    if t < 4:
        cuda.atomic.add(out, t, sums[t])


# --- kinds of memory --------------------------------------------------------------------------


@launched(1, N, lambda rng: (integers(rng, N, low=0, high=7), zeros(N)),
    answer=lambda n, out: TABLE[n] + GRID_TABLE[n % 3, n % 4])  # fmt: skip
def constant_memory(n, out):
    factorials = cuda.const.array_like(TABLE)
    table = cuda.const.array_like(GRID_TABLE)
    i = cuda.grid(1)
    out[i] = factorials[n[i]] + table[n[i] % 3, n[i] % 4]


@launched(1, N, lambda rng: (integers(rng, N, low=0, high=7), zeros(N, dtype=np.int64)),
    answer=lambda n, out: TABLE[n])  # fmt: skip
def frozen_global(n, out):
    """An array of the module, used directly: Numba copies it into the kernel."""
    i = cuda.grid(1)
    out[i] = TABLE[n[i]]


@launched(2, N, lambda rng: (floats(rng, 64), floats(rng, 64), zeros(64)), shared_bytes=8 * N,
    answer=lambda a, b, out: (a.reshape(2, N)[:, ::-1] * np.roll(b.reshape(2, N), -1,
    1)).ravel())  # fmt: skip
def carve_dynamic_memory(a, b, out):
    """Two arrays cut from one dynamic allocation."""
    n = cuda.blockDim.x
    memory = cuda.shared.array(0, dtype=float32)
    left = memory[:n]
    right = memory[n : 2 * n]
    t, i = cuda.threadIdx.x, cuda.grid(1)
    left[t] = a[i]
    right[t] = b[i]
    cuda.syncthreads()
    out[i] = left[n - 1 - t] * right[(t + 1) % n]


@launched(1, N, lambda rng: (floats(rng, N), integers(rng, N, dtype=np.int32), zeros(N)),
    shared_bytes=8 * N,
    answer=lambda x, k, out: x[::-1] * k[::-1])  # fmt: skip
def dynamic_memory_of_two_types(x, k, out):
    """Every dynamic array begins at the same byte; the second is cut off further on."""
    t = cuda.threadIdx.x
    reals = cuda.shared.array(0, float32)
    whole = cuda.shared.array(0, int32)[32:]
    reals[t] = x[t]
    whole[t] = k[t]
    cuda.syncthreads()
    out[t] = reals[31 - t] * float32(whole[31 - t])


@launched(1, N, lambda rng: (integers(rng, N, low=0, high=9), zeros(N, dtype=np.int64)),
    answer=lambda x, out: np.array([sum((v * k) % 7 for k in range(5)) for v in x]))  # fmt: skip
def local_memory(x, out):
    """A 2-D array of each thread's own, an index of its own."""
    cells = cuda.local.array((5, 7), boolean)
    i = cuda.grid(1)
    cells[:, :] = False
    for k in range(5):
        cells[k, (x[i] * k) % 7] = True
    total = 0
    for k in range(5):
        for value in range(7):
            if cells[k, value]:
                total += value
    out[i] = total
