"""The paged cache over ranks, by heads and by tokens: one plan, caches of their own."""

import numpy as np
import pytest
from cases import assert_close, random

from fa_numba import PagePool, copy_pages, paged_attn_decode, reference, reshape_and_cache
from fa_numba.distributed import (
    RankLostError,
    context_parallel_decode,
    head_parallel_decode,
    local_seq_lens,
    local_slots,
    run_ranks,
)
from fa_numba.kv_cache import head_shard

HEADS, KV_HEADS, HEAD_DIM, PAGES = 4, 2, 4, 12
OPTIONS = {
    "causal": True,
    "window_size": (5, -1),
    "softcap": 1.5,
    "softmax_scale": 0.4,
    "alibi_slopes": np.float32([0.5, 0.25, 0.125, 0.0625]),
}


class Cache:
    """One rank's cache, or that of a single device: it follows the plan's writes."""

    def __init__(self, page_size, num_kv_heads=KV_HEADS):
        shape = PAGES, page_size, num_kv_heads, HEAD_DIM
        self.arrays = [np.full(shape, np.nan, np.float32) for _ in "kv"]

    def follow(self, k, v, writes, slots):
        copy_pages(*self.arrays, writes.src, writes.dst)
        reshape_and_cache(k, v, *self.arrays, slots)


def serve(rng, pool, caches, view):
    """Prompts, a fork, and new tokens on either side of it; `view` is a rank's part of a write."""
    keys = {}

    def carry_out(writes):
        k, v = (random(rng, len(writes.slot_mapping), KV_HEADS, HEAD_DIM) for _ in "kv")
        for rank, cache in enumerate(caches):
            cache.follow(*view(rank, k, v), writes, view.slots(rank, writes.slot_mapping))
        return k, v

    def new(seq, writes, start=0):
        k, v = carry_out(writes)
        before = keys.get(seq, (k[:0], v[:0]))
        keys[seq] = tuple(
            np.concatenate([x[: start or None], y]) for x, y in zip(before, (k, v), strict=True)
        )

    first, writes = pool.allocate(range(9))
    new(first, writes)
    short, writes = pool.allocate([50])
    new(short, writes)
    second = pool.fork(first)
    keys[second] = keys[first]
    for seq in (first, second, short):
        new(seq, pool.append({seq: [seq + 70, seq + 80]}))
    return [first, second, short], keys


class ByHeads:
    def __init__(self, world_size):
        self.shards = [head_shard(HEADS, KV_HEADS, world_size, r) for r in range(world_size)]

    def __call__(self, rank, k, v):
        _, kv_heads = self.shards[rank]
        return k[:, kv_heads], v[:, kv_heads]

    def slots(self, rank, slots):
        return slots


class ByTokens:
    def __init__(self, world_size, page_size):
        self.world_size, self.page_size = world_size, page_size

    def __call__(self, rank, k, v):
        return k, v

    def slots(self, rank, slots):
        return local_slots(slots, self.page_size, self.world_size, rank)


def expected(q, seqs, keys, dtype, options):
    """Attention of each sequence's last token to its own keys."""
    states = [
        reference.attention(q[b : b + 1], *(x[None] for x in keys[seq]), dtype=dtype, **options)
        for b, seq in enumerate(seqs)
    ]
    return [np.concatenate(x) for x in zip(*states, strict=True)]


def check(results, q, seqs, keys, **options):
    want, plain = (expected(q, seqs, keys, t, options) for t in (np.float64, np.float32))
    for got in results:
        for name, *x in zip(("out", "lse"), got, want, plain, strict=True):
            assert_close(*x, name=name)
        for x, y in zip(got, results[0], strict=True):
            np.testing.assert_array_equal(x, y)  # the same bits on every rank


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("options", [{}, OPTIONS], ids=["", "options"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_by_heads(rng, world_size, options):
    pool, view = PagePool(PAGES, 4), ByHeads(world_size)
    caches = [Cache(4, kv.stop - kv.start) for _, kv in view.shards]
    seqs, keys = serve(rng, pool, caches, view)
    q, plan = random(rng, 3, 1, HEADS, HEAD_DIM), (pool.block_table(seqs), pool.seq_lens(seqs))

    def program(comm, cache):
        return head_parallel_decode(comm, q, *cache.arrays, *plan, num_kv_heads=KV_HEADS, **options)

    check(run_ranks(program, world_size, caches).results, q, seqs, keys, **options)


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("world_size, page_size", [(1, 4), (2, 2), (2, 4), (4, 1), (3, 2)])
def test_by_tokens(rng, world_size, page_size):
    pool, view = PagePool(PAGES, world_size * page_size), ByTokens(world_size, page_size)
    caches = [Cache(page_size) for _ in range(world_size)]
    seqs, keys = serve(rng, pool, caches, view)
    q, plan = random(rng, 3, 1, HEADS, HEAD_DIM), (pool.block_table(seqs), pool.seq_lens(seqs))

    def program(comm, cache):
        return context_parallel_decode(comm, q, *cache.arrays, *plan)

    check(run_ranks(program, world_size, caches).results, q, seqs, keys)


@pytest.mark.parametrize("world_size, page_size", [(1, 3), (2, 1), (3, 4)])
def test_every_token_has_one_owner(world_size, page_size):
    size = world_size * page_size
    slots = np.arange(5 * size)
    mine = [local_slots(slots, page_size, world_size, r) for r in range(world_size)]
    assert ((np.array(mine) >= 0).sum(axis=0) == 1).all()
    for of_rank in mine:
        assert sorted(of_rank[of_rank >= 0]) == list(range(5 * page_size))
    np.testing.assert_array_equal(local_slots([-1], page_size, world_size, 0), [-1])
    for n in range(5 * size):
        held = [(of_rank[:n] >= 0).sum() for of_rank in mine]
        lens = [local_seq_lens([n], page_size, world_size, r)[0] for r in range(world_size)]
        assert held == lens


def test_one_rank_by_tokens_is_one_device(rng):
    pool, cache = PagePool(PAGES, 4), Cache(4)
    seqs, _ = serve(rng, pool, [cache], ByTokens(1, 4))
    q, plan = random(rng, 3, 1, HEADS, HEAD_DIM), (pool.block_table(seqs), pool.seq_lens(seqs))
    run = run_ranks(
        context_parallel_decode, 1, [q], *([x] for x in cache.arrays), *([x] for x in plan)
    )
    _, lse = paged_attn_decode(q, *cache.arrays, *plan)
    np.testing.assert_array_equal(run.results[0][1], lse)
    assert run.bytes_sent.sum() == 0


def test_bad_inputs():
    q, cache = np.zeros((1, 2, 4, 4), np.float32), np.zeros((2, 4, 2, 4), np.float32)
    plan = np.zeros((1, 1), np.int32), np.ones(1, np.int32)
    with pytest.raises(RankLostError, match="q must have shape .*the query of the last token"):
        run_ranks(lambda comm: context_parallel_decode(comm, q, cache, cache, *plan), 2)
    with pytest.raises(RankLostError, match="k_cache must have 1 K/V heads on rank 0, .* got 2"):
        run_ranks(
            lambda comm: head_parallel_decode(comm, q, cache, cache, *plan, num_kv_heads=2), 2
        )
