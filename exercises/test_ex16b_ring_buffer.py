"""Grader of ex16b: appending to a rolling cache."""

from dataclasses import dataclass

import numpy as np
import pytest
from numba import cuda

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready

EMPTY = np.float32(-777.0)  # what a place holds in which nothing has been written


@dataclass
class Ring:
    """A rolling cache, and what should be in it: the kept tokens by a walk, token after token."""

    window: int
    num_sinks: int
    k_cache: np.ndarray
    v_cache: np.ndarray
    lengths: np.ndarray
    tokens: list  # of each sequence: place -> token, kept by hand

    def give(self, num_new):
        """Move the write pointers on, by hand, and return each sequence's first new token."""
        first = self.lengths.copy()
        for b, n in enumerate(num_new):
            for t in range(first[b], first[b] + n):
                if len(self.tokens[b]) < self.num_sinks + self.window:
                    self.tokens[b].append(t)
                else:  # the oldest token that is no sink goes
                    oldest = min(self.tokens[b][self.num_sinks :])
                    self.tokens[b][self.tokens[b].index(oldest)] = t
        self.lengths = first + np.array(num_new, np.int32)
        return first


def make_ring(batch=2, window=4, num_sinks=0, num_kv_heads=2, head_dim=3):
    shape = (batch, num_sinks + window, num_kv_heads, head_dim)
    k_cache, v_cache = np.full((2, *shape), EMPTY, np.float32)
    return Ring(
        window, num_sinks, k_cache, v_cache, np.zeros(batch, np.int32), [[] for _ in range(batch)]
    )


def key(b, t, num_kv_heads, head_dim):
    """The key of token t: no two elements of any two tokens are alike."""
    numbers = np.arange(num_kv_heads * head_dim, dtype=np.float32)
    return ((1000 * b + t) * 1024 + numbers).reshape(num_kv_heads, head_dim)


def new_tokens(ring, num_new, seqlen_new):
    """Keys and values of the next tokens of each sequence; NaN in the padding."""
    batch, _, num_kv_heads, head_dim = ring.k_cache.shape
    k_new = np.full((batch, seqlen_new, num_kv_heads, head_dim), np.nan, np.float32)
    for b, n in enumerate(num_new):
        for i in range(n):
            k_new[b, i] = key(b, ring.lengths[b] + i, num_kv_heads, head_dim)
    return k_new, -k_new


def append(exercise, ring, num_new, *, seqlen_new=None, threads=32, run=simt.run):
    """Append so many new tokens to each sequence, in one checked launch."""
    seqlen_new = max(num_new) if seqlen_new is None else seqlen_new
    k_new, v_new = new_tokens(ring, num_new, seqlen_new)
    first = ring.give(num_new)
    args = (k_new, v_new, first, np.array(num_new, np.int32), ring.num_sinks)
    grid = (seqlen_new, len(num_new))
    return run(exercise.kernel, grid, threads, *args, ring.k_cache, ring.v_cache)


def by_name(trace):
    """What the meter says of each array, by the statement's names."""
    names = ("k_new", "v_new", "lengths", "num_new", "k_cache", "v_cache")
    return dict(zip(names, trace.arrays.values(), strict=True))


def expect_kept(ring):
    """Fail where the cache does not hold what the walk kept."""
    batch, places, num_kv_heads, head_dim = ring.k_cache.shape
    for b in range(batch):
        for n in range(places):
            empty = n >= len(ring.tokens[b])
            t = None if empty else ring.tokens[b][n]
            want = np.full_like(ring.k_cache[b, n], EMPTY)
            want = want if empty else key(b, t, num_kv_heads, head_dim)
            for name, got, value in (
                ("k_cache", ring.k_cache[b, n], want),
                ("v_cache", ring.v_cache[b, n], want if empty else -want),
            ):
                if (got == value).all():
                    continue
                h, d = (int(i) for i in np.argwhere(~(got == value))[0])
                owner = "no token yet" if empty else f"token {t}"
                raise AssertionError(
                    f"{name}[{b}, {n}, {h}, {d}]: with window {ring.window}, {ring.num_sinks} "
                    f"sinks and {ring.lengths[b]} tokens, place {n} of sequence {b} must hold "
                    f"{owner}, but it holds {holds(name, got[h, d])}. "
                    f"The row must be {ring.tokens[b]}"
                )


def holds(name, number):
    """What a number in the cache is, in words."""
    if number == EMPTY:
        return "nothing: it was never written"
    if np.isnan(number):
        return "padding (NaN)"
    owner, element = divmod(abs(float(number)), 1024)
    b, t = divmod(int(owner), 1000)
    kind = "key" if number >= 0 else "value"
    return f"element {int(element)} of the {kind} of token {t} of sequence {b}"


def placed(exercise, ts, end, num_sinks, window):
    """place(t, end, num_sinks, window) of many t, one thread each."""
    place = exercise.place

    @cuda.jit
    def ask(ts, end, num_sinks, window, found):
        i = cuda.grid(1)
        if i < ts.shape[0]:
            found[i] = place(ts[i], end, num_sinks, window)

    ts, found = np.array(ts, np.int32), np.full(len(ts), -99, np.int32)
    simt.run(ask, -(-len(ts) // 32), 32, ts, end, num_sinks, window, found)
    return found.tolist()


@pytest.mark.parametrize("window, num_sinks", [(4, 0), (4, 2), (1, 0), (1, 3), (7, 1)])
def test_place(exercise, window, num_sinks):
    """place: every token, however many have come"""
    ring = make_ring(1, window, num_sinks)
    for end in range(1, 30):
        ring.give([1])
        want = [ring.tokens[0].index(t) if t in ring.tokens[0] else -1 for t in range(end)]
        got = placed(exercise, range(end), end, num_sinks, window)
        bad = next((t for t in range(end) if got[t] != want[t]), None)
        assert bad is None, (
            f"place({bad}, {end}, {num_sinks}, {window}) must be {want[bad]}, got {got[bad]}: the "
            f"row is {ring.tokens[0]}"
        )


def test_filling_up(exercise):
    """the first tokens go to the first places, in order"""
    ring = make_ring(window=6, num_sinks=2)
    append(exercise, ring, [5, 3])
    expect_kept(ring)


def test_wraps(exercise):
    """token after token: the write pointer wraps, again and again"""
    ring = make_ring(1, window=4)
    for _ in range(13):
        append(exercise, ring, [1])
        expect_kept(ring)


def test_sinks_stay(exercise):
    """sinks keep their places while the ring turns behind them"""
    ring = make_ring(1, window=3, num_sinks=2)
    for _ in range(12):
        append(exercise, ring, [1])
        expect_kept(ring)


def test_many_at_once(exercise):
    """several tokens in one call, over the end of the ring"""
    ring = make_ring(window=5, num_sinks=1)
    for num_new in ([4, 5], [3, 4], [5, 2]):
        append(exercise, ring, num_new)
        expect_kept(ring)


@pytest.mark.parametrize("num_new", [5, 9, 23])
def test_more_than_fit(exercise, num_new):
    """more tokens in one call than the ring has places: the last ones stay"""
    ring = make_ring(window=4, num_sinks=2)
    append(exercise, ring, [num_new, 1])
    expect_kept(ring)
    append(exercise, ring, [1, num_new])
    expect_kept(ring)


def test_any_split(exercise):
    """how the tokens are dealt out to calls does not change the cache"""
    caches = []
    for calls in ([17], [1] * 17, [2, 7, 8], [9, 1, 7]):
        ring = make_ring(1, window=5, num_sinks=2)
        for num_new in calls:
            append(exercise, ring, [num_new])
        expect_kept(ring)
        caches.append(ring.k_cache)
    assert all((cache == caches[0]).all() for cache in caches)


def test_each_sequence_its_own(exercise):
    """sequences of different lengths, some given nothing"""
    ring = make_ring(4, window=4, num_sinks=1)
    for num_new in ([3, 0, 7, 1], [0, 2, 6, 1], [4, 4, 0, 0]):
        append(exercise, ring, num_new)
        expect_kept(ring)


def test_padding(exercise):
    """padding is written nowhere"""
    ring = make_ring(3, window=4)
    append(exercise, ring, [2, 0, 5], seqlen_new=9)
    expect_kept(ring)
    append(exercise, ring, [0, 0, 0], seqlen_new=3)
    expect_kept(ring)


@pytest.mark.parametrize("window, num_sinks", [(1, 0), (1, 4), (30, 0), (2, 9)])
def test_extremes(exercise, window, num_sinks):
    """a window of one token, one that nothing leaves, more sinks than window"""
    ring = make_ring(window=window, num_sinks=num_sinks)
    for num_new in ([4, 1], [1, 6], [8, 8]):
        append(exercise, ring, num_new)
        expect_kept(ring)


@pytest.mark.parametrize("num_kv_heads, head_dim", [(1, 1), (1, 33), (3, 5), (8, 16)])
def test_heads(exercise, num_kv_heads, head_dim):
    """any num_kv_heads and head_dim, no multiple of the threads"""
    ring = make_ring(2, 4, 1, num_kv_heads, head_dim)
    append(exercise, ring, [7, 2])
    expect_kept(ring)


@pytest.mark.parametrize("threads", [1, 7, 48, 256])
def test_threads(exercise, threads):
    """any number of threads, fewer or more than a token has floats"""
    ring = make_ring(2, 4, 1, 3, 20)
    append(exercise, ring, [6, 3], threads=threads)
    expect_kept(ring)


def test_inputs_unchanged(exercise):
    """the new tokens and the counts are left as they were"""
    ring = make_ring(2, 4, 1)
    k_new, v_new = new_tokens(ring, [5, 2], 6)
    inputs = {"k_new": k_new, "v_new": v_new, "lengths": np.array([3, 9], np.int32)}
    inputs["num_new"] = np.array([5, 2], np.int32)
    before = {name: x.copy() for name, x in inputs.items()}
    simt.run(exercise.kernel, (6, 2), 32, *inputs.values(), 1, ring.k_cache, ring.v_cache)
    for name, x in inputs.items():
        assert x.tobytes() == before[name].tobytes(), f"the kernel wrote into {name}"


def test_nothing_else_written(exercise):
    """a cache inside a larger array: nothing beside it is written"""
    ring = make_ring(2, 4, 1, 2, 8)
    frames = np.full((2, 4, 7, 4, 10), EMPTY, np.float32)
    ring.k_cache, ring.v_cache = frames[:, 1:3, 1:6, 1:3, 1:9]
    append(exercise, ring, [9, 3])
    expect_kept(ring)
    ring.k_cache[...], ring.v_cache[...] = EMPTY, EMPTY
    assert (frames == EMPTY).all(), f"{(frames != EMPTY).sum()} elements around were written"


def test_place_of_late_tokens(exercise):
    """place: tokens beyond 2^24 and close to 2^31, where float32 and int32 sums are wrong"""
    for end in (2**24 + 4, 2**31 - 1):
        ts = [0, 1, 2, end - 9, end - 6, end - 5, end - 2, end - 1]
        want = [t if t < 2 else -1 if t < end - 5 else 2 + (t - 2) % 5 for t in ts]
        got = placed(exercise, ts, end, 2, 5)
        bad = next((i for i in range(len(ts)) if got[i] != want[i]), None)
        assert bad is None, f"place({ts[bad]}, {end}, 2, 5) must be {want[bad]}, got {got[bad]}"


@pytest.mark.parametrize("first", [2**24 + 1, 2**31 - 50])
def test_long_sequences(exercise, first):
    """a sequence that has had very many tokens"""
    rng = np.random.default_rng(0)
    k_new, v_new = rng.standard_normal((2, 1, 9, 2, 3), np.float32)
    k_cache, v_cache = np.full((2, 1, 7, 2, 3), EMPTY, np.float32)
    counts = np.array([first], np.int32), np.array([8], np.int32)
    simt.run(exercise.kernel, (9, 1), 32, k_new, v_new, *counts, 2, k_cache, v_cache)
    for i in range(3, 8):  # of eight new tokens the last five stay
        n = 2 + (first + i - 2) % 5
        assert (k_cache[0, n] == k_new[0, i]).all() and (v_cache[0, n] == v_new[0, i]).all(), (
            f"token {first + i}, 2 sinks, window 5: its key and value belong into place {n}"
        )
    assert (k_cache[0, :2] == EMPTY).all(), "the sinks were written by later tokens"


def test_many(exercise):
    """300 tokens in one call, 70 sequences, tokens of 5120 floats"""
    ring = make_ring(1, 290, 3, 1, 2)
    append(exercise, ring, [300])
    expect_kept(ring)
    ring = make_ring(70, 2, 0, 1, 1)
    append(exercise, ring, [1 + b % 3 for b in range(70)])
    expect_kept(ring)
    ring = make_ring(1, 2, 0, 40, 128)
    k_new = np.random.default_rng(0).standard_normal((1, 1, 40, 128)).astype(np.float32)
    counts = np.zeros(1, np.int32), np.ones(1, np.int32)
    simt.run(exercise.kernel, 1, 32, k_new, -k_new, *counts, 0, ring.k_cache, ring.v_cache)
    for name, cache, new in (("k", ring.k_cache, k_new), ("v", ring.v_cache, -k_new)):
        wrong = np.argwhere(cache[0, 0] != new[0, 0])
        assert not len(wrong), (
            f"40 heads of 128 floats: {name}_cache[0, 0, {wrong[0][0]}, {wrong[0][1]}] must be "
            f"{new[0, 0][tuple(wrong[0])]:.6g}, got {cache[0, 0][tuple(wrong[0])]:.6g}"
        )


def test_no_shared_memory(exercise):
    """no shared memory and no barrier: a thread moves its floats by itself"""
    trace = append(exercise, make_ring(2, 4, 1), [5, 2], run=simt.trace)
    assert not trace.shared_bytes and not trace.barriers, (
        f"nobody reads what another thread wrote, but there are {trace.shared_bytes} bytes of "
        f"shared memory and {trace.barriers} barriers"
    )
    assert not trace.local_bytes, (
        f"each float goes from the new token to its place: no array of {trace.local_bytes} bytes "
        "in between"
    )


@pytest.mark.parametrize("threads", [32, 64])
def test_hbm_traffic(exercise, threads):
    """HBM traffic: each kept token loaded and stored once, no other touched"""
    ring = make_ring(3, window=4, num_sinks=1, num_kv_heads=2, head_dim=16)
    num_new = [9, 3, 0]
    kept = (1 + 4) + 3 + 0  # a sink and the last four; three that fit; nothing
    trace = append(exercise, ring, num_new, seqlen_new=10, threads=threads, run=simt.trace)
    moved = by_name(trace)
    for new, cache in (("k_new", "k_cache"), ("v_new", "v_cache")):
        got = moved[new].loads, moved[cache].stores, moved[cache].loads
        want = kept * 32, kept * 32, 0
        assert got == want, (
            f"of {sum(num_new)} new tokens {kept} stay, 32 floats each: want {want[0]} loads of "
            f"{new}, {want[1]} stores and no loads of {cache}, the meter says {got}"
        )


@pytest.mark.parametrize("num_kv_heads, head_dim", [(2, 32), (16, 8)])
def test_coalesced(exercise, num_kv_heads, head_dim):
    """coalesced: every 32-byte sector that is touched is used whole"""
    ring = make_ring(2, 4, 0, num_kv_heads, head_dim)
    moved = by_name(append(exercise, ring, [4, 2], run=simt.trace))
    for name in ("k_new", "v_new"):
        used, touched = moved[name].load_bytes, 32 * moved[name].load_sectors
        assert used == touched, (
            f"{name}: {used} bytes were asked for, {touched} fetched. Let thread i take float i of "
            "the token, then i + blockDim.x, so that a warp reads 32 neighbours"
        )
    for name in ("k_cache", "v_cache"):
        used, touched = moved[name].store_bytes, 32 * moved[name].store_sectors
        assert used == touched, f"{name}: {used} bytes were stored in sectors of {touched} bytes"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    ring = make_ring()
    counts = np.zeros(2, np.int32)
    new = np.zeros((2, 1, 2, 3), np.float32)
    gpu_ready(exercise.kernel, (new, new, counts, counts, 0, ring.k_cache, ring.v_cache))
