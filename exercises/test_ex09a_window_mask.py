"""Grader of ex09a: keys, tiles and masked tiles of a sliding window."""

import functools

import numpy as np
import pytest
from numba import cuda, float32

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready

LENGTHS = [(1, 1), (13, 13), (5, 17), (17, 5), (1, 40), (40, 1), (33, 30)]
TILES = [(4, 4), (8, 4), (4, 8), (5, 3), (1, 16), (16, 1), (100, 80)]
WINDOWS = [(-1, -1), (-1, 0), (0, 0), (3, 0), (8, 0), (2, 3), (0, 5), (-1, 2), (6, -1), (99, 99)]
EACH_TILE = pytest.mark.parametrize("BLOCK_M, BLOCK_N", TILES)


def several(BLOCK_M, BLOCK_N):
    """Lengths of several tiles each way, the last ones not full."""
    return 3 * BLOCK_M - 1, 4 * BLOCK_N + 3


def visible(seqlen_q, seqlen_k, left, right):
    """The mask, written out: True where query m sees key n."""
    distance = np.arange(seqlen_k) - (np.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q)
    after_start = (left < 0) | (distance >= -left)
    return after_start & ((right < 0) | (distance <= right))


def ask_everything(exercise, seqlen_q, seqlen_k, left, right, BLOCK_M=1, BLOCK_N=1):
    """(keys of each query, n-tiles of each m-tile, needs_mask of each pair), by the functions."""
    num_m_tiles, num_n_tiles = -(-seqlen_q // BLOCK_M), -(-seqlen_k // BLOCK_N)
    keys, tiles = np.full((seqlen_q, 2), -99), np.full((num_m_tiles, 2), -99)
    masked = np.full((num_m_tiles, num_n_tiles), -99)
    sizes = (BLOCK_M, BLOCK_N, seqlen_q, seqlen_k, left, right)
    threads = max(seqlen_q, num_m_tiles * num_n_tiles)
    simt.run(asking(exercise), -(-threads // 64), 64, *sizes, keys, tiles, masked)
    return keys, tiles, masked


@functools.cache
def asking(exercise):
    """A kernel in which each thread asks the functions about one query and one tile."""
    first_key, end_key = exercise.first_key, exercise.end_key
    tile_range, needs_mask = exercise.tile_range, exercise.needs_mask

    @cuda.jit
    def ask(BLOCK_M, BLOCK_N, seqlen_q, seqlen_k, left, right, keys, tiles, masked):
        i = cuda.grid(1)
        if i < seqlen_q:
            keys[i, 0] = first_key(i, seqlen_q, seqlen_k, left)
            keys[i, 1] = end_key(i, seqlen_q, seqlen_k, right)
        if i < tiles.shape[0]:
            first, end = tile_range(i, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k, left, right)
            tiles[i, 0] = first
            tiles[i, 1] = end
        if i < masked.size:
            m_tile, n_tile = i // masked.shape[1], i % masked.shape[1]
            needs = needs_mask(m_tile, n_tile, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k, left, right)
            masked[m_tile, n_tile] = 1 if needs else 0

    return ask


def case(seqlen_q, seqlen_k, left, right):
    return f"{seqlen_q=}, {seqlen_k=}, {left=}, {right=}"


def drawn(mask, m_start, BLOCK_M, BLOCK_N):
    """The mask of some queries: 1 where a query sees a key, a gap after each n-tile."""
    lines = []
    for m in range(m_start, min(m_start + min(BLOCK_M, 8), len(mask))):
        row = "".join(".1"[int(x)] for x in mask[m])
        tiles = [row[n : n + BLOCK_N] for n in range(0, len(row), BLOCK_N)]
        lines.append(f"\n  query {m:>2}   {' '.join(tiles)}")
    return "".join(lines)


def as_set(first, end):
    return set(range(first, end))


def check_keys(exercise, seqlen_q, seqlen_k, left, right):
    mask = visible(seqlen_q, seqlen_k, left, right)
    keys, _, _ = ask_everything(exercise, seqlen_q, seqlen_k, left, right)
    for m, (first, end) in enumerate(keys.tolist()):
        want = set(np.flatnonzero(mask[m]).tolist())
        seen = f"{min(want)} <= n < {max(want) + 1}" if want else "no key"
        assert as_set(first, end) == want, (
            f"{case(seqlen_q, seqlen_k, left, right)}: query {m}, at position "
            f"{m + seqlen_k - seqlen_q}, must see {seen}, got {first} <= n < {end}. "
            f"{drawn(mask, m, 1, seqlen_k)}"
        )


def live_tiles(mask, m_tile, BLOCK_M, BLOCK_N):
    """The n-tiles in which a query of the m-tile sees a key."""
    rows = mask[m_tile * BLOCK_M : (m_tile + 1) * BLOCK_M]
    return set((np.flatnonzero(rows.any(axis=0)) // BLOCK_N).tolist())


def check_tiles(exercise, seqlen_q, seqlen_k, left, right, BLOCK_M, BLOCK_N):
    mask = visible(seqlen_q, seqlen_k, left, right)
    _, tiles, _ = ask_everything(exercise, seqlen_q, seqlen_k, left, right, BLOCK_M, BLOCK_N)
    for m_tile, (first, end) in enumerate(tiles.tolist()):
        want = live_tiles(mask, m_tile, BLOCK_M, BLOCK_N)
        must = f"{min(want)} <= n_tile < {max(want) + 1}" if want else "no tile"
        assert as_set(first, end) == want, (
            f"{case(seqlen_q, seqlen_k, left, right)}, {BLOCK_M=}, {BLOCK_N=}: m-tile {m_tile} "
            f"must visit {must}, got {first} <= n_tile < {end}; a gap after each n-tile:"
            f"{drawn(mask, m_tile * BLOCK_M, BLOCK_M, BLOCK_N)}"
        )


@pytest.mark.parametrize("left", [0, 1, 5, 40])
def test_causal_window(exercise, left):
    """first_key, end_key: a causal window, as many keys as queries"""
    check_keys(exercise, 20, 20, left, 0)


@pytest.mark.parametrize("seqlen_q, seqlen_k", [(1, 40), (5, 17)])
def test_more_keys(exercise, seqlen_q, seqlen_k):
    """first_key, end_key: fewer queries than keys, the last query stands at the last key"""
    for window in WINDOWS:
        check_keys(exercise, seqlen_q, seqlen_k, *window)


@pytest.mark.parametrize("seqlen_q, seqlen_k", [(40, 1), (17, 5)])
def test_more_queries(exercise, seqlen_q, seqlen_k):
    """first_key, end_key: more queries than keys, the first ones see nothing"""
    for window in WINDOWS:
        check_keys(exercise, seqlen_q, seqlen_k, *window)


def test_no_limit(exercise):
    """first_key, end_key: -1 is no limit, on one side or both"""
    for window in ((-1, -1), (-1, 0), (-1, 4), (4, -1)):
        check_keys(exercise, 12, 15, *window)


def test_both_sides(exercise):
    """first_key, end_key: a window to both sides"""
    for window in ((1, 1), (2, 3), (0, 5), (99, 99)):
        check_keys(exercise, 14, 14, *window)


@EACH_TILE
def test_tiles_of_a_causal_window(exercise, BLOCK_M, BLOCK_N):
    """tile_range: a causal window, any tiles"""
    for left in (0, 3, 8, 20):
        check_tiles(exercise, 33, 33, left, 0, BLOCK_M, BLOCK_N)


@EACH_TILE
def test_tiles(exercise, BLOCK_M, BLOCK_N):
    """tile_range: every window and all lengths agree with the mask written out"""
    for lengths in (*LENGTHS, several(BLOCK_M, BLOCK_N)):
        for window in WINDOWS:
            check_tiles(exercise, *lengths, *window, BLOCK_M, BLOCK_N)


def test_queries_that_do_not_exist(exercise):
    """tile_range: queries beyond the last do not count"""
    check_tiles(exercise, 9, 30, 3, 4, 8, 2)
    check_tiles(exercise, 17, 17, 5, 2, 16, 1)


def test_least_number_of_tiles(exercise):
    """tile_range: the tiles of the whole grid are as few as can be"""
    for seqlen_q, seqlen_k, left, right in ((64, 64, 15, 0), (64, 100, 7, 3), (100, 64, 9, 0)):
        mask = visible(seqlen_q, seqlen_k, left, right)
        _, tiles, _ = ask_everything(exercise, seqlen_q, seqlen_k, left, right, 8, 8)
        got = int(np.maximum(0, tiles[:, 1] - tiles[:, 0]).sum())
        want = sum(len(live_tiles(mask, m_tile, 8, 8)) for m_tile in range(len(tiles)))
        everything = len(tiles) * -(-seqlen_k // 8)
        assert got == want, (
            f"{case(seqlen_q, seqlen_k, left, right)}, 8 x 8 tiles: {want} of {everything} tiles "
            f"have a pair that is seen, got {got} visits"
        )


def test_window_does_not_grow(exercise):
    """tile_range: how long the sequence is does not change how much a tile of queries visits"""
    for position in (200, 2_000, 2_000_000_000):
        first, end = one_tile_range(exercise, 16, 16, 16, position + 1, 127, 0)
        want = (position - 15 - 127) // 16, position // 16 + 1
        assert (first, end) == want, (
            f"16 queries at positions {position - 15} to {position}, 128 keys each, 143 in all: "
            f"must visit {want[0]} <= n_tile < {want[1]}, got {first} <= n_tile < {end}"
        )


def one_tile_range(exercise, *sizes):
    return answers_far_away(exercise, *sizes, 0)[2:4]


def answers_far_away(exercise, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k, left, right, n_tile):
    """first_key and end_key of query 0, tile_range and needs_mask of m-tile 0."""
    first_key, end_key = exercise.first_key, exercise.end_key
    tile_range, needs_mask = exercise.tile_range, exercise.needs_mask

    @cuda.jit
    def ask(BLOCK_M, BLOCK_N, seqlen_q, seqlen_k, left, right, n_tile, found):
        first, end = tile_range(0, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k, left, right)
        needs = needs_mask(0, n_tile, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k, left, right)
        found[0] = first_key(0, seqlen_q, seqlen_k, left)
        found[1] = end_key(0, seqlen_q, seqlen_k, right)
        found[2] = first
        found[3] = end
        found[4] = 1 if needs else 0

    found = np.zeros(5, np.int64)
    sizes = BLOCK_M, BLOCK_N, seqlen_q, seqlen_k, left, right, n_tile
    simt.run(ask, 1, 1, *sizes, found)
    return found.tolist()


@pytest.mark.parametrize("seqlen_k", [2**24 + 3, 2 * 10**9 + 1, 10**12 + 1])
def test_far_away(exercise, seqlen_k):
    """all four: exact, and at once, however far along the keys a query stands"""
    position, tile = seqlen_k - 16, (seqlen_k - 16 - 100) // 8
    for n_tile in (tile, tile + 1, (position + 3) // 8 - 1, (position + 3) // 8):
        got = answers_far_away(exercise, 16, 8, 16, seqlen_k, 100, 2, n_tile)
        starts_late = position + 15 - 100 > n_tile * 8
        ends_early = position + 3 < n_tile * 8 + 8
        want = [position - 100, position + 3, tile, -(-seqlen_k // 8), starts_late or ends_early]
        names = "first_key end_key first_tile end_tile needs_mask".split()
        bad = next((i for i in range(5) if got[i] != want[i]), None)
        assert bad is None, (
            f"16 queries, {seqlen_k} keys, window (100, 2), 16 x 8 tiles, n_tile {n_tile}: "
            f"{names[bad]} must be {int(want[bad])}, got {got[bad]}: are these whole numbers all "
            "the way, without a loop?"
        )


@EACH_TILE
def test_needs_mask(exercise, BLOCK_M, BLOCK_N):
    """needs_mask: every visited tile agrees with the mask written out"""
    for seqlen_q, seqlen_k in (*LENGTHS, several(BLOCK_M, BLOCK_N)):
        for left, right in WINDOWS:
            mask = visible(seqlen_q, seqlen_k, left, right)
            sizes = (seqlen_q, seqlen_k, left, right, BLOCK_M, BLOCK_N)
            _, _, masked = ask_everything(exercise, *sizes)
            for (m_tile, n_tile), got in np.ndenumerate(masked):
                rows = mask[m_tile * BLOCK_M : (m_tile + 1) * BLOCK_M]
                tile = rows[:, n_tile * BLOCK_N : (n_tile + 1) * BLOCK_N]
                if not tile.any():
                    continue  # not visited: nobody asks
                want = not (tile.all() and tile.shape[1] == BLOCK_N)
                assert bool(got) == want, (
                    f"{case(seqlen_q, seqlen_k, left, right)}, {BLOCK_M=}, {BLOCK_N=}: "
                    f"needs_mask({m_tile}, {n_tile}, ...) must be {want}, got {bool(got)}; a gap "
                    f"after each n-tile:{drawn(mask, m_tile * BLOCK_M, BLOCK_M, BLOCK_N)}"
                )


@functools.cache
def walk(exercise, BLOCK_M, BLOCK_N):
    """Each query adds up the keys that it sees: a thread block walks the tiles of its m-tile."""
    tile_range, needs_mask = exercise.tile_range, exercise.needs_mask
    first_key, end_key = exercise.first_key, exercise.end_key

    @cuda.jit
    def kernel(k, total, left, right):
        tile = cuda.shared.array(BLOCK_N, float32)
        tid, m_tile = cuda.threadIdx.x, cuda.blockIdx.x
        seqlen_q, seqlen_k, m = total.shape[0], k.shape[0], m_tile * BLOCK_M + tid
        first = first_key(m, seqlen_q, seqlen_k, left)
        end = end_key(m, seqlen_q, seqlen_k, right)
        first_tile, end_tile = tile_range(m_tile, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k, left, right)
        x = float32(0.0)
        for n_tile in range(first_tile, end_tile):
            n_start = n_tile * BLOCK_N
            for r in range(tid, BLOCK_N, BLOCK_M):
                tile[r] = k[n_start + r] if n_start + r < seqlen_k else float32(0.0)
            cuda.syncthreads()
            masked = needs_mask(m_tile, n_tile, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k, left, right)
            for r in range(BLOCK_N):
                if not masked or first <= n_start + r < end:
                    x += tile[r]
            cuda.syncthreads()
        if m < seqlen_q:
            total[m] = x

    return kernel


@pytest.mark.parametrize(
    "seqlen_q, seqlen_k, left, right",
    [(40, 40, 7, 0), (24, 50, 9, 3), (50, 24, 9, 0), (1, 45, 12, 0), (30, 30, -1, 0)],
)
def test_a_kernel_that_walks_by_them(exercise, seqlen_q, seqlen_k, left, right):
    """a kernel that walks by these functions: right sums, and the least HBM traffic"""
    BLOCK_M, BLOCK_N = 8, 4
    mask = visible(seqlen_q, seqlen_k, left, right)
    k = np.random.default_rng(0).integers(1, 100, seqlen_k).astype(np.float32)
    total = np.full(seqlen_q, np.nan, np.float32)
    grid = -(-seqlen_q // BLOCK_M)
    trace = simt.trace(walk(exercise, BLOCK_M, BLOCK_N), grid, BLOCK_M, k, total, left, right)
    want = mask @ k
    wrong = np.flatnonzero(~(total == want))
    assert not len(wrong), (
        f"{case(seqlen_q, seqlen_k, left, right)}: the keys that query {wrong[0]} sees sum to "
        f"{want[wrong[0]]:g}, the kernel found {total[wrong[0]]:g}"
    )
    least = 0
    for m_tile in range(grid):
        for n_tile in live_tiles(mask, m_tile, BLOCK_M, BLOCK_N):
            least += min(BLOCK_N, seqlen_k - n_tile * BLOCK_N)
    got = trace.arrays["k"].loads
    assert got == least, (
        f"{case(seqlen_q, seqlen_k, left, right)}: the visited tiles hold {least} keys, the meter "
        f"says {got} loads"
    )


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, called from a kernel"""
    k, total = np.zeros((2, 8), np.float32)
    args = (k, total, 3, 0)
    simt.run(walk(exercise, 8, 4), 1, 8, *args)  # what does not run here need not compile
    gpu_ready(walk(exercise, 8, 4), args)
