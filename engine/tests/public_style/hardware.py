"""What only a GPU has: lanes that talk, votes, atomics of every kind, bits, kinds of memory."""

import numpy as np
from numba import boolean, cuda, float32, int32
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


# --- kinds of memory --------------------------------------------------------------------------


@launched(1, N, lambda rng: (integers(rng, N, low=0, high=7), zeros(N)),
    answer=lambda n, out: TABLE[n] + GRID_TABLE[n % 3, n % 4])  # fmt: skip
def constant_memory(n, out):
    factorials = cuda.const.array_like(TABLE)
    table = cuda.const.array_like(GRID_TABLE)
    i = cuda.grid(1)
    out[i] = factorials[n[i]] + table[n[i] % 3, n[i] % 4]


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


# --- blocks -----------------------------------------------------------------------------------


@cuda.jit(device=True)
def warp_sum(x):
    for offset in (16, 8, 4, 2, 1):
        x += cuda.shfl_down_sync(FULL_MASK, x, offset)
    return x


@launched(3, 32, lambda rng: (integers(rng, 96), zeros(2, dtype=np.int32), zeros(3, dtype=np.int64),
    zeros(1, dtype=np.int64)),
    answer=lambda x, ticket, partial, out: (x.reshape(3, 32).sum(1),
    (x.reshape(3, 32).sum(1) ** 2).sum()))  # fmt: skip
def last_block_finishes(x, ticket, partial, out):
    """The block that draws the last ticket adds up what all have left."""
    is_last = cuda.shared.array(1, boolean)
    t = cuda.threadIdx.x
    mine = warp_sum(x[cuda.grid(1)])
    if t == 0:
        cuda.atomic.add(partial, cuda.blockIdx.x, mine)
        cuda.threadfence()
        is_last[0] = cuda.atomic.add(ticket, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if is_last[0] and t == 0:
        total = 0
        for b in range(cuda.gridDim.x):
            part = cuda.atomic.add(partial, b, 0)  # an atomic load
            total += part * part
        out[0] = total
