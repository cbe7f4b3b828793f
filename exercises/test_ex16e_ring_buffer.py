"""Grader of ex16e: appending to a rolling cache."""

from dataclasses import dataclass

import numpy as np
import pytest
from numba import cuda

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong, diagnosis
from numba_cuda_simulator.errors import RaceError

EMPTY = np.float32(-777.0)  # what a slot holds in which nothing has been written


@dataclass
class Ring:
    """A rolling cache, and what should be in it: the kept tokens by a walk, token after token."""

    window: int
    num_sinks: int
    k_cache: np.ndarray
    v_cache: np.ndarray
    lengths: np.ndarray
    tokens: list  # of each sequence: slot -> token, kept by hand

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
    try:
        return run(exercise.kernel, grid, threads, *args, ring.k_cache, ring.v_cache)
    except RaceError:
        with diagnosis():  # two tokens in one slot: which of them is there by mistake?
            for b, n in enumerate(num_new):
                ts, row = range(first[b], first[b] + n), ring.tokens[b]
                want = np.array([row.index(t) if t in row else -1 for t in ts])
                sizes = int(ring.lengths[b]), ring.num_sinks, ring.window
                got = slots_of(exercise, ts, *sizes)
                expect_slots(got, want, ts, *sizes, f": the row is {row}")
        raise


def by_name(trace):
    """What the meter says of each array, by the statement's names."""
    names = ("k_new", "v_new", "lengths", "num_new", "k_cache", "v_cache")
    return dict(zip(names, trace.arrays.values(), strict=True))


def expect_kept(ring):
    """Fail where the cache does not hold what the walk kept."""
    batch, slots, num_kv_heads, head_dim = ring.k_cache.shape
    for b in range(batch):
        for n in range(slots):
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
                    f"sinks and {ring.lengths[b]} tokens, slot {n} of sequence {b} must hold "
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


def slots_of(exercise, ts, end, num_sinks, window):
    """slot(t, end, num_sinks, window) of many t, one thread each."""
    slot = exercise.slot

    @cuda.jit
    def ask(ts, end, num_sinks, window, found):
        i = cuda.grid(1)
        if i < ts.shape[0]:
            found[i] = slot(ts[i], end, num_sinks, window)

    ts, found = np.array(ts, np.int32), np.full(len(ts), -99, np.int32)
    simt.run(ask, -(-len(ts) // 64), 64, ts, end, num_sinks, window, found)
    return found


def expect_slots(got, want, ts, end, num_sinks, window, row=""):
    wrong = np.flatnonzero(got != want)
    if not len(wrong):
        return
    ts = np.asarray(ts, np.int64)
    in_ring, kept = num_sinks + (ts - num_sinks) % window, (ts < num_sinks) | (ts >= end - window)
    known = {
        "The ring begins with token num_sinks, so count from there: t - num_sinks.": np.where(
            kept, np.where(ts < num_sinks, ts, num_sinks + ts % window), -1
        ),
        "Tokens whose slot a later one takes are not kept: -1.": np.where(
            ts < num_sinks, ts, in_ring
        ),
        "The first num_sinks tokens stay in slots 0 .. num_sinks - 1.": np.where(
            ts >= end - window, in_ring, -1
        ),
        "The slots of the ring come after those of the sinks: add num_sinks.": np.where(
            kept, np.where(ts < num_sinks, ts, in_ring - num_sinks), -1
        ),
        "The ring has `window` slots, without those of the sinks.": np.where(
            kept, np.where(ts < num_sinks, ts, ts % (num_sinks + window)), -1
        ),
        "Sinks are the tokens before num_sinks: t < num_sinks.": np.where(
            ts <= num_sinks, ts, want
        ),
        "The sinks have slots of their own: of the others, `window` are kept.": np.where(
            (ts < num_sinks) | (ts < end - window - num_sinks), want, in_ring
        ),
        "One token too few is kept: `window` of them are.": np.where(ts == end - window, -1, want),
        "One token too many is kept: `window` of them are.": np.where(
            ts == end - window - 1, in_ring, want
        ),
    }
    i = int(wrong[0])
    call = f"slot({ts[i]}, {end}, {num_sinks}, {window})"
    raise Wrong(
        f"{call} must be {want[i]}, got {got[i]}{row}",
        causes=[cause for cause, slots in known.items() if np.array_equal(slots, got)],
        where=call,
    )


@pytest.mark.parametrize("window, num_sinks", [(4, 0), (4, 2), (1, 0), (1, 3), (7, 1)])
def test_slot(exercise, window, num_sinks):
    """slot: every token, however many have come"""
    ring = make_ring(1, window, num_sinks)
    for end in range(1, 30):
        ring.give([1])
        row = ring.tokens[0]
        want = np.array([row.index(t) if t in row else -1 for t in range(end)])
        got = slots_of(exercise, range(end), end, num_sinks, window)
        expect_slots(got, want, range(end), end, num_sinks, window, f": the row is {row}")


def test_slot_of_late_tokens(exercise):
    """slot: tokens beyond 2^24 and close to 2^31, where float32 and int32 sums are wrong"""
    for end, s, w in ((2**24 + 4, 2, 5), (2**31 - 1, 2, 5), (2**31 - 1, 300, 9000)):
        ts = [0, 1, s - 1, s, end - w - 4, end - w - 1, end - w, end - w // 2, end - 2, end - 1]
        want = np.array([t if t < s else -1 if t < end - w else s + (t - s) % w for t in ts])
        expect_slots(slots_of(exercise, ts, end, s, w), want, ts, end, s, w)


def test_filling_up(exercise):
    """the first tokens go to the first slots, in order"""
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
    """sinks keep their slots while the ring turns behind them"""
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
    """more tokens in one call than the ring has slots: the last ones stay"""
    ring = make_ring(window=4, num_sinks=2)
    append(exercise, ring, [num_new, 1])
    expect_kept(ring)
    append(exercise, ring, [1, num_new])
    expect_kept(ring)


def test_any_split(exercise):
    """how the tokens are divided among calls does not change the cache"""
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


def test_hbm_traffic(exercise):
    """HBM traffic: each kept token loaded and stored once, no other touched"""
    ring = make_ring(3, window=4, num_sinks=1, num_kv_heads=2, head_dim=16)
    num_new = [9, 3, 0]
    kept = (1 + 4) + 3 + 0  # a sink and the last four; three that fit; nothing
    trace = append(exercise, ring, num_new, seqlen_new=10, run=simt.trace)
    moved = by_name(trace)
    for new, cache in (("k_new", "k_cache"), ("v_new", "v_cache")):
        got = moved[new].loads, moved[cache].stores, moved[cache].loads
        want = kept * 32, kept * 32, 0
        assert got == want, (
            f"of {sum(num_new)} new tokens {kept} stay, 32 floats each: want {want[0]} loads of "
            f"{new}, {want[1]} stores and no loads of {cache}, the meter says {got}"
        )


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    ring = make_ring()
    counts = np.zeros(2, np.int32)
    new = np.zeros((2, 1, 2, 3), np.float32)
    arguments = new, new, counts, counts + 1, 0, ring.k_cache, ring.v_cache
    simt.run(exercise.kernel, (1, 2), 32, *arguments)
    gpu_ready(exercise.kernel, arguments)
