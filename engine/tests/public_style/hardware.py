"""What only a GPU has: lanes that talk, votes, bits, kinds of memory."""

import numpy as np
from numba import cuda, float32, int32
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


@launched(2, 48, lambda rng: (integers(rng, 96), zeros(96, 4, dtype=np.int64)))
def votes_of_partial_warps(x, out):
    """Blocks of a warp and a half; who is here is asked, too."""
    i = cuda.grid(1)
    here = cuda.activemask()
    out[i, 0] = here
    out[i, 1] = cuda.ballot_sync(FULL_MASK, x[i] & 1)
    out[i, 2] = 1 if cuda.any_sync(FULL_MASK, x[i] > 95) else 0
    out[i, 3] = 1 if cuda.all_sync(FULL_MASK, x[i] < 90) else 0


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
