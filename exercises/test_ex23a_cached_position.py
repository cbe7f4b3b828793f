"""Grader of ex23a: the numbers of a step that reads the new tokens of sequences."""

import numpy as np
import pytest

from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.kernels import expect_at_most, launched
from fa_numba.workbook.graders.meter import expect_chip_memory

NUM_THREADS = 64


def step(cached, new, page_size, seed=0):
    """starts, num_cached and a block table with shuffled pages."""
    counts = [-(-(c + n) // page_size) for c, n in zip(cached, new, strict=True)]
    free = iter(np.random.default_rng(seed).permutation(sum(counts) + 3))
    block_table = np.full((len(counts), max(counts) + 1), -1, np.int32)
    for b, count in enumerate(counts):
        block_table[b, :count] = [next(free) for _ in range(count)]
    starts = np.concatenate([[0], np.cumsum(new)]).astype(np.int32)
    return starts, np.array(cached, np.int32), block_table


def run(kernel, starts, num_cached, block_table, page_size):
    names = "positions", "slots", "seq_lens"
    sizes = starts[-1], starts[-1], len(num_cached)
    given = {"starts": starts, "num_cached": num_cached, "block_table": block_table}
    given |= {name: np.full(n, -9, np.int32) for name, n in zip(names, sizes, strict=True)}
    return launched(kernel, len(num_cached), NUM_THREADS, names, **given, page_size=page_size)


def check(exercise, cached, new, page_size):
    arrays = starts, num_cached, block_table = step(cached, new, page_size)
    got, trace = run(exercise.kernel, *arrays, page_size)
    b = np.repeat(np.arange(len(new)), new)
    t = np.arange(starts[-1]) - starts[b] + num_cached[b]
    lens = num_cached + np.diff(starts)
    page = block_table[b, t // page_size]
    wants = {"positions": t, "slots": page * page_size + t % page_size, "seq_lens": lens}
    broken = np.where(num_cached[b] > 0, lens[b], 0) + t - num_cached[b]
    known = {
        "positions": {
            "That is what broken_kernel computes.": broken,
            "The new tokens begin at the last one: right for one, not for several.": broken - 1,
            "The new tokens begin at 0 again.": t - num_cached[b],
            "Positions count within a sequence, not in the flat array.": np.arange(starts[-1]),
        },
        "slots": {
            "Token t is not in slot t: the table has its page.": t,
            "A page has page_size slots: slot = page * page_size + offset.": page + t % page_size,
            "The table's row is that of the sequence.": (
                block_table[0][np.minimum(t // page_size, block_table.shape[1] - 1)] * page_size
                + t % page_size
            ),
        },
        "seq_lens": {
            "seq_len counts the new tokens, too.": num_cached,
            "seq_len counts the cached tokens, too.": np.diff(starts),
            "The last new token also sees its own key.": lens - 1,
        },
    }
    here = f"cached {list(cached)[:6]}, new {list(new)[:6]}, pages of {page_size}"
    for name, want in wants.items():
        found = got[name]
        if (found == want).all():
            continue
        i = int(np.argmax(found != want))
        causes = [
            said
            for said, wrong in known[name].items()
            if np.array_equal(found, wrong) and not np.array_equal(want, wrong)
        ]
        of = f"sequence {b[i]}, token {t[i]}" if name != "seq_lens" else f"sequence {i}"
        said = "was never written" if found[i] == -9 else f"is {found[i]}"
        raise Wrong(
            f"{here}: {name}[{i}] ({of}) must be {want[i]}, but {said}. {''.join(causes[:1])}",
            causes=causes,
            where=f"{name}[{i}]",
        )
    return trace


@pytest.mark.parametrize("length", [1, 4, 5, 11])
def test_whole_prompt(exercise, length):
    """a whole prompt: as broken_kernel has it"""
    check(exercise, [0], [length], 4)


@pytest.mark.parametrize("length", [2, 5, 8, 9, 20])
def test_one_token(exercise, length):
    """decoding: one new token"""
    check(exercise, [length - 1], [1], 4)


@pytest.mark.parametrize("cut", [(5, 7), (8, 4), (1, 8), (17, 3)], ids=str)
def test_chunk(exercise, cut):
    """a later chunk of a prompt: several new tokens after old ones"""
    check(exercise, cut[:1], cut[1:], 4)


def test_batch(exercise):
    """prompts, chunks and single tokens in one step; a sequence without a new token"""
    check(exercise, [0, 9, 4, 6, 3], [5, 1, 3, 0, 1], 4)
    check(exercise, [3, 0], [0, 0], 2)


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_page_sizes(exercise, page_size):
    """other page sizes, down to one token"""
    check(exercise, range(5), [5 - n for n in range(5)], page_size)


def test_many(exercise):
    """300 sequences; 700 new tokens after 290, in pages of one and of 70"""
    check(exercise, [b % 3 for b in range(300)], [1 + b % 2 for b in range(300)], 2)
    check(exercise, [290], [700], 1)
    check(exercise, [290, 1], [700, 2], 70)


def test_cached_is_whole(exercise):
    """attention with rotary embedding, token by token, equals one pass over all tokens"""
    rng = np.random.default_rng(0)
    length, page_size, half = 13, 4, 4
    q, k, v = rng.standard_normal((3, length, 2 * half))
    table = np.array([[7, 2, 9, 0]], np.int32)

    def turned(x, positions):
        angle = np.outer(positions, [1.0, 0.3, 0.1, 0.03])
        a, b = x[:, :half], x[:, half:]
        cos, sin = np.cos(angle), np.sin(angle)
        return np.hstack([a * cos - b * sin, a * sin + b * cos])

    def attend(q, k, v):
        p = np.exp(q @ k.T)
        return p @ v / p.sum()

    every = np.arange(length)
    whole_q, whole_k = turned(q, every), turned(k, every)
    cache = np.full((2, 10 * page_size, 2 * half), np.nan)
    in_order = np.concatenate([np.arange(p * page_size, (p + 1) * page_size) for p in table[0]])
    for start, stop in [(0, 6), *((t, t + 1) for t in range(6, length))]:
        starts = np.array([0, stop - start], np.int32)
        got, _ = run(exercise.kernel, starts, np.array([start], np.int32), table, page_size)
        positions, slots, (seq_len,) = got["positions"], got["slots"], got["seq_lens"]
        if not (0 <= slots.min() and slots.max() < 10 * page_size and 0 < seq_len <= length):
            raise Wrong(f"token {stop - 1}: slots {slots}, seq_len {seq_len} are not in the cache")
        cache[0, slots], cache[1, slots] = turned(k[start:stop], positions), v[start:stop]
        keys, values = cache[:, in_order[:seq_len]]
        out = attend(turned(q[stop - 1 : stop], positions[-1:]), keys, values)
        want = attend(whole_q[stop - 1 : stop], whole_k[:stop], v[:stop])
        worst = np.abs(out - want).max()
        assert worst <= 1e-12, (
            f"token {stop - 1}: attention over the cache is off by {worst:.2g} from one pass over "
            "all tokens"
        )


def test_traffic(exercise):
    """each result is stored once, by a thread of its sequence"""
    trace = check(exercise, [9, 0], [70, 3], 4)
    once = 73, "once for each new token"
    expect_at_most(
        trace,
        positions_stores=once,
        slots_stores=once,
        seq_lens_stores=(2, "one thread stores a sequence's length"),
        block_table_loads=once,
    )
    expect_chip_memory(trace, allowed="a token's numbers are registers")


def test_broken_as_given(exercise):
    """broken_kernel is as it was given"""
    got, _ = run(exercise.broken_kernel, *step([4, 0], [1, 2], 4), 4)
    assert got["positions"].tolist() == [5, 0, 1], "broken_kernel is to stay: write kernel"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU"""
    arrays = step([4], [1], 4)
    gpu_ready(exercise.kernel, (*arrays, arrays[0], arrays[0], arrays[1], 4))
