"""Attention to few pages: their bounds, the choice, and that all pages are all keys."""

import re

import numpy as np
import pytest
from cases import assert_defined, assert_equal, make_paged_cache, random

import fa_numba
from fa_numba import reference, simt, topk_decode
from fa_numba.analysis.machine_code import TARGETS, compile_for, compiler_available
from fa_numba.dispatch.topk_decode import _scores_in_numpy as in_numpy
from fa_numba.dispatch.topk_decode import _top_pages_in_numpy as chosen_by_a_sort
from fa_numba.kernels.paged_attn_decode import paged_attn_decode as to_read
from fa_numba.kv_cache import PagePool, page_scores, update_page_bounds
from fa_numba.kv_cache.page_scores import make_page_scores, page_bounds_kernel
from fa_numba.kv_cache.top_pages import top_pages, top_pages_kernel

LENGTHS = (0, 1, 9, 37, 16)


def bounds_of(k_cache, table, lengths):
    """By definition; NaN where a page has no token."""
    num_pages, page_size, *rest = k_cache.shape
    k_min, k_max = np.full((2, num_pages, *rest), np.nan, k_cache.dtype)
    for pages, n in zip(table, lengths, strict=True):
        for i in range(-(-n // page_size)):
            keys = k_cache[pages[i], : n - i * page_size]
            k_min[pages[i]], k_max[pages[i]] = keys.min(axis=0), keys.max(axis=0)
    return k_min, k_max


def problem(rng, page_size, heads=4, kv_heads=2, head_dim=8, lengths=LENGTHS):
    q = random(rng, len(lengths), 1, heads, head_dim)
    k, v, table, lengths = make_paged_cache(rng, lengths, page_size, kv_heads, head_dim)
    return q, (k, v), bounds_of(k, table, lengths), (table, lengths)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("page_size, heads, head_dim", [(1, 1, 1), (4, 9, 33), (16, 2, 8)])
def test_bounds_are_those_of_the_keys_that_were_written(rng, page_size, heads, head_dim, dtype):
    """Prompts, then tokens one by one, in pages that had other keys before."""
    pool, cache = PagePool(40, page_size, share_prefixes=False), None
    k_min, k_max = np.full((2, 40, heads, head_dim), np.nan, dtype)
    cache = np.full((40, page_size, heads, head_dim), np.nan, dtype)
    for _ in range(2):
        seqs = []
        for n in (1, 6, 11):
            seq, writes = pool.allocate(range(n))
            seqs.append(seq)
            step(rng, cache, k_min, k_max, writes.slot_mapping, page_size, dtype)
        for _ in range(5):
            writes = pool.append({seq: [0] for seq in seqs})
            step(rng, cache, k_min, k_max, writes.slot_mapping, page_size, dtype)
        want = bounds_of(cache, pool.block_table(seqs), pool.seq_lens(seqs))
        for got, x in zip((k_min, k_max), want, strict=True):
            np.testing.assert_array_equal(got[~np.isnan(x)], x[~np.isnan(x)])
        for seq in seqs:
            pool.free(seq)


def step(rng, cache, k_min, k_max, slots, page_size, dtype):
    k = random(rng, len(slots), *cache.shape[2:]).astype(dtype)
    flat = cache.reshape(-1, *cache.shape[2:])
    flat[slots] = k
    skipped = np.concatenate([[-1], slots]).astype(np.int32)  # a token that has no slot
    update_page_bounds(np.concatenate([k[:1], k]), k_min, k_max, skipped, page_size)


@pytest.mark.parametrize(
    "heads, kv_heads, head_dim", [(4, 2, 8), (3, 3, 1), (6, 1, 65), (1, 1, 160)]
)
def test_no_score_is_above_its_bound(rng, heads, kv_heads, head_dim):
    lengths = (*LENGTHS, 600) if heads == 1 else LENGTHS  # pages of two thread blocks
    q, (k, _), bounds, (table, lengths) = problem(rng, 4, heads, kv_heads, head_dim, lengths)
    scores = page_scores(q, *bounds, table, lengths, 4)
    of_numpy = in_numpy(q, *bounds, table, lengths, 4)
    np.testing.assert_allclose(of_numpy, scores, atol=1e-5, rtol=1e-6)
    group, q = heads // kv_heads, q[:, 0].astype(np.float64)
    for b, n in enumerate(lengths):
        for h in range(heads):
            for i in range(scores.shape[2]):
                keys = k[table[b, i], : max(n - 4 * i, 0), h // group]
                bound = scores[b, h // group, i]
                rounding = 1e-6 * (np.abs(keys) @ np.abs(q[b, h]))
                assert (keys @ q[b, h] <= bound + rounding).all()
                assert np.isneginf(bound) == (len(keys) == 0)
    # The bound is the largest product of a corner of the box, of the heads of a group.
    low, high = (x[table[3, 0], 0] for x in bounds)
    want = max(np.maximum(q[3, h] * low, q[3, h] * high).sum() for h in range(group))
    assert abs(scores[3, 0, 0] - want) < 1e-5


SCORES = {
    "normal": lambda rng, shape: random(rng, *shape),
    "equal": lambda rng, shape: rng.integers(-1, 2, shape) * np.float32(0.5),
    "near": lambda rng, shape: np.nextafter(np.float32(1), 2) * rng.choice([1, -1], shape),
    "odd": lambda rng, shape: rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan], shape),
}


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("max_pages, number", [(70, 1), (70, 9), (70, 70), (2100, 700), (0, 3)])
def test_chosen_pages_are_those_of_a_sort(rng, kind, max_pages, number):
    lengths = np.minimum([0, 1, 3, 107, 208, 3 * max_pages], 3 * max_pages).astype(np.int32)
    scores = SCORES[kind](rng, (len(lengths), 2, max_pages)).astype(np.float32)
    exists = 3 * np.arange(max_pages) < lengths[:, None, None]
    scores = np.where(exists, scores, np.float32(-np.inf))
    table = rng.permutation(scores[:, 0].size).astype(np.int32).reshape(len(lengths), -1)
    got = top_pages(scores, table, lengths, 3, number)
    want = chosen_by_a_sort(scores, table, lengths, 3, number)
    assert_equal(got, want)


def test_of_equal_scores_the_later_page_is_chosen():
    scores, table = np.float32([[[1, 2, 1, 1, 0, 0]]]), np.arange(6, dtype=np.int32)[None]
    for choose in (top_pages, chosen_by_a_sort):
        chosen, lengths = choose(scores, table, np.array([42], np.int32), 8, 4)
        assert chosen.tolist() == [[8, 16, 24, 40]] and lengths == 42 - 2 * 8


@pytest.mark.parametrize("attend", [{}, {"attend": to_read}], ids=["job", "engine"])
@pytest.mark.parametrize("page_size, heads, kv_heads", [(4, 4, 2), (1, 3, 3), (16, 4, 1)])
def test_all_pages_are_all_keys(rng, page_size, heads, kv_heads, attend):
    q, caches, bounds, tables = problem(rng, page_size, heads, kv_heads)
    got = topk_decode(q, *caches, *bounds, *tables, 37, softmax_scale=0.7, **attend)
    exact = [np.nan_to_num(x) for x in caches]
    assert_defined(got, reference.paged_attention, q, *exact, *tables, softmax_scale=0.7)
    more = topk_decode(q, *caches, *bounds, *tables, 10**40, softmax_scale=0.7, **attend)
    assert_equal(more, got)


@pytest.mark.parametrize("num_top_pages", [1, 2, 5])
def test_few_pages_are_the_last_one_and_those_of_the_largest_bounds(rng, num_top_pages):
    """Against attention to the keys of these pages alone."""
    q, (k, v), bounds, (table, lengths) = problem(rng, 4, head_dim=8)
    out, _ = topk_decode(q, k, v, *bounds, table, lengths, num_top_pages)
    scores = page_scores(q, *bounds, table, lengths, 4)
    for b, n in enumerate(lengths):
        for kv_head in range(2):
            pages = -(-int(n) // 4)
            order = sorted(range(pages - 1), key=lambda i: -scores[b, kv_head, i])
            chosen = {pages - 1, *order[: num_top_pages - 1]}
            keys = np.array([t for t in range(n) if t // 4 in chosen], int)
            at = table[b, keys // 4], keys % 4, kv_head
            heads = slice(2 * kv_head, 2 * kv_head + 2)
            k_own, v_own = (np.repeat(x[at][None, :, None], 2, axis=2) for x in (k, v))
            want, _ = reference.attention(q[b : b + 1, :, heads], k_own, v_own)
            np.testing.assert_allclose(out[b : b + 1, :, heads], want, atol=1e-5)


def test_a_large_key_is_found(rng):
    """One page has the key that a row needs: it is among the first two."""
    q, (k, v), _, (table, lengths) = problem(rng, 4, lengths=(64,))
    k[table[0, 5], 2, 0] = 20 * q[0, 0, 0] / np.linalg.norm(q[0, 0, 0])
    bounds = bounds_of(k, table, lengths)
    few, _ = topk_decode(q, k, v, *bounds, table, lengths, 2)
    every, _ = fa_numba.paged_attn_decode(q, k, v, table, lengths)
    assert np.abs(few - every)[0, 0, 0].max() < 1e-3


def kernels(dtype):
    """The kernels, and arguments for rows of 64 numbers."""
    k, one, slots = np.zeros((1, 1, 64), dtype), np.int32(4), np.zeros(1, np.int32)
    table, scores = slots[None], np.zeros((1, 1, 1), np.float32)
    of_scores = make_page_scores(64, 16 // k.itemsize, True)
    return {
        "bounds": (page_bounds_kernel, (k, k, k, slots, one)),
        "scores": (of_scores, (k[0], k[0], k[0], table, slots, scores, one, one)),
        "choice": (top_pages_kernel, (scores, table, slots, table, slots, one, one)),
    }


@pytest.mark.parametrize(
    "name, dtype",
    [("bounds", "bfloat16"), ("scores", "float16"), ("scores", "float32"), ("choice", "float32")],
)
@pytest.mark.skipif(not compiler_available(), reason="needs NVVM and NVRTC")
def test_the_kernels_stay_within_their_budgets(name, dtype):
    """Bounds are loaded 16 bytes at a time, those of 4 pages before any number is used."""
    kernel, args = kernels(dtype)[name]
    stated = re.search(r"budget +(\d+) registers, (\d+) bytes", kernel.py_func.__doc__)
    registers, shared_bytes = map(int, stated.groups())
    for code in compile_for(kernel, args, TARGETS):
        assert code.registers <= registers and code.shared_bytes <= shared_bytes
        assert code.spill_bytes == code.local_bytes == code.float64_instructions == 0
    opcodes = [] if name == "bounds" else [i.opcode for i in code.instructions]
    if name == "scores":
        at = [i for i, x in enumerate(opcodes) if x.startswith("LDG") and ".128" in x]
        assert len(at) == 9  # k_min and k_max of 4 pages, and q
        assert not any(x.startswith(("FFMA", "HADD2")) for x in opcodes[at[0] : at[7]])
    if name == "choice":  # one addition for the lanes of a warp that count one digit
        assert "ATOMS.POPC.INC.32" in opcodes and "ATOMS.ADD" not in opcodes


def test_bytes_of_the_bounds(rng):
    """A page's bounds are the bytes of two keys; each is read once for all heads of a group."""
    q, _, bounds, (table, lengths) = problem(rng, 4, 4, 2, 64, [4 * 128, 4 * 64, 0])
    with simt.tracing() as traces:
        page_scores(q, *bounds, table, lengths, 4)
    for name in ("k_min", "k_max"):
        assert traces[0].arrays[name].load_bytes == 4 * (128 + 64) * 2 * 64
    assert traces[0].arrays["scores"].stores == len(lengths) * 2 * table.shape[1]


def test_tokens_of_a_page_that_are_no_neighbours_are_refused(rng):
    k, bounds = random(rng, 3, 2, 8), [np.zeros((4, 2, 8), np.float32) for _ in range(2)]
    for slots, message in (
        ([0, 4, 1], "got tokens of page 0 at 0 and again at 2"),
        ([0, 1, 16], r"slot_mapping\[2\] must be from -1 to 15, got 16"),
    ):
        with pytest.raises(ValueError, match=message):
            update_page_bounds(k, *bounds, np.array(slots, np.int32), 4)
