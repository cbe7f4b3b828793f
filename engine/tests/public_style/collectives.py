"""Threads that work together: reductions, prefix sums, histograms, compaction."""

import math

import numpy as np
from numba import boolean, cuda, float32, int32, int64
from simt_kernels import Zoo, floats, integers, zeros

ZOO = Zoo()
launched = ZOO.launched

THREADS = 64
WARPS = THREADS // 32
TWICE = 2 * THREADS  # Numba takes a name as a shape, not an expression
FULL_MASK = 0xFFFFFFFF


# --- reductions -------------------------------------------------------------------------------


@cuda.jit(device=True)
def warp_sum(x):
    for offset in (16, 8, 4, 2, 1):
        x += cuda.shfl_down_sync(FULL_MASK, x, offset)
    return x


@launched(2, THREADS, lambda rng: (integers(rng, 128), zeros(2, dtype=np.int64)),
    answer=lambda x, out: x.reshape(2, 64).sum(1))  # fmt: skip
def shuffle_sum(x, out):
    """Shuffles within warps, shared memory across them."""
    partial = cuda.shared.array(WARPS, int64)
    t = cuda.threadIdx.x
    value = warp_sum(x[cuda.grid(1)])
    if t % 32 == 0:
        partial[t // 32] = value
    cuda.syncthreads()
    if t == 0:
        total = 0
        for w in range(WARPS):
            total += partial[w]
        out[cuda.blockIdx.x] = total


@launched(4, THREADS, lambda rng: (floats(rng, 4, 150), zeros(4, dtype=np.int64)),
    answer=lambda x, out: x.argmax(1))  # fmt: skip
def argmax_rows(x, out):
    values = cuda.shared.array(THREADS, float32)
    places = cuda.shared.array(THREADS, int32)
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    best, place = float32(-math.inf), -1
    for j in range(t, x.shape[1], THREADS):
        if x[row, j] > best:
            best, place = x[row, j], j
    values[t] = best
    places[t] = place
    cuda.syncthreads()
    step = THREADS // 2
    while step > 0:
        if t < step and values[t + step] > values[t]:
            values[t] = values[t + step]
            places[t] = places[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        out[row] = places[0]


@launched(3, 32, lambda rng: (integers(rng, 96), zeros(3, dtype=np.int64),
    zeros(1, dtype=np.int64)),
    answer=lambda x, partial, out: (x.reshape(3, 32).max(1), x.max()))  # fmt: skip
def maximum_after_grid_sync(x, partial, out):
    """Two passes in one launch, with a barrier of the whole grid between."""
    grid = cuda.cg.this_grid()
    value = x[cuda.grid(1)]
    for bit in range(5):
        value = max(value, cuda.shfl_xor_sync(FULL_MASK, value, 1 << bit))
    if cuda.threadIdx.x == 0:
        partial[cuda.blockIdx.x] = value
    grid.sync()
    if cuda.grid(1) == 0:
        best = partial[0]
        for b in range(1, cuda.gridDim.x):
            best = max(best, partial[b])
        out[0] = best


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


# --- prefix sums ------------------------------------------------------------------------------


@launched(2, THREADS, lambda rng: (integers(rng, 256), zeros(256, dtype=np.int64)),
    answer=lambda x, out: np.concatenate([np.r_[0, np.cumsum(half)[:-1]] for half in x.reshape(2,
    128)]))  # fmt: skip
def blelloch(x, out):
    """Exclusive, work-efficient: up and down a tree, two elements per thread."""
    tree = cuda.shared.array(TWICE, int64)
    t = cuda.threadIdx.x
    first = cuda.blockIdx.x * 2 * THREADS
    tree[2 * t] = x[first + 2 * t]
    tree[2 * t + 1] = x[first + 2 * t + 1]
    offset = 1
    d = THREADS
    while d > 0:
        cuda.syncthreads()
        if t < d:
            a = offset * (2 * t + 1) - 1
            b = offset * (2 * t + 2) - 1
            tree[b] += tree[a]
        offset *= 2
        d >>= 1
    if t == 0:
        tree[2 * THREADS - 1] = 0
    d = 1
    while d <= THREADS:
        offset >>= 1
        cuda.syncthreads()
        if t < d:
            a = offset * (2 * t + 1) - 1
            b = offset * (2 * t + 2) - 1
            tree[a], tree[b] = tree[b], tree[a] + tree[b]
        d *= 2
    out[first + 2 * t] = tree[2 * t]
    out[first + 2 * t + 1] = tree[2 * t + 1]


@launched(2, 96, lambda rng: (integers(rng, 192), zeros(192, dtype=np.int64)),
    answer=lambda x, out: np.cumsum(x.reshape(6, 32), axis=1).ravel())  # fmt: skip
def scan_of_warps(x, out):
    i = cuda.grid(1)
    lane = cuda.laneid
    value = x[i]
    d = 1
    while d < 32:
        other = cuda.shfl_up_sync(FULL_MASK, value, d)
        if lane >= d:
            value += other
        d *= 2
    out[i] = value


@launched(1, THREADS, lambda rng: (np.r_[1, rng.random(THREADS - 1) < 0.2].astype(np.int32),
    integers(rng, THREADS), zeros(THREADS, dtype=np.int64)),
    answer=lambda heads, x, out: np.concatenate([np.cumsum(part) for part in np.split(x,
    np.flatnonzero(heads)[1:])]))  # fmt: skip
def segmented_scan(heads, x, out):
    flags = cuda.shared.array(THREADS, int32)
    sums = cuda.shared.array(THREADS, int64)
    t = cuda.threadIdx.x
    flags[t] = heads[t]
    sums[t] = x[t]
    cuda.syncthreads()
    for bit in range(6):
        reach = 1 << bit
        left_sum, left_flag = 0, 0
        if t >= reach:
            left_sum = sums[t - reach]
            left_flag = flags[t - reach]
        cuda.syncthreads()
        if t >= reach and not flags[t]:
            sums[t] += left_sum
            flags[t] = left_flag
        cuda.syncthreads()
    out[t] = sums[t]


# --- histograms and compaction ----------------------------------------------------------------


@launched(1, 32, lambda rng: (integers(rng, 150), zeros(1, dtype=np.int32),
    zeros(150, dtype=np.int64)),
    answer=lambda x, count, out: (np.array([(x > 0).sum()]),
    np.r_[x[x > 0], np.zeros((x <= 0).sum(), int)]))  # fmt: skip
def compact_by_ballot(x, count, out):
    """One warp keeps the positive values in order."""
    lane = cuda.laneid
    kept = 0
    for start in range(0, x.size, 32):
        i = start + lane
        keep = i < x.size and x[i] > 0
        votes = cuda.ballot_sync(FULL_MASK, keep)
        if keep:
            out[kept + cuda.popc(votes & cuda.lanemask_lt())] = x[i]
        kept += cuda.popc(votes)
    if lane == 0:
        count[0] = kept


@launched(2, THREADS, lambda rng: (integers(rng, 120), zeros(1, dtype=np.int32),
    zeros(120, dtype=np.int64)))  # fmt: skip
def compact_flags(x, count, flags):
    """Counts with an atomic per warp; marks what is kept."""
    i = cuda.grid(1)
    keep = i < x.size and x[i] % 3 == 0
    votes = cuda.ballot_sync(FULL_MASK, keep)
    if cuda.laneid == 0:
        cuda.atomic.add(count, 0, cuda.popc(votes))
    if keep:
        flags[i] = 1


@launched(1, THREADS, lambda rng: (integers(rng, THREADS, low=0, high=16), 1,
    zeros(THREADS, dtype=np.int64)),
    answer=lambda x, bit, out: x[np.argsort(x >> bit & 1, kind="stable")])  # fmt: skip
def radix_pass(x, bit, out):
    """Zeros of one bit to the front, ones behind them, order kept."""
    zeros_before = cuda.shared.array(THREADS, int32)
    t = cuda.threadIdx.x
    one = (x[t] >> bit) & 1
    zeros_before[t] = 1 - one
    cuda.syncthreads()
    step = 1
    while step < THREADS:
        left = zeros_before[t - step] if t >= step else 0
        cuda.syncthreads()
        zeros_before[t] += left
        cuda.syncthreads()
        step *= 2
    num_zeros = zeros_before[THREADS - 1]
    place = num_zeros + t - zeros_before[t] if one else zeros_before[t] - 1
    out[place] = x[t]
