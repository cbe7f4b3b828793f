"""paged_attn_decode on the CPU engine, every access checked.

A cache of pages has NaN in every slot that no sequence owns, and −1 or worse past the last page of
each: a wrong page or a wrong slot cannot give a right answer.
"""

import numpy as np
import pytest
from cases import (
    LENGTHS,
    MASKS,
    TILES,
    TWO_HEAD_DIMS,
    WIDE_HEAD_DIMS,
    assert_defined,
    assert_equal,
    each_mask,
    each_option,
    make_paged_cache,
    mask_options,
    random,
    split_options,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_numba import flash_attn_v2, paged_kv_lookup, reference, simt
from fa_numba.kernels.flash_decode import flash_decode
from fa_numba.kernels.paged_attn_decode import paged_attn_decode
from fa_numba.kv_cache import PagePool, copy_pages, reshape_and_cache

pytestmark = pytest.mark.usefixtures("checked")

PAGE_SIZES = [1, 2, 3, 8, 16, 41]  # smaller than a tile, across its border, larger than all
each_page_size = pytest.mark.parametrize("page_size", PAGE_SIZES)


def make_case(rng, seqlen_q, num_heads, num_kv_heads, *head_dims, page_size=5, seq_lens=LENGTHS):
    q = random(rng, len(seq_lens), seqlen_q, num_heads, head_dims[0])
    return q, *make_paged_cache(rng, seq_lens, page_size, num_kv_heads, *head_dims)


def check(arrays, **options):
    """Compare paged_attn_decode with the definition; its inputs must not change."""
    before = [x.copy() for x in arrays]
    out, lse = paged_attn_decode(*arrays, **options)
    assert_equal(arrays, before)
    options, _ = split_options(options)
    assert_defined((out, lse), reference.paged_attention, *arrays, **options)
    return out, lse


@each_mask
@each_page_size
def test_pages_change_nothing_not_a_bit(rng, page_size, causal):
    q, *cache = make_case(rng, 3, 4, 2, 8, page_size=page_size)
    options = {"causal": causal, "num_splits": 3, "block_m": 8, "block_n": 4}
    paged = paged_attn_decode(q, *cache, **options)
    dense = flash_decode(q, *paged_kv_lookup(*cache), cache[-1], **options)
    assert_equal(paged, dense)


@pytest.mark.parametrize(
    "head_dims", [(1,), (59,), (111,), (256,), *TWO_HEAD_DIMS, *WIDE_HEAD_DIMS], ids=str
)
def test_chosen_tiles_and_splits(rng, head_dims):
    check(make_case(rng, 1, 4, 2, *head_dims, page_size=16, seq_lens=[70, 1, 33]))


@pytest.mark.parametrize("softmax_scale", [0, -0.7, 2.5])
def test_softmax_scale(rng, softmax_scale):
    check(make_case(rng, 1, 2, 1, 8, seq_lens=[9]), softmax_scale=softmax_scale)


@pytest.mark.parametrize(
    "seq_lens, seqlen_q", [([], 1), ([0], 1), ([0, 0], 2), ([5], 0), ([2, 4], 9)]
)
def test_nothing_to_see(rng, seq_lens, seqlen_q):
    out, lse = check(make_case(rng, seqlen_q, 2, 1, 8, seq_lens=seq_lens), causal=True)
    unseen = np.isneginf(lse).mT
    assert (out[unseen] == 0).all()
    assert unseen.sum() == 2 * sum(max(0, seqlen_q - n) for n in seq_lens)


def test_sequences_may_share_pages(rng):
    q, k_cache, v_cache, block_table, seq_lens = make_case(
        rng, 2, 2, 1, 8, page_size=4, seq_lens=[12, 11]
    )
    block_table[1, :2] = block_table[0, :2]
    check((q, k_cache, v_cache, block_table, seq_lens), causal=True, num_splits=2, block_n=8)


@pytest.mark.parametrize("poison", [-1, -(2**31), 2**31 - 1])
def test_the_block_table_is_not_read_past_the_last_page(rng, poison):
    arrays = make_case(rng, 1, 2, 1, 8, page_size=4, seq_lens=[12, 3, 0])
    block_table = arrays[3]
    block_table[block_table == -1] = poison
    assert (block_table == poison).sum() == 1 + 3 + 4
    check(arrays, num_splits=2, block_m=4, block_n=8)


def test_where_the_pages_are_does_not_change_a_bit(rng):
    q, k_cache, v_cache, block_table, seq_lens = make_case(rng, 2, 4, 2, 8)
    first = paged_attn_decode(q, k_cache, v_cache, block_table, seq_lens, num_splits=2)
    shuffle = rng.permutation(len(k_cache))
    moved = [np.empty_like(x) for x in (k_cache, v_cache)]
    for x, y in zip(moved, (k_cache, v_cache), strict=True):
        x[shuffle] = y
    block_table = np.where(block_table >= 0, shuffle[block_table], -1).astype(np.int32)
    again = paged_attn_decode(q, *moved, block_table, seq_lens, num_splits=2)
    assert_equal(first, again)


@pytest.mark.parametrize("num_heads", [1, 2, 8])
def test_the_heads_of_a_group_share_one_read_of_the_cache(rng, num_heads):
    arrays = make_case(rng, 1, num_heads, 1, 16, seq_lens=[64])
    with simt.tracing() as traces:
        paged_attn_decode(*arrays, num_splits=4)
    for cache in ("k_cache", "v_cache"):
        assert traces[0].arrays[cache].loads == 64 * 16  # each number once, however many heads


# --- windows, softcap, ALiBi ------------------------------------------------------------------


@each_option
@pytest.mark.parametrize("page_size", [1, 7, 16])
@pytest.mark.few(lambda page_size, mask: [page_size, mask])
def test_pages_change_not_a_bit_of_a_mask(rng, page_size, mask):
    q, *cache = make_case(rng, 3, 4, 2, 8, page_size=page_size)
    options = {**mask_options(mask, 4), "num_splits": 3, "block_m": 8, "block_n": 4}
    paged = paged_attn_decode(q, *cache, **options)
    dense = flash_decode(q, *paged_kv_lookup(*cache), cache[-1], **options)
    assert_equal(paged, dense)


@pytest.mark.parametrize("page_size", [1, 7, 16])
@pytest.mark.parametrize("num_splits", [1, 2, 5])
def test_pages_left_of_a_window_are_not_looked_at(rng, page_size, num_splits):
    """The query at key 60 sees 45 to 60: with tiles of 8 that is the tiles from 40 on."""
    q, k_cache, v_cache, block_table, seq_lens = make_case(
        rng, 1, 2, 1, 4, page_size=page_size, seq_lens=[61]
    )
    unseen = block_table[0, : 40 // page_size]
    k_cache[unseen] = v_cache[unseen] = np.nan
    options = {"window_size": (15, -1), "num_splits": num_splits, "block_m": 2, "block_n": 8}
    with simt.tracing() as traces:
        out, lse = paged_attn_decode(q, k_cache, v_cache, block_table, seq_lens, **options)
    assert np.isfinite(out).all() and np.isfinite(lse).all()
    loads = {name: counts.loads for name, counts in traces[0].arrays.items()}
    assert loads["k_cache"] == loads["v_cache"] == (61 - 40) * 4
    assert loads["block_table"] == (61 - 40) * 8


@pytest.mark.parametrize("num_splits", [1, 3])
def test_each_tile_of_queries_loads_a_window_of_its_own(rng, num_splits):
    """Tiles of 8 queries of 2 heads, and a window of 8: its own tile of keys and the one before."""
    arrays = make_case(rng, 64, 2, 1, 4, page_size=7, seq_lens=[64])
    options = {"window_size": (8, 0), "num_splits": num_splits, "block_m": 16, "block_n": 8}
    with simt.tracing() as traces:
        paged_attn_decode(*arrays, **options)
    for cache in ("k_cache", "v_cache"):
        assert traces[0].arrays[cache].loads == (1 + 7 * 2) * 8 * 4


def test_no_more_splits_than_a_window_has_tiles():
    q = np.zeros((1, 1, 8, 64), np.float32)
    cache = np.broadcast_to(np.zeros(64, np.float32), (7, 16, 2, 64))
    tables = np.full((1, 10_000), -1, np.int32), np.zeros(1, np.int32)
    with simt.tracing() as traces:
        for window_size in ((0, 0), (64, -1), (1000, 0), (-1, 5)):
            paged_attn_decode(q, cache, cache, *tables, window_size=window_size)
    assert [trace.grid[0] for trace in traces[::2]] == [1, 2, 17, 80]


def test_zero_splits_are_chosen_by_the_room_in_the_block_table():
    q = np.zeros((1, 1, 8, 64), np.float32)
    cache = np.broadcast_to(np.zeros(64, np.float32), (7, 16, 2, 64))
    with simt.tracing() as traces:
        for max_pages in (0, 4, 5, 10_000):
            block_table = np.full((1, max_pages), -1, np.int32)
            paged_attn_decode(q, cache, cache, block_table, np.zeros(1, np.int32))
    assert [trace.grid[0] for trace in traces[::2]] == [1, 1, 2, 80]


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("size", [1, 2, 7, 16, 40])
@pytest.mark.few(lambda size, num_splits: [size, num_splits])
def test_a_prompt_in_parts_equals_the_whole_prompt(rng, size, num_splits):
    q, *cache, _ = make_case(rng, 40, 4, 2, 8, seq_lens=[40])
    options = {"causal": True, "block_m": 8, "block_n": 8}
    outs, lses = [], []
    for start in range(0, 40, size):
        end = min(start + size, 40)
        seq_lens = np.array([end], np.int32)  # the cache has the tokens up to the last of the part
        part = q[:, start:end]
        out, lse = paged_attn_decode(part, *cache, seq_lens, num_splits=num_splits, **options)
        outs.append(out)
        lses.append(lse)
    out, lse = np.concatenate(outs, axis=1), np.concatenate(lses, axis=2)
    seq_lens = np.array([40], np.int32)
    assert_defined((out, lse), reference.paged_attention, q, *cache, seq_lens, causal=True)
    if num_splits == 1:  # the same tiles of keys in the same order
        k, v = paged_kv_lookup(*cache, seq_lens)
        assert_equal((out, lse), flash_attn_v2(q, k, v, **options))


def keys_of(tokens, num_kv_heads, head_dim):
    """Keys and values of a model: those of a token depend on all tokens before it."""
    kv = np.empty((2, len(tokens), num_kv_heads, head_dim), np.float32)
    for t in range(len(tokens)):
        rng = np.random.default_rng(tokens[: t + 1])
        kv[:, t] = rng.standard_normal((2, num_kv_heads, head_dim), dtype=np.float32)
    return kv


@pytest.mark.parametrize("page_size", [1, 3, 8])
def test_a_pool_serves_sequences_that_share_fork_and_leave(rng, page_size):
    """Prefix sharing, copy-on-write and pages used again: each sequence sees its own tokens."""
    pool, sizes = PagePool(100, page_size), (2, 4)
    k_cache, v_cache = (np.full((100, page_size, *sizes), np.nan, np.float32) for _ in range(2))
    prompt = [7, 7, 1, 0, 1, 1, 0, 1, 2]
    shared = copied = 0

    def write(writes, new):
        nonlocal shared, copied
        copied += len(writes.src)
        shared += (writes.slot_mapping < 0).sum()
        copy_pages(k_cache, v_cache, writes.src, writes.dst)
        k, v = np.concatenate(new, axis=1)
        reshape_and_cache(k, v, k_cache, v_cache, writes.slot_mapping)

    for _ in range(12):
        while len(pool.sequences) > 3:
            pool.free(rng.choice(pool.sequences))
        tokens = prompt[: rng.integers(1, 10)] + rng.integers(0, 2, 2).tolist()
        seq, writes = pool.allocate(tokens)
        write(writes, [keys_of(tokens, *sizes)])
        pool.fork(seq)
        tokens = {seq: rng.integers(0, 9, rng.integers(1, 4)).tolist() for seq in pool.sequences}
        before = {seq: pool.length(seq) for seq in tokens}
        writes = pool.append(tokens)
        write(writes, [keys_of(pool.tokens(seq), *sizes)[:, before[seq] :] for seq in tokens])

        seqs = rng.permutation(pool.sequences)
        q = random(rng, len(seqs), 2, 4, 4)
        tables = pool.block_table(seqs), pool.seq_lens(seqs)
        out, lse = paged_attn_decode(q, k_cache, v_cache, *tables, causal=True, num_splits=2)
        for b, seq in enumerate(seqs):
            one = (q[b : b + 1], *keys_of(pool.tokens(seq), *sizes)[:, None])
            assert_defined((out[b : b + 1], lse[b : b + 1]), reference.attention, *one, causal=True)
    assert shared > 0 and (copied > 0 or page_size == 1)


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 30), max_size=3),
    page_size=st.integers(1, 31),
    seqlen_q=st.integers(0, 6),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    head_dim=st.integers(1, 9),
    mask=st.sampled_from([{}, {"causal": True}, *MASKS.values()]),
    num_splits=st.integers(0, 6),
    tiles=st.sampled_from(TILES),
)
def test_any_problem(lengths, page_size, seqlen_q, heads, head_dim, mask, num_splits, tiles):
    rng = np.random.default_rng(0)
    arrays = make_case(rng, seqlen_q, *heads, head_dim, page_size=page_size, seq_lens=lengths)
    tiles = dict(zip(("block_m", "block_n"), tiles, strict=True))
    with simt.options(package=True):
        check(arrays, **mask_options(mask, heads[0]), num_splits=num_splits, **tiles)
