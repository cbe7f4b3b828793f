"""kv_cache.head_shard: one pool plans for caches whose heads are on several devices."""

import numpy as np
import pytest
from cases import random

from fa_numba import PagePool, copy_pages, reshape_and_cache
from fa_numba.kernels.paged_attn_decode import paged_attn_decode
from fa_numba.kv_cache import head_shard

HEADS = [(4, 4), (8, 2), (6, 1), (12, 4)]
each_sharding = pytest.mark.parametrize(
    "num_heads, num_kv_heads, num_shards",
    [
        (h, n, shards)
        for h, n in HEADS
        for shards in range(1, h + 1)
        if h % shards == 0 and (n % shards == 0 or shards % n == 0)
    ],
)


@each_sharding
def test_every_head_is_somewhere_beside_its_keys(num_heads, num_kv_heads, num_shards):
    group_size, seen = num_heads // num_kv_heads, []
    for shard in range(num_shards):
        heads, kv_heads = head_shard(num_heads, num_kv_heads, num_shards, shard)
        mine = range(num_heads)[heads]
        assert {head // group_size for head in mine} == set(range(num_kv_heads)[kv_heads])
        seen += mine
    assert seen == list(range(num_heads))


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("num_heads, num_kv_heads, num_shards", [(4, 4, 2), (8, 2, 4), (6, 1, 3)])
def test_one_plan_serves_every_shard_bit_for_bit(rng, num_heads, num_kv_heads, num_shards):
    head_dim, page_size = 4, 4
    pool = PagePool(20, page_size)

    def new_caches(num_kv_heads):
        return [np.full((20, page_size, num_kv_heads, head_dim), np.nan, np.float32) for _ in "kv"]

    shards = [head_shard(num_heads, num_kv_heads, num_shards, s) for s in range(num_shards)]
    whole = new_caches(num_kv_heads)
    parts = [new_caches(kv.stop - kv.start) for _, kv in shards]

    def carry_out(writes):
        k, v = (random(rng, len(writes.slot_mapping), num_kv_heads, head_dim) for _ in range(2))
        copy_pages(*whole, writes.src, writes.dst)
        reshape_and_cache(k, v, *whole, writes.slot_mapping)
        for caches, (_, kv_heads) in zip(parts, shards, strict=True):
            copy_pages(*caches, writes.src, writes.dst)
            reshape_and_cache(k[:, kv_heads], v[:, kv_heads], *caches, writes.slot_mapping)

    first, writes = pool.allocate([1, 2, 3, 4, 5, 6])
    carry_out(writes)
    second = pool.fork(first)
    carry_out(pool.append({first: [7], second: [8]}))  # the shared page is copied on every shard

    q = random(rng, 2, 1, num_heads, head_dim)
    tables = pool.block_table([first, second]), pool.seq_lens([first, second])
    out, lse = paged_attn_decode(q, *whole, *tables, num_splits=1)
    got = [
        paged_attn_decode(q[:, :, heads], *caches, *tables, num_splits=1)
        for caches, (heads, _) in zip(parts, shards, strict=True)
    ]
    np.testing.assert_array_equal(np.concatenate([x for x, _ in got], axis=2), out)
    np.testing.assert_array_equal(np.concatenate([x for _, x in got], axis=1), lse)


@pytest.mark.parametrize(
    "sizes, error, message",
    [
        ((6, 4, 1, 0), ValueError, "num_heads must be a multiple of num_kv_heads, got 6 and 4"),
        ((8, 2, 3, 0), ValueError, "num_shards must divide num_heads, got 3 for 8 heads"),
        ((6, 3, 2, 0), ValueError, "num_shards must divide num_kv_heads or be a multiple of it, "
                                   "got 2 for 3 heads"),
        ((8, 2, 2, 2), ValueError, "shard must be from 0 to 1, got 2"),
        ((8, 2, 2, -1), ValueError, "shard must be at least 0, got -1"),
        ((8, 2, 0, 0), ValueError, "num_shards must be at least 1, got 0"),
        ((8, 2.0, 1, 0), TypeError, "num_kv_heads must be an integer, got 2.0"),
    ],
)  # fmt: skip
def test_bad_inputs(sizes, error, message):
    with pytest.raises(error) as raised:
        head_shard(*sizes)
    assert str(raised.value) == message
