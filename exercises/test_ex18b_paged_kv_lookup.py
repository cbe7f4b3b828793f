"""Grader of ex18b: the paged lookup."""

import re
from dataclasses import dataclass

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.simt.errors import KernelIndexError
from fa_numba.workbook.graders.causes import Wrong

UNGUARDED = "A page is looked up for a token that does not exist: test t < seq_lens[b] first."
POISON = np.copysign(np.float32(np.nan), np.float32(-1))  # another NaN than that of the outputs


@dataclass
class Cache:
    """A page pool, and the dense keys and values that a lookup must bring back."""

    k_cache: np.ndarray
    v_cache: np.ndarray
    block_table: np.ndarray
    seq_lens: np.ndarray
    k: np.ndarray
    v: np.ndarray

    @property
    def inputs(self):
        return self.k_cache, self.v_cache, self.block_table, self.seq_lens


def make_cache(seq_lens, page_size=4, num_kv_heads=2, head_dim=8, *, max_len=None, seed=0):
    """Pages in shuffled order; every slot that no token owns is NaN, every unused entry -1."""
    rng = np.random.default_rng(seed)
    batch, max_len = len(seq_lens), max(seq_lens) if max_len is None else max_len
    shape = (batch, max_len, num_kv_heads, head_dim)
    k, v = rng.standard_normal((2, *shape), np.float32)
    pages_of = [len(range(0, n, page_size)) for n in seq_lens]
    num_pages = sum(pages_of) + 3  # three pages that nobody owns
    k_cache = np.full((num_pages, page_size, num_kv_heads, head_dim), POISON, np.float32)
    v_cache = k_cache.copy()
    block_table = np.full((batch, max(pages_of) + 2), -1, np.int32)
    free = iter(rng.permutation(num_pages))
    for b, n in enumerate(seq_lens):
        for t in range(n):
            if t % page_size == 0:
                block_table[b, t // page_size] = next(free)
            page = block_table[b, t // page_size]
            k_cache[page, t % page_size] = k[b, t]
            v_cache[page, t % page_size] = v[b, t]
        k[b, n:], v[b, n:] = 0, 0
    return Cache(k_cache, v_cache, block_table, np.array(seq_lens, np.int32), k, v)


def gather(exercise, cache, threads=32):
    """Run the kernel, checked, on outputs full of NaN."""
    k_out, v_out = np.full_like(cache.k, np.nan), np.full_like(cache.v, np.nan)
    grid = (cache.k.shape[1], cache.k.shape[0])
    try:
        simt.run(exercise.kernel, grid, threads, *cache.inputs, k_out, v_out)
    except KernelIndexError as error:
        if cause := out_of_bounds(str(error), cache.seq_lens):
            raise Wrong(f"KernelIndexError: {error}", causes=[cause]) from None
        raise
    return k_out, v_out


def out_of_bounds(message, seq_lens):
    """The likely cause of an index that is out of bounds, "" if there is none."""
    found = re.search(r"axis (\d) of '(\w+)'.* of block \((\d+), (\d+),", message, re.DOTALL)
    if not found:
        return ""
    axis, array, t, b = int(found[1]), found[2], int(found[3]), int(found[4])
    if array not in ("block_table", "k_cache", "v_cache"):
        return ""
    if b < len(seq_lens) and t >= seq_lens[b]:
        return UNGUARDED
    if array == "block_table":
        return "block_table has an entry for each page, not for each token: column t // page_size."
    return "The slot in the page is t % page_size." if axis == 1 else ""


def check(exercise, cache, threads=32):
    """A copy is exact: compare bit for bit."""
    for name, got, want in zip(
        ("k_out", "v_out"), gather(exercise, cache, threads), (cache.k, cache.v), strict=True
    ):
        mask = ~(got == want)
        wrong = np.argwhere(mask)
        if not len(wrong):
            continue
        b, t, h, d = (int(i) for i in wrong[0])
        place, value = f"{name}[{b}, {t}, {h}, {d}]", got[b, t, h, d]
        copied = np.isnan(value) and np.signbit(value)
        if copied:
            said = "is the nan of a slot that holds no token"
        else:
            said = "was never written" if np.isnan(value) else f"is {value:.6g}"
        page_size, length = cache.k_cache.shape[1], cache.seq_lens[b]
        if t >= length:
            where = f"padding: sequence {b} has {length} tokens, so it must be 0"
            cause = "Where a sequence has no token t, 0 must be stored."
            if copied:
                cause = "Slots that hold no token are copied: test t < seq_lens[b]."
        else:
            page, offset = int(cache.block_table[b, t // page_size]), t % page_size
            where = f"token {t} lives in page {page}, offset {offset} (page_size {page_size})"
            cause, found = taken_from(cache, name, value, (page, offset, h, d))
            where += found
            number = np.arange(mask[0, 0].size).reshape(mask[0, 0].shape)  # in its token
            if np.isnan(got[mask]).all() and not mask[..., number < threads].any():
                cause = "A token may have more numbers than the thread block has threads."
        raise Wrong(
            f"{place} {said}, want {want[b, t, h, d]:.6g}: {where}. {len(wrong)} of {want.size} "
            "elements are wrong",
            causes=[cause],
            where=place,
            wrong=mask,
            axes=("sequence", "token", "head", "column"),
        )


def taken_from(cache, name, value, want):
    """Find a wrong value in the two caches; return (cause, place)."""
    if np.isnan(value):
        return (
            "The page is not that of block_table[b, t // page_size]." * bool(np.signbit(value)),
            "",
        )
    names = ("k_cache", "v_cache") if name == "k_out" else ("v_cache", "k_cache")
    for source in names:
        places = np.argwhere(getattr(cache, source) == value)
        if len(places) != 1:
            continue
        at = tuple(places[0].tolist())
        if source != names[0]:
            cause = f"{name} holds numbers of {source}."
        elif at[0] != want[0]:
            cause = "The page is not that of block_table[b, t // page_size]."
        elif at[1] != want[1]:
            cause = "The slot in the page is not t % page_size."
        else:
            cause = "Heads, or the numbers of a head, change places."
        return cause, f"; this is {source}[{', '.join(map(str, at))}]"
    return "", ""


def test_one_page(exercise):
    """one sequence, one full page"""
    check(exercise, make_cache([4]))


def test_shuffled_pages(exercise):
    """pages in any order, several sequences; slots without a token hold NaN"""
    check(exercise, make_cache([16, 8, 12]))


def test_part_filled_last_page(exercise):
    """a part-filled last page"""
    check(exercise, make_cache([5, 7, 2, 9]))


@pytest.mark.parametrize("page_size", [1, 2, 3, 7, 16, 64])
def test_page_size(exercise, page_size):
    """any page size, also 1, also one larger than every sequence"""
    check(exercise, make_cache([13, 16, 1], page_size))


def test_full_pages(exercise):
    """lengths that end exactly with a page"""
    check(exercise, make_cache([4, 8, 16], page_size=4))


def test_page_size_does_not_matter(exercise):
    """the page size does not change the answer"""
    first = gather(exercise, make_cache([11, 6], page_size=1))
    for page_size in (2, 5, 32):
        again = gather(exercise, make_cache([11, 6], page_size))
        assert (first[0] == again[0]).all() and (first[1] == again[1]).all(), (
            f"the same keys and values in pages of 1 and of {page_size} tokens came back different"
        )


def test_empty_sequence(exercise):
    """a sequence of length zero is all padding"""
    check(exercise, make_cache([0, 5, 0], max_len=6))


def test_all_empty(exercise):
    """nothing but empty sequences"""
    check(exercise, make_cache([0, 0], max_len=3))


def test_padding(exercise):
    """padding is 0 up to max_len, also where max_len is more than any length"""
    check(exercise, make_cache([3, 9, 1], max_len=40))


@pytest.mark.parametrize("num_kv_heads", [1, 2, 3, 8])
def test_heads(exercise, num_kv_heads):
    """every KV head, from one (MQA) to many, in its place"""
    check(exercise, make_cache([6, 10], num_kv_heads=num_kv_heads))


@pytest.mark.parametrize("head_dim", [1, 5, 33, 100, 300])
def test_head_dim(exercise, head_dim):
    """any head_dim, no multiple of the threads"""
    check(exercise, make_cache([6, 3], head_dim=head_dim))


@pytest.mark.parametrize("threads, head_dim", [(1, 20), (7, 20), (32, 20), (48, 20), (300, 110)])
def test_threads(exercise, threads, head_dim):
    """any number of threads, fewer or more than a token has floats"""
    check(exercise, make_cache([6, 9, 0], num_kv_heads=3, head_dim=head_dim), threads)


def test_shared_pages(exercise):
    """two sequences may share a page"""
    cache = make_cache([8, 6])
    cache.block_table[1, 0] = cache.block_table[0, 0]  # a common prefix of four tokens
    cache.k[1, :4], cache.v[1, :4] = cache.k[0, :4], cache.v[0, :4]
    check(exercise, cache)


def test_inputs_unchanged(exercise):
    """the caches, the table and the lengths are left as they were"""
    cache = make_cache([5, 7])
    before = [x.copy() for x in cache.inputs]
    gather(exercise, cache)
    for name, x, old in zip(
        ("k_cache", "v_cache", "block_table", "seq_lens"), cache.inputs, before, strict=True
    ):
        assert x.tobytes() == old.tobytes(), f"the kernel wrote into {name}"


def test_nothing_else_written(exercise):
    """writes k_out and v_out and not one element beside them"""
    cache = make_cache([5, 3], max_len=6)
    frames = np.full((2, 4, 8, 4, 10), 7, np.float32)
    k_out, v_out = frames[:, 1:3, 1:7, 1:3, 1:9]
    simt.run(exercise.kernel, (6, 2), 32, *cache.inputs, k_out, v_out)
    assert (k_out == cache.k).all() and (v_out == cache.v).all(), "wrong inside a larger array"
    k_out[...], v_out[...] = 7, 7
    assert (frames == 7).all(), f"{(frames != 7).sum()} elements around the outputs were written"


@pytest.mark.parametrize("threads", [32, 128])
def test_hbm_traffic(exercise, threads):
    """HBM traffic: every token loaded once, everything stored once, one lookup per thread"""
    cache = make_cache([13, 4, 0, 7], num_kv_heads=2, head_dim=16, max_len=15)
    k_out, v_out = np.empty_like(cache.k), np.empty_like(cache.v)
    launch = exercise.kernel, (15, 4), threads, *cache.inputs, k_out, v_out
    moved = simt.trace(*launch).arrays
    tokens, per_token = int(cache.seq_lens.sum()), 2 * 16
    for name in ("k_cache", "v_cache"):
        assert moved[name].loads == tokens * per_token, (
            f"{name}: {tokens} tokens of {per_token} floats are {tokens * per_token} loads, the "
            f"meter says {moved[name].loads}: load what a sequence holds, once, and no padding"
        )
    for name, out in (("k_out", k_out), ("v_out", v_out)):
        assert (moved[name].stores, moved[name].loads) == (out.size, 0), (
            f"{name}: want {out.size} stores and no load, the meter says {moved[name].stores} "
            f"and {moved[name].loads}"
        )
    lookups, most = moved["block_table"].loads, tokens * threads
    if lookups > most:
        for_padding = cache.seq_lens.size * cache.k.shape[1] * threads
        raise Wrong(
            f"block_table: {tokens} tokens with {threads} threads each need at most {most} "
            f"lookups, the meter says {lookups}: the page does not depend on the element; look it "
            "up before the loop, and not for padding",
            causes=[UNGUARDED] if lookups == for_padding else [],
        )


def test_no_shared_memory(exercise):
    """no shared memory, no local array, no barrier: a thread moves its floats by itself"""
    cache = make_cache([8, 5])
    k_out, v_out = np.empty_like(cache.k), np.empty_like(cache.v)
    trace = simt.trace(exercise.kernel, (8, 2), 32, *cache.inputs, k_out, v_out)
    assert not trace.shared_bytes and not trace.barriers, (
        f"nobody reads what another thread wrote, but there are {trace.shared_bytes} bytes of "
        f"shared memory and {trace.barriers} barriers"
    )
    assert not trace.local_bytes, (
        f"each float goes from the cache to its place: no array of {trace.local_bytes} bytes in "
        "between"
    )


def test_many(exercise):
    """300 tokens in 300 pages and in one, 300 sequences, tokens of 66 heads of 128 floats"""
    check(exercise, make_cache([300], 1, 1, 2))
    check(exercise, make_cache([299], 300, 1, 2))
    check(exercise, make_cache([1 + b % 2 for b in range(300)], 1, 1, 2))
    check(exercise, make_cache([2], 4, 66, 128))


def test_any_float(exercise):
    """infinities and zeros of both signs are copied as they are"""
    cache = make_cache([6], head_dim=4)
    odd = np.float32([-np.inf, np.inf, -0.0, 1e-45])
    for array in (cache.k, cache.v):
        array[...] = odd
    for array in (cache.k_cache, cache.v_cache):
        array[~np.isnan(array).any(axis=(2, 3))] = odd
    for name, got in zip(("k_out", "v_out"), gather(exercise, cache), strict=True):
        assert got.tobytes() == cache.k.tobytes(), (
            f"{name} holds {got[0, 0, 0].tolist()} where the cache holds {odd.tolist()}: a copy is "
            "exact, bit for bit"
        )


@pytest.mark.parametrize("num_kv_heads, head_dim", [(2, 32), (16, 8)])
def test_coalesced(exercise, num_kv_heads, head_dim):
    """coalesced: every 32-byte sector that is touched is used whole"""
    cache = make_cache([8, 8], num_kv_heads=num_kv_heads, head_dim=head_dim, max_len=10)
    k_out, v_out = np.empty_like(cache.k), np.empty_like(cache.v)
    launch = exercise.kernel, (10, 2), 32, *cache.inputs, k_out, v_out
    moved = simt.trace(*launch).arrays
    for name in ("k_cache", "v_cache"):
        used, fetched = moved[name].load_bytes, 32 * moved[name].load_sectors
        if used != fetched:
            raise Wrong(
                f"{name}: {used} bytes were asked for, {fetched} fetched. Let thread i take float "
                "i of the token, then i + blockDim.x, so that a warp reads 32 neighbours",
                causes=["Neighbouring threads do not take neighbouring floats."],
            )
    for name in ("k_out", "v_out"):
        used, touched = moved[name].store_bytes, 32 * moved[name].store_sectors
        assert used == touched, (
            f"{name}: {used} bytes were stored in sectors of {touched} bytes, tokens and padding: "
            "neighbouring threads store neighbouring floats, head after head as they lie in memory"
        )


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    cache = make_cache([3])
    gpu_ready(exercise.kernel, (*cache.inputs, cache.k, cache.v))
